"""Fixtures of the command line's tests."""

import contextlib
import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from hetplan.cli.app import main
from tests.cli.runner import CLUSTER, SMALL_MODEL, Ran, Run


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a command line in this process; stderr is no terminal."""

    def start(*arguments: object, stdin: str | bytes = "") -> Ran:
        content = stdin.encode() if isinstance(stdin, str) else stdin
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content), encoding="utf-8"))
        capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        done = capsys.readouterr()
        return Ran(code=code, out=done.out, err=done.err)

    return start


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model file that is searched in a fraction of a second."""
    path = tmp_path_factory.mktemp("model") / "small.yaml"
    path.write_text(SMALL_MODEL, encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def result(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The record of one search, made once."""
    path = tmp_path_factory.mktemp("result") / "r.json"
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        assert main(["search", str(CLUSTER), str(model), "--top", "3", "-o", str(path)]) == 0
    return path


@pytest.fixture
def record(result: Path) -> dict[str, Any]:
    """That record, to change."""
    data: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
    return data
