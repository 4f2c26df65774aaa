"""Traces of plans: what happens when, against the prediction and against the rules of pipelines."""

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetplan.plan import Plan
from hetplan.predict import predict_in, trace
from hetplan.predict.timing import timing
from hetplan.prediction import TRACE_KINDS, Trace, TraceKind
from hetplan.schedule.schedules import schedule
from hetplan.schedule.simulator import Transfers
from tests.predict.builders import (
    A100,
    H100,
    NAMES,
    Split,
    plan_of,
    plans,
    segments_of,
    setting_of,
    simple_plan,
)

SEMANTICS: tuple[Transfers, ...] = ("overlapped", "eager", "rendezvous")
WORK: tuple[TraceKind, ...] = ("forward", "recompute", "backward", "weight")
MICRO_S = 1e-12


def where(traced: Trace, *kinds: TraceKind, stage: int | None = None) -> np.ndarray:
    """Indices of a trace's events of some kinds, on one stage or on all, by start."""
    chosen = np.isin(traced.kind, [TRACE_KINDS.index(kind) for kind in kinds])
    if stage is not None:
        chosen &= traced.stage == stage
    found = np.flatnonzero(chosen)
    return found[np.lexsort((traced.end_s[found], traced.start_s[found]))]


def seconds(traced: Trace, stage: int, *kinds: TraceKind) -> float:
    """Seconds of a stage's events of some kinds."""
    found = where(traced, *kinds, stage=stage)
    return float((traced.end_s[found] - traced.start_s[found]).sum())


def one_at_a_time(traced: Trace, events: np.ndarray) -> bool:
    """Whether none of these events begins before the one ahead of it has ended."""
    events = events[np.lexsort((traced.end_s[events], traced.start_s[events]))]
    return bool((traced.start_s[events][1:] >= traced.end_s[events][:-1] - MICRO_S).all())


