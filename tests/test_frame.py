"""The frame that every module stands in: size, docstrings, imports, packaging."""

import ast
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path
from types import FunctionType

import pytest

import hetplan

ROOT = Path(__file__).parents[1]
MODULES = sorted((ROOT / "hetplan").rglob("*.py"))
DISTRIBUTIONS = {"pydantic_core": "pydantic", "yaml": "pyyaml"}
"""Distribution that a top-level import belongs to, where the names differ."""


def run_python(code: str) -> str:
    """Standard output of `code` in a fresh interpreter."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def relative(path: Path) -> str:
    """Path from the root of the project."""
    return path.relative_to(ROOT).as_posix()


def loaded(code: str, *names: str) -> set[str]:
    """Which of `names` a fresh interpreter has loaded after `code`."""
    return set(run_python(f"{code}\nimport sys\nprint(*sys.modules)").split()) & set(names)


def test_modules_say_what_they_are_for() -> None:
    """Every module that holds anything has a docstring."""
    silent = [
        relative(p) for p in MODULES if p.stat().st_size and not ast.get_docstring(ast.parse(p.read_text("utf-8")))
    ]
    assert MODULES
    assert silent == []


def test_modules_are_short() -> None:
    """Modules stay within 400 lines, command files within 150."""
    long = []
    for path in MODULES:
        lines = len(path.read_text("utf-8").splitlines())
        if lines > (150 if path.parent.name == "cli" else 400):
            long.append(f"{relative(path)}: {lines}")
    assert long == []


def test_rooms_load_nothing() -> None:
    """Importing a room loads none of its modules, so a report reads `search.result` without a solver.

    The package and the predict room name their public functions.
    """
    filled = [relative(p) for p in MODULES if p.name == "__init__.py" and p.stat().st_size]
    assert filled == ["hetplan/__init__.py", "hetplan/predict/__init__.py"]


def test_predictions_load_no_solver() -> None:
    """The predict room brings neither a solver nor the command line's libraries, and its names exist."""
    code = (
        "from importlib import import_module\nroom = import_module('hetplan.predict')\n"
        "assert all(hasattr(room, name) for name in room.__all__)"
    )
    known = ("hetplan.predict", "hetplan.search", "ortools", "pandas", "rich", "typer")
    assert loaded(code, *known) == {"hetplan.predict"}


def test_imports_are_declared() -> None:
    """Whatever the package imports is in the standard library or a declared run-time dependency."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    declared = {requirement.split(">")[0].split("=")[0] for requirement in project["dependencies"]}
    used = set()
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Import):
                used |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                used.add(node.module.split(".")[0])
    foreign = used - sys.stdlib_module_names - {"hetplan"}
    assert {DISTRIBUTIONS.get(name, name) for name in foreign} <= declared


def test_version_has_a_changelog_entry() -> None:
    """The changelog has a section for the version of the package."""
    assert f"\n## [{hetplan.__version__}]" in (ROOT / "CHANGELOG.md").read_text("utf-8")


def test_importing_the_package_is_free() -> None:
    """`import hetplan` loads no library."""
    assert loaded("import hetplan", "numpy", "ortools", "pydantic", "rich", "typer", "yaml") == set()


def test_command_line_starts_without_a_solver() -> None:
    """The command line is loaded without OR-Tools and pandas, which OR-Tools brings."""
    assert loaded("import hetplan.cli.app", "hetplan.cli.app", "ortools", "pandas") == {"hetplan.cli.app"}


@pytest.mark.parametrize("name", hetplan.__all__)
def test_public_names_are_functions(name: str) -> None:
    """Each public name is a function, and documented."""
    function = getattr(hetplan, name)
    assert isinstance(function, FunctionType)
    assert function.__doc__


@pytest.mark.parametrize("module", ["hetplan.search.result", "hetplan.search.planner", "hetplan.predict"])
def test_public_names_outlive_their_modules(module: str) -> None:
    """`hetplan.search` and `hetplan.predict` stay functions when a module of that name was imported first."""
    code = f"import {module}\nimport hetplan\nprint(type(hetplan.search).__name__, type(hetplan.predict).__name__)"
    assert run_python(code).split() == ["function", "function"]


def test_unknown_names_are_attribute_errors() -> None:
    """A name that the package does not have is an AttributeError that says so."""
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        import_module("hetplan").nothing  # noqa: B018


def test_names_are_listed() -> None:
    """`dir(hetplan)` holds the public names before they are loaded."""
    assert set(hetplan.__all__) <= set(dir(hetplan))
