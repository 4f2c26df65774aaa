"""One iteration as pictures show it: blocks of work by stage, seconds by kind, and the phases of the pipeline."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from hetplan.plan import Plan
from hetplan.prediction import TRACE_KINDS, Prediction, Trace, TraceKind
from hetplan.report import measures, numbers
from hetplan.schedule.schedules import schedule
from hetplan.specs.cluster import ClusterSpec
from hetplan.specs.model import ModelSpec

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

FORWARD, RECOMPUTE, BACKWARD, WEIGHT, TRANSFER, GRADIENT_SYNC, OPTIMIZER = range(len(TRACE_KINDS))
COMPUTE: tuple[TraceKind, ...] = ("forward", "recompute", "backward", "weight")
"""Work on micro-batches: what a stage counts as busy."""
MAIN: tuple[TraceKind, ...] = (*COMPUTE, "gradient_sync", "optimizer")
"""Kinds that take the stage's own time, in the order in which overlapping ones are counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocks:
    """What pictures draw, one entry per block: the stages' own work, or (`beside` it) transfers and hidden reductions.

    By stage and start. Of a gradient reduction the parts during which the stage does nothing else stand in its row.
    """

    kind: Ints
    stage: Ints
    chunk: Ints
    microbatch: Ints
    sender: Ints
    start_s: Floats
    end_s: Floats
    activations: npt.NDArray[np.bool_]
    """Whether a transfer carries activations; else gradients."""

    def __len__(self) -> int:
        return len(self.kind)

    def of(self, where: npt.NDArray[np.bool_] | Ints) -> "Blocks":
        """Some of the blocks."""
        return Blocks(**{name: getattr(self, name)[where] for name in self.__slots__})

    def between(self, start_s: float, end_s: float) -> "Blocks":
        """Blocks of which something lies inside a window."""
        return self.of((self.end_s > start_s) & (self.start_s < end_s))


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """One stage: its seconds add up to the iteration time, transfers apart."""

    index: int
    group: str
    accelerator: str
    accelerators: int
    layers: int
    seconds: tuple[float, ...]
    """By MAIN; a reduction counts where it is exposed."""
    idle_s: float
    outside_s: float
    """Step time outside the pipeline."""
    hidden_sync_s: float
    """Gradient reduction behind the stage's work."""
    transfer_s: float
    """Time in which something is sent to the stage."""
    busy: float
    """Share of the iteration spent on micro-batches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A part of the iteration."""

    start_s: float
    end_s: float

    @property
    def span_s(self) -> float:
        """Its length."""
        return self.end_s - self.start_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """One iteration of a plan."""

    plan: Plan
    prediction: Prediction
    trace: Trace
    cluster: ClusterSpec = field(repr=False)
    model: ModelSpec = field(repr=False)
    rank: int | None
    """Rank of the plan in its result; None where it is the only one."""
    lanes: tuple[Lane, ...]
    kinds: tuple[TraceKind, ...]
    """Kinds that occur."""
    chunks: int
    """Virtual stages on a stage."""
    work: Blocks
    beside: Blocks
    pipeline_s: float
    """End of the last event."""
    steady: Window
    """Where no stage fills or drains; empty in the middle where there is no such time."""
    period_s: float
    """How long the steady pattern takes to repeat."""

    @property
    def iteration_s(self) -> float:
        """The iteration time."""
        return self.trace.iteration_time_s

    @property
    def views(self) -> dict[str, Window]:
        """The windows that have a name: fill, steady where there is such a time, drain."""
        begins_s, ends_s = self.steady.start_s, self.steady.end_s
        more_s = [min(self.period_s, part / 4) for part in (begins_s, self.iteration_s - ends_s)]
        fill = Window(start_s=0.0, end_s=min(begins_s + more_s[0], self.iteration_s))
        drain = Window(start_s=max(0.0, ends_s - more_s[1]), end_s=self.iteration_s)
        found = {"fill": fill}
        if self.steady.span_s >= 2 * self.period_s:
            middle = (begins_s + ends_s) / 2
            half = min(3 * self.period_s, self.steady.span_s / 2)
            found["steady"] = Window(start_s=middle - half, end_s=middle + half)
        return found | {"drain": drain}

    def label(self, chunk: int, microbatch: int) -> str:
        """The number in a block: its micro-batch counted from 1, with the chunk where there are several: 12, 12.2."""
        if microbatch < 0:
            return ""
        return f"{microbatch + 1}.{chunk + 1}" if self.chunks > 1 else str(microbatch + 1)


