"""`hetplan search`: exit codes, the record and its file, options, errors, interrupts."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from hetplan.cli.search_flags import SCHEDULE_NAMES, SEARCH_FLAGS, search_options
from hetplan.cost.profiles import load_stack
from hetplan.errors import SolverError
from hetplan.report.progress import Progress
from hetplan.report.reading import read_record
from hetplan.search import planner
from hetplan.search.options import SearchOptions
from hetplan.search.result import Certificate, Limits, Pruned, SearchResult
from tests.cli.runner import CLUSTER, ROOT, TWO_H100, Run

MODELS = ROOT / "models"


def found_nothing(**changes: Any) -> SearchResult:
    """A search that stopped before it found a plan."""
    proof = Certificate(program="highs", programs=0, simulations=0, dp_leaves=0, nodes=1)
    values = {
        "status": "unknown", "stopped_by": "nodes", "bound_s": 0.01, "gap": 0.0, "limits": Limits(), "candidates": 9,
        "plans": (), "certificate": proof, "pruned": Pruned(), "infeasible": None, "warnings": (), "elapsed_s": 0.1,
    }  # fmt: skip
    return SearchResult(**{**values, **changes})


def test_a_plan_was_found(run: Run, model: Path) -> None:
    """Exit 0; the answer on stdout, nothing but warnings on stderr, no hints where no terminal reads it."""
    done = run("search", CLUSTER, model)
    assert done.code == 0
    assert "per iteration" in done.out
    assert "tokens/s" in done.out
    assert "hetplan search" not in done.err
    assert all(line.startswith(("!", " ")) for line in done.err.splitlines())


def test_record(run: Run, model: Path, result: Path) -> None:
    """--json prints the record that -o writes, and it reads back with its options and the best of each type."""
    done = run("search", CLUSTER, model, "--json", "--top", 3)
    assert (done.code, done.err) == (0, "")
    data, saved = done.record, json.loads(result.read_text(encoding="utf-8"))
    assert data["status"] in ("optimal", "feasible")
    assert [entry["rank"] for entry in data["plans"]] == [1, 2, 3]
    options = data["inputs"]["options"]
    assert options["top"] == 3
    assert set(options) == set(SEARCH_FLAGS)
    assert [entry["accelerator"] for entry in data["single_types"]] == ["h100-sxm5-80gb", "a100-sxm4-80gb"]
    assert read_record(done.out).plans[0].rank == 1
    assert data.pop("run") != saved.pop("run")
    assert data == saved


def test_output_file_and_screen(run: Run, model: Path, tmp_path: Path) -> None:
    """-o writes the record beside the screen; with --json stdout has the same record."""
    path = tmp_path / "r.json"
    done = run("search", CLUSTER, model, "-o", path, "--top", 1)
    assert done.code == 0
    assert done.out.startswith("small (")
    assert json.loads(path.read_text(encoding="utf-8"))["command"] == "search"
    done = run("search", CLUSTER, model, "-o", path, "--top", 1, "--json")
    assert path.read_text(encoding="utf-8") == done.out
    assert list(tmp_path.iterdir()) == [path]


def test_output_to_stdout(run: Run, model: Path) -> None:
    """`-o -` is --json."""
    assert run("search", CLUSTER, model, "-o", "-", "--top", 1).record["command"] == "search"


def test_files_from_stdin(run: Run, model: Path) -> None:
    """One of the two files may come from stdin."""
    assert run("search", "-", model, "--top", 1, stdin=CLUSTER.read_text(encoding="utf-8")).code == 0
    done = run("search", CLUSTER, "-", "--top", 1, stdin=model.read_text(encoding="utf-8") + "junk: 1\n")
    assert done.code == 2
    assert "<stdin>:13:1: junk:" in done.err
    done = run("search", "-", "-", "--json")
    assert (done.code, done.error["message"]) == (2, "only one file can come from stdin")


def test_training_flags_win(run: Run, model: Path) -> None:
    """A training value of the command line takes the place of the model file's."""
    done = run(
        *("search", CLUSTER, model, "--json", "--top", 1, "--global-batch-size", 32, "--sequence-length", "512"),
        *("--precision", "fp16", "--optimizer", "sgd"),
    )
    expected = {"global_batch_size": 32, "sequence_length": 512, "precision": "fp16", "optimizer": "sgd"}
    assert done.record["inputs"]["training"] == expected
    assert done.record["plans"][0]["plan"]["global_batch_size"] == 32


