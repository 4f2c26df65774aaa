"""The documentation: generated parts are up to date, links lead somewhere, examples run."""

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from inspect import getmembers, isfunction
from pathlib import Path

import pytest

from docs.generate import DOCS, MARK, PAGES, RECORDS, TABLES, commands, option_names, stale, tables
from docs.markdown import ROOT
from docs.schedules import FAST, FORWARD, PICTURES, SLOW, held, shape, time
from docs.screens import BENCHMARKS, SCREENS
from hetplan.cost import collectives, compute, layers, memory, stages
from hetplan.cost.profiles import StackSpec, load_stack
from hetplan.errors import ExitCode
from hetplan.plan import Plan
from hetplan.report.reading import read_plan
from hetplan.report.schemas import json_schema
from hetplan.schedule.schedules import SCHEDULES
from hetplan.specs.catalog import all_accelerators
from hetplan.specs.files import load_cluster, load_model

ALL_PAGES = (*PAGES, DOCS / "cli.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md")
BLOCK = re.compile(r"^```([a-z]*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
OWN_FILES = {"cluster.yaml", "config.json", "baseline.json", "new.json", "result.json", "other.json"}
"""Files that the pages speak of and the reader has."""


def blocks(page: Path, *languages: str) -> list[str]:
    """Fenced blocks of a page in these languages."""
    return [match[2] for match in BLOCK.finditer(page.read_text("utf-8")) if match[1] in languages]


def prose(page: Path) -> str:
    """A page without its fenced blocks."""
    return BLOCK.sub("", page.read_text("utf-8"))


def anchors(page: Path) -> set[str]:
    """Targets of links into a page, as GitHub makes them from headings."""
    headings = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def command_lines() -> Iterator[tuple[str, list[str]]]:
    """Every call of hetplan in a block of shell commands: (page, words)."""
    for page in ALL_PAGES:
        lines = [line for block in blocks(page, "sh") for line in block.splitlines()]
        lines += [line[2:] for block in blocks(page, "console") for line in block.splitlines() if line[:2] == "$ "]
        for line in lines:
            words = shlex.split(line, comments=True)
            if words[:1] == ["hetplan"]:
                yield page.name, words[1 : words.index("|")] if "|" in words else words[1:]


def test_generated_parts_are_up_to_date() -> None:
    """Tables, the reference of the command line and schemas are what the code says; `make docs` writes them."""
    assert stale(tables()) == []


def test_every_part_is_placed() -> None:
    """Every part that is generated stands somewhere, none is empty, and no page asks for one that is not."""
    found = {match[2]: match[3] for page in PAGES for match in MARK.finditer(page.read_text("utf-8"))}
    assert set(found) == {*TABLES, *SCREENS, *BENCHMARKS}
    assert [name for name, text in found.items() if not text.strip()] == []


def test_command_line_is_described() -> None:
    """docs/cli.md has a section for every command, and every option and argument in it."""
    text = (DOCS / "cli.md").read_text("utf-8")
    sections = dict(re.findall(r"^## hetplan ([a-z ]+)\n(.*?)(?=^## |\Z)", text, re.DOTALL | re.MULTILINE))
    assert set(sections) == {name for name, _ in commands()}
    for name, command in commands():
        names = [*(n for p in command.params for n in p.opts if n[0] == "-"), *(str(p.metavar) for p in command.params)]
        assert [n for n in names if p_missing(n, sections[name])] == [], name


def p_missing(name: str, section: str) -> bool:
    """Whether a section does not show a name as code."""
    return name != "None" and f"`{name}`" not in section.replace("\\|", "|")


@pytest.mark.parametrize("page", ALL_PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    """Every relative link names a file or folder that exists, and a heading in it."""
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if link.startswith(("http://", "https://")):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


def test_shell_commands_exist() -> None:
    """Every command line in the pages has a command, options and example files that exist."""
    known = dict(commands())
    lines = list(command_lines())
    assert len(lines) > 8
    for page, words in lines:
        name = next((n for n in (" ".join(words[:2]), words[0]) if n in known), None)
        if name is None:
            assert words == ["--help"], (page, words)
            continue
        options = [word for word in words if word.startswith("-") and word != "-"]
        assert set(options) <= set(option_names(known[name])), (page, words)
        files = [word for word in words if word.endswith((".yaml", ".json")) and word not in OWN_FILES]
        assert [file for file in files if not (ROOT / file).is_file()] == [], (page, words)


def test_yaml_examples_load(tmp_path: Path) -> None:
    """Every YAML block is a cluster, a model or a plan that can be read."""
    count = 0
    for page in ALL_PAGES:
        for block in blocks(page, "yaml"):
            path = tmp_path / "example.yaml"
            path.write_text(block, encoding="utf-8")
            if "groups:" in block:
                load_cluster(path)
            elif "architecture:" in block:
                load_model(path)
            else:
                assert isinstance(read_plan(block), Plan)
            count += 1
    assert count >= 4


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python")], ids=lambda page: page.name)
def test_python_examples_run(page: Path) -> None:
    """The Python blocks of a page run one after the other."""
    code = "\n".join(blocks(page, "python"))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout


def test_stack_parameters_are_described() -> None:
    """docs/cost-model.md names every parameter of a software stack, and each source belongs to a parameter."""
    text = (DOCS / "cost-model.md").read_text("utf-8")
    written = {info.alias or name for name, info in StackSpec.model_fields.items()} - {"name", "sources"}
    assert [name for name in sorted(written) if f"`{name}`" not in text] == []
    assert set(load_stack().sources) <= written


def test_cost_functions_are_described() -> None:
    """docs/cost-model.md names every public function and method of the cost room that gives seconds of its own."""
    text = (DOCS / "cost-model.md").read_text("utf-8")
    named = []
    for kind in (compute.Rates, collectives.Fabric, collectives.Bridge):
        named += [f"{kind.__name__}.{name}" for name, _ in getmembers(kind, isfunction) if name.endswith("_s")]
    named += ["StageCosts.gradient_sync_s", "StageCosts.optimizer_s", "mean_span", "model_flops_per_token"]
    named += ["state_bytes", "Work.embedding", "Work.head", "Work.layer"]
    assert [name for name in named if f"`{name}" not in text] == []
    homes = (compute, collectives, layers, memory, stages)
    for owner, _, attribute in (name.partition(".") for name in named):
        home = next(getattr(module, owner) for module in homes if hasattr(module, owner))
        assert not attribute or hasattr(home, attribute)


@pytest.mark.parametrize("page", ALL_PAGES, ids=lambda page: page.name)
def test_names_of_code_exist(page: Path) -> None:
    """Modules and paths that a page names as code exist."""
    text = prose(page)
    for name in re.findall(r"`(hetplan\.[a-z_.]+)`", text):
        import_module(name)
    paths = re.findall(r"`((?:hetplan|tests|docs|clusters|models|benchmarks)/[\w./-]*)`", text)
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_exit_codes_are_documented() -> None:
    """README, docs/json.md and docs/cli.md have every exit code."""
    for page in (ROOT / "README.md", DOCS / "json.md", DOCS / "cli.md"):
        listed = re.findall(r"^\| ([0-9]+) \|", page.read_text("utf-8"), re.MULTILINE)
        assert listed == [str(int(code)) for code in ExitCode], page.name


def test_example_record_has_the_keys_of_the_schema() -> None:
    """The shortened record in docs/json.md has exactly the keys of a result, in their order."""
    (block,) = (text for text in blocks(DOCS / "json.md", "text") if '"schema_version"' in text)
    record = json.loads(block.replace("{...}", "{}"))
    schema = json_schema("result")
    assert list(record) == list(schema["properties"])
    (entry,) = record["plans"]
    parts = {
        "PlanRecord": entry,
        "PredictionRecord": entry["prediction"],
        "StageRecord": entry["prediction"]["stages"][0],
        "Stage": entry["plan"]["stages"][0],
        "BoundRecord": record["bound"],
        "RunRecord": record["run"],
    }
    for name, part in parts.items():
        assert list(part) == list(schema["$defs"][name]["properties"]), name


def test_every_command_has_its_json_described() -> None:
    """docs/json.md has a section for every command."""
    text = (DOCS / "json.md").read_text("utf-8")
    names = {name.split()[0] for name, _ in commands()}
    assert names == set(RECORDS)
    assert [name for name in sorted(names) if f"\n### hetplan {name}\n" not in text] == []


def test_every_schedule_is_drawn() -> None:
    """docs/schedules.md has a section for every schedule, with a picture that is small enough for a page."""
    text = (DOCS / "schedules.md").read_text("utf-8")
    sections = dict(re.findall(r"^## ([a-z0-9-]+)\n(.*?)(?=^## |\Z)", text, re.DOTALL | re.MULTILINE))
    names = [entry.name for entry in SCHEDULES]
    assert list(sections) == names
    assert [name for name in names if f"](pictures/{name}.svg)" not in sections[name]] == []
    assert sorted(path.name for path in PICTURES.iterdir()) == sorted(f"{name}.svg" for name in names)
    assert max(path.stat().st_size for path in PICTURES.iterdir()) < 40_000


def test_what_is_said_of_schedules_holds() -> None:
    """The formulas and figures in the words of docs/schedules.md are those of the code."""
    p, m = SLOW, FAST
    for name, v, formula in (
        ("1f1b", 1, lambda j: min(p - j, m)),
        ("gpipe", 1, lambda j: m),
        ("interleaved-1f1b", 2, lambda j: (2 * (p - 1 - j) + (2 - 1) * p + 1) / 2),
        ("interleaved-1f1b", 4, lambda j: (2 * (p - 1 - j) + (4 - 1) * p + 1) / 4),
        ("breadth-first", 2, lambda j: m),
        ("zb-h1", 1, lambda j: p),
        ("zb-v", 2, lambda j: p),
    ):
        of = shape(name, p, m, virtual_stages=v)
        assert [held(of, j) for j in range(p)] == [formula(j) for j in range(p)], name
    text = (DOCS / "schedules.md").read_text("utf-8")
    assert f"Without it both take {time(shape('1f1b', p, m)):g}." in text
    assert time(shape("1f1b", p, m, deeper=4)) == time(shape("1f1b", p, m))
    # Each micro-batch costs the hop, once the pipeline is full; a deeper warm-up pays it once.
    slow, plain = time(shape("1f1b", p, m), hop=2 * FORWARD), time(shape("1f1b", p, m))
    assert slow - plain > 0.9 * m * 2 * FORWARD
    assert time(shape("1f1b", p, m, deeper=2), hop=2 * FORWARD) == plain + 4 * FORWARD


@pytest.mark.parametrize("folder", ["clusters", "models"])
def test_examples_name_their_schema(folder: str) -> None:
    """The first line of every example names the schema for editors."""
    schema = DOCS / "schemas" / f"{folder.removesuffix('s')}.json"
    assert schema.is_file()
    line = f"# yaml-language-server: $schema=../docs/schemas/{schema.name}\n"
    examples = sorted((ROOT / folder).glob("*.yaml"))
    assert examples
    assert [path.name for path in examples if not path.read_text("utf-8").startswith(line)] == []


def test_readme_is_short() -> None:
    """The README stays under 250 lines, and its figures on the catalogue hold."""
    assert len((ROOT / "README.md").read_text("utf-8").splitlines()) < 250
    h100, mi300x = (next(a for a in all_accelerators() if a.name == n) for n in ("h100-sxm5-80gb", "mi300x-192gb"))
    peak = mi300x.peak_flops_per_s("bf16") / h100.peak_flops_per_s("bf16")
    measured = mi300x.achievable_flops_per_s("bf16") / h100.achievable_flops_per_s("bf16")
    assert f"{peak:.2f} by peak and {measured:.2f} measured" in (DOCS / "cost-model.md").read_text("utf-8")