def timeline(
    *, plan: Plan, prediction: Prediction, trace: Trace, cluster: ClusterSpec, model: ModelSpec, rank: int | None = None
) -> Timeline:
    """What pictures of a trace need. Events may come in any order."""
    blocks = _ordered(trace)
    work, beside = _rows(blocks, len(plan.stages))
    end_s = float(trace.end_s.max(initial=0.0))
    present = np.bincount(trace.kind, minlength=len(TRACE_KINDS)) > 0
    return Timeline(
        plan=plan,
        prediction=prediction,
        trace=trace,
        cluster=cluster,
        model=model,
        rank=rank,
        lanes=tuple(_lanes(plan, prediction, trace, blocks, end_s)),
        kinds=tuple(kind for kind, occurs in zip(TRACE_KINDS, present, strict=True) if occurs),
        chunks=max(1, int(trace.chunk.max(initial=0)) + 1),
        work=work,
        beside=beside,
        pipeline_s=end_s,
        steady=_steady(work, len(plan.stages)),
        period_s=_period_s(work, plan),
    )


def title(shown: Timeline) -> str:
    """The heading of a picture."""
    which = "" if shown.rank is None else f", plan {shown.rank}"
    return f"{shown.model.name} on {shown.cluster.name}{which}"


def schedule_words(shown: Timeline) -> tuple[str, ...]:
    """Schedule, stages and micro-batches."""
    plan = shown.plan
    return (
        measures.schedule_text(plan.schedule),
        measures.plural(len(plan.stages), "stage"),
        measures.plural(plan.num_microbatches, "micro-batch", "micro-batches"),
    )


def nice_step(span: float, most: float) -> float:
    """The least of 1, 2, 5 times a power of ten that divides `span` into at most `most` steps."""
    least = span / max(1.0, most)
    power = 10.0 ** np.floor(np.log10(least)) if least > 0 else 1.0
    return float(next(power * factor for factor in (1, 2, 5, 10) if power * factor >= least * (1 - 1e-9)))


def time_unit(span_s: float) -> tuple[str, float]:
    """The unit of an axis of this length, and how many seconds it is."""
    unit = numbers.seconds(span_s).rpartition(" ")[2] if 0 < span_s < 999.5 else "s"
    return unit, {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}[unit]


def _ordered(trace: Trace) -> Blocks:
    order = np.lexsort((trace.chunk, trace.microbatch, trace.kind, trace.end_s, trace.start_s, trace.stage))
    columns = {
        name: getattr(trace, name)[order]
        for name in ("kind", "stage", "chunk", "microbatch", "sender", "start_s", "end_s")
    }
    keys = columns["stage"], columns["chunk"], columns["microbatch"]
    return Blocks(**columns, activations=_activations(columns["kind"], keys, columns["end_s"]))


def _activations(kind: Ints, keys: tuple[Ints, Ints, Ints], end_s: Floats) -> npt.NDArray[np.bool_]:
    """A transfer carries activations where it is over before the forward pass of its stage, chunk and micro-batch."""
    forward, transfer = kind == FORWARD, kind == TRANSFER
    forward_ends = np.full([int(key.max(initial=0)) + 1 for key in keys], -np.inf)
    forward_ends[tuple(key[forward] for key in keys)] = end_s[forward]
    found = np.zeros(len(kind), dtype=bool)
    found[transfer] = end_s[transfer] < forward_ends[tuple(key[transfer] for key in keys)]
    return found


def _rows(blocks: Blocks, stages: int) -> tuple[Blocks, Blocks]:
    """Blocks in the stages' rows and blocks beside them."""
    compute = np.isin(blocks.kind, [TRACE_KINDS.index(kind) for kind in COMPUTE])
    reduction = blocks.kind == GRADIENT_SYNC
    pieces: list[tuple[int, float, float]] = []
    hidden = np.zeros(len(blocks), dtype=bool)
    for stage in range(stages):
        here = blocks.stage == stage
        # Until its last operation a stage works or waits for others: only what follows is exposed, as in `predict`.
        busy = np.zeros(1), blocks.end_s[here & compute].max(initial=0.0, keepdims=True)
        for i in np.flatnonzero(here & reduction).tolist():
            free = list(_gaps(busy, float(blocks.start_s[i]), float(blocks.end_s[i])))
            pieces += [(i, a, b) for a, b in free]
            hidden[i] = sum(b - a for a, b in free) < (blocks.end_s[i] - blocks.start_s[i]) * (1 - 1e-9)
    index = np.array([i for i, _, _ in pieces], dtype=np.int64)
    exposed = blocks.of(index)
    exposed.start_s[:] = [a for _, a, _ in pieces]
    exposed.end_s[:] = [b for _, _, b in pieces]
    alone = blocks.of(compute | (blocks.kind == OPTIMIZER))
    joined = Blocks(
        **{name: np.concatenate([getattr(alone, name), getattr(exposed, name)]) for name in Blocks.__slots__}
    )
    work = joined.of(np.lexsort((joined.start_s, joined.stage)))
    return work, blocks.of((blocks.kind == TRANSFER) | hidden)


