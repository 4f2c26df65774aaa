"""`hetplan timeline`: from every kind of result, to the terminal, to files and as JSON; refusals."""

import json
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from hetplan.report.schemas import json_schema
from tests.cli.runner import CLUSTER, Run, written


@pytest.fixture(scope="module")
def plan() -> dict[str, Any]:
    """A plan for the small model."""
    base = {"tp": 1, "dp": 1, "microbatch_size": 2, "recompute": {"none": 4}}
    stages = [
        {"group": "a100", "first_layer": 0, "layers": 4, **base},
        {"group": "a100", "first_layer": 4, "layers": 4, **base},
    ]
    return {"global_batch_size": 64, "num_microbatches": 32, "sequence_parallel": False, "stages": stages}


@pytest.fixture
def predicted(run: Run, model: Path, plan: dict[str, Any], tmp_path: Path) -> Path:
    """The result of `predict` for that plan."""
    path = tmp_path / "p.json"
    assert run("predict", CLUSTER, model, written(tmp_path / "plan.json", plan), "-o", path).code == 0
    return path


@pytest.fixture
def ranked(predicted: Path) -> dict[str, Any]:
    """A result of two plans, as `search` writes it, as far as `timeline` reads it."""
    record = json.loads(predicted.read_text("utf-8"))
    first = {key: record[key] for key in ("plan", "prediction", "idle", "warnings")}
    second = json.loads(json.dumps(first))
    second["plan"] |= {"num_microbatches": 16}
    for stage in second["plan"]["stages"]:
        stage["microbatch_size"] = 4
    plans = [{"rank": rank, **entry} for rank, entry in enumerate((first, second), 1)]
    return {"schema_version": 1, "command": "search", "status": "optimal", "inputs": record["inputs"], "plans": plans}


def test_in_the_terminal(run: Run, predicted: Path) -> None:
    """A row for each stage, the times below; nothing on stderr."""
    done = run("timeline", predicted)
    assert (done.code, done.err) == (0, "")
    lines = done.out.splitlines()
    assert lines[0].startswith("Plan   1f1b · 2 stages · 32 micro-batches · ")
    assert [line.split()[:3] for line in lines[3:5]] == [["S0", "a100", "4"], ["S1", "a100", "4"]]
    assert "░░ forward" in done.out


def test_the_time_is_the_prediction(run: Run, predicted: Path) -> None:
    """The record follows its schema; its time and seconds by stage are those of the prediction."""
    record = run("timeline", predicted, "--json").record
    Draft202012Validator(json_schema("timeline")).validate(record)
    known = json.loads(predicted.read_text("utf-8"))["prediction"]
    assert record["iteration_time_s"] == pytest.approx(known["iteration_time_s"], rel=1e-12)
    assert record["rank"] is None
    for stage, other in zip(record["stages"], known["stages"], strict=True):
        assert stage["forward_s"] == pytest.approx(other["forward_s"])
        assert stage["recompute_s"] == pytest.approx(other["recompute_s"])
        assert stage["backward_s"] + stage["recompute_s"] == pytest.approx(other["backward_s"])
        assert stage["gradient_sync_s"] == pytest.approx(other["gradient_sync_s"], abs=1e-12)
        assert stage["idle_s"] == pytest.approx(other["idle_s"], abs=1e-12)
    columns = record["events"]
    assert columns["kind"].count("forward") == columns["kind"].count("backward") == 64
    assert max(columns["end_s"]) < record["iteration_time_s"]


def test_ranks(run: Run, ranked: dict[str, Any]) -> None:
    """--rank takes a plan of a search's result, from stdin too; one that it has not is refused."""
    text = json.dumps(ranked)
    assert run("timeline", "-", stdin=text).out.startswith("Plan 1 ")
    done = run("timeline", "-", "--rank", 2, "--json", stdin=text)
    assert (done.record["rank"], done.record["plan"]["num_microbatches"]) == (2, 16)
    done = run("timeline", "-", "--rank", 3, "--json", stdin=text)
    assert (done.code, done.error["message"]) == (2, "there is no plan of rank 3")


