"""Mistakes in the input, for people; `hetplan.report.build.error_record` has them for machines.

Each mistake begins with one line that is never wrapped, `file:line:column: key path: what`, which editors and CI turn
into a link; then come the line of the file with carets under the exact value, and what to write instead.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.text import Text

from hetplan.errors import Mistake
from hetplan.report.layout import BLANK, wrapped
from hetplan.report.style import BAD, GOOD, QUIET, Terminal
from hetplan.specs.wording import COMMAND_LINE

MOST_SHOWN = 100
"""Mistakes that are printed; a wrong file can hold thousands, and all of them stand in the JSON."""

TAB = " " * 4
_GUTTER = 4
_PLACE, _STRONG, _WRONG, _ADVICE = "cyan", "bold", f"bold {BAD}", f"bold {GOOD}"
_ADVICE_WORDS = re.compile(r"did you mean|[a-z]+")
_DONE = {
    "search": "searched",
    "predict": "predicted",
    "explain": "explained",
    "compare": "compared",
    "show": "shown",
    "schema": "shown",
    "validate": "validated",
    "calibrate": "calibrated",
    "timeline": "drawn",
    "import": "imported",
    "export": "exported",
    "check": "checked",
    "serve": "searched",
}


def error_lines(command: str, mistakes: Sequence[Mistake], terminal: Terminal) -> list[Text]:
    """All mistakes in order, then their count. Only the first line of each may be wider than the terminal."""
    lines: list[Text] = []
    for mistake in mistakes[:MOST_SHOWN]:
        lines += [*mistake_lines(mistake, terminal), BLANK]
    if len(mistakes) > MOST_SHOWN:
        lines += [terminal.text(f"{len(mistakes) - MOST_SHOWN:,} more are not shown"), BLANK]
    done = f"; nothing was {_DONE.get(command, 'done')}"
    return [*lines, *wrapped(terminal.join((_count(mistakes), _STRONG), done), terminal)]


def mistake_lines(mistake: Mistake, terminal: Terminal) -> list[Text]:
    """One mistake: where and what, the lines of the file, what to write."""
    place = ":".join(str(p) for p in (mistake.file, mistake.line, mistake.column) if p is not None)
    key = f"{mistake.key}: " if mistake.key else ""
    lines = [terminal.join((place, _PLACE), ": " if place else "", key, (mistake.message, _WRONG))]
    lines += _excerpt(mistake, terminal)
    if mistake.hint:
        lines += wrapped(_hint(mistake.hint, terminal), terminal, prefix=_gutter(mistake, "=", terminal))
    return lines


def _count(mistakes: Sequence[Mistake]) -> str:
    """How many mistakes there are, and where: "4 errors in 2 files"."""
    files = len({m.file for m in mistakes if m.file not in (None, COMMAND_LINE)})
    places = [f"in {files} {'file' if files == 1 else 'files'}"] if files else []
    if any(m.file == COMMAND_LINE for m in mistakes):
        places.append("on the command line")
    return f"{len(mistakes):,} {'error' if len(mistakes) == 1 else 'errors'} {' and '.join(places)}".rstrip()


def _hint(hint: str, terminal: Terminal) -> Text:
    """The hint, the word that says what to do in bold."""
    text = terminal.text(hint)
    word = _ADVICE_WORDS.match(text.plain)
    if word is not None and text.plain[word.end() : word.end() + 1] == " ":
        text.stylize(_ADVICE, 0, word.end())
    return text


@dataclass(frozen=True, slots=True)
class _Mark:
    """Carets under a stretch of one line; `column` counts from 0."""

    column: int
    width: int
    note: str
    style: str


@dataclass(frozen=True, slots=True)
class _Window:
    """The part of a line that is shown: characters from `start`, each with its text, after `before`."""

    start: int
    cells: tuple[str, ...]
    before: str = ""
    after: str = ""

    @property
    def text(self) -> str:
        return self.before + "".join(self.cells) + self.after

    def carets(self, mark: _Mark) -> tuple[int, int] | None:
        """First cell and number of cells to underline, or None where the stretch is not shown."""
        first = mark.column - self.start
        if not 0 <= first <= len(self.cells):
            return None
        offset = cell_len(self.before + "".join(self.cells[:first]))
        return offset, max(1, cell_len("".join(self.cells[first : first + mark.width])))


def _excerpt(mistake: Mistake, terminal: Terminal) -> list[Text]:
    """The lines around a mistake and around the earlier place that belongs to it, with their carets."""
    texts: dict[int, str] = {}
    marks: dict[int, list[_Mark]] = {}
    for part, style in ((mistake.related, QUIET), (mistake, _WRONG)):
        if part is None or part.line is None or part.column is None:
            continue
        texts |= dict(part.excerpt)
        if part.line in texts:
            marks.setdefault(part.line, []).append(_Mark(part.column - 1, part.width, part.note, style))
    room = terminal.width - _gutter(mistake, "│", terminal).cell_len
    lines: list[Text] = []
    for number, text in sorted(texts.items()):
        here = marks.get(number, [])
        window = _window(text, here[-1] if here else _Mark(0, 1, "", ""), room, terminal)
        lines.append(_joined(_gutter(mistake, "│", terminal, number), terminal.text(window.text)))
        for mark in here:
            lines += _carets(mistake, window, mark, terminal)
    return lines


def _carets(mistake: Mistake, window: _Window, mark: _Mark, terminal: Terminal) -> list[Text]:
    """The line of carets with its note, which moves below where it does not fit beside them."""
    place = window.carets(mark)
    if place is None:
        return []
    offset, width = place
    gutter = _gutter(mistake, "│", terminal)
    line = _joined(gutter, terminal.text(" " * offset), terminal.text("^" * width, mark.style))
    note = terminal.text(mark.note, mark.style)
    if not mark.note:
        return [line]
    if line.cell_len + 1 + note.cell_len <= terminal.width:
        return [_joined(line, terminal.text(" "), note)]
    return [line, *wrapped(note, terminal, prefix=gutter)]


def _window(text: str, mark: _Mark, room: int, terminal: Terminal) -> _Window:
    """The whole line where it fits, else what fits around the carets. A tab is four blanks."""
    if len(text) <= room:
        cells = tuple(_cell(c, terminal) for c in text)
        if cell_len("".join(cells)) <= room:
            return _Window(0, cells)
    dots = terminal.symbols.text("…")
    column = min(mark.column, len(text))
    start = column
    # A third of the room goes to what stands before the carets; all of it where the carets then still fit.
    before, left = 0, room // 3
    if column + mark.width + len(dots) <= room and "\t" not in text[: column + 1]:
        left = room
    while start > 0 and before + (size := cell_len(_cell(text[start - 1], terminal))) <= left:
        start, before = start - 1, before + size
    head = dots if start > 0 else ""
    cells_shown: list[str] = []
    used = cell_len(head)
    for character in text[start:]:
        cell = _cell(character, terminal)
        if used + cell_len(cell) > room - cell_len(dots):
            return _Window(start, tuple(cells_shown), head, dots)
        cells_shown.append(cell)
        used += cell_len(cell)
    return _Window(start, tuple(cells_shown), head)


def _cell(character: str, terminal: Terminal) -> str:
    return TAB if character == "\t" else terminal.symbols.text(character)


def _gutter(mistake: Mistake, sign: str, terminal: Terminal, number: int | None = None) -> Text:
    """The left edge: a line number or blanks, and a sign."""
    digits = max(_GUTTER, len(str(mistake.line or 0)))
    return terminal.text(f"{'' if number is None else number:>{digits}} {sign} ", QUIET)


def _joined(*parts: Text) -> Text:
    line = Text(end="")
    for part in parts:
        line.append_text(part)
    return line
