"""`hetplan predict`: the same prediction as the search's, plans from everywhere, exit codes."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.runner import CLUSTER, ROOT, Run, written


def bare(record: dict[str, Any], rank: int = 1) -> dict[str, Any]:
    """The plan of a record by itself."""
    plan: dict[str, Any] = record["plans"][rank - 1]["plan"]
    return plan


@pytest.mark.parametrize("flags", [[], ["--precision", "fp16"], ["--global-batch-size", "32", "--optimizer", "sgd"]])
def test_pipe_gives_the_same_prediction(run: Run, model: Path, flags: list[str]) -> None:
    """`search --json | predict CLUSTER MODEL -` repeats every figure, without repeating the flags."""
    searched = run("search", CLUSTER, model, "--json", "--top", 1, *flags)
    done = run("predict", CLUSTER, model, "-", "--json", stdin=searched.out)
    assert (done.code, done.err) == (0, "")
    best = searched.record["plans"][0]
    assert {key: done.record[key] for key in best if key != "rank"} == {key: best[key] for key in best if key != "rank"}
    assert done.record["prediction"]["best_single_type_ratio"] is not None
    assert done.record["inputs"]["training"] == searched.record["inputs"]["training"]
    again = run("predict", CLUSTER, model, "-", "--json", stdin=done.out)
    assert again.record["prediction"] == best["prediction"]


def test_other_ranks(run: Run, model: Path, result: Path, record: dict[str, Any]) -> None:
    """--rank takes another plan of the result; one that it has not is refused."""
    done = run("predict", CLUSTER, model, result, "--rank", 2, "--json")
    assert done.record["prediction"] == record["plans"][1]["prediction"]
    done = run("predict", CLUSTER, model, result, "--rank", 9, "--json")
    assert done.code == 2
    assert done.error["message"] == "there is no plan of rank 9"


def test_what_the_record_gives_is_said(run: Run, model: Path, result: Path, record: dict[str, Any]) -> None:
    """Values of the record that the model file does not have are named on stderr, but for -q; flags win over them."""
    assert "taken from" not in run("predict", CLUSTER, model, result).err
    record["inputs"]["training"] |= {"precision": "fp16", "sequence_length": 512}
    text = json.dumps(record)
    done = run("predict", CLUSTER, model, "-", stdin=text)
    assert "taken from <stdin>: sequence length 512, precision fp16\n" in done.err
    assert "taken from" not in run("predict", CLUSTER, model, "-", "-q", stdin=text).err
    done = run("predict", CLUSTER, model, "-", "--precision", "bf16", stdin=text)
    assert "taken from <stdin>: sequence length 512\n" in done.err


def test_stack_of_the_record(run: Run, model: Path, record: dict[str, Any]) -> None:
    """The record's stack holds unless --stack names another."""
    record["inputs"]["stack"] |= {"name": "slow", "gemm_share": 0.3}
    text = json.dumps(record)
    slow = run("predict", CLUSTER, model, "-", "--json", stdin=text).record
    assert slow["inputs"]["stack"]["name"] == "slow"
    assert "stack slow" in run("predict", CLUSTER, model, "-", stdin=text).err
    usual = run("predict", CLUSTER, model, "-", "--json", "--stack", "megatron-core", stdin=text).record
    assert usual["prediction"]["iteration_time_s"] < slow["prediction"]["iteration_time_s"]


def test_ratios_belong_to_the_inputs(run: Run, model: Path, result: Path) -> None:
    """What the search found on single types is not used for other inputs."""
    done = run("predict", CLUSTER, model, result, "--json", "--sequence-length", 512)
    assert done.code == 0
    assert done.record["prediction"]["best_single_type_ratio"] is None
    assert done.record["single_types"] == []


def test_bare_plan(run: Run, model: Path, record: dict[str, Any], tmp_path: Path) -> None:
    """A plan written by itself is predicted with the model file's training values."""
    path = written(tmp_path / "plan.json", bare(record))
    done = run("predict", CLUSTER, model, path, "--json")
    assert done.code == 0
    assert done.record["prediction"]["iteration_time_s"] == record["plans"][0]["prediction"]["iteration_time_s"]
    assert done.record["prediction"]["additive_ratio"] is None


