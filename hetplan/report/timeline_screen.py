"""The timeline in a terminal: fill and drain with the repeating middle left out, one row per stage."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from rich.style import Style
from rich.text import Text

from hetplan.prediction import TRACE_KINDS, TraceKind
from hetplan.report import measures, numbers
from hetplan.report.layout import BLANK, flow, wrapped
from hetplan.report.search_screen import next_step_lines, warning_lines
from hetplan.report.style import QUIET, Terminal
from hetplan.report.timeline import MAIN, Lane, Timeline, schedule_words
from hetplan.report.timeline_cells import IDLE, Cells, Scale, cells, scale
from hetplan.report.timeline_style import DARK, kind_name

MOST_ROWS = 12
"""More stages than these are folded."""
LEAST_CELLS = 24
"""Labels are shortened before the chart gets narrower."""
SHARE_CELLS = 7
GLYPHS: dict[TraceKind, tuple[str, str]] = {
    "forward": ("░", "-"),
    "recompute": ("▒", "+"),
    "backward": ("▓", "#"),
    "weight": ("╬", "%"),
    "gradient_sync": ("≡", "="),
    "optimizer": ("█", "o"),
}
"""In UTF-8 and in ASCII."""
IDLE_GLYPH, CUT, FOLD = ("·", "."), ("┊", ":"), ("⋮", ":")
TEXTURED = ("recompute", "gradient_sync")
"""Kinds that keep their sign in colour."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A stage, or several that are folded into one line."""

    lanes: tuple[Lane, ...]


def timeline_screen(shown: Timeline, terminal: Terminal, *, stages: bool = False) -> list[Text]:
    """What goes to stdout. `stages` prints every stage where more than 12 would be folded."""
    rows = [Row(lanes=(lane,)) for lane in shown.lanes] if stages else folded(shown.lanes)
    grouped = _room_for_groups(rows, terminal)
    labels = _labels(rows, shown, terminal, grouped=grouped)
    busy = [numbers.percent(row.lanes[0].busy) for row in rows]
    edge, end = max(label.cell_len for label in labels), max(map(len, busy)) + 1
    ruler = scale(shown, terminal.width - edge - end)
    drawn = [cells(shown, row.lanes[0].index, ruler) if len(row.lanes) == 1 else None for row in rows]
    blank = " " * edge
    lines = [*_heading(shown, terminal), BLANK, terminal.join(blank, (_axis(ruler, terminal), QUIET))]
    for row, label, share, part in zip(rows, labels, busy, drawn, strict=True):
        if part is None:
            lines.append(_fold_line(row, terminal))
        else:
            gap = " " * (edge - label.cell_len)
            lines.append(terminal.join(label, gap, _chart(part, ruler, terminal), f"{share:>{end}}"))
    unit = {"s": "seconds", "ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds"}[ruler.unit]
    cut = "; middle left out" if len(ruler.windows) > 1 else ""
    room = terminal.width - edge
    note = next(text for text in (f"time in {unit}{cut}", f"{unit}{cut}", unit) if len(text) + 5 <= room)
    lines += [terminal.join(blank, (f"{note}{'busy':>{room - len(note)}}", QUIET)), BLANK]
    lines += _legend(shown, terminal)
    notes = []
    if any(part and part.numbered for part in drawn):
        chunk = ", and after the point its virtual stage" if shown.chunks > 1 else ""
        notes.append(f"a number is the micro-batch that begins there{chunk}")
    if any(len(row.lanes) > 1 for row in rows):
        notes.append(f"stages are folded; --stages prints all {len(shown.lanes)}")
    for note in notes:
        lines += wrapped(terminal.text(note, QUIET), terminal, prefix=Text(" ", end=""))
    if not grouped:
        lines += _group_lines(shown, terminal)
    return lines


def timeline_notes(shown: Timeline, terminal: Terminal, *, steps: Sequence[tuple[str, str]] = ()) -> list[Text]:
    """What goes to stderr: a warning where the plan does not fit, and next steps, each with what it is for."""
    lines = []
    bad = [(i, s) for i, s in enumerate(shown.prediction.stages) if s.verdict in ("oom", "illegal")]
    if bad:
        index, stage = bad[0]
        why = "needs more memory than it has" if stage.verdict == "oom" else "cannot run as written"
        more = f", nor do {measures.plural(len(bad) - 1, 'more stage')}" if len(bad) > 1 else ""
        lines += warning_lines(f"the plan does not fit: stage {index} on {stage.group} {why}{more}", terminal)
    return [*lines, *([BLANK] if lines and steps else []), *next_step_lines(list(steps), terminal)]


