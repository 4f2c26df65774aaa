"""Rewrites the generated parts of the documentation: `make docs`.

python docs/generate.py [--bench RUNS] [--check]

Whole files (docs/cli.md, docs/schemas/, docs/pictures/) and parts between `<!-- generated: NAME -->` and
`<!-- /generated -->`. `tables` holds what needs no search, some of it from docs/schedules.py; docs/screens.py has the
rest. --bench also reruns the benchmarks.
--check writes nothing and fails where a table is not as it would be written.
"""

import argparse
import inspect
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import typer.main
import yaml

import hetplan
from hetplan.cli.app import COMMANDS, app
from hetplan.cost.profiles import StackSpec, load_stack
from hetplan.errors import ExitCode
from hetplan.report.numbers import duration
from hetplan.report.schemas import SCHEMA_KINDS, SchemaKind, json_schema
from hetplan.specs.families import NESTED_TYPES, known_types

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # a script's path begins with its own folder

from docs import schedules
from docs.markdown import ROOT, fenced, table
from docs.screens import bench, screens

DOCS = ROOT / "docs"
PAGES = (ROOT / "README.md", *(DOCS / f"{name}.md" for name in (
    "guide", "schedules", "formulation", "cost-model", "json", "python-api", "adding", "files", "glossary",
)))  # fmt: skip
MARK = re.compile(r"(<!-- generated: ([a-z0-9-]+) -->\n)(.*?)(<!-- /generated -->)", re.DOTALL)
QUANTITY = r"^\s*[0-9.,_]+"
"""How the pattern of a number with a unit begins."""
NOTE = "<!-- Written by docs/generate.py: make docs -->"
MEANINGS = {
    ExitCode.OK: "done; `search` found a plan, `predict` a plan that fits, `compare` no regression",
    ExitCode.BUG: "unexpected error: a bug, please report it",
    ExitCode.BAD_INPUT: "wrong usage, or a bad file",
    ExitCode.INFEASIBLE: "no plan fits; `predict`: the plan does not fit or breaks a rule",
    ExitCode.STOPPED: "`search` stopped without any plan: a limit, or the solver failed",
    ExitCode.REGRESSION: "`compare`: the second is slower than `--fail-above` allows, or has no plan any more",
    ExitCode.INTERRUPTED: "interrupted; `search` has printed the best plan so far, if there is one",
}
RECORDS: dict[str, tuple[SchemaKind, str]] = {
    "search": ("result", "`infeasible` is null unless no plan fits; then `plans` is empty."),
    "predict": ("predict", ""),
    "compare": ("compare", ""),
    "timeline": ("timeline", ""),
    "show": ("show", "One of three objects, told apart by `topic`."),
    "schema": ("error", ""),
}


def fill(text: str, parts: Mapping[str, str]) -> str:
    """A page with these parts in their places; others stay as they are."""
    return MARK.sub(lambda m: m[1] + (parts[m[2]] if m[2] in parts else m[3]) + m[4], text)


# -- tables: what needs no search


def exit_codes() -> str:
    """Exit codes of all commands."""
    return table(("exit code", "meaning"), [(str(int(code)), MEANINGS[code]) for code in ExitCode])


def stack() -> str:
    """Parameters of a software stack with the values of the default one and their sources."""
    profile = load_stack()
    path = ROOT / "hetplan" / "catalog" / "stacks" / f"{profile.name}.yaml"
    written = yaml.safe_load(path.read_text("utf-8"))
    rows = []
    for name, info in StackSpec.model_fields.items():
        key = info.alias or name
        if name not in ("name", "sources"):
            value = written[key]
            words = ", ".join(value) if isinstance(value, list) else str(value)
            rows.append((f"`{key}`", info.description or "", words, profile.sources.get(key, "assumed")))
    return table(("parameter", "meaning", f"in {profile.name}", "source"), rows)


def families() -> str:
    """Model types of Hugging Face that can be read."""
    types = sorted([*known_types(), *NESTED_TYPES])
    return ", ".join(f"`{name}`" for name in types) + ".\n"


