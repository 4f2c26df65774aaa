"""The JSON records: bytes, round trips, schemas, and what is said of bad ones."""

import copy
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetplan.errors import Mistake, SpecError
from hetplan.report.build import digest, error_record, search_record, to_json
from hetplan.report.compare import compare_record
from hetplan.report.reading import read_plan, read_record
from hetplan.report.records import Record, ResultRecord
from hetplan.report.schemas import SCHEMA_KINDS, SchemaKind, json_schema
from hetplan.report.search_screen import search_screen
from hetplan.report.show import accelerators_record, schedules_record
from hetplan.specs.loader import parse_document
from tests.report import samples
from tests.report.screens import SHEETS, predicted

ROOT = Path(__file__).parent.parent.parent
RESULTS: dict[str, Callable[[], ResultRecord]] = {
    "optimal": samples.optimal,
    "feasible": samples.feasible,
    "many-stages": samples.many_stages,
    "schedules": samples.schedules,
    "infeasible": samples.infeasible,
    "unknown": samples.unknown,
}
KEYS = (
    "schema_version command status stopped_by objective bound inputs cluster model plans plain_1f1b infeasible "
    "single_types pruned warnings run"
)
PREDICTION_KEYS = (
    "iteration_time_s iteration_time_low_s iteration_time_high_s tokens_per_s mfu additive_ratio roofline_ratio "
    "best_single_type_ratio calibrated breakdown_s bottleneck stages"
)


def changed(record: ResultRecord, path: tuple[str | int, ...], value: object) -> str:
    """The record's text with one value replaced."""
    data = json.loads(to_json(record))
    place = data
    for part in path[:-1]:
        place = place[part]
    place[path[-1]] = value
    return json.dumps(data, indent=2)


@pytest.mark.parametrize("name", RESULTS)
def test_round_trip(name: str) -> None:
    """A record read back is the record, to the last bit, and prints the same bytes and the same screen."""
    record = RESULTS[name]()
    text = to_json(record)
    back = read_record(text)
    assert back == record
    assert to_json(back) == text
    shown = samples.stream(100)
    assert samples.plain(search_screen(back, shown)) == samples.plain(search_screen(record, shown))


@given(
    st.floats(1e-6, 1e6),
    st.floats(0, 1e15, allow_subnormal=False),
    st.text(max_size=20).filter(lambda text: not any("\ud800" <= c <= "\udfff" for c in text)),
)
def test_round_trip_of_any_number(time_s: float, used_bytes: float, warning: str) -> None:
    """Any finite float and any text survive."""
    plan = samples.plan([("a100", [3])], dp=2)
    best = samples.ranked(1, time_s, plan, warnings=(warning,), headroom=1 - used_bytes / 1e15)
    record = search_record(samples.result([best]), samples.inputs(samples.mixed_cluster()), samples.RUN)
    assert read_record(to_json(record)) == record


def test_keys_stand_in_the_order_of_the_contract() -> None:
    """Keys keep their names and their order; what varies by run comes last."""
    data = json.loads(to_json(samples.optimal()))
    assert list(data) == KEYS.split()
    assert list(data["plans"][0]) == ["rank", "plan", "prediction", "idle", "warnings"]
    assert list(data["plans"][0]["prediction"]) == PREDICTION_KEYS.split()
    assert list(data["inputs"]) == ["cluster", "model", "training", "stack", "options"]
    assert list(data["bound"]) == ["value", "unit", "iteration_time_s", "gap", "plan_space", "certified_by"]


def test_space_and_plain_1f1b() -> None:
    """The space is as it was searched, and the best plan under plain 1F1B is compared with plan 1."""
    record = samples.schedules()
    space = record.bound.plan_space
    assert (space.name, space.schedules) == ("per-group", ("1f1b", "gpipe", "interleaved-1f1b", "zb-v"))
    assert (space.max_virtual_stages, space.max_warmup) == (8, 2)
    plain = record.plain_1f1b
    assert plain is not None
    assert plain.longer == pytest.approx(38.4 / 32.0 - 1)
    assert (plain.iteration_time_s, plain.gap) == (38.4, 0.0)
    assert plain.plan.schedule.warmup is None
    assert samples.optimal().plain_1f1b is None


