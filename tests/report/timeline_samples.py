"""Hand-made traces for the timeline's tests, from a small event loop. Every number is invented."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache

import numpy as np

from hetplan.plan import Plan, Schedule
from hetplan.prediction import TRACE_KINDS, Prediction, Trace
from hetplan.report.timeline import Timeline, timeline
from hetplan.specs.cluster import ClusterSpec
from tests.report import samples

FORWARD, RECOMPUTE, BACKWARD, WEIGHT, TRANSFER, SYNC, OPTIMIZER = range(len(TRACE_KINDS))
Sample = Callable[[], Timeline]
Op = tuple[int, int, int]
"""Kind, chunk, micro-batch."""


def one_f_one_b(stages: int, stage: int, microbatches: int, *, split: bool = False) -> list[Op]:
    """Order of work of 1F1B; with `split` the weight gradients follow one forward later."""
    warm = min(stages - stage, microbatches)
    order = [(FORWARD, 0, i) for i in range(warm)]
    late: list[Op] = []
    for i in range(microbatches):
        order.append((BACKWARD, 0, i))
        late += [(WEIGHT, 0, i)] * split
        if i + warm < microbatches:
            order.append((FORWARD, 0, i + warm))
            order += late[:1]
            late = late[1:]
    return order + late


def interleaved(stages: int, stage: int, microbatches: int, chunks: int) -> list[Op]:
    """Order of work of interleaved 1F1B: chunks take turns every `stages` micro-batches."""

    def step(k: int, kind: int) -> Op:
        chunk = k // stages % chunks
        turn = k // (stages * chunks) * stages + k % stages
        return kind, chunk if kind == FORWARD else chunks - 1 - chunk, turn

    total = microbatches * chunks
    warm = min((stages - stage - 1) * 2 + (chunks - 1) * stages, total)
    order = [step(k, FORWARD) for k in range(warm)]
    for k in range(total):
        if k + warm < total:
            order.append(step(k + warm, FORWARD))
        order.append(step(k, BACKWARD))
    return order


def traced(
    orders: Sequence[Sequence[Op]],
    *,
    forward_s: Sequence[float],
    backward_s: Sequence[float],
    hop_s: Sequence[float],
    recompute_s: Sequence[float] | None = None,
    sync_s: float = 0.4,
    optimizer_s: float = 0.06,
    fixed_s: float = 0.01,
) -> Trace:
    """Every stage works through its order as soon as what it needs has arrived; transfers overlap with the work."""
    stages, chunks = len(orders), 1 + max(op[1] for order in orders for op in order)
    recompute = recompute_s or [0.0] * stages
    rows: list[tuple[int, int, int, int, int, float, float]] = []
    done: dict[tuple[int, int, int], float] = {}
    free, place = [0.0] * stages, [0] * stages
    halves = 0.5 if any(op[0] == WEIGHT for order in orders for op in order) else 1.0

    def arrival(kind: int, s: int, chunk: int, i: int) -> float | None:
        """When the stage has what the operation needs; None where it is not known yet."""
        if kind == WEIGHT:
            return free[s]
        step = chunk * stages + s
        before = step - 1 if kind == FORWARD else step + 1
        if before == stages * chunks:
            return done.get((FORWARD, step, i))
        if before < 0:
            return 0.0
        if (kind, before, i) not in done:
            return None
        sent, sender = done[kind, before, i], before % stages
        if sender == s:
            return sent
        took = hop_s[min(sender, s)] if abs(sender - s) == 1 else hop_s[0]
        rows.append((TRANSFER, s, chunk, i, sender, sent, sent + took))
        return sent + took

    moved = True
    while moved:
        moved = False
        for s, order in enumerate(orders):
            while place[s] < len(order):
                kind, chunk, i = order[place[s]]
                ready = arrival(kind, s, chunk, i)
                if ready is None:
                    break
                start = max(free[s], ready)
                if kind == BACKWARD and recompute[s]:
                    rows.append((RECOMPUTE, s, chunk, i, -1, start, start + recompute[s]))
                    start += recompute[s]
                took = forward_s[s] if kind == FORWARD else halves * backward_s[s]
                rows.append((kind, s, chunk, i, -1, start, start + took))
                free[s] = done[kind, chunk * stages + s, i] = start + took
                place[s] += 1
                moved = True
    assert all(p == len(order) for p, order in zip(place, orders, strict=True)), "the orders lock each other"
    last_s = 0.0
    for s in range(stages):
        link = 0.0
        for chunk in reversed(range(chunks)):
            ends = [row[6] for row in rows if row[1] == s and row[2] == chunk and row[0] in (BACKWARD, WEIGHT)]
            link = max(link, *ends)
            rows.append((SYNC, s, chunk, -1, -1, link, link + sync_s / chunks))
            link += sync_s / chunks
        last_s = max(last_s, link)
    rows += [(OPTIMIZER, s, -1, -1, -1, last_s, last_s + optimizer_s) for s in range(stages)]
    rows.sort(key=lambda row: (row[1], row[5]))
    names = ("kind", "stage", "chunk", "microbatch", "sender", "start_s", "end_s")
    columns = {name: np.array(column) for name, column in zip(names, zip(*rows, strict=True), strict=True)}
    return Trace(iteration_time_s=float(columns["end_s"].max()) + fixed_s, **columns)


def timeline_of(
    trace: Trace,
    plan: Plan,
    cluster: ClusterSpec | None = None,
    *,
    rank: int | None = 1,
    model: str = "llama-140b",
) -> Timeline:
    """A timeline of the trace, with a prediction that goes with it."""
    layers = sum(stage.layers for stage in plan.stages)
    return timeline(
        plan=plan,
        prediction=prediction(trace, plan),
        trace=trace,
        cluster=samples.mixed_cluster() if cluster is None else cluster,
        model=samples.model(layers, model),
        rank=rank,
    )


def prediction(trace: Trace, plan: Plan) -> Prediction:
    """What could have been predicted of the plan."""
    return samples.ranked(1, trace.iteration_time_s, plan).prediction


@cache
def six_stages() -> Timeline:
    """1F1B on two groups, one of which recomputes."""
    plan = samples.plan([("mi300x", [32]), ("a100", [13, 13, 13, 13, 12])])
    trace = traced(
        [one_f_one_b(6, s, 48) for s in range(6)],
        forward_s=[0.184, 0.19, 0.19, 0.19, 0.19, 0.186],
        backward_s=[0.352, 0.384, 0.384, 0.384, 0.384, 0.375],
        recompute_s=[0.038, 0, 0, 0, 0, 0],
        hop_s=[0.015, 0.004, 0.004, 0.004, 0.004],
    )
    return timeline_of(trace, plan)


@cache
def few_microbatches() -> Timeline:
    """Short enough to be shown whole."""
    plan = samples.plan([("mi300x", [32]), ("a100", [20, 20])], microbatches=4)
    trace = traced(
        [one_f_one_b(3, s, 4) for s in range(3)],
        forward_s=[0.0021, 0.0024, 0.0023],
        backward_s=[0.0042, 0.0048, 0.0046],
        hop_s=[0.0007, 0.0001],
        sync_s=0.003,
        optimizer_s=0.001,
        fixed_s=0.0004,
    )
    return timeline_of(trace, plan, rank=None)


@cache
def virtual_stages() -> Timeline:
    """Interleaved 1F1B with three chunks on each of four stages; the last chunks are reduced behind the work."""
    plan = samples.plan([("mi300x", [24, 24]), ("a100", [24, 24])], microbatches=16)
    plan = plan.model_copy(update={"schedule": Schedule(name="interleaved-1f1b", virtual_stages=3)})
    trace = traced(
        [interleaved(4, s, 16, 3) for s in range(4)],
        forward_s=[0.1] * 4,
        backward_s=[0.2] * 4,
        hop_s=[0.01] * 3,
        sync_s=0.6,
    )
    return timeline_of(trace, plan)


@cache
def split_backward() -> Timeline:
    """Weight gradients apart from those of the inputs."""
    plan = samples.plan([("mi300x", [30]), ("a100", [14, 14, 14])], microbatches=12)
    trace = traced(
        [one_f_one_b(4, s, 12, split=True) for s in range(4)],
        forward_s=[0.2, 0.21, 0.21, 0.2],
        backward_s=[0.4, 0.42, 0.42, 0.4],
        hop_s=[0.02, 0.004, 0.004],
    )
    return timeline_of(trace, plan)


@cache
def many_stages() -> Timeline:
    """25 stages on four groups: folded in the terminal, too many blocks for one picture."""
    record = samples.many_stages()
    plan = record.plans[0].plan.model_copy(update={"num_microbatches": 128})
    stages = len(plan.stages)
    trace = traced(
        [one_f_one_b(stages, s, 128) for s in range(stages)],
        forward_s=[0.1 + 0.002 * (s % 3) for s in range(stages)],
        backward_s=[0.2 + 0.004 * (s % 3) for s in range(stages)],
        hop_s=[0.01] * (stages - 1),
    )
    return timeline_of(trace, plan, record.inputs.cluster, model="llama-405b")


@cache
def odd_names() -> Timeline:
    """Names that mean something to HTML, to a terminal's markup and to a shell."""
    names = ('<b>&"', "[red]")
    groups = [{"name": name, "accelerator": samples.A100, "nodes": 16} for name in names]
    cluster = samples.cluster("</script><script>x&y", groups)
    plan = samples.plan([(names[0], [10]), (names[1], [10])], microbatches=4)
    trace = traced([one_f_one_b(2, s, 4) for s in range(2)], forward_s=[0.1, 0.1], backward_s=[0.2, 0.2], hop_s=[0.01])
    return timeline_of(trace, plan, cluster, model='<img src="x">]]>')


