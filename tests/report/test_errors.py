"""Mistakes as people see them, against golden texts and the rules of all screens."""

import os
from pathlib import Path

import pytest
from rich.cells import cell_len

from hetplan.errors import Mistake
from hetplan.report.errors import MOST_SHOWN, error_lines, mistake_lines
from hetplan.report.style import Terminal, terminal
from hetplan.specs.cluster import ClusterSpec
from hetplan.specs.cluster_checks import cluster_problems, unknown_accelerator
from hetplan.specs.document import Problem
from hetplan.specs.loader import parse_document, problems_to_mistakes
from hetplan.specs.validation import validate
from tests.report import samples
from tests.report.test_screens import ESCAPES, Tty

GOLDEN = Path(__file__).parent.parent / "golden"
SIZES = {"80": 80, "100": 100, "80-ascii": 80}

CLUSTER = """name: demo
groups:
  - name: fast
    accelerator: a100-smx4-80gb
    nodes: 4
    accelerators_per_node: 8
    # 8 ports of 100 Gbit/s
    inter_node: {bandwidth: 800 Gb/s, latency: 5 us}
  - name: old
    accelerator: {name: v100, formats: [fp16], peak: {fp16: 125 TFLOP/s},
                  memory_size: 32 GB, memory_bandwidth: 900 GB/s, link: 150 GB/s}
    nodes: 1
    accelerators_per_node: 8
"""
MODEL = """name: llama-140b
architecture:
  layers: 160
  hidden_size: 8192
  ffn_hidden_size: 28672
  attention_heads: 64
  vocab_size: 32000
  kv_heads: 88
  kv_heads: 8
"""


def demo() -> tuple[Mistake, ...]:
    """Four mistakes in two files, found as the loader finds them."""
    cluster, model = parse_document(CLUSTER, "clusters/demo.yaml"), parse_document(MODEL, "models/llama-140b.yaml")
    unknown = unknown_accelerator("a100-smx4-80gb", ("groups", 0, "accelerator"), ("a100-sxm4-80gb",), 41)
    found = [p for p in validate(ClusterSpec, cluster.data)[1] if p.path != unknown.path]
    return (*problems_to_mistakes(cluster, [unknown, *found, *cluster_problems(cluster.data)]), *model.mistakes)


def mistake(
    text: str, path: tuple[str | int, ...], message: str = "is wrong", note: str = "", hint: str = ""
) -> Mistake:
    """A mistake at a key path of a text."""
    document = parse_document(text, "a.yaml")
    (found,) = problems_to_mistakes(document, [Problem(path, message, hint, note=note)])
    return found


def drawn(found: Mistake, width: int = 80, *, ascii_only: bool = False) -> list[str]:
    """The lines of one mistake as a pipe gets them."""
    return samples.plain(mistake_lines(found, samples.stream(width, ascii_only=ascii_only))).splitlines()


@pytest.mark.parametrize("size", SIZES)
def test_golden(size: str) -> None:
    """The demo is its golden text; HETPLAN_UPDATE_GOLDEN=1 rewrites it."""
    stream = samples.stream(SIZES[size], ascii_only=size.endswith("ascii"))
    text = samples.plain(error_lines("search", demo(), stream))
    path = GOLDEN / f"spec-error-{size}.txt"
    if os.environ.get("HETPLAN_UPDATE_GOLDEN"):
        path.write_text(text, encoding="utf-8", newline="\n")
    assert text == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("width", [40, 60, 80, 100, 140])
@pytest.mark.parametrize("ascii_only", [False, True])
def test_only_first_lines_are_longer_than_the_width(width: int, ascii_only: bool) -> None:
    """Everything is wrapped or cut but the line with the place, which editors turn into a link."""
    for line in samples.plain(error_lines("search", demo(), samples.stream(width, ascii_only=ascii_only))).splitlines():
        assert cell_len(line) <= width or line.startswith(("clusters/demo.yaml:", "models/llama-140b.yaml:"))
        assert not ascii_only or line.isascii()


def test_colour_adds_nothing() -> None:
    """A coloured screen without its escape codes is the plain one; place, mistake and advice have their colours."""
    stream = Tty()
    coloured = terminal(stream, environment={"TERM": "xterm-256color"}, width=100)
    coloured.print(error_lines("search", demo(), coloured))
    text = stream.written()
    assert ESCAPES.sub("", text) == samples.plain(error_lines("search", demo(), samples.stream(100)))
    assert "\x1b[36mclusters/demo.yaml:4:18\x1b[0m" in text
    assert "\x1b[1;31m^^^^^^^^^^^^^^\x1b[0m" in text
    assert "\x1b[1;32mdid you mean\x1b[0m" in text


@pytest.mark.parametrize(
    ("files", "command", "text"),
    [
        (["a"], "search", "1 error in 1 file; nothing was searched"),
        (["a", "a", "b"], "predict", "3 errors in 2 files; nothing was predicted"),
        (["command line"], "compare", "1 error on the command line; nothing was compared"),
        (["a", "command line"], "search", "2 errors in 1 file and on the command line; nothing was searched"),
        ([None], "show", "1 error; nothing was shown"),
        (["a"], "dance", "1 error in 1 file; nothing was done"),
    ],
)
def test_the_last_line_counts(files: list[str | None], command: str, text: str) -> None:
    """How many mistakes, in how many files, and what was not done."""
    found = [Mistake(kind="value", message="wrong", file=file) for file in files]
    assert error_lines(command, found, samples.stream(100))[-1].plain == text