def folded(lanes: Sequence[Lane]) -> list[Row]:
    """At most 12 rows: the ends of every run of stages on a group, or some at even distances, the rest folded."""
    if len(lanes) <= MOST_ROWS:
        return [Row(lanes=(lane,)) for lane in lanes]
    ends = {
        lane.index
        for _, run in groupby(lanes, key=lambda lane: lane.group)
        for members in [list(run)]
        for lane in (members[0], members[-1])
    }
    rows = _rows_of(lanes, ends)
    if len(rows) > MOST_ROWS:
        even = {round(i * (len(lanes) - 1) / (MOST_ROWS // 2 - 1)) for i in range(MOST_ROWS // 2)}
        rows = _rows_of(lanes, even)
    return rows


def _rows_of(lanes: Sequence[Lane], kept: set[int]) -> list[Row]:
    rows = []
    for shown, part in groupby(lanes, key=lambda lane: lane.index in kept):
        together = tuple(part)
        if shown or len(together) == 1:
            rows += [Row(lanes=(lane,)) for lane in together]
        else:
            rows.append(Row(lanes=together))
    return rows


def _heading(shown: Timeline, terminal: Terminal) -> list[Text]:
    name = "Plan" if shown.rank is None else f"Plan {shown.rank}"
    known = shown.prediction
    time = terminal.join(
        (numbers.seconds(shown.iteration_s), "bold"),
        f" per iteration ({numbers.seconds_range(known.iteration_time_low_s, known.iteration_time_high_s)})",
    )
    parts = [*(terminal.text(part) for part in schedule_words(shown)), time]
    return flow(parts, terminal, prefix=terminal.join((name, "bold"), "   "))


def _room_for_groups(rows: Sequence[Row], terminal: Terminal) -> bool:
    """Whether stage and group leave enough for the chart."""
    lanes = [row.lanes[0] for row in rows]
    widest = max(terminal.text(f" S{lane.index} {lane.group} ").cell_len for lane in lanes)
    return terminal.width - widest - SHARE_CELLS >= LEAST_CELLS


def _labels(rows: Sequence[Row], shown: Timeline, terminal: Terminal, *, grouped: bool) -> list[Text]:
    """Stage, group and layers; the layers where they leave enough for the chart."""
    lanes = [row.lanes[0] for row in rows]
    number = max(len(f"S{lane.index}") for lane in lanes)
    labels = [terminal.text(f" {f'S{lane.index}':<{number}} ") for lane in lanes]
    if not grouped:
        return labels
    groups = [terminal.text(lane.group, measures.group_style(shown.cluster, lane.group)) for lane in lanes]
    widest = max(group.cell_len for group in groups)
    for label, group in zip(labels, groups, strict=True):
        label.append_text(group).append(" " * (widest - group.cell_len + 1))
    digits = max(len(str(lane.layers)) for lane in lanes)
    if terminal.width - labels[0].cell_len - digits - 1 - SHARE_CELLS >= LEAST_CELLS:
        for label, lane in zip(labels, lanes, strict=True):
            label.append(f"{lane.layers:>{digits}} ")
    return labels


def _group_lines(shown: Timeline, terminal: Terminal) -> list[Text]:
    """Stages by group, where the rows have no room to say it."""
    parts = []
    for run in measures.group_runs(shown.plan):
        name = f"S{run.first}" if run.first == run.last else f"S{run.first}–S{run.last}"
        parts.append(terminal.join(f"{name} ", (run.group, measures.group_style(shown.cluster, run.group))))
    return flow(parts, terminal, prefix=Text(" ", end=""))


def _fold_line(row: Row, terminal: Terminal) -> Text:
    first, last = row.lanes[0], row.lanes[-1]
    low, high = (numbers.percent(pick(lane.busy for lane in row.lanes)) for pick in (min, max))
    share = high if low == high else f"{low[:-1]}–{high}"
    groups = list(dict.fromkeys(lane.group for lane in row.lanes))
    count = measures.plural(len(row.lanes), "stage")
    sign = FOLD[terminal.symbols.ascii_only]
    for words in (f"{count} of {', '.join(groups)}, {share} busy", f"{count}, {share} busy"):
        line = terminal.join(f" {sign} S{first.index}–S{last.index}", (f"  {words}", QUIET))
        if line.cell_len <= terminal.width:
            break
    return line


def _axis(ruler: Scale, terminal: Terminal) -> str:
    """Times above the cells in which they lie."""
    parts = []
    for window in ruler.windows:
        line = [" "] * window.count
        free = 0
        for text, at in window.ticks(ruler):
            if at >= free and at + len(text) <= window.count:
                line[at : at + len(text)] = text
                free = at + len(text) + 1
        parts.append("".join(line))
    return "   ".join(parts)


def _chart(part: Cells, ruler: Scale, terminal: Terminal) -> Text:
    """One stage's cells, coloured where the terminal has the colours for it."""
    plain = int(terminal.symbols.ascii_only)
    line = Text(end="")
    for index, (kinds, texts) in enumerate(zip(part.kinds, part.texts, strict=True)):
        if index:
            line.append(f" {CUT[plain]} ", style=QUIET)
        for kind, run in groupby(zip(kinds, texts, strict=True), key=lambda cell: cell[0]):
            characters = "".join(text or _glyph(kind, terminal) for _, text in run)
            line.append(characters, style=_style(kind, terminal))
    return line


def _glyph(kind: int, terminal: Terminal) -> str:
    plain = int(terminal.symbols.ascii_only)
    if kind == IDLE:
        return IDLE_GLYPH[plain]
    name = TRACE_KINDS[kind]
    return " " if terminal.rgb and name not in TEXTURED else GLYPHS[name][plain]


def _style(kind: int, terminal: Terminal) -> Style | str:
    if kind == IDLE:
        return QUIET
    if not terminal.rgb:
        return ""
    name = TRACE_KINDS[kind]
    return Style(color=DARK.texts.get(name, DARK.ground), bgcolor=DARK.marks[name])


def _legend(shown: Timeline, terminal: Terminal) -> list[Text]:
    parts = []
    for kind in MAIN:
        if kind in shown.kinds:
            number = TRACE_KINDS.index(kind)
            swatch = Text(_glyph(number, terminal) * 2, style=_style(number, terminal), end="")
            parts.append(terminal.join(swatch, f" {kind_name(kind, shown)}"))
    parts.append(terminal.join((IDLE_GLYPH[terminal.symbols.ascii_only] * 2, QUIET), " idle"))
    return flow(parts, terminal, prefix=Text(" ", end=""), separator="  ")