def test_another_global_batch(run: Run, model: Path, record: dict[str, Any], tmp_path: Path) -> None:
    """A plan for another global batch than the training's is refused, and the option that helps is named."""
    path = written(tmp_path / "plan.json", bare(record))
    done = run("predict", CLUSTER, model, path, "--global-batch-size", 128, "--json")
    assert done.code == 2
    assert done.error["key"] == "global_batch_size"
    assert done.error["file"] == str(path)
    assert "--global-batch-size 64 takes the plan's" in done.error["hint"]


def test_plan_of_another_cluster(run: Run, model: Path, result: Path) -> None:
    """A plan on groups that the cluster has not: exit 2 with every place."""
    done = run("predict", ROOT / "clusters/4090-3090.yaml", model, result, "--json")
    assert done.code == 2
    assert done.error["message"].startswith('no group "')


def test_plan_that_does_not_fit(run: Run, record: dict[str, Any], tmp_path: Path) -> None:
    """A stage that needs too much memory: the prediction is printed, exit 3."""
    stage = {"group": "a100", "first_layer": 0, "layers": 32, "recompute": {"none": 32}}
    plan = {"global_batch_size": 64, "num_microbatches": 64, "sequence_parallel": False, "stages": [stage]}
    path = written(tmp_path / "plan.json", plan)
    arguments = ("predict", CLUSTER, ROOT / "models/llama-2-7b.yaml", path, "--global-batch-size", 64)
    done = run(*arguments, "--json")
    assert done.code == 3
    assert done.record["prediction"]["stages"][0]["verdict"] == "oom"
    done = run(*arguments)
    assert done.code == 3
    assert "does not fit" in done.out


def test_plan_that_breaks_a_rule(run: Run, model: Path, tmp_path: Path) -> None:
    """A degree that the model does not allow: exit 3, with the reason."""
    stage = {"group": "a100", "first_layer": 0, "layers": 8, "tp": 3, "recompute": {"none": 8}}
    plan = {"global_batch_size": 64, "num_microbatches": 64, "stages": [stage]}
    done = run("predict", CLUSTER, model, written(tmp_path / "plan.json", plan), "--json")
    assert done.code == 3
    assert done.record["prediction"]["stages"][0]["verdict"] == "illegal"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("{", "is not JSON"),
        ("[1]", "is not a JSON object"),
        ('{"schema_version": 1, "command": "search", "errors": [{"message": "no such file"}]}', "holds an error"),
        ('{"schema_version": 2, "plans": []}', "schema_version"),
        ("just words", "neither a result nor a plan"),
    ],
)
def test_bad_plans(run: Run, model: Path, text: str, message: str) -> None:
    """What is no plan is refused with what it is."""
    done = run("predict", CLUSTER, model, "-", "--json", stdin=text)
    assert (done.code, done.err) == (2, "")
    assert done.error["file"] == "<stdin>"
    assert message in done.error["message"]


def test_plan_without_places_to_read(run: Run, model: Path, tmp_path: Path) -> None:
    """A missing plan, a directory, a second stdin: exit 2."""
    for path, message in ((tmp_path / "none.json", "no such file"), (tmp_path, "is a directory, not a file")):
        done = run("predict", CLUSTER, model, path, "--json")
        assert (done.code, done.error["message"]) == (2, message)
    assert run("predict", "-", model, "-", "--json").error["message"] == "only one file can come from stdin"


def test_damaged_record(run: Run, model: Path, record: dict[str, Any]) -> None:
    """Inputs and single types of a record are checked before they are used."""
    record["inputs"]["training"]["precision"] = "int4"
    done = run("predict", CLUSTER, model, "-", "--json", stdin=json.dumps(record))
    assert (done.code, done.error["key"]) == (2, "inputs.training.precision")
    record["inputs"]["training"]["precision"] = "bf16"
    record["single_types"] = [{"accelerator": 1, "tokens_per_s": None}]
    done = run("predict", CLUSTER, model, "-", "--json", stdin=json.dumps(record))
    assert (done.code, done.error["key"]) == (2, "single_types[0].accelerator")
    record["single_types"] = {}
    done = run("predict", CLUSTER, model, "-", "--json", stdin=json.dumps(record))
    assert (done.code, done.error["key"]) == (2, "single_types")
