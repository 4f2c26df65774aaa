"""The timeline as SVG: the whole iteration with a title on every block, for papers and README files.

Of an iteration of more than 5,000 blocks the fill, two steady periods and the drain are drawn side by side.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from textwrap import wrap

from hetplan.prediction import TRACE_KINDS, TraceKind
from hetplan.report import measures, numbers
from hetplan.report.style import printable
from hetplan.report.timeline import (
    FORWARD,
    GRADIENT_SYNC,
    MAIN,
    RECOMPUTE,
    TRANSFER,
    WEIGHT,
    Blocks,
    Lane,
    Timeline,
    Window,
    nice_step,
    time_unit,
    title,
)
from hetplan.report.timeline_style import FONT, MONO, css_name, css_variables, kind_name
from hetplan.report.timeline_words import block_words, subtitle

MOST_BLOCKS = 5_000
WIDTH, MARGIN, APART, LEAST_PANEL = 1200, 16, 24, 150
LETTER = 7.2
"""Most that a letter of 12 px takes in the fonts named, on average over a line."""
_STYLE = f"""\
.st,.ss,.tt{{font:12px {FONT};fill:var(--quiet)}}
.st{{font-weight:600;fill:var(--ink)}}
.n{{font:600 11px {MONO};text-anchor:middle;pointer-events:none}}
.tick{{stroke:var(--line)}}
.cut{{stroke:var(--quiet);stroke-dasharray:2 4}}
.edge{{stroke:var(--ground);stroke-opacity:.8;stroke-width:1.2;pointer-events:none}}
"""
_PATTERNS = """\
<defs>
<pattern id="p-recompute" width="5" height="5" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">\
<rect width="5" height="5" style="fill:var(--recompute)"/><rect width="1.8" height="5" style="fill:var(--ground)"/>\
</pattern>
<pattern id="p-weight" width="5" height="5" patternUnits="userSpaceOnUse">\
<rect width="5" height="5" style="fill:var(--weight)"/>\
<rect x="4" width="1" height="5" fill="#ffffff" fill-opacity=".35"/></pattern>
<pattern id="p-gradient-sync" width="5" height="5" patternUnits="userSpaceOnUse">\
<rect width="5" height="5" style="fill:var(--gradient-sync)"/>\
<rect width="5" height="1.4" style="fill:var(--ground);fill-opacity:.75"/></pattern>
<pattern id="p-idle" width="6" height="6" patternUnits="userSpaceOnUse">\
<rect width="6" height="6" style="fill:var(--idle)"/>\
<circle cx="3" cy="3" r=".8" style="fill:var(--quiet);fill-opacity:.55"/></pattern>
</defs>
"""
_TEXTURED = ("recompute", "weight", "gradient_sync")


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """A part of the iteration, and where it stands."""

    window: Window
    x: float
    width: float

    def at(self, time_s: float) -> float:
        """Where a time lies."""
        return self.x + (time_s - self.window.start_s) / self.window.span_s * self.width


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """Sizes of the picture in pixels."""

    top: float
    pitch: float
    lane: float
    thin: float
    panels: tuple[Panel, ...]

    def lane_y(self, stage: int) -> float:
        """Upper edge of a stage's row."""
        return self.top + self.pitch * stage

    def thin_y(self, stage: int) -> float:
        """Upper edge of the row beneath."""
        return self.lane_y(stage) + self.lane + 3


def timeline_svg(shown: Timeline) -> str:
    """The picture as text."""
    frame, head = _frame(shown)
    foot = frame.lane_y(len(shown.lanes)) + 4
    legend, height = _legend(shown, foot + 14)
    name = _text(title(shown))
    about = _text(f"{subtitle(shown)} One row per stage.")
    body = [*head, *_axes(shown, frame, foot), *_labels(shown, frame)]
    for panel in frame.panels:
        body += _panel(shown, frame, panel)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:g}" role="img" '
        f'aria-labelledby="title about">\n<title id="title">{name}</title><desc id="about">{about}</desc>\n'
        f"<style>\n{css_variables('svg')}{_STYLE}{_fills()}</style>\n{_PATTERNS}"
        f'<rect width="{WIDTH}" height="{height:g}" style="fill:var(--ground)"/>\n'
        + "\n".join([*body, *legend])
        + "\n</svg>\n"
    )


def _text(text: str) -> str:
    return escape(printable(text))


def _fills() -> str:
    """A class for each kind, and one for numbers on it."""
    lines = []
    for kind in TRACE_KINDS:
        css = css_name(kind)
        fill = f"url(#p-{css})" if kind in _TEXTURED else f"var(--{css})"
        lines.append(f".{css}{{fill:{fill}}}.on-{css}{{fill:var(--on-{css})}}\n")
    return "".join(lines) + ".plain{fill:var(--weight)}\n.idle{fill:url(#p-idle)}\n"


