"""What docs/schedules.md shows: schedules drawn by the timeline and timed by the simulator. Rewritten by `make docs`.

Everywhere all stages are alike, with F = 1 and B = 2, B = W = 1 where weight gradients are split off.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import get_args

import numpy as np

from docs.markdown import ROOT, fenced, table
from hetplan.cost.profiles import load_stack
from hetplan.plan import Plan, Recompute, Schedule, Stage
from hetplan.predict import Setting, predict_in
from hetplan.prediction import TRACE_KINDS, Prediction, Trace
from hetplan.report.timeline import Timeline, timeline
from hetplan.report.timeline_cells import IDLE, Scale, Span, cells
from hetplan.report.timeline_screen import GLYPHS, IDLE_GLYPH
from hetplan.report.timeline_svg import timeline_svg
from hetplan.schedule.base import PipelineSchedule
from hetplan.schedule.holdings import holdings
from hetplan.schedule.schedules import SCHEDULES, schedule
from hetplan.schedule.simulator import Floats, Shape, Transfers, compile_shape, order_of, step_s
from hetplan.specs.files import load_cluster, load_model

PICTURES = ROOT / "docs" / "pictures"
STAGES, MICROBATCHES = 4, 8
"""Of the pictures."""
FORWARD, BACKWARD = 1.0, 2.0
MOST_CELLS = 70
"""Widest chart in text."""
SLOW, FAST = 8, 64
"""Stages and micro-batches of the tables on transfers."""
HOPS = (1.0, 2.0, 4.0)
REDUCTION = 4.0
"""Gradient synchronisation of all parameters of a stage, held once."""
DEEPER = (0, 1, 2, 4)


def chunks(entry: PipelineSchedule) -> int:
    """The fewest chunks per stage that a schedule takes."""
    return next(v for v in (1, 2) if entry.chunks(v) is None)


def _schedule(name: str) -> Schedule:
    return Schedule.model_validate({"name": name, "virtual_stages": chunks(schedule(name))})


def shape(
    name: str,
    stages: int = STAGES,
    num_microbatches: int = MICROBATCHES,
    *,
    virtual_stages: int | None = None,
    deeper: int = 0,
    transfers: Transfers = "overlapped",
) -> Shape:
    """A pipeline of like stages; `deeper`: further warm-up of its upper half."""
    upper = stages // 2
    return Shape(
        schedule=_schedule(name).name,
        stages=stages,
        num_microbatches=num_microbatches,
        virtual_stages=virtual_stages or chunks(schedule(name)),
        warmup=(deeper,) * upper + (0,) * (stages - upper) if deeper else (),
        transfers=transfers,
    )


def share(of: Shape) -> float:
    """A chunk's share of a stage. The two parts that a stage of DualPipe holds are each as large as a stage."""
    return schedule(of.schedule).copies / of.virtual_stages


def work_s(of: Shape) -> Floats:
    """Time of every unit, shape (p, units)."""
    split = schedule(of.schedule).splits_backward
    kinds = [FORWARD, BACKWARD / 2, BACKWARD / 2] if split else [FORWARD, BACKWARD]
    return np.tile(np.repeat(kinds, of.virtual_stages) * share(of), (of.stages, 1))


