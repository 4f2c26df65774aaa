"""One plan in detail: heading, pipeline strip, stages, and where the time goes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

from rich.text import Text

from hetplan.plan import Plan, Stage
from hetplan.report import measures, numbers
from hetplan.report.layout import Column, flow, table, wrapped
from hetplan.report.records import IdleRecord, InputsRecord, PredictionRecord, StageRecord
from hetplan.report.style import BAD, QUIET, WATCH, Terminal

MOST_STAGES = 12
"""More stages than these are folded by group."""
NEARLY_FULL = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A plan with what belongs to it on the screen."""

    title: str
    plan: Plan
    prediction: PredictionRecord
    idle: tuple[IdleRecord, ...]
    inputs: InputsRecord

    def style(self, group: str) -> str:
        """Colour of a group."""
        return measures.group_style(self.inputs.cluster, group)


def plan_lines(shown: Shown, terminal: Terminal, *, all_stages: bool, degrees: bool = False) -> list[Text]:
    """The plan in detail; `degrees` puts the parallel degrees in the heading, where no table of plans gives them."""
    folded = len(shown.plan.stages) > MOST_STAGES and not all_stages
    lines = _heading(shown, terminal, degrees=degrees)
    strip = [] if folded else _strip(shown, terminal)
    lines += strip
    if folded:
        lines += table(_folded_columns(shown, terminal), terminal)
    else:
        lines += table(_stage_columns(shown, terminal), terminal)
    if not strip:
        lines += _links(shown, terminal)
    lines += _time(shown, terminal)
    if folded:
        note = f"stages of a group are folded; --stages prints all {len(shown.plan.stages)}"
        lines += wrapped(terminal.text(note, QUIET), terminal, prefix=Text(" ", end=""))
    return lines


def _heading(shown: Shown, terminal: Terminal, *, degrees: bool) -> list[Text]:
    plan = shown.plan
    number = measures.plural(plan.num_microbatches, "micro-batch", "micro-batches")
    work = f"{number} of {measures.microbatch_text(plan)} × dp {measures.dp_text(plan)}"
    parts = [measures.schedule_text(plan.schedule), work]
    if degrees:
        parts.append(measures.plan_parallel_text(plan))
    parts.append(f"ZeRO-{measures.zero_text(plan)}")
    if _said_once(plan) and not terminal.wide:
        parts.append(measures.recompute_words(measures.recompute_text(plan.stages)))
    total = shown.inputs.cluster.accelerators
    idle = [entry for entry in shown.idle if entry.accelerators]
    if idle:
        unused = " and ".join(f"{numbers.count(entry.accelerators)} {entry.group}" for entry in idle)
        used = "" if terminal.narrow else f"{numbers.count(plan.accelerators)} of {numbers.count(total)} used, "
        parts.append(f"{used}{unused} idle")
    else:
        parts.append(f"all {numbers.count(total)} {'used' if terminal.narrow else 'accelerators used'}")
    return flow([terminal.text(part) for part in parts], terminal, prefix=terminal.join((shown.title, "bold"), "   "))


def _said_once(plan: Plan) -> bool:
    """Whether all layers recompute alike, so that the heading can say it for all stages."""
    return measures.recompute_text(plan.stages) in measures.RECOMPUTE_KINDS


def _strip(shown: Shown, terminal: Terminal) -> list[Text]:
    """One box for each run of stages on a group, the transfer time on the arrow; nothing where it is too wide."""
    symbols = terminal.symbols
    top, middle, bottom = Text("  ", end=""), Text("  ", end=""), Text("  ", end="")
    runs = measures.group_runs(shown.plan)
    for run in runs:
        if run.first:
            hop = shown.prediction.stages[run.first - 1].hop_s
            label = "" if hop is None else numbers.seconds(hop, 2)
            arrow = f"{symbols.link * 2}{label}{symbols.link * 2}{symbols.link_head}"
            middle.append(arrow, style=QUIET)
            blanks = " " * Text(arrow).cell_len
            top.append(blanks)
            bottom.append(blanks)
        style = shown.style(run.group)
        title = terminal.text(f" {run.group} ")
        title.append(f"{symbols.box_dot} {numbers.count(run.accelerators)} ")
        inside = _box_content(run)
        width = max(title.cell_len + 2, len(inside))
        line = symbols.rule
        rest = line * (width - 1 - title.cell_len)
        top.append_text(terminal.join(("╭", style), (line, style)))
        title.stylize(style)
        top.append_text(title).append_text(Text(rest, style=style, end="")).append_text(terminal.text("╮", style))
        content = inside.ljust(width)
        middle.append_text(terminal.text("│", style)).append_text(terminal.text(content))
        middle.append_text(terminal.text("│", style))
        bottom.append_text(terminal.text("╰", style)).append(line * width, style=style)
        bottom.append_text(terminal.text("╯", style))
    return [] if max(top.cell_len, middle.cell_len) > terminal.width else [top, middle, bottom]