def test_text_is_plain() -> None:
    """ASCII, two spaces, one newline at the end, no number that JSON has not."""
    text = to_json(samples.optimal())
    assert text.isascii()
    assert text.endswith("}\n")
    assert '\n  "status"' in text
    json.loads(text, parse_constant=pytest.fail)


def test_only_run_varies() -> None:
    """Another run of the same search changes nothing but `run`."""
    once, again = samples.optimal(), samples.optimal()
    again = again.model_copy(update={"run": samples.RUN.model_copy(update={"elapsed_s": 9.0})})
    a, b = json.loads(to_json(once)), json.loads(to_json(again))
    assert a.pop("run") != b.pop("run")
    assert a == b


def test_same_bytes_for_any_hash_seed() -> None:
    """Another process with another hash seed writes the same bytes."""
    code = (
        "from hetplan.report.build import to_json; from tests.report import samples; print(to_json(samples.optimal()))"
    )
    outputs = set()
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)}
        run = subprocess.run(
            [sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, check=True, timeout=60
        )
        outputs.add(run.stdout)
    assert len(outputs) == 1


def test_what_has_no_number_is_null() -> None:
    """No plan: no bound, no gap; a search that stopped early keeps its bound."""
    infeasible = samples.infeasible()
    assert infeasible.bound.value is None
    assert infeasible.bound.gap is None
    unknown = samples.unknown()
    assert unknown.bound.iteration_time_s == 26.04
    assert unknown.bound.gap is None
    bound = samples.optimal().bound
    assert bound.value == pytest.approx(1536 * 4096 / 31.78)


def test_memory_is_the_sum_of_its_terms() -> None:
    """Whole bytes, and the total is what the terms say."""
    for entry in samples.optimal().plans:
        for stage in entry.prediction.stages:
            assert stage.memory_bytes == sum(stage.memory.model_dump().values())


def test_digests_follow_the_specs() -> None:
    """Same spec, same digest; any change is another."""
    assert digest(samples.mixed_cluster()) == digest(samples.mixed_cluster())
    assert digest(samples.mixed_cluster()) != digest(samples.mixed_cluster("99 Gbit/s"))
    assert samples.optimal().cluster.digest.startswith("sha256:")
    assert len(samples.optimal().cluster.digest) == 7 + 64


PRINTED: list[tuple[SchemaKind, Callable[[], Record]]] = [
    *(("result", make) for make in RESULTS.values()),
    ("predict", predicted),
    ("compare", lambda: compare_record(samples.optimal(), samples.many_stages())),
    ("compare", lambda: compare_record(samples.optimal(), samples.infeasible())),
    ("show", lambda: accelerators_record(SHEETS)),
    ("show", schedules_record),
    ("error", lambda: error_record("search", Mistake(kind="value", message="wrong", file="a.yaml", line=3))),
]


@pytest.mark.parametrize("number", range(len(PRINTED)))
def test_records_follow_their_schemas(number: int) -> None:
    """What is printed is valid by the schema that `hetplan schema` prints; an unknown key is not."""
    kind, make = PRINTED[number]
    data = json.loads(to_json(make()))
    validator = jsonschema.Draft202012Validator(json_schema(kind))
    validator.validate(data)
    data["nonsense"] = 1
    assert not validator.is_valid(data)


@pytest.mark.parametrize("kind", SCHEMA_KINDS)
def test_schemas_are_schemas(kind: SchemaKind) -> None:
    """Draft 2020-12, titled, every property described, no title that only repeats a name."""
    schema = json_schema(kind)
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["$schema"].endswith("2020-12/schema")
    assert schema["title"].startswith("hetplan ")
    for part in (schema, *schema.get("$defs", {}).values()):
        for name, field in part.get("properties", {}).items():
            assert field.get("description"), f"{kind}: {name}"
            assert "title" not in field


@pytest.mark.parametrize("path", sorted((ROOT / "clusters").glob("*.yaml")), ids=lambda path: path.stem)
def test_example_clusters_follow_the_schema(path: Path) -> None:
    """Editors accept the example clusters, and refuse one with a misspelt key."""
    data = json.loads(json.dumps(parse_document(path.read_text(encoding="utf-8"), str(path)).data))
    validator = jsonschema.Draft202012Validator(json_schema("cluster"))
    validator.validate(data)
    data["groups"][0]["node"] = data["groups"][0].pop("nodes")
    assert not validator.is_valid(data)


@pytest.mark.parametrize("path", sorted((ROOT / "models").glob("*.yaml")), ids=lambda path: path.stem)
def test_example_models_follow_the_schema(path: Path) -> None:
    """Editors accept the example models."""
    data = json.loads(json.dumps(parse_document(path.read_text(encoding="utf-8"), str(path)).data))
    jsonschema.Draft202012Validator(json_schema("model")).validate(data)


def only_mistake(read: Callable[[], object]) -> Mistake:
    """The one mistake that reading finds."""
    with pytest.raises(SpecError) as caught:
        read()
    assert len(caught.value.mistakes) == 1
    return caught.value.mistakes[0]


@pytest.mark.parametrize(
    ("text", "message", "line", "column"),
    [
        ('{\n  "plans": [,]\n}', "expecting value", 2, 13),
        ('{"plans": [}', "expecting value", 1, 12),
        ("{", "expecting property name", 1, 2),
        ("", "is empty", None, None),
        ("[]", "is not a JSON object", None, None),
        ('{"a": NaN}', "NaN is not a number", None, None),
        ('{"a": 1, "a": 2}', "given twice", None, None),
        ('{"a": ' * 100_000, "nested too deeply", None, None),
        ('{"a": 1' + "0" * 5000 + "}", "too long", None, None),
        ('{"a": 1}', "is not the result of a search", None, None),
        ('{"command": "predict"}', "is what hetplan predict printed", None, None),
        ('{"errors": [{"message": "no such file"}]}', "holds an error, not a result: no such file", None, None),
    ],
)
def test_what_is_no_record(text: str, message: str, line: int | None, column: int | None) -> None:
    """Each says what it is, with the position where JSON breaks."""
    mistake = only_mistake(lambda: read_record(text, "r.json"))
    assert message in mistake.message
    assert (mistake.file, mistake.line, mistake.column) == ("r.json", line, column)


@pytest.mark.parametrize(
    ("path", "value", "key"),
    [
        (("plans", 0, "plan", "stages", 1, "tp"), "4", "plans[0].plan.stages[1].tp"),
        (("plans", 0, "prediction", "mfu"), None, "plans[0].prediction.mfu"),
        (("status",), "best", "status"),
        (("inputs", "cluster", "groups", 0, "nodes"), 0, "inputs.cluster.groups[0].nodes"),
        (("inputs", "cluster", "links", 0, "bandwidth_bytes_per_s"), "1 GB/s", "inputs.cluster.links[0].bandwidth"),
        (("run", "elapsed"), 1, "run.elapsed"),
    ],
)
def test_wrong_values_have_a_place(path: tuple[str | int, ...], value: object, key: str) -> None:
    """A wrong value is named by its key path, and by its line in the file."""
    text = changed(samples.optimal(), path, value)
    mistake = only_mistake(lambda: read_record(text, "r.json"))
    assert mistake.key is not None
    assert mistake.key.startswith(key)
    assert mistake.line is not None
    written = f'"{path[-1]}"'
    assert written in text.splitlines()[mistake.line - 1]


def test_many_mistakes_are_counted() -> None:
    """The first 20 are told, the rest is counted."""
    data = json.loads(to_json(samples.optimal()))
    for entry in data["plans"]:
        for stage in entry["plan"]["stages"]:
            stage["tp"] = 0
    with pytest.raises(SpecError) as caught:
        read_record(json.dumps(data))
    assert len(caught.value.mistakes) == 21
    assert "more like these" in caught.value.mistakes[-1].message


def test_other_versions_are_refused() -> None:
    """A record of a later layout is not read by guesswork."""
    text = changed(samples.optimal(), ("schema_version",), 2)
    assert "schema_version" in only_mistake(lambda: read_record(text)).message
    assert "schema_version" in only_mistake(lambda: read_plan(text)).message


def test_plans_are_read_from_anything_that_holds_one() -> None:
    """A result by rank, a prediction, a bare plan in JSON or in YAML."""
    record = samples.optimal()
    text = to_json(record)
    for entry in record.plans:
        assert read_plan(text, entry.rank) == entry.plan
    plan = record.plans[0].plan
    assert read_plan(to_json(predicted())) == plan
    assert read_plan(plan.model_dump_json()) == plan
    assert read_plan("\ufeff" + plan.model_dump_json(indent=1)) == plan
    written = "global_batch_size: 8\nnum_microbatches: 4\nstages:\n"
    written += "  - {group: a, first_layer: 0, layers: 2, recompute: {none: 2}}\n"
    assert read_plan(written).stages[0].group == "a"


@pytest.mark.parametrize(
    ("text", "rank", "message"),
    [
        (to_json(samples.optimal()), 6, "no plan of rank 6"),
        (to_json(samples.optimal()), 0, "no plan of rank 0"),
        (to_json(samples.infeasible()), 1, 'the search ended "infeasible"'),
        (to_json(samples.unknown()), 1, 'the search ended "unknown"'),
        (samples.optimal().plans[0].plan.model_dump_json(), 2, "this holds one plan"),
        ('{"plans": 3}', 1, "plans is not a list"),
        ('{"plans": [{"rank": 1}]}', 1, "has no plan"),
        ('{"name": "x"}', 1, "is not the result of a search"),
        ("name: x", 1, "is neither a result nor a plan"),
    ],
)
def test_what_holds_no_such_plan(text: str, rank: int, message: str) -> None:
    """A wrong rank and a wrong file are told apart, and a hint is given."""
    mistake = only_mistake(lambda: read_plan(text, rank))
    assert message in mistake.message
    assert mistake.hint or mistake.key


def test_a_bad_plan_in_a_good_record_has_its_path() -> None:
    """Only the plan asked for is checked, and its key path is the record's."""
    text = changed(samples.optimal(), ("plans", 1, "plan", "stages", 0, "layers"), -3)
    assert read_plan(text, 1) == samples.optimal().plans[0].plan
    mistake = only_mistake(lambda: read_plan(text, 2))
    assert mistake.key == "plans[1].plan.stages[0].layers"
    assert mistake.line is not None


LEAVES = st.sampled_from([None, True, -1, 0, 1e300, "x", [], {}, "\u0000", [1], {"a": 1}])


def _paths(value: Any, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(p for key, item in items for p in _paths(item, (*path, key)))]


DATA = json.loads(to_json(samples.optimal()))
PATHS = _paths(DATA)[1:]


@settings(max_examples=50)
@given(st.sampled_from(PATHS), LEAVES, st.booleans())
def test_damaged_records_never_crash(path: tuple[str | int, ...], value: object, remove: bool) -> None:
    """One value replaced or removed: read as a record, or refused with a message."""
    data = copy.deepcopy(DATA)
    place = data
    for part in path[:-1]:
        place = place[part]
    if remove and isinstance(place, dict):
        del place[path[-1]]
    else:
        place[path[-1]] = value
    text = json.dumps(data)
    for read in (read_record, read_plan):
        with suppress(SpecError):
            read(text)


@given(st.text(max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    """No text makes a traceback."""
    for read in (read_record, read_plan):
        with pytest.raises(SpecError):
            read(text)


def test_infinite_times_never_reach_a_record() -> None:
    """A bound of infinity becomes null; nothing else may be infinite."""
    assert "Infinity" not in to_json(samples.infeasible())
    broken = samples.ranked(1, math.inf, samples.plan([("a100", [3])], dp=2))
    with pytest.raises(ValueError, match="finite"):
        search_record(samples.result([broken]), samples.inputs(samples.mixed_cluster()), samples.RUN)
