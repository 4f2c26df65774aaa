"""`hetplan schema`: valid JSON Schemas that describe what is printed and written."""

import json
from pathlib import Path

import jsonschema
import pytest

from hetplan.report.schemas import SCHEMA_KINDS
from tests.cli.runner import CLUSTER, Run


@pytest.mark.parametrize("kind", SCHEMA_KINDS)
def test_schemas(run: Run, kind: str, tmp_path: Path) -> None:
    """Each is a schema of the draft it names, alike on stdout and in the file; --json adds what records have."""
    path = tmp_path / "schema.json"
    done = run("schema", kind, "-o", path)
    assert (done.code, done.err) == (0, "")
    plain = json.loads(done.out)
    jsonschema.Draft202012Validator.check_schema(plain)
    assert plain["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert path.read_text(encoding="utf-8") == done.out
    record = run("schema", kind, "--json").record
    assert record == {"schema_version": 1, "command": "schema", **plain}
    jsonschema.Draft202012Validator.check_schema(record)


def test_records_are_as_described(run: Run, model: Path, result: Path) -> None:
    """What the commands print fits the schemas that the program prints."""
    printed = {
        "result": run("search", CLUSTER, model, "--json", "--top", 1),
        "predict": run("predict", CLUSTER, model, result, "--json"),
        "compare": run("compare", result, result, "--json"),
        "show": run("show", "stacks", "--json"),
        "error": run("search", "none.yaml", "none.yaml", "--json"),
    }
    for kind, done in printed.items():
        jsonschema.validate(done.record, json.loads(run("schema", kind).out))


def test_unknown_kind(run: Run) -> None:
    """A kind that does not exist: exit 2 with the nearest."""
    done = run("schema", "clusters", "--json")
    assert (done.code, done.error["key"], done.error["hint"]) == (2, "KIND", "did you mean cluster?")