def time(of: Shape, *, hop: float = 0.0, reduction: float = 0.0) -> float:
    """Time until all is done, with one hop between the halves of the pipeline that is not 0.

    Schedules that go around also cross it from the last stage to the first one.
    """
    hops = np.zeros((1, of.stages))
    hops[0, of.stages // 2 - 1] = hop
    hops[0, -1] = hop if of.loops else 0.0
    after = np.full((1, of.stages, of.virtual_stages), reduction * share(of))
    return float(step_s(of, work_s(of)[None], hops, after).max())


def held(of: Shape, stage: int) -> float:
    """Most activations that a stage holds, in micro-batches of a whole stage."""
    return max(sum(holding) for holding in holdings(of, stage)) * share(of)


def number(value: float, places: int = 2) -> str:
    """With as few decimals as it needs."""
    return f"{value:.{places}f}".rstrip("0").rstrip(".")


# -- drawn


@cache
def _plain() -> tuple[Setting, Prediction]:
    """Any plan with as many stages, for what a picture shows besides times."""
    loaded = load_model(ROOT / "models" / "llama-2-7b.yaml", {"global_batch_size": MICROBATCHES})
    cluster = load_cluster(ROOT / "clusters" / "one-node.yaml")
    group = cluster.groups[0].model_copy(update={"name": "gpu"})
    setting = Setting(
        cluster=cluster.model_copy(update={"name": "four like stages", "groups": (group,)}),
        model=loaded.model,
        training=loaded.training,
        stack=load_stack(),
    )
    return setting, predict_in(setting, _plan("1f1b", loaded.model.architecture.layers))


def _plan(name: str, layers: int) -> Plan:
    each = layers // STAGES
    return Plan(
        schedule=_schedule(name),
        global_batch_size=MICROBATCHES,
        num_microbatches=MICROBATCHES,
        stages=tuple(
            Stage(group="gpu", first_layer=each * j, layers=each, recompute=Recompute(none=each)) for j in range(STAGES)
        ),
    )


def _trace(of: Shape) -> Trace:
    """What every stage does when, without hops."""
    order, program, units = order_of(of), compile_shape(of), work_s(of)
    m, v = of.num_microbatches, of.virtual_stages
    stage, operation = np.repeat(np.arange(of.stages), order.shape[1]), order.ravel()
    end = program.ends(units[None], np.zeros((1, of.stages)))[stage * program.numbers + operation, 0]
    kinds = np.array([TRACE_KINDS.index("forward"), TRACE_KINDS.index("backward"), TRACE_KINDS.index("weight")])
    return Trace(
        iteration_time_s=float(end.max()),
        kind=kinds[operation // m // v],
        stage=stage,
        chunk=operation // m % v,
        microbatch=operation % m,
        sender=np.full(len(stage), -1),
        start_s=end - units[stage, operation // m],
        end_s=end,
    )


@cache
def drawn(name: str) -> Timeline:
    """One iteration of a schedule."""
    setting, known = _plain()
    trace = _trace(shape(name))
    total = trace.iteration_time_s
    return timeline(
        plan=_plan(name, setting.model.architecture.layers),
        prediction=replace(known, iteration_time_s=total, iteration_time_low_s=total, iteration_time_high_s=total),
        trace=trace,
        cluster=setting.cluster,
        model=setting.model.model_copy(update={"name": name}),
    )


def pictures() -> dict[Path, str]:
    """An SVG of each schedule."""
    return {PICTURES / f"{entry.name}.svg": timeline_svg(drawn(entry.name)) for entry in SCHEDULES}


def chart(name: str) -> str:
    """The same in text, two cells for the shortest operation where there is room."""
    shown = drawn(name)
    shortest = float((shown.trace.end_s - shown.trace.start_s).min())
    count = round(shown.iteration_s / shortest)
    fine = 2 if 2 * count <= MOST_CELLS else 1
    span = Span(start_s=0.0, count=fine * count)
    ruler = Scale(cell_s=shortest / fine, windows=(span,), tick_s=1.0, unit="s", unit_s=1.0)
    lines = []
    for lane in shown.lanes:
        part = cells(shown, lane.index, ruler)
        (kinds,), (texts,) = part.kinds, part.texts
        glyphs = [IDLE_GLYPH[0] if kind == IDLE else GLYPHS[TRACE_KINDS[kind]][0] for kind in kinds]
        line = "".join(text or glyph for text, glyph in zip(texts, glyphs, strict=True))
        lines.append(f"S{lane.index} {line}")
    return "\n".join(lines)


# -- described


def _exists(entry: PipelineSchedule) -> str:
    """For which numbers of chunks, stages and micro-batches."""
    found = ["1 chunk per stage" if chunks(entry) == 1 else str(entry.chunks(1)).removeprefix("takes ")]
    # Odd numbers of stages, then micro-batches that the stages do not divide; words that name p are said to.
    for here, larger in (((3, 6), (5, 10)), ((4, 7), (6, 11))):
        wrong = entry.obstacle(*here)
        if wrong:
            found.append(wrong if wrong == entry.obstacle(*larger) else f"{wrong} (p = {here[0]})")
    return "; ".join(found)


def section(entry: PipelineSchedule) -> str:
    """A schedule: drawn twice, then what the code says of it."""
    of = shape(entry.name)
    flying = [held(of, j) for j in range(STAGES)]
    zero = "0 and 1; 2 and 3 too, which then move data once per chunk and step" if entry.once else "0 and 1"
    each = "on each stage" if len(set(flying)) == 1 else f"on S0 to S{STAGES - 1}"
    many = ", ".join(number(count) for count in dict.fromkeys(flying))
    rows = [
        ("idle time of each stage", entry.bubble),
        (f"activations held, p = {STAGES}, m = {MICROBATCHES}", f"those of {many} micro-batches {each}"),
        ("weights held", "once" if entry.copies == 1 else "twice"),
        ("chunks, stages, micro-batches", _exists(entry)),
        ("ZeRO in a pipeline", zero),
        ("runs in", "; ".join(entry.frameworks)),
        ("source", entry.source),
    ]
    picture = f"![{entry.name}: what four stages do when](pictures/{entry.name}.svg)\n\n"
    return f"\n{picture}{fenced(chart(entry.name), 'text')}\n{table((f'{entry.name}', ''), rows)}\n"


def _compared() -> list[tuple[str, PipelineSchedule, int, int]]:
    """Name, schedule, chunks and further warm-up of each row."""
    found = [("1f1b, warm-up deeper by 1", SCHEDULES[0], 1, 1)]
    for entry in SCHEDULES:
        several = (2, 4) if entry.chunks(4) is None else (chunks(entry),)
        found += [(f"{entry.name}, v = {v}" if len(several) > 1 else entry.name, entry, v, 0) for v in several]
    return [found[1], found[0], *found[2:]]


def comparison() -> str:
    """Time over the work of a stage, and what it takes to be that fast."""
    rows = []
    for words, entry, v, deeper in _compared():
        row = [words]
        for m in (16, 64):
            of = shape(entry.name, SLOW, m, virtual_stages=v, deeper=deeper)
            work = m * (FORWARD + BACKWARD)
            row += [f"{time(of, hop=hop) / work:.2f}" for hop in (0.0, FORWARD / 2)]
        most = max(held(of, j) for j in range(of.stages))
        row += [number(most), number(time(of, reduction=REDUCTION) - time(of)), str(entry.copies)]
        rows.append(tuple(row))
    header = ("schedule", "m = 16", "m = 16, hop", "m = 64", "m = 64, hop", "activations", "reduction adds", "weights")
    return table(header, rows)


def warmup() -> str:
    """1F1B over one slow hop by further warm-up."""
    rows = []
    for deeper in DEEPER:
        of = shape("1f1b", SLOW, FAST, deeper=deeper)
        times = (number(time(of, hop=hop)) for hop in HOPS)
        rows.append((str(deeper) if deeper else "0: plain 1F1B", *times, number(held(of, 0))))
    crossed = [number(time(shape("1f1b", SLOW, FAST)) + 2 * hop) for hop in HOPS]
    rows.append(("there and back once", *crossed, ""))
    return table(("further warm-up", *(f"x = {number(hop)}" for hop in HOPS), "held on S0"), rows)


def semantics() -> str:
    """Times over one slow hop, by what transfers keep busy."""
    rows = []
    for transfers in get_args(Transfers):
        for deeper in (0, 4):
            of = shape("1f1b", SLOW, FAST, deeper=deeper, transfers=transfers)
            words = f"1f1b, warm-up deeper by {deeper}" if deeper else "1f1b"
            rows.append((transfers, words, *(number(time(of, hop=hop)) for hop in HOPS)))
    return table(("transfers", "schedule", *(f"x = {number(hop)}" for hop in HOPS)), rows)


TABLES: dict[str, Callable[[], str]] = {
    **{f"schedule-{entry.name}": partial(section, entry) for entry in SCHEDULES},
    "comparison": comparison,
    "warmup": warmup,
    "semantics": semantics,
}
