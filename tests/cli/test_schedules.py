"""Every pipeline schedule through the commands: searched, predicted from its JSON, drawn; spaces and limits."""

import contextlib
import io
import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from hetplan.cli.app import main
from hetplan.cli.search_flags import SCHEDULE_NAMES
from hetplan.report.schemas import json_schema
from hetplan.schedule.schedules import schedule
from tests.cli.runner import CLUSTER, ROOT, Run, written
from tests.predict.builders import Split, plan_of

SLOW_LINK = """\
name: four
groups:
  - {name: h100, accelerator: h100-sxm5-80gb, nodes: 1, accelerators_per_node: 2, usable_memory: 3 GiB}
  - {name: a100, accelerator: a100-sxm4-80gb, nodes: 1, accelerators_per_node: 2, usable_memory: 3 GiB}
links:
  - {between: [h100, a100], bandwidth: 10 Gbit/s, latency: 20 us}
"""
"""Two small islands and a slow link: the small model needs both, or fills one."""
FEW = ("--global-batch-size", 16, "--max-stages", 2, "--max-microbatch-size", 2)
TP_1 = ("--max-tp", 1)


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The cluster with the slow link."""
    path = tmp_path_factory.mktemp("cluster") / "four.yaml"
    path.write_text(SLOW_LINK, encoding="utf-8")
    return path


def searched(cluster: Path, model: Path, path: Path, *options: object) -> dict[str, Any]:
    """The record of a search."""
    words = [str(word) for word in ("search", cluster, model, *FEW, "-o", path, *options)]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        assert main(words) == 0
    data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return data


@pytest.fixture(scope="module")
def uniform(four: Path, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All schedules in the uniform space."""
    path = tmp_path_factory.mktemp("uniform") / "r.json"
    searched(four, model, path, "--schedule", "all", *TP_1)
    return path