def _box_content(run: measures.GroupRun) -> str:
    if len(run.stages) == 1:
        layers = run.stages[0].layers
        return f" S{run.first}  {layers} {'layer' if layers == 1 else 'layers'} "
    return "│".join(f" S{run.first + i} {stage.layers} " for i, stage in enumerate(run.stages))


def _links(shown: Shown, terminal: Terminal) -> list[Text]:
    """Transfer times between groups, with the path where it is a slow one."""
    runs = measures.group_runs(shown.plan)
    parts = []
    for a, b in pairwise(runs):
        hop = shown.prediction.stages[a.last].hop_s
        time = "" if hop is None else f" {numbers.seconds(hop, 2)}"
        path = "" if terminal.narrow else _slow_path(shown, a.group, b.group)
        parts.append(
            terminal.join((a.group, shown.style(a.group)), " → ", (b.group, shown.style(b.group)), f"{time}{path}")
        )
    return flow(parts, terminal, prefix=terminal.text(" links  ", QUIET)) if parts else []


def _slow_path(shown: Shown, a: str, b: str) -> str:
    try:
        path = shown.inputs.cluster.link(a, b).path
    except KeyError:
        return ""
    return "" if path == "rdma-direct" else f" {path}"


def _time(shown: Shown, terminal: Terminal) -> list[Text]:
    """Parts of the iteration on the slowest stage, in percent that add up to 100."""
    b = shown.prediction.breakdown_s
    named = (
        ("forward", b.forward),
        ("backward", b.backward),
        ("recompute", b.recompute),
        ("fill and drain", b.fill_and_drain),
        ("links", b.exposed_links),
        ("sync" if terminal.narrow else "gradient sync", b.gradient_sync),
        ("optimizer", b.optimizer),
        ("other", b.other),
    )
    total = sum(value for _, value in named)
    if total <= 0:
        return []
    decimals = 0 if terminal.narrow else 1
    shares = numbers.apportion([value / total * 100 for _, value in named], decimals)
    parts = [
        terminal.text(f"{name} {numbers.percent(share / 100, decimals)}")
        for (name, _), share in zip(named, shares, strict=True)
        if share > 0
    ]
    return flow(parts, terminal, prefix=terminal.text(" time  ", QUIET))


def memory_cells(stages: Sequence[StageRecord], terminal: Terminal, *, bar: int, percent: bool) -> tuple[Text, ...]:
    """Bar, bytes in use over usable bytes, and their ratio; yellow above 90 %, red where it does not fit."""
    gib = 2**30
    decimals = 0 if min(s.memory_capacity_bytes for s in stages) >= 10 * gib else 1
    used = [f"{s.memory_bytes / gib:,.{decimals}f}" for s in stages]
    capacity = [f"{s.memory_capacity_bytes / gib:,.{decimals}f}" for s in stages]
    width_used, width_capacity = max(map(len, used)), max(map(len, capacity))
    cells = []
    for stage, a, b in zip(stages, used, capacity, strict=True):
        share = 1 - measures.stage_headroom(stage)
        style = BAD if stage.verdict == "oom" or share > 1 else WATCH if share > NEARLY_FULL else ""
        figures = f" {a:>{width_used}}/{b:>{width_capacity}} GiB"
        ratio = f" {numbers.percent(share, 0):>3}" if percent else ""
        cells.append(terminal.join(terminal.bar(share, bar, style), (figures + ratio, style)))
    return tuple(cells)


def binds_cell(stage: StageRecord, slowest_s: float, terminal: Terminal) -> Text:
    """What keeps the stage from taking another layer, or how much slack it has."""
    if stage.verdict in ("oom", "illegal"):
        return terminal.text(stage.verdict, BAD)
    if stage.binding == "none":
        share = 1 - stage.microbatch_s / slowest_s if slowest_s else 0.0
        return terminal.text(f"slack {numbers.slack(max(0.0, share))}", QUIET)
    return terminal.text(stage.binding)


def _bar_width(terminal: Terminal) -> int:
    return 14 if terminal.wide else 8 if terminal.narrow else 10


