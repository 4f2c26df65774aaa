"""Every screen at every width, against golden texts and against the rules that all screens keep."""

import io
import os
import re
from pathlib import Path

import pytest
from rich.cells import cell_len

from hetplan.report.build import search_record
from hetplan.report.compare_screen import compare_screen
from hetplan.report.records import ResultRecord
from hetplan.report.search_screen import Files, search_notes, search_screen
from hetplan.report.style import terminal
from tests.report import samples
from tests.report.screens import SCREENS

GOLDEN = Path(__file__).parent.parent / "golden"
WIDTHS = {"80": 80, "100": 100, "140": 140, "80-ascii": 80}
ESCAPES = re.compile(r"\x1b\[[0-9;]*m")


class Tty(io.TextIOWrapper):
    """A stream that says it is a terminal."""

    def __init__(self) -> None:
        super().__init__(io.BytesIO(), encoding="utf-8", newline="\n")

    def isatty(self) -> bool:
        """It is."""
        return True

    def written(self) -> str:
        """What was written to it."""
        self.flush()
        self.seek(0)
        return self.read()


def drawn(name: str, width: int, *, ascii_only: bool = False) -> str:
    """The screen as a pipe gets it."""
    return samples.plain(SCREENS[name](samples.stream(width, ascii_only=ascii_only)))


@pytest.mark.parametrize("size", WIDTHS)
@pytest.mark.parametrize("name", SCREENS)
def test_golden(name: str, size: str) -> None:
    """A screen is its golden text; HETPLAN_UPDATE_GOLDEN=1 rewrites it."""
    text = drawn(name, WIDTHS[size], ascii_only=size.endswith("ascii"))
    path = GOLDEN / f"{name}-{size}.txt"
    if os.environ.get("HETPLAN_UPDATE_GOLDEN"):
        path.write_text(text, encoding="utf-8", newline="\n")
    assert text == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("width", [40, 60, 80, 89, 90, 100, 120, 140])
@pytest.mark.parametrize("name", SCREENS)
def test_lines_fit_the_width(name: str, width: int) -> None:
    """No line is longer than the screen, but a command to paste; nothing is cut; no blanks at the end."""
    for line in drawn(name, width).splitlines():
        assert cell_len(line) <= width or line.startswith("→ hetplan")
        assert "…" not in line
        assert line == line.rstrip()


@pytest.mark.parametrize("name", SCREENS)
def test_ascii_screens_are_ascii(name: str) -> None:
    """Where the encoding is not UTF-8 every character is ASCII, and columns still line up."""
    text = drawn(name, 100, ascii_only=True)
    assert text.isascii()
    assert all(len(line) <= 100 or line.startswith("-> hetplan") for line in text.splitlines())


@pytest.mark.parametrize("name", SCREENS)
def test_colour_adds_nothing(name: str) -> None:
    """A coloured screen without its escape codes is the plain one."""
    stream = Tty()
    coloured = terminal(stream, environment={"TERM": "xterm"}, width=100)
    coloured.print(SCREENS[name](coloured))
    assert ESCAPES.sub("", stream.written()) == drawn(name, 100)


def test_colours_are_there() -> None:
    """The main screen on a terminal has theme colours and bold; with NO_COLOR bold alone is left."""
    codes = {}
    for name, environment in (("colour", {"TERM": "xterm"}), ("none", {"TERM": "xterm", "NO_COLOR": "1"})):
        stream = Tty()
        shown = terminal(stream, environment=environment, width=100)
        shown.print(SCREENS["search"](shown))
        found = ";".join(code[2:-1] for code in ESCAPES.findall(stream.written()))
        codes[name] = set(found.split(";"))
    assert {"1", "32", "33", "35", "36"} <= codes["colour"]
    assert codes["none"] <= {"", "0", "1"}
    assert "1" in codes["none"]