@pytest.fixture(scope="module")
def per_group(four: Path, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All schedules with degrees of each group's own."""
    path = tmp_path_factory.mktemp("per-group") / "r.json"
    searched(four, model, path, "--schedule", "all", "--space", "per-group", *TP_1)
    return path


def loaded(path: Path) -> dict[str, Any]:
    """A record."""
    data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return data


def written_plan(name: str) -> dict[str, Any]:
    """A plan of a schedule for the small model on the example cluster, as in a file."""
    runs = 2 if schedule(name).chunks(1) is None or name == "dualpipe" else 4
    splits = {"h100": Split(dp=2, microbatch_size=2, zero=1), "a100": Split(tp=2, dp=1, microbatch_size=4)}
    warmup = (2, 0) if name == "1f1b" else None
    layers = [8 // runs] * runs if name == "dualpipe" else [3, 5] if runs == 2 else [1, 3, 1, 3]
    plan = plan_of(name, layers, on=["h100", "a100"], num_microbatches=16, splits=splits, warmup=warmup)
    data: dict[str, Any] = plan.model_dump(mode="json")
    return data


@pytest.mark.parametrize("name", SCHEDULE_NAMES)
def test_what_is_searched_is_predicted(run: Run, four: Path, model: Path, tmp_path: Path, name: str) -> None:
    """`search --schedule X | predict` repeats every figure of a pipeline of that schedule, rank by rank."""
    record = searched(four, model, tmp_path / "r.json", "--schedule", name, "--top", 20)
    assert record["bound"]["plan_space"]["schedules"] == [name]
    assert record["inputs"]["options"]["schedules"] == [name]
    # A plan on one group needs no schedule and is always searched.
    lone = [entry for entry in record["plans"] if len(entry["plan"]["stages"]) == 1]
    piped = [entry for entry in record["plans"] if len(entry["plan"]["stages"]) > 1]
    assert {entry["plan"]["schedule"]["name"] for entry in lone} <= {"1f1b"}
    assert {entry["plan"]["schedule"]["name"] for entry in piped} == {name}
    best = piped[0]
    done = run("predict", four, model, tmp_path / "r.json", "--rank", best["rank"], "--json")
    assert done.code == 0
    for key in ("plan", "prediction", "idle", "warnings"):
        assert done.record[key] == best[key]


@pytest.mark.parametrize("name", SCHEDULE_NAMES)
def test_plans_from_files(run: Run, model: Path, tmp_path: Path, name: str) -> None:
    """A plan of each schedule, written by hand: predicted, predicted again from that, drawn with the same times."""
    plan = written_plan(name)
    Draft202012Validator(json_schema("plan")).validate(plan)
    path = written(tmp_path / "plan.json", plan)
    done = run("predict", CLUSTER, model, path, "--json")
    assert (done.code, done.err) == (0, "")
    first = done.record
    assert first["plan"] == plan
    assert {stage["verdict"] for stage in first["prediction"]["stages"]} == {"fits"}
    parts = first["prediction"]["breakdown_s"]
    assert sum(parts.values()) == pytest.approx(first["prediction"]["iteration_time_s"], rel=1e-9)
    again = run("predict", CLUSTER, model, "-", "--json", stdin=done.out)
    assert again.record["prediction"] == first["prediction"]
    drawn = run("timeline", "-", "--json", stdin=done.out)
    assert (drawn.code, drawn.err) == (0, "")
    Draft202012Validator(json_schema("timeline")).validate(drawn.record)
    assert drawn.record["iteration_time_s"] == first["prediction"]["iteration_time_s"]
    for stage, known in zip(drawn.record["stages"], first["prediction"]["stages"], strict=True):
        assert stage["forward_s"] == pytest.approx(known["forward_s"])
        assert stage["backward_s"] + stage["weight_s"] + stage["recompute_s"] == pytest.approx(known["backward_s"])
        assert stage["optimizer_s"] == pytest.approx(known["optimizer_s"])
        assert (stage["weight_s"] > 0) == schedule(name).splits_backward


@pytest.mark.parametrize("name", SCHEDULE_NAMES)
def test_screens_name_the_schedule(run: Run, model: Path, tmp_path: Path, name: str) -> None:
    """The prediction and the picture of a plan say which schedule it has, and how many chunks or how deep a warm-up."""
    path = tmp_path / "p.json"
    done = run("predict", CLUSTER, model, written(tmp_path / "plan.json", written_plan(name)), "-o", path)
    suffix = {"1f1b": "+2", "interleaved-1f1b": "×2", "breadth-first": "×2"}.get(name, "")
    assert done.code == 0
    assert f"Plan   {name}{suffix} · 16 micro-batches" in done.out
    drawn = run("timeline", path)
    assert (drawn.code, drawn.err) == (0, "")
    assert drawn.out.startswith(f"Plan   {name}{suffix} · 2 stages · 16 micro-batches")
    for suffix in ("html", "svg", "json"):
        assert run("timeline", path, "-o", tmp_path / f"t.{suffix}").code == 0
        assert (tmp_path / f"t.{suffix}").stat().st_size > 0


def test_chunks_in_yaml(run: Run, model: Path, tmp_path: Path) -> None:
    """A plan with chunks may be written in YAML; mistakes in it name the chunk."""
    text = """\
schedule: {name: zb-v, virtual_stages: 2}
global_batch_size: 64
num_microbatches: 64
sequence_parallel: false
stages:
  - group: h100
    first_layer: 0
    layers: 4
    recompute: {none: 4}
    chunks:
      - {first_layer: 0, layers: 2, recompute: {none: 2}}
      - {first_layer: 6, layers: 2, recompute: {none: 2}}
  - group: a100
    first_layer: 2
    layers: 4
    recompute: {none: 4}
    chunks:
      - {first_layer: 2, layers: 2, recompute: {none: 2}}
      - {first_layer: 4, layers: 2, recompute: {none: 2}}
"""
    path = tmp_path / "plan.yaml"
    path.write_text(text, encoding="utf-8")
    assert run("predict", CLUSTER, model, path).code == 0
    path.write_text(text.replace("first_layer: 6", "first_layer: 5"), encoding="utf-8")
    done = run("predict", CLUSTER, model, path, "--json")
    assert (done.code, done.error["file"]) == (2, str(path))
    assert done.error["key"] == "stages[0].chunks[1].first_layer"
    path.write_text(
        text.replace("layers: 2, recompute: {none: 2}}\n  - group", "layer: 2}\n  - group"), encoding="utf-8"
    )
    done = run("predict", CLUSTER, model, path, "--json")
    assert done.code == 2
    assert {error["key"] for error in done.record["errors"]} >= {"stages[0].chunks[1].layer"}


@pytest.mark.parametrize("name", ["zb-v", "dualpipe", "interleaved-1f1b", "breadth-first"])
def test_number_of_chunks_left_out(run: Run, model: Path, tmp_path: Path, name: str) -> None:
    """A schedule that needs chunks, without their number: a clear mistake, not a crash."""
    plan = written_plan(name)
    del plan["schedule"]["virtual_stages"]
    done = run("predict", CLUSTER, model, written(tmp_path / "plan.json", plan), "--json")
    assert (done.code, done.error["key"], done.error["message"]) == (2, "schedule.virtual_stages", "is 1")
    assert "chunks per stage" in done.error["hint"]


def test_plans_that_are_not_simulated(run: Run, model: Path, tmp_path: Path) -> None:
    """ZeRO-3 is predicted with breadth-first, and exit 3 with 1F1B."""
    for name, code in (("breadth-first", 0), ("1f1b", 3)):
        plan = written_plan(name)
        plan["stages"][0]["zero"] = 3
        done = run("predict", CLUSTER, model, written(tmp_path / "plan.json", plan), "--json")
        assert done.code == code
        assert any("ZeRO-3 with a pipeline" in warning for warning in done.record["warnings"]) == (code == 3)


def test_space_of_the_record(uniform: Path, per_group: Path) -> None:
    """The space that a bound speaks about: its kind, schedules and limits, as asked for."""
    for path, name in ((uniform, "uniform"), (per_group, "per-group")):
        record = loaded(path)
        space = record["bound"]["plan_space"]
        assert (space["name"], space["schedules"]) == (name, list(SCHEDULE_NAMES))
        assert (space["max_virtual_stages"], space["max_warmup"], space["max_stages"]) == (4, 4, 2)
        assert record["status"] == "optimal"
        options = record["inputs"]["options"]
        assert (options["space"], options["schedules"]) == (name, list(SCHEDULE_NAMES))


def test_per_group_is_never_worse(uniform: Path, per_group: Path) -> None:
    """Uniform plans are plans of the larger space; in it some group has degrees of its own."""
    alike, own = loaded(uniform)["plans"], loaded(per_group)["plans"]
    best = [plans[0]["prediction"]["iteration_time_s"] for plans in (alike, own)]
    assert best[1] <= best[0] * (1 + 1e-12)
    for entry in alike:
        assert len({(stage["dp"], stage["microbatch_size"]) for stage in entry["plan"]["stages"]}) == 1
    for entry in own:
        plan = entry["plan"]
        assert len({stage["dp"] * stage["microbatch_size"] for stage in plan["stages"]}) == 1


def test_degrees_of_their_own(run: Run, four: Path, model: Path, tmp_path: Path) -> None:
    """The per-group space holds plans whose groups differ in dp and micro-batch, and they are predicted alike."""
    record = searched(four, model, tmp_path / "r.json", "--schedule", "gpipe", "--space", "per-group", "--top", 20)
    unlike = [entry for entry in record["plans"] if len({stage["dp"] for stage in entry["plan"]["stages"]}) > 1]
    assert unlike
    done = run("predict", four, model, tmp_path / "r.json", "--rank", unlike[0]["rank"], "--json")
    assert done.record["prediction"] == unlike[0]["prediction"]
    assert run("timeline", tmp_path / "r.json", "--rank", unlike[0]["rank"]).code == 0


def test_what_plain_1f1b_would_take(run: Run, four: Path, model: Path, uniform: Path, tmp_path: Path) -> None:
    """Over a slow link another order of work wins, and the record says by how much and why; the screen too."""
    record = loaded(uniform)
    plain, best = record["plain_1f1b"], record["plans"][0]
    assert plain["iteration_time_s"] > 1.1 * best["prediction"]["iteration_time_s"]
    assert plain["longer"] == pytest.approx(plain["iteration_time_s"] / best["prediction"]["iteration_time_s"] - 1)
    assert plain["plan"]["schedule"] == {"name": "1f1b", "virtual_stages": 1, "warmup": None}
    assert "hop" in plain["why"]
    done = run("predict", four, model, written(tmp_path / "plain.json", plain["plan"]), "--json", *FEW[:2])
    assert done.record["prediction"]["iteration_time_s"] == pytest.approx(plain["iteration_time_s"], rel=1e-12)
    words = " ".join(run("search", four, model, *FEW, *TP_1, "--schedule", "1f1b").out.split())
    assert "plain 1f1b takes" in words
    assert "longer; 1f1b+" in words or "longer · 1f1b+" in words


def test_fast_links_do_not_pretend(result: Path) -> None:
    """Where the link is fast the other orders of work gain nothing worth a word, or a little by chunks."""
    plain = loaded(result)["plain_1f1b"]
    assert plain is not None
    assert plain["longer"] < 0.05
    assert "hop" not in plain["why"]


def test_without_1f1b_there_is_nothing_to_compare(four: Path, model: Path, tmp_path: Path) -> None:
    """Plain 1F1B is no yardstick where it was not searched."""
    assert searched(four, model, tmp_path / "r.json", "--schedule", "gpipe")["plain_1f1b"] is None


def test_limits_of_schedules(four: Path, model: Path, tmp_path: Path) -> None:
    """No more chunks and no deeper warm-up than asked for."""
    names = ("--schedule", "1f1b", "--schedule", "breadth-first", *TP_1)
    path = tmp_path / "r.json"
    record = searched(four, model, path, *names, "--max-virtual-stages", 2, "--max-warmup", 1, "--top", 50)
    entries = [entry["plan"]["schedule"] for entry in record["plans"]]
    assert {entry["name"] for entry in entries} == {"1f1b", "breadth-first"}
    assert {entry["virtual_stages"] for entry in entries} == {1, 2}
    assert {max(entry["warmup"] or [0]) for entry in entries} == {0, 1}
    record = searched(four, model, path, *names, "--max-virtual-stages", 1, "--max-warmup", 0, "--top", 50)
    entries = [entry["plan"]["schedule"] for entry in record["plans"]]
    assert {(entry["name"], entry["virtual_stages"], entry["warmup"]) for entry in entries} == {("1f1b", 1, None)}


def test_spaces_compared(run: Run, uniform: Path, per_group: Path) -> None:
    """`compare` names the space as a difference of the inputs, and tells no regression."""
    done = run("compare", uniform, per_group, "--json")
    assert done.code == 0
    assert {"key": "options.space", "before": "uniform", "after": "per-group"} in done.record["input_changes"]


def stack_file(path: Path, **change: str) -> Path:
    """The default stack with some lines changed."""
    lines = (ROOT / "hetplan/catalog/stacks/megatron-core.yaml").read_text(encoding="utf-8").splitlines()
    for key, value in change.items():
        (place,) = [i for i, line in enumerate(lines) if line.startswith(f"{key}:")]
        lines[place] = f"{key}: {value}"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_transfers_of_a_stack_file(run: Run, four: Path, model: Path, tmp_path: Path) -> None:
    """Whom transfers keep busy is a figure of the stack: a busier one takes longer, and the result keeps it."""
    plan = plan_of("gpipe", [4, 4], on=["h100", "a100"], num_microbatches=64).model_dump(mode="json")
    path = written(tmp_path / "plan.json", plan)
    times = []
    for transfers in ("overlapped", "eager", "rendezvous"):
        stack = stack_file(tmp_path / f"{transfers}.yaml", transfers=transfers)
        done = run("predict", four, model, path, "--json", "--stack", stack)
        assert done.record["inputs"]["stack"]["transfers"] == transfers
        times.append(done.record["prediction"]["iteration_time_s"])
        drawn = run("timeline", "-", "--json", stdin=done.out)
        assert drawn.record["iteration_time_s"] == times[-1]
    assert times[0] < times[1] < times[2]
    assert run("predict", four, model, path, "--json").record["prediction"]["iteration_time_s"] == times[0]


def test_schedules_of_a_stack_file(run: Run, four: Path, model: Path, tmp_path: Path) -> None:
    """A search looks for what the stack runs, unless it is asked for others; unknown names are refused by place."""
    stack = stack_file(tmp_path / "stack.yaml", schedules="[zb-h1, gpipe]")
    options = ("--stack", stack, "--top", 3, *TP_1)
    record = searched(four, model, tmp_path / "r.json", *options)
    assert record["bound"]["plan_space"]["schedules"] == ["gpipe", "zb-h1"]
    assert record["plans"][0]["plan"]["schedule"]["name"] in ("gpipe", "zb-h1")
    record = searched(four, model, tmp_path / "r.json", *options, "--schedule", "breadth-first")
    assert record["bound"]["plan_space"]["schedules"] == ["breadth-first"]
    for i, (key, value) in enumerate((("schedules", "[zb-h2]"), ("schedules", "[]"), ("transfers", "blocking"))):
        stack = stack_file(tmp_path / f"{i}.yaml", **{key: value})
        done = run("search", four, model, "--stack", stack, "--json")
        assert (done.code, done.error["file"]) == (2, str(stack))
        assert done.error["key"].startswith(key)
        assert done.error["line"] is not None


def test_results_of_before_there_were_schedules(run: Run, four: Path, model: Path, tmp_path: Path) -> None:
    """A record without chunks, transfers and the newer limits is read as what it was: plain 1F1B, overlapped."""
    record = searched(four, model, tmp_path / "r.json", "--schedule", "1f1b", "--max-warmup", 0, "--top", 1, *TP_1)
    del record["plain_1f1b"]
    for key in ("max_virtual_stages", "max_warmup"):
        del record["bound"]["plan_space"][key]
    for key in ("transfers", "schedules"):
        del record["inputs"]["stack"][key]
    for stage in record["plans"][0]["plan"]["stages"]:
        del stage["chunks"]
    text = json.dumps(record)
    done = run("predict", four, model, "-", "--json", stdin=text)
    assert done.record["prediction"] == record["plans"][0]["prediction"]
    assert run("timeline", "-", stdin=text).code == 0
    assert run("compare", "-", tmp_path / "r.json", stdin=text).code == 0