def _stage_columns(shown: Shown, terminal: Terminal) -> list[Column]:
    pairs = list(zip(shown.plan.stages, shown.prediction.stages, strict=True))
    slowest_s = max(stage.microbatch_s for _, stage in pairs)
    iteration_s = shown.prediction.iteration_time_s
    width = _bar_width(terminal)

    def cells(make: Callable[[Stage, StageRecord], str]) -> tuple[Text, ...]:
        return tuple(terminal.text(make(stage, record)) for stage, record in pairs)

    def time(record: StageRecord) -> Text:
        text = numbers.seconds(record.microbatch_s)
        if terminal.narrow:
            return terminal.text(text)
        share = record.microbatch_s / slowest_s if slowest_s else 0.0
        return terminal.join(
            terminal.bar(share, width, track=False), " " * (width + 1 - _cells(share, width, terminal)), text
        )

    columns = [
        Column(header="stage", cells=tuple(terminal.text(str(i)) for i in range(len(pairs)))),
        Column(
            header="group",
            cells=tuple(terminal.text(s.group, shown.style(s.group)) for s, _ in pairs),
            align="left",
        ),
        Column(header="accelerator", cells=cells(lambda _, r: r.accelerator), align="left", drop=7),
        Column(header="layers", cells=cells(lambda s, _: numbers.count(s.layers))),
        Column(header="range", cells=cells(lambda s, _: _layer_range(s)), drop=8),
    ]
    if terminal.wide or len({measures.parallel_text([s]) for s, _ in pairs}) > 1:
        columns.append(Column(header=_degrees_header(shown.plan), cells=cells(_degrees), align="left", drop=2))
    if terminal.wide or len({s.microbatch_size for s, _ in pairs}) > 1:
        columns.append(Column(header="mb", cells=cells(lambda s, _: str(s.microbatch_size)), drop=4))
    if terminal.wide or not _said_once(shown.plan):
        words = cells(lambda s, _: measures.recompute_text([s]))
        columns.append(Column(header="recompute", cells=words, align="left", drop=1))
    columns += [
        Column(
            header="memory / accelerator",
            cells=memory_cells([r for _, r in pairs], terminal, bar=width, percent=True),
            align="left",
        ),
        Column(
            header="time" if terminal.narrow else "time / micro-batch",
            cells=tuple(time(record) for _, record in pairs),
            align="right" if terminal.narrow else "left",
        ),
        Column(
            header="idle",
            cells=cells(lambda _, r: numbers.percent(r.idle_s / iteration_s) if iteration_s else numbers.MISSING),
            drop=6,
        ),
        Column(header="binds", cells=tuple(binds_cell(r, slowest_s, terminal) for _, r in pairs), align="left"),
    ]
    return columns


def _cells(share: float, width: int, terminal: Terminal) -> int:
    return terminal.bar(share, width, track=False).cell_len


def _layer_range(stage: Stage) -> str:
    last = stage.first_layer + stage.layers - 1
    return str(last) if stage.layers == 1 else f"{stage.first_layer}–{last}"


def _degrees_header(plan: Plan) -> str:
    return "tp×dp×cp×ep" if any(stage.ep != 1 for stage in plan.stages) else "tp×dp×cp"


def _degrees(stage: Stage, _: StageRecord) -> str:
    text = f"{stage.tp}×{stage.dp}×{stage.cp}"
    return text if stage.ep == 1 else f"{text}×{stage.ep}"


def _folded_columns(shown: Shown, terminal: Terminal) -> list[Column]:
    """Neighbours of a group that are set up alike, in one row: the fullest memory and the slowest time are shown."""
    numbered = list(enumerate(zip(shown.plan.stages, shown.prediction.stages, strict=True)))
    rows = [
        list(rows)
        for _, rows in groupby(
            numbered, key=lambda n: (n[1][0].group, measures.parallel_text([n[1][0]]), n[1][0].microbatch_size)
        )
    ]
    slowest_s = max(record.microbatch_s for _, (_, record) in numbered)
    stages = [[stage for _, (stage, _) in row] for row in rows]
    records = [[record for _, (_, record) in row] for row in rows]
    slowest = [max(row, key=lambda r: r.microbatch_s) for row in records]
    fullest = [max(row, key=lambda r: -measures.stage_headroom(r)) for row in records]
    worst = [
        next((r for r in row if r.verdict in ("oom", "illegal")), slow)
        for row, slow in zip(records, slowest, strict=True)
    ]

    def texts(items: Sequence[str]) -> tuple[Text, ...]:
        return tuple(terminal.text(item) for item in items)

    spans = [str(row[0][0]) if len(row) == 1 else f"{row[0][0]}–{row[-1][0]}" for row in rows]
    used = [numbers.count(sum(stage.accelerators for stage in row)) for row in stages]
    memory = memory_cells(fullest, terminal, bar=5 if terminal.narrow else 10, percent=not terminal.narrow)
    times = [numbers.seconds(record.microbatch_s) for record in slowest]
    columns = [
        Column(header="stages", cells=texts(spans), align="left"),
        Column(
            header="group",
            cells=tuple(terminal.text(row[0].group, shown.style(row[0].group)) for row in stages),
            align="left",
        ),
        Column(header="used", cells=texts(used), drop=5),
        Column(
            header="layers",
            cells=texts([measures.layers_text([s.layers for s in row]) for row in stages]),
            align="left",
        ),
        Column(
            header="parallel", cells=texts([measures.parallel_text(row[:1]) for row in stages]), align="left", drop=2
        ),
    ]
    if terminal.wide or not _said_once(shown.plan):
        words = texts([measures.recompute_text(row) for row in stages])
        columns.append(Column(header="recompute", cells=words, align="left", drop=3))
    return [
        *columns,
        Column(header="memory, fullest", cells=memory, align="left"),
        Column(header="slowest", cells=texts(times)),
        Column(header="binds", cells=tuple(binds_cell(r, slowest_s, terminal) for r in worst), align="left"),
    ]