def test_names_print_as_written() -> None:
    """Names from files are never read as markup, and never reach the terminal as control characters."""
    names = ("[red]", ":cd:", "größe", "a\x1b[31mb", "c\u202ed")
    groups = [{"name": name, "accelerator": samples.A100, "nodes": 4} for name in names]
    cluster = samples.cluster("[bold]x[/]", groups)
    plan = samples.plan([(name, [5, 5]) for name in names], dp=4)
    record = search_record(samples.result([samples.ranked(1, 10.0, plan)]), samples.inputs(cluster), samples.RUN)
    stream = Tty()
    shown = terminal(stream, environment={"TERM": "xterm"}, width=140)
    shown.print(search_screen(record, shown))
    shown.print(compare_screen(record, samples.optimal(), shown))
    text = ESCAPES.sub("", stream.written())
    for name in ("[bold]x[/]", "[red]", ":cd:", "größe", r"a\x1b[31mb", r"c\u202ed"):
        assert name in text
    assert "\x1b" not in text
    assert "\u202e" not in text
    plain = samples.plain(search_screen(record, samples.stream(140, ascii_only=True)))
    assert plain.isascii()
    assert r"gr\xf6\xdfe" in plain


def test_long_names_break_no_line() -> None:
    """Names as long as the specs allow fall into `key  value` lines and stay inside the width."""
    groups = [{"name": letter * 60, "accelerator": samples.A100, "nodes": 4} for letter in "abc"]
    cluster = samples.cluster("c" * 100, groups)
    plan = samples.plan([(letter * 60, [5, 5]) for letter in "abc"], dp=4)
    model = samples.model(30, "m" * 100)
    record = search_record(samples.result([samples.ranked(1, 10.0, plan)]), samples.inputs(cluster, model), samples.RUN)
    for width in (40, 80, 100, 140):
        shown = samples.stream(width)
        text = samples.plain(search_screen(record, shown) + compare_screen(record, samples.optimal(), shown))
        assert all(cell_len(line) <= width for line in text.splitlines())
        squeezed = "".join(text.split())
        assert all(letter * 60 in squeezed for letter in "abc")


def test_the_main_screen_is_short() -> None:
    """Six stages and five plans fit on 40 lines at 100 columns, warnings and next steps included."""
    shown = samples.stream(100)
    files = Files(cluster="c.yaml", model="m.yaml", saved="r.json")
    lines = search_screen(samples.optimal(), shown) + search_notes(samples.optimal(), shown, files=files)
    assert len(lines) <= 40


@pytest.mark.parametrize("width", [80, 100])
def test_shares_of_time_add_up(width: int) -> None:
    """The parts of the iteration, as printed, sum to 100 %."""
    text = drawn("search", width).partition(" time  ")[2].partition("\n\n")[0]
    text = drawn("search", width)[drawn("search", width).rindex(" time  forward") :]
    assert sum(float(share) for share in re.findall(r"([\d.]+)%", text)) == pytest.approx(100, abs=1e-9)


def test_memory_parts_add_up() -> None:
    """Parts sum to what is needed, and needed less usable is what is short, as printed."""
    text = drawn("search-infeasible", 100)
    amounts = {key: float(value) for key, value in re.findall(r"^ (\w+) .*?([\d.]+) GiB", text, re.MULTILINE)}
    parts = ("weights", "gradients", "optimizer", "activations", "workspace")
    assert sum(amounts[part] for part in parts) == pytest.approx(amounts["needed"])
    assert amounts["needed"] - amounts["usable"] == pytest.approx(amounts["short"])


def test_times_parse_back_to_the_record() -> None:
    """The times of the table are those of the record, to their last digit."""
    record = samples.optimal()
    times = re.findall(r"^ \d +([\d.]+) s ", drawn("search", 100), re.MULTILINE)
    assert [float(t) for t in times] == [round(e.prediction.iteration_time_s, 1) for e in record.plans]


