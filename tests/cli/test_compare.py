"""`hetplan compare`: exit codes, the allowed slowdown, bad records."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.runner import Run, written


def slowed(record: dict[str, Any], factor: float) -> dict[str, Any]:
    """The record with a best plan that takes longer."""
    prediction = record["plans"][0]["prediction"]
    for key in ("iteration_time_s", "iteration_time_low_s", "iteration_time_high_s"):
        prediction[key] *= factor
    prediction["tokens_per_s"] /= factor
    return record


def test_with_itself(run: Run, result: Path) -> None:
    """A result compared with itself is no regression: exit 0."""
    done = run("compare", result, result, "--json")
    assert (done.code, done.err) == (0, "")
    assert (done.record["verdict"], done.record["regression"]) == ("same", False)
    done = run("compare", result, result)
    assert done.code == 0
    assert "no regression" in done.out


@pytest.mark.parametrize(
    ("flags", "code"), [([], 5), (["--fail-above", "3"], 5), (["--fail-above", "5"], 0), (["--fail-above=4.0001"], 0)]
)
def test_with_a_worse_one(
    run: Run, result: Path, record: dict[str, Any], tmp_path: Path, flags: list[str], code: int
) -> None:
    """4 % more time is a regression (exit 5) unless so much is allowed."""
    worse = written(tmp_path / "worse.json", slowed(record, 1.04))
    done = run("compare", result, worse, "--json", *flags)
    assert (done.code, done.record["verdict"], done.record["regression"]) == (code, "slower", code == 5)
    assert run("compare", worse, result, *flags).code == 0


def test_no_plan_any_more(run: Run, result: Path, record: dict[str, Any], tmp_path: Path) -> None:
    """A second result without a plan is a regression whatever is allowed."""
    record |= {"plans": [], "status": "unknown"}
    lost = written(tmp_path / "lost.json", record)
    assert run("compare", result, lost, "--fail-above", 1000).code == 5
    assert run("compare", lost, lost).code == 0


def test_from_stdin(run: Run, result: Path) -> None:
    """One of the two may come from stdin, and only one."""
    assert run("compare", "-", result, stdin=result.read_text(encoding="utf-8")).code == 0
    assert run("compare", "-", "-", "--json").error["message"] == "only one file can come from stdin"


def test_output_file(run: Run, result: Path, tmp_path: Path) -> None:
    """-o writes the record."""
    path = tmp_path / "c.json"
    assert run("compare", result, result, "-o", path).code == 0
    assert json.loads(path.read_text(encoding="utf-8"))["command"] == "compare"


def test_bad_records(run: Run, result: Path, tmp_path: Path) -> None:
    """Mistakes of both files are reported together: exit 2."""
    binary = tmp_path / "b.json"
    binary.write_bytes(b"\xff\x00")
    done = run("compare", tmp_path / "none.json", binary, "--json")
    assert (done.code, done.err) == (2, "")
    assert [error["file"] for error in done.record["errors"]] == [str(tmp_path / "none.json"), str(binary)]
    assert "nothing was compared" in run("compare", result, tmp_path).err


def test_bad_limit(run: Run, result: Path) -> None:
    """A limit that is no percentage: exit 2."""
    for text in ("-1", "nan", "5%"):
        done = run("compare", result, result, f"--fail-above={text}", "--json")
        assert (done.code, done.error["key"]) == (2, "--fail-above")