def _frame(shown: Timeline) -> tuple[Frame, list[str]]:
    """Sizes, and the heading with its lines broken."""
    lines = [
        *((line, "st", 17.0) for line in wrap(f"{printable(title(shown))}: {_time(shown)}", 110)),
        *((line, "ss", 12.0) for line in wrap(printable(f"{subtitle(shown)}{_left_out(shown)}"), 150)),
    ]
    y, head = MARGIN + 2.0, []
    for line, css, size in lines:
        y += size + 4
        head.append(
            f'<text x="{MARGIN}" y="{y:g}" class="{css}" style="font-size:{min(size, 16):g}px">{escape(line)}</text>'
        )
    many = len(shown.lanes) > 16
    left = MARGIN + min(240, max(_letters(line) for lane in shown.lanes for line in _label(lane)) * LETTER + 12)
    pitch, lane, thin = (32, 18, 5) if many else (52, 28, 8)
    panels = tuple(_panels(shown, left))
    return Frame(top=y + 34, pitch=pitch, lane=lane, thin=thin, panels=panels), head


def _whole(shown: Timeline) -> bool:
    return len(shown.work) + len(shown.beside) <= MOST_BLOCKS


def _left_out(shown: Timeline) -> str:
    if _whole(shown):
        return ""
    steady = ", two steady periods" if "steady" in shown.views else ""
    return f" Fill{steady} and drain; the rest is left out."


def _time(shown: Timeline) -> str:
    known = shown.prediction
    band = numbers.seconds_range(known.iteration_time_low_s, known.iteration_time_high_s)
    return f"{numbers.seconds(shown.iteration_s)} per iteration ({band})"


def _letters(text: str) -> int:
    return len(printable(text))


def _panels(shown: Timeline, left: float) -> Iterator[Panel]:
    """One, or the parts with a name: all to the same scale but for one that would be too narrow."""
    room = WIDTH - MARGIN - left
    if _whole(shown):
        yield Panel(window=Window(start_s=0.0, end_s=shown.iteration_s), x=left, width=room)
        return
    views = shown.views
    windows = [views["fill"], views["drain"]]
    if "steady" in views:
        middle = (views["steady"].start_s + views["steady"].end_s) / 2
        windows.insert(1, Window(start_s=middle - shown.period_s, end_s=middle + shown.period_s))
    room -= APART * (len(windows) - 1)
    total = sum(window.span_s for window in windows)
    widths = [max(LEAST_PANEL, room * window.span_s / total) for window in windows]
    spare = sum(widths) - room
    wide = sum(width - LEAST_PANEL for width in widths)
    x = left
    for window, width in zip(windows, widths, strict=True):
        fitted = width - spare * (width - LEAST_PANEL) / wide if wide else width
        yield Panel(window=window, x=x, width=fitted)
        x += fitted + APART


def _axes(shown: Timeline, frame: Frame, foot: float) -> Iterator[str]:
    unit, unit_s = time_unit(shown.iteration_s)
    for panel in frame.panels:
        step = nice_step(panel.window.span_s / unit_s, panel.width / 60)
        places = max(0, -math.floor(math.log10(step) + 1e-9))
        number = math.ceil(panel.window.start_s / unit_s / step - 1e-9)
        while number * step * unit_s <= panel.window.end_s * (1 + 1e-12):
            x = panel.at(number * step * unit_s)
            yield f'<line class="tick" x1="{x:.1f}" y1="{frame.top - 6:g}" x2="{x:.1f}" y2="{foot:g}"/>'
            text = f"{number * step:,.{places}f} {unit}"
            half = len(text) * 3.4
            x = min(max(x, panel.x + half), panel.x + panel.width - half)
            yield f'<text class="tt" x="{x:.1f}" y="{frame.top - 11:g}" text-anchor="middle">{text}</text>'
            number += 1
    for left, right in zip(frame.panels, frame.panels[1:], strict=False):
        x = (left.x + left.width + right.x) / 2
        yield f'<line class="cut" x1="{x:.1f}" y1="{frame.top - 6:g}" x2="{x:.1f}" y2="{foot:g}"/>'


def _label(lane: Lane) -> tuple[str, str]:
    layers = measures.plural(lane.layers, "layer")
    return f"S{lane.index} {lane.group}", f"{layers} × {numbers.count(lane.accelerators)}"


def _labels(shown: Timeline, frame: Frame) -> Iterator[str]:
    """Stages, and a line where the group changes. Long names are cut here; titles have them whole."""
    room = int((frame.panels[0].x - MARGIN - 8) / LETTER)
    for lane, before in zip(shown.lanes, (None, *shown.lanes), strict=False):
        first, second = _label(lane)
        y = frame.lane_y(lane.index)
        cut = first if _letters(first) <= room + 1 else f"{printable(first)[:room]}…"
        yield (f'<text class="st" x="{MARGIN}" y="{y + 12:g}">{_text(cut)}<title>{_text(first)}</title></text>')
        if frame.lane > 20:
            yield f'<text class="ss" x="{MARGIN}" y="{y + 27:g}">{_text(second)}</text>'
        if before is not None and before.group != lane.group:
            y -= (frame.pitch - frame.lane - frame.thin - 3) / 2
            yield f'<line class="cut" x1="{MARGIN}" y1="{y:g}" x2="{WIDTH - MARGIN}" y2="{y:g}"/>'