def test_close_plans_print_apart() -> None:
    """Plans that differ in the fifth digit do not look alike."""
    plan = samples.plan([("mi300x", [32]), ("a100", [13] * 5)])
    plans = [
        samples.ranked(1, 31.800, plan),
        samples.ranked(2, 31.803, plan.model_copy(update={"num_microbatches": 96})),
    ]
    record = search_record(samples.result(plans), samples.inputs(samples.mixed_cluster()), samples.RUN)
    text = samples.plain(search_screen(record, samples.stream(100)))
    assert " 1  31.8000 s" in text or " 1  31.800 s" in text
    assert "+0.01%" in text
    assert re.search(r"^ 2 .* 96$", text, re.MULTILINE), "the number of micro-batches tells them apart"


def test_identity_outlives_measures() -> None:
    """Whatever differs between plans that are split alike stays at 80 columns: micro-batch, ZeRO, layers, recompute."""
    base = samples.plan([("mi300x", [32]), ("a100", [13] * 5)])
    shifted = samples.plan([("mi300x", [31]), ("a100", [14, 13, 13, 13, 13])])
    sharded = base.model_copy(update={"stages": tuple(s.model_copy(update={"zero": 0}) for s in base.stages)})
    plans = [samples.ranked(i, 31.0 + i, p) for i, p in enumerate((base, shifted, sharded), 1)]
    record = search_record(samples.result(plans), samples.inputs(samples.mixed_cluster()), samples.RUN)
    text = samples.plain(search_screen(record, samples.stream(80)))
    table = text[text.index("Plans") : text.index("Plan 1")]
    assert "ZeRO" in table
    assert "31 | 14 13 13 13 13" in table


@pytest.mark.parametrize(
    ("gap", "claim"),
    [(0.0, "no plan in the plan space is faster"), (0.0004, "no plan is more than 0.04% faster")],
)
def test_claims_of_a_proof(gap: float, claim: str) -> None:
    """The claim is about the plan space, and as strong as the gap allows."""
    record = search_record(
        samples.result(samples.five_plans(), gap=gap), samples.inputs(samples.mixed_cluster()), samples.RUN
    )
    text = samples.plain(search_screen(record, samples.stream(80)))
    assert claim in text
    assert "no plan is faster" not in text


def test_what_plain_1f1b_would_take() -> None:
    """By how much another order of work wins, and why; that none does is said of proved results alone."""

    def said(record: ResultRecord) -> str:
        return " ".join(samples.plain(search_screen(record, samples.stream(80))).split())

    why = "the hop takes long"
    assert f"plain 1f1b takes 38.4 s at best, 20.0% longer; 1f1b+2: {why}" in said(samples.schedules(why))
    assert "plain 1f1b takes 38.4 s at best found, 20.0% longer" in said(samples.schedules(why, gap=0.02))
    none = samples.schedules("")
    assert "no other order of work gains over plain 1f1b" in said(none)
    assert "plain 1f1b" not in said(none.model_copy(update={"status": "feasible"}))
    assert "plain 1f1b" not in said(samples.optimal())


def test_an_open_proof_is_not_called_optimal() -> None:
    """Feasible: the gap, what no plan can beat rounded down, and why it stopped."""
    text = drawn("search-feasible", 100)
    assert "optimal" not in text
    assert "gap 3.1%: the best plan may take 30.7 s, none can take less · stopped at 276 nodes" in text
    assert "~ interrupted" in drawn("search-interrupted", 80)


def test_hints_name_existing_commands_only() -> None:
    """Next steps use the commands of this version, quoted for a shell, and none where input came from stdin."""
    for name in SCREENS:
        for command in re.findall(r"hetplan (\w+)", drawn(name, 140)):
            assert command in ("search", "predict", "compare", "timeline", "show", "schema")
    shown = samples.stream(100)
    spaced = Files(cluster="my cluster.yaml", model="m.yaml")
    assert "'my cluster.yaml' m.yaml -o r.json" in samples.plain(search_notes(samples.optimal(), shown, files=spaced))
    piped = samples.plain(search_notes(samples.optimal(), shown, files=Files(cluster="-", model="m.yaml")))
    assert "→" not in piped
    assert "!" in piped
    assert "→" not in samples.plain(search_notes(samples.optimal(), shown))
