"""The screen of a search that found that no plan fits."""

from rich.text import Text

from hetplan.plan import Plan
from hetplan.report import measures, numbers
from hetplan.report.layout import BLANK, Column, flow, table, wrapped
from hetplan.report.records import InfeasibleRecord, MemoryRecord, ResultRecord
from hetplan.report.style import BAD, QUIET, WATCH, Terminal


def infeasible_lines(record: ResultRecord, why: InfeasibleRecord, terminal: Terminal) -> list[Text]:
    """What binds and by how much; the closest plan part by part; what would fit."""
    lines = _verdict(record, why, terminal)
    if why.closest is not None and why.memory is not None and why.usable_bytes is not None:
        lines += [BLANK, *_closest(record, why, why.closest, why.memory, why.usable_bytes, terminal)]
    lines += [BLANK, *_fixes(why, terminal)]
    return lines


def _verdict(record: ResultRecord, why: InfeasibleRecord, terminal: Terminal) -> list[Text]:
    head = terminal.join(("✗ no plan fits", f"bold {BAD}"), "   ")
    indent = Text(" " * head.cell_len, end="")
    proof = f"proved over {measures.plural(record.bound.plan_space.configurations, 'configuration')}"
    if why.binding != "memory" or why.shortfall_bytes <= 0:
        return wrapped(terminal.text(why.message), terminal, prefix=head) + wrapped(
            terminal.text(proof, QUIET), terminal, prefix=indent
        )
    each = "each" if terminal.narrow else "per accelerator"
    short = terminal.join(
        "memory binds; the closest plan lacks ", (numbers.gib(why.shortfall_bytes), "bold"), f" {each}"
    )
    lines = wrapped(short, terminal, prefix=head)
    parts = []
    group = next((g for g in record.inputs.cluster.groups if g.name == why.group), None)
    if group is not None:
        usable = numbers.gib(why.usable_bytes if why.usable_bytes is not None else group.usable_bytes)
        stage = "" if why.stage is None else f", stage {why.stage}"
        what = f"{numbers.count(group.accelerators)} {group.accelerator.name}"
        parts.append(terminal.text(f"on group {group.name} ({what}, {usable} usable each){stage}"))
    parts.append(terminal.text(proof))
    return lines + flow(parts, terminal, prefix=indent)


def _plan_words(plan: Plan) -> list[str]:
    layers = measures.layers_text([stage.layers for stage in plan.stages])
    same = layers.endswith(" each")
    if len(plan.stages) == 1:
        stages = f"1 stage of {layers} layers"
    else:
        stages = f"{len(plan.stages)} stages of {layers.removesuffix(' each') + ' layers' if same else layers}"
    return [
        measures.plan_parallel_text(plan),
        stages,
        f"micro-batch {measures.microbatch_text(plan)}",
        measures.recompute_words(measures.recompute_text(plan.stages)),
    ]


def _closest(
    record: ResultRecord,
    why: InfeasibleRecord,
    plan: Plan,
    memory: MemoryRecord,
    usable_bytes: int,
    terminal: Terminal,
) -> list[Text]:
    """Memory of the closest plan's fullest stage, part by part; parts add up, and needed less usable is short."""
    stage = plan.stages[why.stage] if why.stage is not None and why.stage < len(plan.stages) else plan.stages[0]
    gib = 2**30
    parts = {
        "weights": memory.weights_bytes,
        "gradients": memory.gradients_bytes,
        "optimizer": memory.optimizer_bytes,
        "activations": memory.activations_bytes,
        "workspace": memory.other_bytes,
    }
    shown = numbers.apportion([value / gib for value in parts.values()], 1)
    needed = sum(shown)
    usable, short = numbers.apportion([usable_bytes / gib, memory.total_bytes / gib - usable_bytes / gib], 1)
    largest = max(parts.values())
    width = 16 if terminal.narrow else 24
    marks = [WATCH if value == largest else "" for value in parts.values()]
    bars = tuple(
        terminal.bar(value / largest if largest else 0, width, mark, track=False)
        for value, mark in zip(parts.values(), marks, strict=True)
    )
    empty = terminal.text("")
    amounts = [numbers.gib(value * gib) for value in (*shown, needed, usable, short)]
    optimizer = record.inputs.training.optimizer
    sharded = stage.zero >= 1 and stage.dp > 1
    note = f"{optimizer}, sharded over dp {stage.dp}" if sharded else f"{optimizer}; nothing sharded at dp {stage.dp}"
    if stage.zero == 0 and stage.dp > 1:
        note = f"{optimizer}; ZeRO-0 shards nothing"
    notes = ["", "", note, "", "", "", "", ""]
    columns = [
        Column(
            header="stage" if why.stage is None else f"stage {why.stage}",
            cells=tuple(terminal.text(name) for name in (*parts, "needed", "usable", "short")),
            align="left",
        ),
        Column(header="", cells=(*bars, empty, empty, empty), align="left", drop=2),
        Column(header="memory", cells=tuple(terminal.text(amount) for amount in amounts)),
        Column(header="", cells=tuple(terminal.text(text, QUIET) for text in notes), align="left", drop=1),
    ]
    words = [terminal.text(word) for word in _plan_words(plan)]
    heading = flow(words, terminal, prefix=terminal.join(("Closest plan", "bold"), "   "))
    return heading + table(columns, terminal, marks=["", "", "", "", "", "", "", "bold"])


def _fixes(why: InfeasibleRecord, terminal: Terminal) -> list[Text]:
    heading = terminal.join(("What would fit", "bold"), "   ")
    if not why.fixes:
        nearest = why.nearest or "nothing was found near these inputs"
        return wrapped(terminal.text(nearest), terminal, prefix=heading)
    fixes = why.fixes
    times = [numbers.seconds(fix.iteration_time_s) for fix in fixes]
    columns = [
        Column(header="change", cells=tuple(terminal.text(f.change) for f in fixes), align="left"),
        Column(header="from, to", cells=tuple(terminal.text(f"{f.before} → {f.after}") for f in fixes), align="left"),
        Column(header="time", cells=tuple(terminal.text(time) for time in times)),
        Column(header="plan", cells=tuple(terminal.text(f.plan) for f in fixes), align="left", drop=1),
    ]
    lines = wrapped(terminal.text("smallest single change first"), terminal, prefix=heading)
    return lines + table(columns, terminal)
