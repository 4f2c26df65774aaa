"""The timeline in character cells: which part of the iteration is shown, how fine, and what each cell holds."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from hetplan.prediction import TRACE_KINDS
from hetplan.report.timeline import (
    BACKWARD,
    FORWARD,
    GRADIENT_SYNC,
    OPTIMIZER,
    WEIGHT,
    Blocks,
    Timeline,
    nice_step,
    time_unit,
)

IDLE = -1
BETWEEN = 3
"""Cells that the sign for what is left out takes."""
TICK_CELLS = 9
"""Least distance of two times on the axis."""
FILL_SHARE = 0.54
"""Of the cells, where fill and drain both want more than there are."""
_EDGE = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Cells side by side from a point in time on."""

    start_s: float
    count: int

    def ticks(self, ruler: "Scale") -> Iterator[tuple[str, int]]:
        """Times to write over the cells: (text, cell)."""
        step = ruler.tick_s
        places = max(0, -math.floor(math.log10(step / ruler.unit_s) + _EDGE))
        number = math.ceil(self.start_s / step - _EDGE)
        while number * step < self.start_s + self.count * ruler.cell_s:
            at = int((number * step - self.start_s) / ruler.cell_s + _EDGE)
            yield f"{number * step / ruler.unit_s:,.{places}f}", at
            number += 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """What is shown: the whole iteration, or its beginning and its end."""

    cell_s: float
    windows: tuple[Span, ...]
    tick_s: float
    unit: str
    unit_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Cells:
    """One stage, for each window: the kind of every cell, and the character of a number where one stands there."""

    kinds: tuple[tuple[int, ...], ...]
    texts: tuple[tuple[str, ...], ...]

    @property
    def numbered(self) -> bool:
        """Whether there is any number."""
        return any(text for window in self.texts for text in window)


def scale(shown: Timeline, width: int) -> Scale:
    """So fine that a forward pass has 2 cells, 4 with chunks; coarser where the last stage would not be seen to begin.

    The whole iteration, where it has room at that.
    """
    total_s = shown.iteration_s
    unit, unit_s = time_unit(total_s)
    work = shown.work
    room = width - BETWEEN
    fine_s = _forward_s(shown) / (2 if shown.chunks == 1 else 4)
    begins = work.start_s[work.stage == len(shown.lanes) - 1]
    reach_s = float(begins.min(initial=total_s)) + 2 * _forward_s(shown)
    cell_s = max(fine_s, min(reach_s, total_s) / (FILL_SHARE * room))
    if total_s <= cell_s * width:
        cell_s = total_s / width
        windows: tuple[Span, ...] = (Span(start_s=0.0, count=width),)
    else:
        fill = math.ceil((shown.steady.start_s + shown.period_s) / cell_s)
        drain = math.ceil((total_s - shown.steady.end_s + shown.period_s) / cell_s)
        count = round(FILL_SHARE * room)
        if fill + drain <= room:
            count = fill + (room - fill - drain) // 2
        elif fill < count:
            count = fill
        elif drain < room - count:
            count = room - drain
        windows = (
            Span(start_s=0.0, count=count),
            Span(start_s=total_s - (room - count) * cell_s, count=room - count),
        )
    tick_s = nice_step(TICK_CELLS * cell_s / unit_s, 1) * unit_s
    return Scale(cell_s=cell_s, windows=windows, tick_s=tick_s, unit=unit, unit_s=unit_s)


def _forward_s(shown: Timeline) -> float:
    """The shortest forward pass of a stage, at least half the median; with chunks (long numbers) the median."""
    work = shown.work
    own = work.kind == FORWARD
    each = [float(np.median((work.end_s - work.start_s)[own & (work.stage == lane.index)])) for lane in shown.lanes]
    usual = float(np.median(each))
    found = max(min(each), usual / 2) if shown.chunks == 1 else usual
    return found if found > 0 else shown.iteration_s / 100


def cells(shown: Timeline, stage: int, ruler: Scale) -> Cells:
    """One stage at this scale: each cell holds the kind that takes most of its time."""
    own = shown.work.of(shown.work.stage == stage)
    kinds, texts = [], []
    for window in ruler.windows:
        drawn = own.between(window.start_s, window.start_s + window.count * ruler.cell_s)
        owners = _owners(drawn, window, ruler.cell_s)
        kinds.append(tuple(IDLE if owner < 0 else int(drawn.kind[owner]) for owner in owners))
        texts.append(_texts(shown, drawn, owners, window, ruler))
    return Cells(kinds=tuple(kinds), texts=tuple(texts))


def _owners(drawn: Blocks, window: Span, cell_s: float) -> list[int]:
    """The block that each cell shows, or IDLE."""
    # Seconds by kind, and the longest block of each kind, in every cell.
    seconds = np.zeros((len(TRACE_KINDS), window.count))
    longest = np.zeros_like(seconds)
    block = np.full(seconds.shape, IDLE)
    starts = (drawn.start_s - window.start_s) / cell_s
    ends = (drawn.end_s - window.start_s) / cell_s
    for i, (kind, a, b) in enumerate(zip(drawn.kind.tolist(), starts.tolist(), ends.tolist(), strict=True)):
        for at in range(max(0, int(a + _EDGE)), min(window.count, math.ceil(b - _EDGE))):
            inside = min(b, at + 1) - max(a, at)
            seconds[kind, at] += inside
            if inside > longest[kind, at]:
                longest[kind, at], block[kind, at] = inside, i
    most = seconds.argmax(axis=0)
    column = np.arange(window.count)
    idle = 1 - seconds.sum(axis=0)
    owners: list[int] = np.where(seconds[most, column] > idle, block[most, column], IDLE).tolist()
    for i in np.flatnonzero(np.isin(drawn.kind, (GRADIENT_SYNC, OPTIMIZER))).tolist():
        # Happens once: seen however short it is.
        if i not in owners:
            owners[min(window.count - 1, max(0, int((starts[i] + ends[i]) / 2)))] = i
    return owners


def _texts(shown: Timeline, drawn: Blocks, owners: list[int], window: Span, ruler: Scale) -> tuple[str, ...]:
    """Numbers where blocks begin, for kinds whose blocks all have room for one digit and for a cell of their own."""
    texts = [""] * window.count
    runs = {i: (owners.index(i), owners.count(i)) for i in dict.fromkeys(owners) if i >= 0}
    end_s = window.start_s + (window.count + 0.5) * ruler.cell_s
    whole = {i for i in runs if drawn.start_s[i] >= window.start_s and drawn.end_s[i] <= end_s}
    labels = {i: shown.label(int(drawn.chunk[i]), int(drawn.microbatch[i])) for i in whole}
    for kind in (FORWARD, BACKWARD, WEIGHT):
        own = [i for i in whole if drawn.kind[i] == kind]
        if own and min(runs[i][1] for i in own) > min(len(labels[i]) for i in own):
            for i in own:
                first, count = runs[i]
                if len(labels[i]) < count:
                    texts[first : first + len(labels[i])] = labels[i]
    return tuple(texts)
