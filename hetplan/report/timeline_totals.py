"""Seconds per stage as a table: what the pictures show, for screen readers and for copying."""

import math
from dataclasses import dataclass

from hetplan.report import numbers
from hetplan.report.timeline import MAIN, Timeline, time_unit
from hetplan.report.timeline_style import kind_name

_DIGITS, _LEAST_PLACES = 4, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Cells as they are printed. In every row those of `parts` add up to `total`; those of `beside` overlap with them.

    `rows` holds for each stage the cells of the parts, then of `beside`, then the busy share.
    """

    unit: str
    total: str
    parts: tuple[str, ...]
    beside: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def totals(shown: Timeline) -> Totals:
    """Seconds of every stage by kind. Kinds that no stage has are left out."""
    unit, unit_s = time_unit(shown.iteration_s)
    whole = shown.iteration_s / unit_s
    places = max(_LEAST_PLACES, _DIGITS - 1 - math.floor(math.log10(whole))) if whole > 0 else _LEAST_PLACES
    columns = {kind_name(kind, shown): [lane.seconds[i] for lane in shown.lanes] for i, kind in enumerate(MAIN)}
    columns["idle"] = [lane.idle_s for lane in shown.lanes]
    columns["other"] = [lane.outside_s for lane in shown.lanes]
    columns = {name: values for name, values in columns.items() if name == "idle" or any(values)}
    extra = {
        "hidden sync": [lane.hidden_sync_s for lane in shown.lanes],
        "transfers": [lane.transfer_s for lane in shown.lanes],
    }
    extra = {name: values for name, values in extra.items() if any(values)}
    rows = []
    for i, lane in enumerate(shown.lanes):
        exact = [values[i] / unit_s for values in (*columns.values(), *extra.values())]
        printed = (*numbers.apportion(exact[: len(columns)], places), *exact[len(columns) :])
        cells = [
            f"{value:,.{places}f}" if known else numbers.MISSING for known, value in zip(exact, printed, strict=True)
        ]
        rows.append((*cells, numbers.percent(lane.busy)))
    return Totals(unit=unit, total=f"{whole:,.{places}f}", parts=tuple(columns), beside=tuple(extra), rows=tuple(rows))