def _panel(shown: Timeline, frame: Frame, panel: Panel) -> Iterator[str]:
    """Idle ground, blocks, edges of further chunks, numbers."""
    start, end = panel.window.start_s, min(panel.window.end_s, shown.pipeline_s)
    for lane in shown.lanes:
        yield (
            f'<rect class="idle" x="{panel.at(start):.1f}" y="{frame.lane_y(lane.index):g}" '
            f'width="{panel.at(end) - panel.at(start):.1f}" height="{frame.lane:g}"/>'
        )
    work = shown.work.between(start, end)
    yield from _blocks(shown, frame, panel, work, thin=False)
    yield from _edges(frame, panel, work)
    yield from _numbers(shown, frame, panel, work)
    yield from _blocks(shown, frame, panel, shown.beside.between(start, end), thin=True)


def _blocks(shown: Timeline, frame: Frame, panel: Panel, blocks: Blocks, *, thin: bool) -> Iterator[str]:
    """A rectangle with a title for each block, gathered by kind. Transfers lie over hidden reductions."""
    order = (GRADIENT_SYNC, TRANSFER) if thin else [TRACE_KINDS.index(kind) for kind in MAIN]
    height = frame.thin if thin else frame.lane
    for number in order:
        own = blocks.of(blocks.kind == number)
        if not len(own):
            continue
        kind: TraceKind = TRACE_KINDS[number]
        yield f'<g class="{css_name(kind)}">'
        for i, (stage, a, b) in enumerate(zip(own.stage.tolist(), *_ends(panel, own), strict=True)):
            y = frame.thin_y(stage) if thin else frame.lane_y(stage)
            width = max(0.8, b - a - (1 if b - a > 6 and not thin else 0))
            yield (
                f'<rect x="{a:.1f}" y="{y:g}" width="{width:.1f}" height="{height:g}">'
                f"<title>{_text(block_words(shown, own, i, hidden=thin))}</title></rect>"
            )
        yield "</g>"


def _ends(panel: Panel, blocks: Blocks) -> tuple[Sequence[float], Sequence[float]]:
    """Left and right edges inside the panel."""
    window = panel.window
    starts, ends = blocks.start_s.clip(min=window.start_s), blocks.end_s.clip(max=window.end_s)
    return [panel.at(t) for t in starts.tolist()], [panel.at(t) for t in ends.tolist()]


def _edges(frame: Frame, panel: Panel, work: Blocks) -> Iterator[str]:
    """One light line along the top for each chunk after the first."""
    later = work.of((work.chunk > 0) & (work.kind >= FORWARD) & (work.kind <= WEIGHT))
    if len(later):
        path = []
        for stage, chunk, a, b in zip(later.stage.tolist(), later.chunk.tolist(), *_ends(panel, later), strict=True):
            y = frame.lane_y(stage) + 2.5
            if b - a > 3:
                path += [f"M{a:.1f} {y + 3 * i:g}H{b:.1f}" for i in range(min(chunk, int(frame.lane / 8)))]
        yield f'<path class="edge" d="{"".join(path)}"/>'


def _numbers(shown: Timeline, frame: Frame, panel: Panel, work: Blocks) -> Iterator[str]:
    """In blocks wide enough for every number of two digits, and for their own."""
    least = len("00" if shown.chunks == 1 else "00.0")
    starts, ends = _ends(panel, work)
    columns = (work.kind.tolist(), work.stage.tolist(), work.chunk.tolist(), work.microbatch.tolist(), starts, ends)
    for number, stage, chunk, microbatch, a, b in zip(*columns, strict=True):
        label = shown.label(chunk, microbatch)
        if number > WEIGHT or number == RECOMPUTE or b - a < max(least, len(label)) * 6.8 + 5:
            continue
        css, x, y = css_name(TRACE_KINDS[number]), (a + b - 1) / 2, frame.lane_y(stage) + frame.lane / 2
        half = len(label) * 3.4 + 2
        if number == WEIGHT:
            yield f'<rect class="plain" x="{x - half:.1f}" y="{y - 7:g}" width="{2 * half:.1f}" height="14"/>'
        yield f'<text class="n on-{css}" x="{x:.1f}" y="{y + (6 if shown.chunks > 1 else 4):g}">{label}</text>'


def _legend(shown: Timeline, y: float) -> tuple[list[str], float]:
    """Kinds that occur, in as many lines as they need; and the height of the picture."""
    entries = [(css_name(kind), kind_name(kind, shown)) for kind in (*MAIN, "transfer") if kind in shown.kinds]
    lines, x = [], float(MARGIN)
    for css, name in [*entries, ("idle", "idle")]:
        width = 30 + len(name) * LETTER + 18
        if x + width > WIDTH - MARGIN:
            x, y = float(MARGIN), y + 22
        top, height = (y + 4, 6) if css == "transfer" else (y, 14)
        lines.append(f'<rect class="{css}" x="{x:g}" y="{top:g}" width="22" height="{height}"/>')
        lines.append(f'<text class="ss" x="{x + 30:g}" y="{y + 11:g}">{name}</text>')
        x += width
    return lines, y + 14 + MARGIN
