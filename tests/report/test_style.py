"""What a stream looks like: width, colour, symbols."""

import io
import os

import pytest
from rich.text import Text

from hetplan.report.layout import Column, flow, table, wrapped
from hetplan.report.style import ASCII, UTF8, printable, terminal
from tests.report import samples


class Stream(io.TextIOWrapper):
    """A stream of an encoding that is a terminal or not."""

    def __init__(self, *, tty: bool = False, encoding: str = "utf-8") -> None:
        super().__init__(io.BytesIO(), encoding=encoding)
        self.tty = tty

    def isatty(self) -> bool:
        """Whether it is a terminal."""
        return self.tty


@pytest.mark.parametrize(
    ("tty", "environment", "width"),
    [
        (False, {}, 100),
        (False, {"COLUMNS": "120"}, 120),
        (False, {"COLUMNS": "500"}, 140),
        (False, {"COLUMNS": "10"}, 40),
        (False, {"COLUMNS": "wide"}, 100),
        (False, {"COLUMNS": "0"}, 100),
        (True, {"TERM": "dumb", "COLUMNS": "120"}, 80),
        (True, {"TERM": "xterm"}, 132),
    ],
)
def test_width(monkeypatch: pytest.MonkeyPatch, tty: bool, environment: dict[str, str], width: int) -> None:
    """A terminal's own columns, at most 140; COLUMNS or 100 in a pipe; 80 on a dumb terminal."""
    monkeypatch.setattr(Stream, "fileno", lambda self: 1)
    monkeypatch.setattr(os, "get_terminal_size", lambda fd: os.terminal_size((132, 40)))
    assert terminal(Stream(tty=tty), environment=environment).width == width


def test_a_terminal_without_a_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the system does not know the size, it is 100."""

    def refuse(fd: int) -> os.terminal_size:
        raise OSError

    monkeypatch.setattr(os, "get_terminal_size", refuse)
    assert terminal(Stream(tty=True), environment={"TERM": "xterm"}).width == 100


@pytest.mark.parametrize(
    ("tty", "environment", "output"),
    [
        (False, {"TERM": "xterm"}, "x\n"),
        (True, {"TERM": "dumb"}, "x\n"),
        (True, {"TERM": "xterm"}, "\x1b[1;31mx\x1b[0m\n"),
        (True, {"TERM": "xterm", "NO_COLOR": "1"}, "\x1b[1mx\x1b[0m\n"),
        (True, {"TERM": "xterm", "NO_COLOR": ""}, "\x1b[1;31mx\x1b[0m\n"),
        (False, {"FORCE_COLOR": "1"}, "x\n"),
    ],
)
def test_colour(tty: bool, environment: dict[str, str], output: str) -> None:
    """Colours on a terminal; NO_COLOR leaves bold; a dumb terminal and a pipe have neither."""
    stream = Stream(tty=tty)
    shown = terminal(stream, environment=environment, width=80)
    shown.print([shown.text("x", "bold red")])
    stream.flush()
    stream.seek(0)
    assert stream.read() == output


@pytest.mark.parametrize(
    ("encoding", "symbols"), [("utf-8", UTF8), ("UTF8", UTF8), ("ascii", ASCII), ("latin-1", ASCII), ("cp1252", ASCII)]
)
def test_symbols_by_encoding(encoding: str, symbols: object) -> None:
    """UTF-8 signs only where the stream can carry them."""
    assert terminal(Stream(encoding=encoding), environment={}).symbols is symbols


def test_text_streams_without_an_encoding() -> None:
    """StringIO takes any character."""
    assert terminal(io.StringIO(), environment={}).symbols is UTF8


def test_a_closed_stream_is_no_terminal() -> None:
    """Asking a closed stream does not raise."""
    stream = io.StringIO()
    stream.close()
    assert not terminal(stream, environment={}).is_terminal


def test_ascii_text() -> None:
    """Signs have ASCII forms, other characters are escaped."""
    assert ASCII.text("✓ 1 × 2 → 3–4 ± − · ≈ …") == "ok 1 x 2 -> 3-4 +- - | ~ ..."
    assert ASCII.text("größe") == r"gr\xf6\xdfe"


def test_control_characters_are_escaped() -> None:
    """Nothing in a name moves the cursor, turns text around or breaks a line."""
    assert printable("a\x1b[2Jb\r\n\tc\u202ed\u2028e\x9b") == r"a\x1b[2Jb\r\n\tc\u202ed\u2028e\x9b"
    assert printable("größe 漢字 →") == "größe 漢字 →"


@pytest.mark.parametrize(
    ("share", "bar", "ascii_bar"),
    [
        (0, "──────────", ".........."),
        (1, "━━━━━━━━━━", "##########"),
        (0.86, "━━━━━━━━╸─", "#########."),
        (0.001, "╸─────────", "#........."),
    ],
)
def test_bars(share: float, bar: str, ascii_bar: str) -> None:
    """Steps of half a cell; a little is always seen; more than all is all."""
    assert samples.stream(80).bar(share, 10).plain == bar
    assert samples.stream(80, ascii_only=True).bar(share, 10).plain == ascii_bar
    assert samples.stream(80).bar(share + 5, 4, track=False).plain == "━━━━"


def test_columns_drop_in_order() -> None:
    """The highest goes first, whole; what must stay becomes `key  value` lines where it cannot fit."""
    shown = samples.stream(40)

    def column(header: str, width: int, drop: int) -> Column:
        return Column(header=header, cells=(shown.text("9" * width),), drop=drop)

    columns = [column("a", 10, 0), column("b", 12, 1), column("c", 12, 3), column("d", 12, 2)]
    assert table(columns, shown)[0].plain.split() == ["a", "b", "d"]
    wide = [column("a", 20, 0), column("b", 20, 0), column("c", 20, 1)]
    assert samples.plain(table(wide, shown)) == f" a  {'9' * 20}\n b  {'9' * 20}\n"


def test_wide_characters_count_as_two_cells() -> None:
    """Columns line up by cells, not by characters."""
    shown = samples.stream(80)
    cells = (shown.text("漢字"), shown.text("abcd"))
    lines = table(
        [Column(header="x", cells=cells, align="left"), Column(header="y", cells=(shown.text("1"),) * 2)], shown
    )
    assert lines[2].cell_len == lines[3].cell_len


def test_flowing_text() -> None:
    """Parts break between them and continue under the first; a long part breaks between words."""
    shown = samples.stream(40)
    parts = [shown.text(text) for text in ("one two three", "four five six", "seven", "w " * 30)]
    lines = flow(parts, shown, prefix=shown.text("head  "))
    assert [line.plain for line in lines[:2]] == ["head  one two three · four five six", "      seven"]
    assert all(line.cell_len <= 40 for line in lines)
    kept = samples.plain(wrapped(shown.text("the search was stopped by its limit at 2.40 s"), shown))
    assert "2.40 s" in kept
    assert samples.plain(wrapped(Text("x" * 50), shown)) == f"{'x' * 40}\n{'x' * 10}\n"


def test_a_closed_pipe_is_passed_on() -> None:
    """The command decides what a closed pipe means, not the console."""

    class Closed(io.StringIO):
        def write(self, text: str) -> int:
            """Nobody reads."""
            raise BrokenPipeError

    shown = terminal(Closed(), environment={})
    with pytest.raises(BrokenPipeError):
        shown.print([shown.text("x")])