def functions() -> str:
    """Signatures and docstrings of the public functions."""
    parts = []
    for name in hetplan.__all__:
        function = getattr(hetplan, name)
        words = [
            f"{p.name}{'' if p.default is p.empty else ' = ...'}"
            for p in inspect.signature(function).parameters.values()
        ]
        about = inspect.getdoc(function) or ""
        parts.append(f"### {name}({', '.join(words)})\n\n{fenced(about, 'text')}")
    return "\n" + "\n".join(parts) + "\n"


def _type_words(schema: Mapping[str, Any]) -> str:
    """What a value may be."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "const" in schema:
        return json.dumps(schema["const"])
    if "enum" in schema:
        values = [str(value) for value in schema["enum"]]
        return " or ".join(values) if len(values) <= 8 else "a catalogue name"
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(_type_words(part) for part in schema["anyOf"]))
    if schema.get("type") == "array":
        if "prefixItems" in schema:
            return "[" + ", ".join(_type_words(part) for part in schema["prefixItems"]) + "]"
        return f"list of {_type_words(schema.get('items', {}))}"
    if str(schema.get("pattern", "")).startswith(QUANTITY):
        return "quantity"
    kind = str(schema.get("type", "any value"))
    return "whole number" if kind == "integer" else kind


def _range_words(schema: Mapping[str, Any]) -> str:
    """Limits of a number."""
    words = []
    for key, word in (("minimum", "at least"), ("exclusiveMinimum", "above"), ("maximum", "at most")):
        if key in schema:
            words.append(f"{word} {schema[key]:,g}" if isinstance(schema[key], float) else f"{word} {schema[key]:,}")
    return ", ".join(words)


def keys(schema: Mapping[str, Any], *, written: bool) -> str:
    """Keys of an object. `written`: with what is required and the defaults."""
    rows = []
    required = schema.get("required", [])
    for key, value in schema.get("properties", {}).items():
        about = value.get("description", "")
        row = [f"`{key}`", _type_words(value), about]
        if written:
            default = "required" if key in required else json.dumps(value.get("default", None))
            if isinstance(value.get("default"), float) and row[1] == "quantity":
                default = duration(value["default"])  # the only quantities with a default are times
            limits = _range_words(value) or next((w for w in map(_range_words, value.get("anyOf", [])) if w), "")
            row = [*row[:2], "" if default in ("null", "[]", "{}", '""') else default, limits, about]
        rows.append(tuple(row))
    return table(("key", "value", "default", "limits", "meaning") if written else ("key", "value", "meaning"), rows)


def files() -> str:
    """Keys of the files that users write."""
    parts, seen = [], set()
    for kind in ("cluster", "model", "plan"):
        schema = json_schema(kind)
        parts.append(f"\n## {kind}.yaml\n\nSchema: [{kind}.json](schemas/{kind}.json)\n\n{keys(schema, written=True)}")
        for name, part in schema.get("$defs", {}).items():
            if name not in seen and part.get("properties"):
                seen.add(name)
                about = part.get("description", "").partition("\n")[0]
                parts.append(f"\n### {name}\n\n{about}\n\n{keys(part, written=True)}")
    return "".join(parts)


def records() -> str:
    """Keys of every record by command, then the objects inside."""
    parts: list[str] = []
    inside: dict[str, Any] = {}
    for command, (kind, about) in RECORDS.items():
        if command == "schema":
            text = "The JSON Schema asked for, with `schema_version` and `command` before it.\n"
            parts.append(f"\n### hetplan schema\n\n{text}")
            continue
        schema = json_schema(kind)
        defs = schema.pop("$defs", {})
        link = f"Schema: `hetplan schema {kind}`, [{kind}.json](schemas/{kind}.json).{' ' + about if about else ''}"
        parts.append(f"\n### hetplan {command}\n\n{link}\n\n")
        if "properties" in schema:
            parts.append(keys(schema, written=False))
        else:
            parts.append("\n".join(f"- {_type_words(part)}" for part in schema["anyOf"]) + "\n")
        inside |= defs
    schema = json_schema("error")
    inside |= schema.pop("$defs", {})
    text = "In place of its object, from any command, with exit code 1, 2, 4 or 130."
    parts.append(f"\n### When something is wrong\n\n{text} Schema: [error.json](schemas/error.json).\n\n")
    parts.append(keys(schema, written=False))
    parts.append("\n## Objects inside\n")
    for name in sorted(inside):
        if inside[name].get("properties"):
            about = inside[name].get("description", "").partition("\n")[0]
            parts.append(f"\n### {name}\n\n{about}\n\n{keys(inside[name], written=False)}")
    return "".join(parts)


TABLES: dict[str, Callable[[], str]] = {
    "exit-codes": exit_codes,
    "stack": stack,
    "families": families,
    "functions": functions,
    "files": files,
    "records": records,
    **schedules.TABLES,
}


def commands() -> Iterator[tuple[str, Any]]:
    """Every command that does something, with its words on the command line."""
    root: Any = typer.main.get_command(app)
    for name in COMMANDS:
        command = root.get_command(None, name)
        if hasattr(command, "commands"):
            yield from ((f"{name} {sub}", entry) for sub, entry in command.commands.items())
        else:
            yield name, command


def option_names(command: Any) -> list[str]:
    """Every spelling of every option of a command."""
    return [*(name for param in command.params for name in param.opts if name.startswith("-")), "-h", "--help"]


def cli() -> str:
    """The page of all commands and options."""
    parts = ["# Command line\n", NOTE + "\n", "`hetplan COMMAND`. `-` is stdin or stdout wherever a file is named.\n"]
    parts.append(table(("command", "what it does"), [(f"`hetplan {n}`", about) for n, about in COMMANDS.items()]))
    parts += ["## Exit codes\n", exit_codes()]
    for name, command in commands():
        arguments = [p for p in command.params if p.param_type_name == "argument"]
        usage = " ".join(str(a.metavar) if a.required else f"[{a.metavar}]" for a in arguments)
        parts += [f"## hetplan {name}\n", fenced(f"hetplan {name} [OPTIONS] {usage}".rstrip(), "text")]
        parts.append(inspect.cleandoc(command.help or "") + "\n")
        if arguments:
            parts.append(table(("argument", "meaning"), [(f"`{a.metavar}`", a.help or "") for a in arguments]))
        panels: dict[str, list[tuple[str, ...]]] = {}
        for param in command.params:
            if param.param_type_name == "option":
                names = ", ".join(f"`{n}`" for n in param.opts)
                value = "" if param.is_flag else f"`{param.metavar}`"
                about, _, default = (param.help or "").partition("  [default: ")
                row = (names, value, about, default.removesuffix("]"))
                panels.setdefault(str(param.rich_help_panel or "Options"), []).append(row)
        for panel, rows in panels.items():
            parts += [f"**{panel}**\n", table(("option", "value", "meaning", "default"), rows)]
    return "\n".join(parts)


def whole_files() -> dict[Path, str]:
    """Files that are generated from end to end."""
    found = {DOCS / "cli.md": cli()}
    for kind in SCHEMA_KINDS:
        found[DOCS / "schemas" / f"{kind}.json"] = json.dumps(json_schema(kind), indent=2) + "\n"
    return found | schedules.pictures()


def pages(parts: Mapping[str, str]) -> dict[Path, str]:
    """Every page with these parts in their places."""
    return {page: fill(page.read_text("utf-8"), parts) for page in PAGES}


def tables() -> dict[Path, str]:
    """Every generated file as it should be, screens left as they are."""
    return whole_files() | pages({name: make() for name, make in TABLES.items()})


# -- the command


def stale(expected: Mapping[Path, str]) -> list[str]:
    """Files that are not as expected."""
    return [
        path.relative_to(ROOT).as_posix()
        for path, text in expected.items()
        if not path.exists() or path.read_text("utf-8") != text
    ]


def main() -> int:
    """Rewrite or check."""
    parser = argparse.ArgumentParser(prog="docs/generate.py", description="Rewrite the generated documentation.")
    parser.add_argument("--bench", metavar="RUNS", help="rerun the benchmarks too, each so many times: minutes")
    parser.add_argument("--check", action="store_true", help="write nothing, fail where a table is out of date")
    options = parser.parse_args()
    if options.check:
        wrong = stale(tables())
        for name in wrong:
            print(f"{name} is out of date: make docs", file=sys.stderr)
        return int(bool(wrong))
    kept = {found[2]: found[3] for page in PAGES for found in MARK.finditer(page.read_text("utf-8"))}
    parts = {name: make() for name, make in TABLES.items()} | screens(kept)
    if options.bench:
        parts |= bench(options.bench)
    for path, text in (whole_files() | pages(parts)).items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, "utf-8", newline="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