def test_limits_of_the_space(run: Run, model: Path) -> None:
    """The limits of the plan space hold and stand in the record."""
    done = run("search", CLUSTER, model, "--json", "--max-tp", 1, "--max-stages", 3, "--max-microbatch-size", 1)
    space = done.record["bound"]["plan_space"]
    assert (space["max_tp"], space["max_stages"], space["max_microbatch_size"]) == (1, 3, 1)
    for entry in done.record["plans"]:
        stages = entry["plan"]["stages"]
        assert len(stages) <= 3
        assert all(stage["tp"] == 1 and stage["microbatch_size"] == 1 for stage in stages)


def flags(**given: Any) -> dict[str, Any]:
    """Values of all options of a search."""
    return {name: default for name, (_, default) in SEARCH_FLAGS.items()} | given


def test_defaults_are_those_of_the_search() -> None:
    """Without options the search is the one that `search()` does without options, over the stack's schedules."""
    stack = load_stack()
    assert search_options(flags(), stack) == SearchOptions(schedules=stack.schedules)
    plain = stack.model_copy(update={"schedules": ("1f1b",)})
    assert search_options(flags(), plain) == SearchOptions()


@pytest.mark.parametrize(
    ("asked", "searched"),
    [
        (("zb-v", "gpipe", "zb-v"), ("gpipe", "zb-v")),
        (("1f1b",), ("1f1b",)),
        (("all",), SCHEDULE_NAMES),
        (("gpipe", "all"), SCHEDULE_NAMES),
    ],
)
def test_schedules_that_are_asked_for(asked: tuple[str, ...], searched: tuple[str, ...]) -> None:
    """Several, each once, in the order of the list, whatever the stack runs; `all` for every one."""
    assert search_options(flags(schedules=asked), load_stack()).schedules == searched


