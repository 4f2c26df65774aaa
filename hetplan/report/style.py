"""How output looks on one stream: its width, its colours, and the symbols its encoding can carry."""

import codecs
import errno
import os
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TextIO

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

NARROWEST, WIDEST = 40, 140
PIPE_WIDTH, DUMB_WIDTH = 100, 80
GROUP_STYLES = ("cyan", "magenta", "blue")
"""In order of cluster.yaml, so that a group keeps its colour in every screen; the fourth and later are plain."""

GOOD, WATCH, BAD, QUIET = "green", "yellow", "red", "bright_black"
"""Proof or gain; look here; failed; what repeats or explains."""

_TO_ASCII = str.maketrans(
    {
        "✓": "ok",
        "✗": "x",
        "→": "->",
        "≈": "~",
        "×": "x",
        "·": "|",
        "–": "-",
        "—": "-",
        "−": "-",
        "±": "+-",
        "…": "...",
        "µ": "u",
        "╭": "+",
        "╮": "+",
        "╰": "+",
        "╯": "+",
        "│": "|",
        "≤": "<=",
        "≥": ">=",
    }
)


def printable(text: str) -> str:
    """The text with control, format and line characters written as escapes: names come from users' files."""
    return "".join(
        repr(c)[1:-1] if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp") else c for c in text
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Symbols:
    """Signs whose ASCII form depends on where they stand; the rest is translated by `text`."""

    ascii_only: bool
    bar: str
    half: str
    track: str
    rule: str
    link: str
    link_head: str
    box_dot: str
    spinner: str

    def text(self, text: str) -> str:
        """The text in this symbol set, safe to print."""
        text = printable(text)
        if not self.ascii_only:
            return text
        return text.translate(_TO_ASCII).encode("ascii", "backslashreplace").decode("ascii")


UTF8 = Symbols(
    ascii_only=False,
    bar="━",
    half="╸",
    track="─",
    rule="─",
    link="━",
    link_head="▶",
    box_dot="·",
    spinner="⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏",
)
ASCII = Symbols(
    ascii_only=True,
    bar="#",
    half="",
    track=".",
    rule="-",
    link="=",
    link_head=">",
    box_dot="-",
    spinner="|/-\\",
)


class _Console(Console):
    """A console that leaves it to the command what a closed pipe means."""

    def on_broken_pipe(self) -> None:
        """Pass the error on; rich would end the program with the exit status of a bug."""
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


@dataclass(frozen=True, slots=True, kw_only=True)
class Terminal:
    """One output stream and how to write to it."""

    console: Console
    width: int
    symbols: Symbols
    is_terminal: bool
    animated: bool
    """Whether lines may be redrawn in place."""

    @property
    def narrow(self) -> bool:
        """Under 90 columns times lose their bars and shares their decimals."""
        return self.width < 90

    @property
    def wide(self) -> bool:
        """At 140 columns nothing is left out."""
        return self.width >= WIDEST

    @property
    def rgb(self) -> bool:
        """Whether colours beyond the theme's 16 can be shown."""
        return self.console.color_system in ("256", "truecolor") and not self.console.no_color

    def text(self, text: str, style: str = "") -> Text:
        """A piece of text in this stream's symbols; never read as markup."""
        return Text(self.symbols.text(text), style=style, end="")

    def join(self, *parts: str | Text | tuple[str, str]) -> Text:
        """Pieces side by side: plain text, finished pieces, or (text, style) pairs."""
        line = Text(end="")
        for part in parts:
            if isinstance(part, Text):
                line.append_text(part)
            elif isinstance(part, tuple):
                line.append_text(self.text(*part))
            else:
                line.append_text(self.text(part))
        return line

    def bar(self, share: float, width: int, style: str = "", *, track: bool = True) -> Text:
        """A bar of `share` of `width` cells in steps of half a cell; a share above zero is always seen."""
        symbols = self.symbols
        share = min(1.0, max(0.0, share))
        halves = round(share * width * 2)
        if not symbols.half:
            halves = round(share * width) * 2
        if share > 0:
            halves = max(halves, 1 if symbols.half else 2)
        filled = symbols.bar * (halves // 2) + symbols.half * (halves % 2)
        bar = Text(filled, style=style, end="")
        if track:
            bar.append(symbols.track * (width - cell_len(filled)), style=QUIET)
        return bar

    def print(self, lines: Sequence[Text]) -> None:
        """Write lines as they are: not wrapped, not cut, without trailing blanks."""
        for line in lines:
            written = line.copy()
            written.rstrip()
            written.end = ""
            self.console.print(written, soft_wrap=True, markup=False, emoji=False, highlight=False)


def terminal(stream: TextIO, *, environment: Mapping[str, str] | None = None, width: int | None = None) -> Terminal:
    """Decide width, colours and symbols for a stream.

    A terminal gives its own columns, of which at most 140 are used; a pipe or file has COLUMNS or 100.
    NO_COLOR takes the colours, TERM=dumb all styles and redraws, an encoding other than UTF-8 the symbols.
    """
    environment = os.environ if environment is None else environment
    is_terminal = _is_terminal(stream)
    dumb = environment.get("TERM", "").lower() in ("dumb", "unknown")
    columns = width if width is not None else _columns(stream, environment, is_terminal=is_terminal, dumb=dumb)
    columns = max(NARROWEST, min(WIDEST, columns))
    styled = is_terminal and not dumb
    console = _Console(
        file=stream,
        width=columns,
        force_terminal=styled,
        color_system=_color_system(environment) if styled else None,
        no_color=bool(environment.get("NO_COLOR")),
        markup=False,
        emoji=False,
        highlight=False,
        soft_wrap=True,
        _environ=dict(environment),
    )
    return Terminal(
        console=console,
        width=columns,
        symbols=UTF8 if _is_utf8(stream) else ASCII,
        is_terminal=is_terminal,
        animated=styled,
    )


def _color_system(environment: Mapping[str, str]) -> Literal["standard", "256", "truecolor"]:
    """How many colours the terminal says it has; colours by name are the theme's in any case."""
    if environment.get("COLORTERM", "").lower() in ("truecolor", "24bit"):
        return "truecolor"
    return "256" if "256color" in environment.get("TERM", "") else "standard"


def _is_terminal(stream: TextIO) -> bool:
    try:
        return stream.isatty()
    except (AttributeError, ValueError):
        return False


def _columns(stream: TextIO, environment: Mapping[str, str], *, is_terminal: bool, dumb: bool) -> int:
    if is_terminal and not dumb:
        try:
            columns = os.get_terminal_size(stream.fileno()).columns
        except (OSError, ValueError):
            columns = 0
        if columns > 0:
            return columns
    written = environment.get("COLUMNS", "")
    if written.isdecimal() and int(written) > 0 and not (is_terminal and dumb):
        return int(written)
    return DUMB_WIDTH if dumb else PIPE_WIDTH


def _is_utf8(stream: TextIO) -> bool:
    encoding = getattr(stream, "encoding", None)
    if encoding is None:
        return True
    try:
        return codecs.lookup(encoding).name in ("utf-8", "utf-8-sig")
    except LookupError:
        return False