def _merged(start_s: Floats, end_s: Floats) -> tuple[Floats, Floats]:
    """Intervals in order of their starts, touching ones joined."""
    if not len(start_s):
        return start_s, end_s
    reach = np.maximum.accumulate(end_s)
    apart = np.flatnonzero(start_s[1:] > reach[:-1] + 1e-12 * reach[-1]) + 1
    return start_s[np.r_[0, apart]], reach[np.r_[apart - 1, len(reach) - 1]]


def _gaps(busy: tuple[Floats, Floats], start_s: float, end_s: float) -> Iterator[tuple[float, float]]:
    """Parts of an interval outside the busy ones."""
    begins, ends = busy
    at = start_s
    for i in range(int(np.searchsorted(ends, start_s, side="right")), len(begins)):
        if begins[i] >= end_s:
            break
        if begins[i] > at:
            yield at, float(begins[i])
        at = max(at, float(ends[i]))
    if at < end_s:
        yield at, end_s


def _covered_s(start_s: Floats, end_s: Floats) -> float:
    """Length of the union of intervals."""
    order = np.argsort(start_s, kind="stable")
    begins, ends = _merged(start_s[order], end_s[order])
    return float((ends - begins).sum())


def _lanes(plan: Plan, prediction: Prediction, trace: Trace, blocks: Blocks, end_s: float) -> Iterator[Lane]:
    total_s = trace.iteration_time_s
    for i, (stage, known) in enumerate(zip(plan.stages, prediction.stages, strict=True)):
        here = blocks.of(blocks.stage == i)
        sync = here.kind == GRADIENT_SYNC
        reduced_s = _covered_s(here.start_s[sync], here.end_s[sync])
        work = np.isin(here.kind, [TRACE_KINDS.index(kind) for kind in COMPUTE])
        last_s = here.end_s[work].max(initial=0.0)
        here.start_s[sync] = np.clip(here.start_s[sync], np.minimum(last_s, here.end_s[sync]), None)
        counted, so_far, seconds = np.zeros(len(here), dtype=bool), 0.0, []
        for kind in MAIN:
            own = here.kind == TRACE_KINDS.index(kind)
            counted |= own
            # What overlaps with an earlier kind counts once.
            covered = _covered_s(here.start_s[counted], here.end_s[counted]) if own.any() else so_far
            seconds.append(covered - so_far)
            so_far = covered
        moving = here.kind == TRANSFER
        hidden_s = reduced_s - seconds[MAIN.index("gradient_sync")]
        yield Lane(
            index=i,
            group=stage.group,
            accelerator=known.accelerator,
            accelerators=stage.accelerators,
            layers=stage.layers,
            seconds=tuple(seconds),
            idle_s=max(0.0, end_s - so_far),
            outside_s=max(0.0, total_s - end_s),
            hidden_sync_s=hidden_s if hidden_s > 1e-9 * total_s else 0.0,
            transfer_s=_covered_s(here.start_s[moving], here.end_s[moving]),
            busy=sum(seconds[: len(COMPUTE)]) / total_s if total_s else 0.0,
        )


def _steady(work: Blocks, stages: int) -> Window:
    """From the last stage to begin its backward passes to the first to end its forward passes.

    Where a schedule runs all forward passes first, from the last stage to begin work to the first to end it.
    """
    forward, backward = work.kind == FORWARD, np.isin(work.kind, (RECOMPUTE, BACKWARD))
    own = np.isin(work.kind, (FORWARD, RECOMPUTE, BACKWARD, WEIGHT))
    window = Window(start_s=_last_begin(work, backward, stages), end_s=_first_end(work, forward, stages))
    if window.span_s <= 0:
        window = Window(start_s=_last_begin(work, own, stages), end_s=_first_end(work, own, stages))
    if window.span_s <= 0:
        middle = (window.start_s + window.end_s) / 2
        window = Window(start_s=middle, end_s=middle)
    return window


def _last_begin(work: Blocks, which: npt.NDArray[np.bool_], stages: int) -> float:
    first = np.full(stages, np.inf)
    np.minimum.at(first, work.stage[which], work.start_s[which])
    return float(first[np.isfinite(first)].max(initial=0.0))


def _first_end(work: Blocks, which: npt.NDArray[np.bool_], stages: int) -> float:
    last = np.full(stages, -np.inf)
    np.maximum.at(last, work.stage[which], work.end_s[which])
    known = last[np.isfinite(last)]
    return float(known.min()) if len(known) else 0.0


def _period_s(work: Blocks, plan: Plan) -> float:
    """Median time between like steps of the last stage: every micro-batch, or every round of them where chunks loop."""
    stages = len(plan.stages)
    own = work.of((work.kind == FORWARD) & (work.chunk == 0) & (work.stage == stages - 1))
    every = stages if schedule(plan.schedule.name).shape == "loop" else 1
    starts = np.sort(own.start_s)
    apart = starts[every:] - starts[:-every]
    if not len(apart):
        return float(work.end_s.max(initial=0.0)) or 1.0
    return float(np.median(apart))
