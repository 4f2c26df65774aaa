"""The program as a whole: help, version, what is loaded, usage errors, streams."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import hetplan
from hetplan.cli.app import COMMANDS, main
from tests.cli.runner import ROOT, Run

SHOWN = ("accelerators", "stacks", "schedules")
HELP = [[name] for name in COMMANDS] + [["show", topic] for topic in SHOWN]


def python(code: str) -> subprocess.CompletedProcess[str]:
    """A fresh interpreter."""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done


def test_help_lists_the_commands(run: Run) -> None:
    """`hetplan --help` names every command with its first line, and the exit codes."""
    done = run("--help")
    assert (done.code, done.err) == (0, "")
    text = " ".join(done.out.split())
    for name, line in COMMANDS.items():
        assert f"{name} {line}" in text
    assert "130 interrupted" in text


@pytest.mark.parametrize("words", HELP, ids=" ".join)
def test_help_of_each_command(run: Run, words: list[str]) -> None:
    """Each command describes itself in ASCII, within the width, with the shared options."""
    done = run(*words, "--help")
    assert (done.code, done.err) == (0, "")
    assert done.out.isascii()
    assert max(map(len, done.out.splitlines())) <= 100
    assert run(*words, "-h").out == done.out
    if words != ["show"]:
        for flag in ("--json", "-o, --output FILE", "-q, --quiet", "-v, --verbose"):
            assert flag in done.out


@pytest.mark.parametrize("name", COMMANDS)
def test_first_line_of_the_help(run: Run, name: str) -> None:
    """The line in the list of commands is the first line of the command's own help."""
    paragraphs = [" ".join(part.split()) for part in run(name, "--help").out.split("\n\n")]
    assert paragraphs[1] == COMMANDS[name]


def test_version(run: Run) -> None:
    """`hetplan --version` prints the version."""
    done = run("--version")
    assert (done.code, done.out, done.err) == (0, f"hetplan {hetplan.__version__}\n", "")


def test_nothing_asked_for(run: Run) -> None:
    """Without a command the help goes to stderr, with the exit code of a mistake."""
    done = run()
    assert (done.code, done.out) == (2, "")
    assert done.err == run("--help").out


def test_help_loads_no_library() -> None:
    """`hetplan --help` loads neither a solver nor numbers, specs or tables."""
    code = "from hetplan.cli.app import main\nimport sys\ncode = main(['--help'])\nprint(code, *sys.modules)"
    loaded = python(code).stdout.splitlines()[-1].split()
    assert loaded[0] == "0"
    assert set(loaded) & {"ortools", "pandas", "numpy", "pydantic", "rich", "yaml"} == set()


def test_help_of_commands_loads_no_solver() -> None:
    """No command's help loads OR-Tools or what it pulls in."""
    lines = [f"main([*{words!r}, '--help'])" for words in HELP]
    code = "\n".join(["from hetplan.cli.app import main", "import sys", *lines, "print(*sys.modules)"])
    assert set(python(code).stdout.splitlines()[-1].split()) & {"ortools", "pandas"} == set()


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        ("serch", "no such command 'serch'", "did you mean search?"),
        ("--verson", "no such option: --verson", "did you mean --version?"),
        ("show accelerator", "no such command 'accelerator'", "did you mean accelerators?"),
        ("show", "missing command", "see hetplan show --help"),
    ],
)
def test_no_such_command(run: Run, arguments: str, message: str, hint: str) -> None:
    """A command or option that does not exist: exit 2, and the nearest one that does."""
    done = run(*arguments.split())
    assert (done.code, done.out) == (2, "")
    assert done.err.splitlines()[0] == f"command line: {message}"
    assert hint in done.err