def test_a_mistake_without_a_place_is_one_line_and_a_hint() -> None:
    """A missing file and an option have no lines to show."""
    missing = Mistake(kind="file", message="no such file", hint="check the path", file="a.yaml")
    assert drawn(missing) == ["a.yaml: no such file", "     = check the path"]
    option = Mistake(kind="range", message="0 is out of range", file="command line", key="--top")
    assert drawn(option) == ["command line: --top: 0 is out of range"]


def test_tabs_are_four_blanks() -> None:
    """In the line and under it."""
    lines = drawn(mistake('{\n\t"a":\t{"b": 5}}', ("a", "b"), note="here"))
    assert lines[1:] == ['   2 │     "a":    {"b": 5}}', "     │                   ^ here"]


def test_wide_characters_are_counted_in_cells() -> None:
    """Carets stand under the value after characters of two cells."""
    lines = drawn(mistake("{名前: [日本, x]}", ("名前", 1)))
    assert lines[1:] == ["   1 │ {名前: [日本, x]}", "     │               ^"]
    assert cell_len(lines[1][: lines[1].index("x]")]) == lines[2].index("^")


def test_control_characters_are_shown_not_sent() -> None:
    """In names, messages and lines; and what ASCII lacks is written as an escape of the right width."""
    found = mistake('{"a\u202eb": ü, c: 5}', ("c",), message="bad \x1b[31m name\nx")
    lines = drawn(found)
    assert lines[0] == r"a.yaml:1:15: c: bad \x1b[31m name\nx"
    assert lines[1].startswith(r'   1 │ {"a\u202eb": ü, c: 5}')
    assert lines[2].index("^") == lines[1].index("5")
    lines = drawn(found, ascii_only=True)
    assert lines[1] == r'   1 | {"a\u202eb": \xfc, c: 5}'
    assert lines[2].index("^") == lines[1].index("5")


@pytest.mark.parametrize("width", [40, 80])
@pytest.mark.parametrize("before", [1, 5, 15, 500, 100_000])
@pytest.mark.parametrize("after", [1, 5, 500])
@pytest.mark.parametrize("ascii_only", [False, True])
def test_long_lines_are_cut_around_the_carets(width: int, before: int, after: int, ascii_only: bool) -> None:
    """The value is always on the screen with its carets under it."""
    found = mistake(f"[{'x' * before}, VALUE, {'y' * after}]", (1,))
    _, line, carets = drawn(found, width, ascii_only=ascii_only)
    assert cell_len(line) <= width
    assert line[carets.index("^") :][: carets.count("^")] == "VALUE"
    dots = "..." if ascii_only else "…"
    assert line.startswith(f"   1 {'|' if ascii_only else '│'} {dots}") == (before > width)
    assert line.endswith(dots) == (after > width)


def test_a_value_longer_than_the_line_is_underlined_as_far_as_it_is_shown() -> None:
    """Carets end where the line is cut."""
    _, line, carets = drawn(mistake(f"a: {'x' * 500}", ("a",)), 60)
    assert line == f"   1 │ a: {'x' * 49}…"
    assert carets == f"     │    {'^' * 49}"


def test_a_note_that_does_not_fit_moves_below() -> None:
    """It is wrapped there."""
    lines = drawn(mistake(f"a: {'x' * 30}", ("a",), note="several words that need room"), 48)
    assert lines[2:] == [f"     │    {'^' * 30}", "     │ several words that need room"]


def test_two_places_on_one_line_show_it_once() -> None:
    """First the earlier one, then the later one."""
    (found,) = parse_document("{a: 1, a: 2}", "a.yaml").mistakes
    assert drawn(found)[1:4] == ["   1 │ {a: 1, a: 2}", "     │  ^ first here", "     │        ^ again here"]


def test_an_earlier_place_out_of_sight_is_left_out() -> None:
    """On a line that is cut, only what is shown is underlined."""
    (found,) = parse_document(f"{{a: {'x' * 500}, a: 2}}", "a.yaml").mistakes
    lines = drawn(found)
    assert len(lines) == 4
    assert lines[2].endswith("^ again here")


def test_large_line_numbers_widen_the_margin() -> None:
    """All lines of a mistake keep one margin."""
    found = mistake("\n" * 123_455 + "a: 5\n", ("a",), hint="write 6")
    assert drawn(found)[1:] == ["123456 │ a: 5", "       │    ^", "       = write 6"]


def test_thousands_of_mistakes_are_counted_not_printed() -> None:
    """The first hundred are shown."""
    found = [Mistake(kind="value", message=f"wrong {i}", file="a") for i in range(5000)]
    lines = [line.plain for line in error_lines("search", found, samples.stream(100))]
    assert lines[-3] == "4,900 more are not shown"
    assert lines[-1] == "5,000 errors in 1 file; nothing was searched"
    assert sum(line.startswith("a: wrong") for line in lines) == MOST_SHOWN


def test_text_from_files_is_no_markup() -> None:
    """Brackets and colons print as written."""
    shown: Terminal = samples.stream(80)
    text = samples.plain(mistake_lines(mistake('"[red]": ":cd:"', ("[red]",), message="[bold]x[/]"), shown))
    assert "[bold]x[/]" in text
    assert '"[red]": ":cd:"' in text