@cache
def too_large() -> Timeline:
    """Six stages of which the second needs more memory than it has."""
    shown = six_stages()
    first, second, *rest = shown.prediction.stages
    stages = (first, replace(second, verdict="oom"), *rest)
    return replace(shown, prediction=replace(shown.prediction, stages=stages))


def lockstep(stages: int, microbatches: int) -> Timeline:
    """Every stage does a forward and a backward for each micro-batch, one slot after the stage above."""
    stage, slot = (grid.ravel() for grid in np.meshgrid(np.arange(stages), np.arange(2 * microbatches), indexing="ij"))
    kind = np.where(slot % 2 == 0, FORWARD, BACKWARD)
    start = (stage + slot).astype(np.float64)
    inner = stage > 0
    arriving = np.full(int(inner.sum()), TRANSFER)
    none = np.zeros(len(stage) + len(arriving), dtype=np.int64)
    trace = Trace(
        iteration_time_s=stages + 2.0 * microbatches,
        kind=np.concatenate([kind, arriving]),
        stage=np.concatenate([stage, stage[inner]]),
        chunk=none,
        microbatch=np.concatenate([slot // 2, slot[inner] // 2]),
        sender=np.concatenate([np.full(len(stage), -1), stage[inner] - 1]),
        start_s=np.concatenate([start, start[inner] - 0.1]),
        end_s=np.concatenate([start + 1, start[inner]]),
    )
    plan = samples.plan([("mi300x", [2] * (stages // 2)), ("a100", [2] * (stages // 2))], microbatches=microbatches)
    return timeline_of(trace, plan)


TIMELINES = {
    "timeline": six_stages,
    "timeline-short": few_microbatches,
    "timeline-virtual": virtual_stages,
    "timeline-split": split_backward,
    "timeline-many-stages": many_stages,
}


def permuted(trace: Trace) -> Trace:
    """The same events in another order."""
    order = np.random.default_rng(0).permutation(len(trace.kind))
    columns = ("kind", "stage", "chunk", "microbatch", "sender", "start_s", "end_s")
    return replace(trace, **{name: getattr(trace, name)[order] for name in columns})
