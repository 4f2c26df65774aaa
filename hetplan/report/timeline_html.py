"""The timeline as one HTML file that asks for nothing else: no address, no font, no script from elsewhere.

Events are 32-bit columns, drawn on a canvas by timeline_draw.js; timeline_use.js has what readers can do.
"""

import base64
import json
from collections.abc import Mapping, Sequence
from html import escape
from importlib import resources

import numpy as np
import numpy.typing as npt

from hetplan.prediction import TRACE_KINDS
from hetplan.report import measures, numbers
from hetplan.report.style import printable
from hetplan.report.timeline import MAIN, Blocks, Timeline, time_unit, title
from hetplan.report.timeline_style import FONT, MONO, css_name, css_variables, kind_name
from hetplan.report.timeline_totals import totals
from hetplan.report.timeline_words import subtitle

_TICKS = 2**32 - 1
"""Times are shares of the iteration in so many steps."""
_LEAST_SHARE = 1e-6
"""How far a reader can zoom in."""
_VIEW_NAMES = {"all": "Whole iteration", "fill": "Fill", "steady": "Steady", "drain": "Drain and sync"}


def timeline_html(shown: Timeline) -> str:
    """The page as text."""
    name = _text(title(shown))
    data = json.dumps(_data(shown), separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    policy = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
    return f"""\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<link rel="icon" href="data:,">
<title>{name}: pipeline timeline</title>
<style>
{css_variables(":root")}:root {{ --font: {FONT}; --mono: {MONO}; --stripe: {_STRIPE} }}
{_asset("timeline_page.css")}</style>
</head>
<body>
<main>
<h1>{name}</h1>
<p class="quiet">{_text(subtitle(shown))}</p>
{_warning(shown)}<dl>{_figures(shown)}</dl>
<div class="bar" role="group" aria-label="View">{_view_buttons(shown)}</div>
<div class="bar" role="group" aria-label="Show">{_kind_buttons(shown)}</div>
<canvas id="over" height="46" aria-hidden="true"></canvas>
<canvas id="chart" tabindex="0" role="img" aria-label="{_chart_words(shown)}"></canvas>
<p id="info" aria-live="polite"></p>
<p class="help">Ctrl+wheel or + − to zoom, drag or ← → to move, 0 for all; Shift+arrows pick a block.
<span id="merged" hidden>Blocks narrower than a pixel are drawn as shares of their time; zoom in to see each.</span></p>
<noscript><p>The picture needs scripts; this table and the .svg do not.</p></noscript>
{_table(shown)}
</main>
<div id="tip" hidden></div>
<script type="application/json" id="data">{data}</script>
<script>
{_asset("timeline_draw.js")}
{_asset("timeline_use.js")}</script>
</body>
</html>
"""


_STRIPE = "#ffffff59"


def _asset(name: str) -> str:
    return resources.files("hetplan.report").joinpath(name).read_text("utf-8")


def _text(text: str) -> str:
    return escape(printable(text))


def _warning(shown: Timeline) -> str:
    bad = [i for i, stage in enumerate(shown.prediction.stages) if stage.verdict in ("oom", "illegal")]
    if not bad:
        return ""
    where = ", ".join(f"S{i}" for i in bad)
    return f'<p class="warning">This plan does not fit on {where}: the times are those that it would take.</p>\n'


def _figures(shown: Timeline) -> str:
    known = shown.prediction
    total_s = shown.iteration_s
    parts = known.breakdown
    slowest = max(lane.busy for lane in shown.lanes)
    shares = (
        ("fill and drain", parts.fill_and_drain),
        ("exposed links", parts.exposed_links),
        ("gradient sync", parts.gradient_sync),
    )
    figures = [
        ("iteration", numbers.seconds(total_s), numbers.seconds_range(*_band(shown))),
        ("tokens/s", numbers.rate(known.tokens_per_s), ""),
        ("MFU", numbers.percent(known.mfu), ""),
        ("busy, slowest stage", numbers.percent(slowest), ""),
        *((name, numbers.percent(value / total_s) if total_s else numbers.MISSING, "") for name, value in shares),
    ]
    return "".join(
        f"<div><dt>{name}</dt><dd>{value}{f' <small>{note}</small>' if note else ''}</dd></div>"
        for name, value, note in figures
    )


def _band(shown: Timeline) -> tuple[float, float]:
    return shown.prediction.iteration_time_low_s, shown.prediction.iteration_time_high_s


def _view_buttons(shown: Timeline) -> str:
    names = [name for name in _VIEW_NAMES if name == "all" or name in shown.views]
    buttons = [
        f'<button class="view" data-view="{name}" aria-pressed="{str(name == "all").lower()}">'
        f"{_VIEW_NAMES[name]}</button>"
        for name in names
    ]
    zooms = (("Zoom out", "−", 1 / 0.6), ("Zoom in", "+", 0.6))
    buttons += [
        f'<button class="zoom" data-factor="{factor:.6g}" aria-label="{label}">{sign}</button>'
        for label, sign, factor in zooms
    ]
    return "".join(buttons)


def _kind_buttons(shown: Timeline) -> str:
    """The kinds that occur, and idle time."""
    present = [kind for kind in (*MAIN, "transfer") if kind in shown.kinds]
    entries = [(TRACE_KINDS.index(kind), css_name(kind), kind_name(kind, shown)) for kind in present]
    entries.append((len(TRACE_KINDS), "idle", "idle"))
    return "".join(
        f'<button class="kind" data-kind="{index}" aria-pressed="true">'
        f'<i class="{css}" style="--mark:var(--{css})"></i>{name}</button>'
        for index, css, name in entries
    )


def _chart_words(shown: Timeline) -> str:
    return _text(
        f"{title(shown)}: one row for each of {measures.plural(len(shown.lanes), 'stage')} over one iteration of "
        f"{numbers.seconds(shown.iteration_s)}. The table below holds the totals."
    )


def _table(shown: Timeline) -> str:
    """Roles are written out: narrow screens show rows as paragraphs."""
    table = totals(shown)
    unit = {"s": "Seconds", "ms": "Milliseconds", "us": "Microseconds", "ns": "Nanoseconds"}[table.unit]
    names = ("stage", "group", "layers", *table.parts, *table.beside, "busy")
    columns = names[3:]
    head = "".join(f'<th role="columnheader" scope="col"{_class(name)}>{_text(name)}</th>' for name in names)
    body = []
    for lane, row in zip(shown.lanes, table.rows, strict=True):
        cells = "".join(
            f'<td role="cell" data-label="{_text(name)}">{cell}</td>' for name, cell in zip(columns, row, strict=True)
        )
        body.append(
            f'<tr role="row"><th role="rowheader" scope="row">S{lane.index}</th>'
            f'<td role="cell" class="name">{_text(lane.group)}</td>'
            f'<td role="cell" data-label="layers">{lane.layers}</td>{cells}</tr>'
        )
    beside = f"; {' and '.join(table.beside)} overlap with them" if table.beside else ""
    return (
        f'<h2 id="totals">{unit} per stage</h2>\n<table role="table" aria-labelledby="totals">\n'
        f"<caption>From {' to '.join((table.parts[0], table.parts[-1]))} each row adds up to "
        f"{table.total} {table.unit}{beside}.</caption>\n"
        f'<thead role="rowgroup"><tr role="row">{head}</tr></thead>\n'
        f'<tbody role="rowgroup">\n' + "\n".join(body) + "\n</tbody>\n</table>"
    )


def _class(name: str) -> str:
    return ' class="name"' if name == "group" else ""


def _data(shown: Timeline) -> Mapping[str, object]:
    """What the scripts draw."""
    unit, unit_s = time_unit(shown.iteration_s)
    return {
        "total": shown.iteration_s,
        "pipeline": shown.pipeline_s,
        "least": shown.iteration_s * _LEAST_SHARE,
        "unit": {"name": unit, "seconds": unit_s},
        "chunks": shown.chunks,
        "views": {name: [window.start_s, window.end_s] for name, window in shown.views.items()},
        "stages": [
            {"group": printable(lane.group), "layers": lane.layers, "accelerators": lane.accelerators}
            for lane in shown.lanes
        ],
        "kinds": [{"name": kind_name(kind, shown), "css": css_name(kind)} for kind in TRACE_KINDS],
        "work": _packed(shown.work, shown),
        "beside": _packed(shown.beside, shown) | {"sender": _column(np.maximum(shown.beside.sender, 0))},
    }


def _packed(blocks: Blocks, shown: Timeline) -> dict[str, object]:
    """Bits of `meta`, from the lowest: 3 kind, 8 chunk + 1, 20 micro-batch + 1, 1 activations."""
    at: Sequence[int] = np.searchsorted(blocks.stage, np.arange(len(shown.lanes) + 1)).tolist()
    meta = blocks.kind | (blocks.chunk + 1 << 3) | (blocks.microbatch + 1 << 11) | (blocks.activations << 31)
    scale = _TICKS / shown.iteration_s if shown.iteration_s else 0.0
    return {
        "at": at,
        "start": _column(np.rint(blocks.start_s * scale)),
        "end": _column(np.rint(blocks.end_s * scale)),
        "meta": _column(meta),
    }


def _column(values: npt.NDArray[np.int64] | npt.NDArray[np.float64]) -> str:
    return base64.b64encode(values.astype("<u4").tobytes()).decode("ascii")
