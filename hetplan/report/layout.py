"""Lines that fit a width: tables that drop whole columns, and text that flows between its parts.

A row never wraps and a number is never cut. rich's own tables squeeze cells that do not fit, so columns are
chosen before anything is drawn.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rich.text import Text

from hetplan.report.style import QUIET, Terminal

BLANK = Text("", end="")
INDENT = 1
COLUMN_GAP = 2
_UNIT_AFTER = re.compile(r"(?<=\d) (?=(?:[num]?s|min|h|d|[kMGTP]i?B?|[kMGT]?(?:bit|B|FLOP)/s|pt|tokens/s)(?![\w/]))")
_HOLD = "\ue000"
"""Stands for a blank at which a line must not break; a private character that `printable` never lets through."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column of a table. `drop` says when it goes as the width shrinks: highest first, 0 never."""

    header: str
    cells: tuple[Text, ...]
    align: Literal["left", "right"] = "right"
    drop: int = 0

    def width(self, terminal: Terminal) -> int:
        """Cells of the widest entry, the header included."""
        return max(terminal.text(self.header).cell_len, *(cell.cell_len for cell in self.cells), 0)


def fit(columns: Sequence[Column], terminal: Terminal) -> list[Column] | None:
    """The columns that fit side by side, or None where even those that must stay do not."""
    kept = list(columns)
    while INDENT + sum(c.width(terminal) for c in kept) + COLUMN_GAP * (len(kept) - 1) > terminal.width:
        droppable = [column for column in kept if column.drop > 0]
        if not droppable:
            return None
        last = max(droppable, key=lambda column: column.drop)
        kept = [column for column in kept if column is not last]
    return kept


def _pad(cell: Text, width: int, align: str) -> Text:
    blanks = " " * (width - cell.cell_len)
    padded = Text(end="")
    if align == "right":
        padded.append(blanks).append_text(cell)
    else:
        padded.append_text(cell).append(blanks)
    return padded


def table(columns: Sequence[Column], terminal: Terminal, *, marks: Sequence[str] = ()) -> list[Text]:
    """A header, one rule and the rows; where they cannot fit, one `key  value` line per cell.

    `marks` gives a style for each row.
    """
    kept = fit(columns, terminal)
    if kept is None:
        return _cards([c for c in columns if c.drop == 0], terminal)
    widths = [column.width(terminal) for column in kept]
    lines = [_row([_pad(terminal.text(c.header), w, c.align) for c, w in zip(kept, widths, strict=True)])]
    rule = sum(widths) + COLUMN_GAP * (len(kept) - 1)
    lines.append(Text(" " * INDENT, end="").append(terminal.symbols.rule * rule, style=QUIET))
    for index in range(len(kept[0].cells)):
        line = _row([_pad(c.cells[index], w, c.align) for c, w in zip(kept, widths, strict=True)])
        if index < len(marks) and marks[index]:
            line.stylize_before(marks[index])
        lines.append(line)
    return lines


def _row(cells: Sequence[Text]) -> Text:
    line = Text(" " * INDENT, end="")
    for index, cell in enumerate(cells):
        line.append(" " * COLUMN_GAP if index else "").append_text(cell)
    line.rstrip()
    return line


def _cards(columns: Sequence[Column], terminal: Terminal) -> list[Text]:
    """Each row as `key  value` lines, with a blank line between rows."""
    shown = [column for column in columns if column.header.strip()]
    width = max(terminal.text(column.header).cell_len for column in shown)
    lines: list[Text] = []
    for index in range(len(shown[0].cells)):
        if index:
            lines.append(BLANK)
        for column in shown:
            head = Text(" " * INDENT, end="").append_text(
                _pad(terminal.text(column.header), width + COLUMN_GAP, "left")
            )
            value = column.cells[index].copy()
            while value.plain.startswith(" "):
                value = value[1:]
            lines += wrapped(value, terminal, prefix=head)
    return lines


def wrapped(text: Text, terminal: Terminal, *, prefix: Text | None = None) -> list[Text]:
    """Text broken between words, continued under its start; a word longer than the line is broken too."""
    prefix = BLANK if prefix is None else prefix
    indent = min(prefix.cell_len, terminal.width // 2)
    room = terminal.width - prefix.cell_len
    if text.cell_len <= room:
        return [_joined(prefix, text)]
    if room < terminal.width // 2 and prefix.cell_len:
        return [*wrapped(prefix, terminal), *_indented(text, terminal, indent)]
    first, *rest = _lines(text, terminal, room)
    return [_joined(prefix, first), *(_joined(Text(" " * indent, end=""), line) for line in rest)]


def _indented(text: Text, terminal: Terminal, indent: int) -> list[Text]:
    return [_joined(Text(" " * indent, end=""), line) for line in _lines(text, terminal, terminal.width - indent)]


def _lines(text: Text, terminal: Terminal, room: int) -> list[Text]:
    """The text in lines of so many cells, numbers kept beside their units."""
    held = text.copy()
    held.plain = _UNIT_AFTER.sub(_HOLD, held.plain)
    lines = list(held.wrap(terminal.console, room, overflow="fold"))
    for line in lines:
        line.plain = line.plain.replace(_HOLD, " ")
    return lines


def _joined(*parts: Text) -> Text:
    line = Text(end="")
    for part in parts:
        line.append_text(part)
    line.rstrip()
    return line


def flow(
    parts: Sequence[Text], terminal: Terminal, *, prefix: Text | None = None, separator: str = " · "
) -> list[Text]:
    """Parts joined by a separator and broken between them, continued under the first."""
    prefix = BLANK if prefix is None else prefix
    between = terminal.text(separator)
    indent = Text(" " * min(prefix.cell_len, terminal.width // 2), end="")
    lines: list[Text] = []
    start, current = prefix, BLANK
    for part in parts:
        candidate = _joined(current, between, part) if current else part
        if current and start.cell_len + candidate.cell_len > terminal.width:
            lines += wrapped(current, terminal, prefix=start)
            start, current = indent, part
        else:
            current = candidate
    return [*lines, *wrapped(current, terminal, prefix=start)]