def test_html(run: Run, predicted: Path, tmp_path: Path) -> None:
    """-o with .html writes the page, and prints nothing."""
    path = tmp_path / "t.html"
    done = run("timeline", predicted, "-o", path)
    assert (done.code, done.out, done.err) == (0, "", "")
    text = path.read_text("utf-8")
    assert text.startswith("<!doctype html>")
    assert "<h1>small on tiny-16</h1>" in text


def test_svg_and_trace(run: Run, predicted: Path, tmp_path: Path) -> None:
    """-o with .svg and .json, in capitals too; --json prints the record besides."""
    path = tmp_path / "t.SVG"
    done = run("timeline", predicted, "-o", path, "--json")
    assert done.record["command"] == "timeline"
    assert ET.fromstring(path.read_text("utf-8")).tag.endswith("svg")
    path = tmp_path / "t.json"
    assert run("timeline", predicted, "-o", path).code == 0
    assert json.loads(path.read_text("utf-8"))["traceEvents"]


def test_same_bytes_every_time(run: Run, predicted: Path, tmp_path: Path) -> None:
    """The same result gives the same files."""
    for suffix in ("html", "svg", "json"):
        first, second = tmp_path / f"a.{suffix}", tmp_path / f"b.{suffix}"
        for path in (first, second):
            assert run("timeline", predicted, "-o", path).code == 0
        assert first.read_bytes() == second.read_bytes()


@pytest.mark.parametrize(("name", "said"), [("t.png", '".png" names no picture'), ("t", "has no suffix")])
def test_unknown_pictures(run: Run, predicted: Path, tmp_path: Path, name: str, said: str) -> None:
    """Another suffix is refused before anything is read, with those that there are."""
    done = run("timeline", predicted, "--json", "-o", tmp_path / name)
    assert done.code == 2
    assert len(done.record["errors"]) == 1
    assert said in done.error["message"]
    assert done.error["key"] == "--output"
    assert ".html, .svg or .json" in done.error["hint"]
    assert not (tmp_path / name).exists()


def test_pictures_that_cannot_be_written(run: Run, predicted: Path, tmp_path: Path) -> None:
    """A missing folder: exit 2, and no part of a file."""
    done = run("timeline", predicted, "-o", tmp_path / "none" / "t.html")
    assert (done.code, done.out) == (2, "")
    assert "no such directory" in done.err
    assert not (tmp_path / "none").exists()


def test_dash_is_the_record(run: Run, predicted: Path) -> None:
    """-o - prints the record, as with other commands."""
    assert run("timeline", predicted, "-o", "-").record["command"] == "timeline"


def test_bare_plan(run: Run, plan: dict[str, Any], tmp_path: Path) -> None:
    """A plan by itself has no cluster and no model: the command that adds them is named."""
    done = run("timeline", written(tmp_path / "plan.json", plan), "--json")
    assert done.code == 2
    assert "without the cluster and the model" in done.error["message"]
    assert "hetplan predict CLUSTER MODEL PLAN" in done.error["hint"]


def test_plan_of_other_inputs(run: Run, predicted: Path) -> None:
    """A plan that does not belong to its inputs: exit 2 with the file and the key."""
    record = json.loads(predicted.read_text("utf-8"))
    record["plan"]["stages"][0]["group"] = "none"
    done = run("timeline", "-", "--json", stdin=json.dumps(record))
    assert (done.code, done.error["file"]) == (2, "<stdin>")
    assert done.error["message"].startswith('no group "none"')


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("{", "is not JSON"),
        ('{"schema_version": 1, "command": "compare"}', "is what hetplan compare printed"),
        ('{"schema_version": 1, "command": "search", "status": "infeasible", "plans": []}', "holds no plan"),
    ],
)
def test_bad_results(run: Run, text: str, message: str) -> None:
    """What is no result is refused with what it is."""
    done = run("timeline", "-", "--json", stdin=text)
    assert done.code == 2
    assert message in done.error["message"]


def test_a_plan_that_does_not_fit_is_drawn(run: Run, predicted: Path) -> None:
    """With a warning on stderr."""
    record = json.loads(predicted.read_text("utf-8"))
    for group in record["inputs"]["cluster"]["groups"]:
        group["usable_memory_bytes"] = 1e8
    done = run("timeline", "-", stdin=json.dumps(record))
    assert done.code == 0
    assert "! the plan does not fit: stage 0 on a100 needs more memory than it has" in done.err