def test_assumptions_are_said(run: Run, tmp_path: Path) -> None:
    """A config.json cannot say how it is trained: what was assumed stands on stderr and in the record."""
    config = tmp_path / "config.json"
    shapes = {"num_hidden_layers": 4, "hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 4}
    config.write_text(json.dumps({"model_type": "llama", "vocab_size": 1000, **shapes}), encoding="utf-8")
    done = run("search", CLUSTER, config, "--top", 1)
    assert done.code == 0
    assert "! training values taken by default: global_batch_size 512" in done.err
    done = run("search", CLUSTER, config, "--top", 1, "--json")
    assert any("taken by default" in warning for warning in done.record["warnings"])


@pytest.mark.parametrize(
    ("flag", "text", "message"),
    [
        ("--top", "0", '"0" is not a whole number from 1 to 1,000'),
        ("--top", "1.5", '"1.5" is not a whole number from 1 to 1,000'),
        ("--gap", "1", '"1" is not a number from 0 to below 1'),
        ("--gap", "nan", '"nan" is not a number from 0 to below 1'),
        ("--gap", "-0.1", '"-0.1" is not a number from 0 to below 1'),
        ("--time-limit", "0", '"0" is not a number above 0 and below 100,000,000'),
        ("--time-limit", "inf", '"inf" is not a number above 0 and below 100,000,000'),
        ("--node-limit", "many", '"many" is not a whole number from 1 to 1,000,000,000,000'),
        ("--solver", "higs", '"higs" is not known'),
        ("--schedule", "gpip", '"gpip" is not known'),
        ("--space", "free", '"free" is not known'),
        ("--max-virtual-stages", "65", '"65" is not a whole number from 1 to 64'),
        ("--max-warmup", "-1", '"-1" is not a whole number from 0 to 1,000'),
        ("--objective", "cost", '"cost" is not known'),
        ("--precision", "bf61", '"bf61" is not known'),
        ("--optimizer", "adamw", '"adamw" is not known'),
        ("--global-batch-size", "-1", '"-1" is not a whole number from 1 to 10,000,000'),
        ("--sequence-length", "4k", '"4k" is not a whole number from 1 to 100,000,000'),
        ("--stack", "", "needs a value"),
    ],
)
def test_bad_values(run: Run, model: Path, flag: str, text: str, message: str) -> None:
    """A value that an option does not take: exit 2, the option and what it takes."""
    done = run("search", CLUSTER, model, f"{flag}={text}", "--json")
    assert (done.code, done.err) == (2, "")
    assert (done.error["key"], done.error["message"], done.error["kind"]) == (flag, message, "option")
    assert done.error["hint"]


def test_all_bad_values_at_once(run: Run, model: Path) -> None:
    """Every bad value of a command line is reported, in its order of the help."""
    done = run("search", CLUSTER, model, "--seed", "x", "--gap", "x", "--precision", "x")
    assert done.code == 2
    assert [line.split(":")[1].strip() for line in done.err.splitlines() if line.startswith("command line")] == [
        "--gap", "--seed", "--precision",
    ]  # fmt: skip
    assert "3 errors on the command line; nothing was searched" in done.err


def test_bad_files(run: Run, tmp_path: Path) -> None:
    """A missing file, a directory and a binary file: exit 2, all mistakes at once."""
    binary = tmp_path / "model.yaml"
    binary.write_bytes(bytes(range(256)))
    done = run("search", tmp_path / "none.yaml", binary, "--json", "--stack", "nothing")
    assert done.code == 2
    first, second, third = done.record["errors"]
    assert (first["message"], first["file"]) == ("no such file", str(tmp_path / "none.yaml"))
    assert second["file"] == str(binary)
    assert (third["key"], third["message"]) == ("--stack", 'no stack profile called "nothing"')
    done = run("search", tmp_path, CLUSTER)
    assert done.code == 2
    assert f"{tmp_path}: is a directory" in done.err
    assert "holds a cluster, not a model" in done.err
    assert "2 errors in 2 files; nothing was searched" in done.err


def test_place_of_a_mistake(run: Run, model: Path, tmp_path: Path) -> None:
    """A mistake in a file comes with its line, the line's text and carets."""
    path = tmp_path / "cluster.yaml"
    path.write_text(CLUSTER.read_text(encoding="utf-8").replace("nodes: 1", "nodes: -1", 1), encoding="utf-8")
    done = run("search", path, model)
    assert done.code == 2
    assert done.err.startswith(f"{path}:8:12: groups[0].nodes: ")
    assert "^^" in done.err


def test_format_that_a_group_lacks(run: Run) -> None:
    """V100 cannot train in bf16: refused with the reason, fp16 offered."""
    done = run("search", ROOT / "clusters/a100-v100.yaml", MODELS / "llama-2-7b.yaml", "--json")
    assert (done.code, done.err) == (2, "")
    assert done.error["key"] == "training.precision"
    assert "v100-sxm2-32gb (group v100) cannot train in bf16" in done.error["message"]
    assert "fp16" in done.error["hint"]
    assert done.error["line"] is not None


def test_no_plan_fits(run: Run, tmp_path: Path) -> None:
    """Llama-2-70B on two H100: exit 3, with the budget that binds, the shortfall and what would fit."""
    cluster = tmp_path / "two.yaml"
    cluster.write_text(TWO_H100, encoding="utf-8")
    done = run("search", cluster, MODELS / "llama-2-70b.yaml", "--json")
    assert (done.code, done.err) == (3, "")
    assert (done.record["status"], done.record["plans"]) == ("infeasible", [])
    why = done.record["infeasible"]
    assert why["binding"] == "memory"
    assert why["shortfall_bytes"] > 0
    assert why["nearest"]


def test_no_plan_fits_in_words(run: Run, tmp_path: Path) -> None:
    """The first lines say that no plan fits, and why."""
    cluster = tmp_path / "two.yaml"
    cluster.write_text(TWO_H100, encoding="utf-8")
    done = run("search", cluster, MODELS / "llama-2-70b.yaml")
    assert done.code == 3
    assert "no plan fits" in done.out
    assert "memory binds" in done.out


def test_stopped_without_a_plan(run: Run, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A limit that came before any plan: exit 4, and nobody claims that none fits."""
    monkeypatch.setattr(planner, "search", lambda *_: found_nothing())
    done = run("search", CLUSTER, model)
    assert done.code == 4
    assert "no plan found" in done.out
    assert "whether one fits is not known" in done.out
    assert run("search", CLUSTER, model, "--json").record["status"] == "unknown"


def test_solver_failure(run: Run, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A solver that gives no usable answer: exit 4, with one error."""

    def fail(*_: object) -> SearchResult:
        raise SolverError("HiGHS ended with an error")

    monkeypatch.setattr(planner, "search", fail)
    done = run("search", CLUSTER, model, "--json")
    assert (done.code, done.err) == (4, "")
    assert (done.error["kind"], done.error["message"]) == ("solver", "HiGHS ended with an error")
    assert "HiGHS ended with an error" in run("search", CLUSTER, model).err


def test_bug(run: Run, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unexpected error: exit 1 and a request to report it; the traceback only with -v; one object with --json."""

    def fail(*_: object) -> SearchResult:
        raise ZeroDivisionError("division\nby zero")

    monkeypatch.setattr(planner, "search", fail)
    done = run("search", CLUSTER, model)
    assert (done.code, done.out) == (1, "")
    assert "unexpected ZeroDivisionError: division by zero" in done.err
    assert "please report it" in " ".join(done.err.split())
    assert "Traceback" not in done.err
    assert "Traceback" in run("search", CLUSTER, model, "-v").err
    done = run("search", CLUSTER, model, "--json", "-v")
    assert done.code == 1
    assert done.error["kind"] == "bug"
    assert "Traceback" in done.err


def test_interrupt_keeps_the_best_so_far(run: Run, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C ends the search: exit 130, with the best plan so far and its gap."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Progress, "update", interrupt)
    done = run("search", CLUSTER, model, "--json")
    assert (done.code, done.err) == (130, "")
    assert (done.record["status"], done.record["stopped_by"]) == ("feasible", "interrupt")
    assert done.record["plans"]
    assert 0 < done.record["bound"]["gap"] < 1
    done = run("search", CLUSTER, model)
    assert done.code == 130
    assert "~ interrupted" in done.out
    assert "gap" in done.out


def test_interrupt_outside_the_search(run: Run, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C while nothing is searched: exit 130 and one object."""

    def interrupt(*_: object) -> SearchResult:
        raise KeyboardInterrupt

    monkeypatch.setattr(planner, "search", interrupt)
    done = run("search", CLUSTER, model, "--json")
    assert (done.code, done.error["kind"]) == (130, "interrupt")
    assert run("search", CLUSTER, model).code == 130


def test_output_is_checked_first(run: Run, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that cannot be written is refused before the search."""
    monkeypatch.setattr(planner, "search", lambda *_: pytest.fail("searched"))
    for path, why in ((tmp_path / "none" / "r.json", "no such directory"), (tmp_path, "is a directory")):
        done = run("search", CLUSTER, model, "-o", path, "--json")
        assert done.code == 2
        assert why in done.error["message"]
        assert done.error["file"] == str(path)


@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_late_failure_keeps_the_result(
    run: Run, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: list[str]
) -> None:
    """Where the file cannot be written after all, the result is still shown; exit 2, no part of a file."""
    folder = tmp_path / "out"
    folder.mkdir()

    def vanish(*_: object) -> SearchResult:
        shutil.rmtree(folder)
        return found_nothing()

    monkeypatch.setattr(planner, "search", vanish)
    done = run("search", CLUSTER, model, "-o", folder / "r.json", *flags)
    assert done.code == 2
    assert "no such directory" in done.err
    if flags:
        assert done.record["status"] == "unknown"
    else:
        assert "no plan found" in done.out
    assert not folder.exists()


def test_every_stage(run: Run, model: Path) -> None:
    """--stages is accepted; the folding itself is a matter of the report."""
    assert run("search", CLUSTER, model, "--stages", "--top", 1).code == 0


def test_hints_for_people(run: Run, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Next steps are printed where a terminal reads stderr, and not with -q."""
    monkeypatch.setattr("hetplan.cli.output.Output.hints", property(lambda out: not out.quiet))
    assert "hetplan search" in run("search", CLUSTER, model, "--top", 1).err
    assert "hetplan search" not in run("search", CLUSTER, model, "--top", 1, "-q").err
    assert run("search", CLUSTER, model, "--top", 1, "--json").err == ""