def microbatches(plan: Plan) -> list[range]:
    """Micro-batches of each of the routes."""
    m = plan.num_microbatches
    return [range(m)] if plan.schedule.name != "dualpipe" else [range(m // 2), range(m // 2, m)]


def passes(plan: Plan) -> Iterator[tuple[int, int, int]]:
    """Stage, chunk and micro-batch of every forward pass."""
    routes = segments_of(plan.schedule.name, len(plan.stages), plan.schedule.virtual_stages)
    for route, batches in zip(routes, microbatches(plan), strict=True):
        yield from ((stage, chunk, i) for stage, chunk in route for i in batches)


@given(plan=plans(), transfers=st.sampled_from(SEMANTICS))
@settings(max_examples=30)
def test_a_stage_does_one_thing_at_a_time(plan: Plan, transfers: Transfers) -> None:
    """Neither its work nor its reductions overlap among themselves, and the optimizer comes after all."""
    traced = trace(setting_of(plan, transfers=transfers), plan)
    for stage in range(len(plan.stages)):
        assert one_at_a_time(traced, where(traced, *WORK, "optimizer", stage=stage))
        assert one_at_a_time(traced, where(traced, "gradient_sync", "optimizer", stage=stage))
        (optimizer,) = where(traced, "optimizer", stage=stage)
        before = where(traced, *WORK, "gradient_sync", stage=stage)
        assert traced.start_s[optimizer] == pytest.approx(traced.end_s[before].max(), abs=1e-12)


@given(plan=plans(), transfers=st.sampled_from(SEMANTICS))
@settings(max_examples=30)
def test_seconds_are_those_of_the_prediction(plan: Plan, transfers: Transfers) -> None:
    """The last event ends a step's fixed time before the iteration does, and each stage's seconds are the predicted."""
    setting = setting_of(plan, transfers=transfers)
    traced, predicted = trace(setting, plan), predict_in(setting, plan)
    assert traced.iteration_time_s == predicted.iteration_time_s
    assert traced.end_s.max() + setting.stack.step_fixed_s == pytest.approx(traced.iteration_time_s, rel=1e-12)
    assert traced.start_s.min() == 0
    for j, stage in enumerate(predicted.stages):
        assert seconds(traced, j, "forward") == pytest.approx(stage.forward_s, rel=1e-9)
        assert seconds(traced, j, "recompute") == pytest.approx(stage.recompute_s, rel=1e-9, abs=1e-12)
        backward = seconds(traced, j, "recompute", "backward", "weight")
        assert backward == pytest.approx(stage.backward_s, rel=1e-9)
        assert seconds(traced, j, "optimizer") == pytest.approx(stage.optimizer_s, rel=1e-9)
        reduced = where(traced, "gradient_sync", stage=j)
        assert seconds(traced, j, "gradient_sync") == pytest.approx(timing(setting, plan).sync_s[j].sum(), abs=1e-12)
        # Exposed is what follows the stage's last operation.
        last_s = traced.end_s[where(traced, *WORK, stage=j)].max()
        exposed = np.maximum(traced.end_s[reduced] - np.maximum(traced.start_s[reduced], last_s), 0).sum()
        assert exposed == pytest.approx(stage.gradient_sync_s, rel=1e-9, abs=1e-12)
        split = schedule(plan.schedule.name).splits_backward
        assert (len(where(traced, "weight", stage=j)) > 0) == split


@given(plan=plans(), transfers=st.sampled_from(SEMANTICS))
@settings(max_examples=30)
def test_every_pass_happens_once(plan: Plan, transfers: Transfers) -> None:
    """Each micro-batch passes each chunk of its route once forward and once back, in whole where nothing is split."""
    traced = trace(setting_of(plan, transfers=transfers), plan)
    expected = sorted(passes(plan))
    kinds: list[TraceKind] = ["forward", "backward"]
    if schedule(plan.schedule.name).splits_backward:
        kinds.append("weight")
    for kind in kinds:
        events = where(traced, kind)
        columns = (traced.stage[events], traced.chunk[events], traced.microbatch[events])
        assert sorted(zip(*(column.tolist() for column in columns), strict=True)) == expected
        assert set(traced.sender[events].tolist()) == {-1}
    again = where(traced, "recompute")
    redone = [
        (j, c, i) for j, c, i in expected if plan.stages[j].parts[c].recompute.none < plan.stages[j].parts[c].layers
    ]
    columns = (traced.stage[again], traced.chunk[again], traced.microbatch[again])
    assert sorted(zip(*(column.tolist() for column in columns), strict=True)) == redone


@given(plan=plans(), transfers=st.sampled_from(SEMANTICS))
@settings(max_examples=30)
def test_transfers_follow_the_routes(plan: Plan, transfers: Transfers) -> None:
    """One transfer wherever a route goes from one stage to another, after what it carries and before what needs it."""
    setting = setting_of(plan, transfers=transfers)
    traced = trace(setting, plan)
    start, end = {}, {}
    for kind, name in (("forward", "F"), ("backward", "B")):
        for i in where(traced, kind):  # type: ignore[arg-type]
            key = (name, int(traced.stage[i]), int(traced.chunk[i]), int(traced.microbatch[i]))
            start[key], end[key] = float(traced.start_s[i]), float(traced.end_s[i])
    for i in where(traced, "recompute"):
        start["B", int(traced.stage[i]), int(traced.chunk[i]), int(traced.microbatch[i])] = float(traced.start_s[i])
    carried: dict[tuple[str, int, int, int], tuple[str, int, int, int]] = {}
    routes = segments_of(plan.schedule.name, len(plan.stages), plan.schedule.virtual_stages)
    for route, batches in zip(routes, microbatches(plan), strict=True):
        for (a, c), (b, d) in pairwise(route):
            if a != b:
                carried |= {("F", b, d, i): ("F", a, c, i) for i in batches}
                carried |= {("B", a, c, i): ("B", b, d, i) for i in batches}
    hops = timing(setting, plan).hop_s
    arrived = set()
    for i in where(traced, "transfer"):
        place = (int(traced.stage[i]), int(traced.chunk[i]), int(traced.microbatch[i]))
        # Where both come from the same stage, the activations come first.
        keys = [(kind, *place) for kind in "FB"]
        key = next(k for k in keys if k not in arrived and carried.get(k, ("", -1))[1] == int(traced.sender[i]))
        arrived.add(key)
        sent = carried[key]
        assert traced.start_s[i] >= end[sent] - MICRO_S
        assert traced.end_s[i] <= start[key] + MICRO_S
        around = sent[2] != key[2]
        hop = hops[-1] if around else hops[min(sent[1], key[1])]
        assert traced.end_s[i] - traced.start_s[i] == pytest.approx(hop, rel=1e-6)
    assert arrived == set(carried)


@given(plan=plans())
@settings(max_examples=30)
def test_whom_transfers_keep_busy(plan: Plan) -> None:
    """Eager transfers leave a stage one after another; a rendezvous keeps both stages from everything else."""
    eager = trace(setting_of(plan, transfers="eager"), plan)
    meeting = trace(setting_of(plan, transfers="rendezvous"), plan)
    for stage in range(len(plan.stages)):
        sent = where(eager, "transfer")
        assert one_at_a_time(eager, sent[eager.sender[sent] == stage])
        met = where(meeting, "transfer")
        met = met[(meeting.sender[met] == stage) | (meeting.stage[met] == stage)]
        assert one_at_a_time(meeting, np.concatenate([met, where(meeting, *WORK, stage=stage)]))


def test_overlapped_transfers_start_at_once() -> None:
    """A delay each: as soon as what they carry is there, any number at a time."""
    plan = simple_plan("gpipe")
    traced = trace(setting_of(plan, network_share=1e-3), plan)
    transfers = where(traced, "transfer")
    starts = sorted(traced.start_s[transfers].tolist())
    ends = [*traced.end_s[where(traced, "forward", stage=0)], *traced.end_s[where(traced, "backward", stage=1)]]
    assert starts == pytest.approx(sorted(ends))
    assert not one_at_a_time(traced, transfers)


def test_events_in_order_and_nothing_empty() -> None:
    """By stage and start; what takes no time is left out: no reduction without replicas, no hop inside a stage."""
    plan = simple_plan("zb-v", num_microbatches=4)
    traced = trace(setting_of(plan), plan)
    places = list(zip(traced.stage.tolist(), traced.start_s.tolist(), traced.end_s.tolist(), strict=True))
    assert places == sorted(places)
    assert (traced.end_s > traced.start_s).all()
    assert len(where(traced, "gradient_sync")) == 0
    # Of the three borders of a V over two stages the middle one lies inside a stage.
    assert len(where(traced, "transfer")) == 2 * 2 * 4
    assert {(int(traced.sender[i]), int(traced.stage[i])) for i in where(traced, "transfer")} == {(0, 1), (1, 0)}


@pytest.mark.parametrize("name", [name for name in NAMES if name != "dualpipe"])
def test_one_stage(name: str) -> None:
    """A pipeline of one stage works without a pause and sends nothing."""
    runs = 2 if schedule(name).chunks(1) else 1
    plan = plan_of(name, [12 // runs] * runs, on=[A100], num_microbatches=4, splits={A100: Split(dp=2)})
    setting = setting_of(plan)
    traced = trace(setting, plan)
    assert len(where(traced, "transfer")) == 0
    work = where(traced, *WORK)
    busy = float((traced.end_s[work] - traced.start_s[work]).sum())
    assert traced.end_s[work].max() == pytest.approx(busy)
    assert predict_in(setting, plan).stages[0].idle_s == pytest.approx(0, abs=1e-12)


def test_chunks_are_reduced_as_they_are_complete() -> None:
    """Breadth-first: the last chunk's gradients are reduced while the first chunk's backward passes still run."""
    splits = {group_name: Split(dp=2, zero=1) for group_name in (H100, A100)}
    plan = simple_plan("breadth-first", splits=splits)
    traced = trace(setting_of(plan), plan)
    for stage in (0, 1):
        last, first = where(traced, "gradient_sync", stage=stage)
        assert (traced.chunk[last], traced.chunk[first]) == (1, 0)
        done = [traced.end_s[i] for i in where(traced, "backward", stage=stage) if traced.chunk[i] == 1]
        assert traced.start_s[last] == max(done)
        assert traced.start_s[last] < traced.end_s[where(traced, "backward", stage=stage)].max()