@pytest.mark.parametrize(
    ("arguments", "key", "message", "hint"),
    [
        ("search", "CLUSTER", "is missing", "see hetplan search --help"),
        ("search a", "MODEL", "is missing", "see hetplan search --help"),
        ("search a b c", None, "more arguments than hetplan search takes: c", "see hetplan search --help"),
        ("search a b --gapp 1", None, "no such option: --gapp", "did you mean --gap?"),
        ("search a b --zzzzzz", None, "no such option: --zzzzzz", "see hetplan search --help"),
        ("search a b --top", None, "option '--top' requires an argument", "see hetplan search --help"),
        ("search a b --top=", "--top", "needs a value", "write a whole number from 1 to 1,000"),
        ("compare a b --quiet=1", None, "option '--quiet' does not take a value", "see hetplan compare --help"),
        ("schema clusters", "KIND", '"clusters" is not known', "did you mean cluster?"),
    ],
)
def test_usage_errors(run: Run, arguments: str, key: str | None, message: str, hint: str) -> None:
    """A command line that cannot be read: exit 2 with one clear error, in words or as one object."""
    command, *rest = arguments.split()
    plain = run(command, *rest)
    assert (plain.code, plain.out) == (2, "")
    assert plain.err.splitlines()[0] == ": ".join(filter(None, ("command line", key, message)))
    assert hint in plain.err
    done = run(command, "--json", *rest)
    assert (done.code, done.err) == (2, "")
    assert done.record["command"] == command
    assert len(done.record["errors"]) == 1
    assert [done.error[name] for name in ("key", "message", "hint", "file")] == [key, message, hint, "command line"]


def test_usage_error_of_no_command_as_json(run: Run) -> None:
    """What belongs to no command is reported in the name of the program."""
    done = run("--json", "serch")
    assert (done.code, done.err) == (2, "")
    assert done.record["command"] == "hetplan"


def test_interrupted_while_loading(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C before a command has begun: exit 130, and one object with --json."""

    def interrupt(name: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("hetplan.cli.app.import_module", interrupt)
    done = run("show", "schedules", "--json")
    assert done.code == 130
    assert done.error["kind"] == "interrupt"


def test_bug_while_loading(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module that cannot be loaded is a bug, exit 1, without a traceback."""

    def fail(name: str) -> None:
        raise ImportError("half installed")

    monkeypatch.setattr("hetplan.cli.app.import_module", fail)
    done = run("show", "schedules")
    assert done.code == 1
    assert "unexpected ImportError: half installed" in done.err
    assert "Traceback" not in done.err


def test_closed_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    """Closed stdout and stderr (`>&-`) change no exit code."""
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "stderr", None)
    assert main(["show", "schedules"]) == 0
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "stderr", None)
    assert main(["show", "stacks", "nothing"]) == 2


@pytest.mark.skipif(os.name == "nt", reason="pipes of POSIX")
@pytest.mark.parametrize("arguments", [["show", "accelerators"], ["show", "accelerators", "--json"], ["search", "-h"]])
def test_reader_that_has_seen_enough(arguments: list[str]) -> None:
    """`| head` ends a command without a word and with its own exit code."""
    read, write = os.pipe()
    os.close(read)
    try:
        command = [sys.executable, "-m", "hetplan", *arguments]
        done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, cwd=ROOT, check=False, timeout=60)
    finally:
        os.close(write)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_full_disk(flags: list[str]) -> None:
    """Output that cannot be written is said on stderr, exit 2."""
    with open("/dev/full", "w", encoding="utf-8") as full:
        command = [sys.executable, "-m", "hetplan", "show", "schedules", *flags]
        done = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, text=True, cwd=ROOT, check=False, timeout=60
        )
    assert done.returncode == 2
    assert done.stderr.startswith("<stdout>: cannot be written: no space left on device")
    assert done.stderr.count("cannot be written") == 1


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_any_encoding(encoding: str) -> None:
    """Whatever the encoding of the streams, tables and errors can be written, within the width."""
    environment = {**os.environ, "PYTHONIOENCODING": encoding, "COLUMNS": "90"}
    code = "from hetplan.cli.app import main\nprint(main(['show', 'stacks']), main(['compare', 'n\u00e9', '\u2028']))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, env=environment, cwd=ROOT, check=False, timeout=60
    )
    out, err = done.stdout.decode(encoding), done.stderr.decode(encoding)
    assert out.splitlines()[-1] == "0 2"
    assert max(map(len, (out + err).splitlines())) <= 90
    assert err.startswith("n\\xe9: no such file")
