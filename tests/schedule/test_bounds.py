"""Bounds stay below the simulated time, and close to it."""

from collections import defaultdict

import numpy as np
import pytest

from hetplan.schedule import bounds
from hetplan.schedule.schedules import SCHEDULES
from hetplan.schedule.simulator import Floats, Shape, step_s
from tests.schedule.shapes import SEMANTICS, Pipeline, random_pipeline, uniform

SLACK = 1 + 1e-12
NAMES = [schedule.name for schedule in SCHEDULES]


def each_bound(pipeline: Pipeline) -> dict[str, Floats]:
    """Every bound that applies to a pipeline, shape (K,)."""
    shape, (work_s, hop_s, after_s) = pipeline.shape, pipeline.times
    found = {"lower_bound": bounds.lower_bound(shape, work_s, hop_s, after_s)}
    line = work_s[:, :, 0], work_s[:, :, 1], hop_s[:, :-1]
    if shape.schedule == "1f1b":
        found["round_trip"] = bounds.round_trip(shape, *line).max(axis=1)
        found["window"] = bounds.window(shape, *line).max(axis=1)
        found["1f1b"] = bounds.one_forward_one_backward(shape, *line, after_s[:, :, 0])
    if shape.schedule == "gpipe":
        found["gpipe"] = bounds.gpipe(shape, *line, after_s[:, :, 0])
    if shape.transfers == "rendezvous" and shape.virtual_stages == 1:
        found["rendezvous"] = bounds.rendezvous(shape, work_s, hop_s[:, :-1]).max(axis=1)
    return found


def check_bounds(seed: int, cases: int) -> dict[tuple[str, str], list[float]]:
    """All bounds of random pipelines, four of each shape; returns the gaps of the best bound."""
    rng = np.random.default_rng(seed)
    gaps: dict[tuple[str, str], list[float]] = defaultdict(list)
    for _ in range(cases // 4):
        pipeline = random_pipeline(rng, candidates=4)
        time = step_s(pipeline.shape, *pipeline.times).max(axis=1)
        found = each_bound(pipeline)
        for name, bound in found.items():
            assert bound.shape == time.shape
            assert (bound <= time * SLACK).all(), f"{name}: {bound} > {time}, {pipeline.shape}"
            assert (bound <= found["lower_bound"] * SLACK).all(), f"{name} is better than the best"
        gaps[pipeline.shape.schedule, pipeline.shape.transfers].extend((1 - found["lower_bound"] / time).tolist())
    return gaps


def check_gaps(seed: int, cases: int) -> None:
    """Gaps of the best bound of 1F1B, extra warm-up included, mean over random pipelines."""
    rng = np.random.default_rng(seed)
    gaps = {}
    for transfers in SEMANTICS:
        found = []
        for _ in range(cases // 9):
            pipeline = random_pipeline(rng, "1f1b", transfers, candidates=3)
            time = step_s(pipeline.shape, *pipeline.times).max(axis=1)
            found.append(float(np.mean(1 - bounds.lower_bound(pipeline.shape, *pipeline.times) / time)))
        gaps[transfers] = float(np.mean(found))
    told = ", ".join(f"{transfers} {gap:.2%}" for transfers, gap in gaps.items())
    assert np.mean([*gaps.values()]) <= 0.03, told
    assert 0 < gaps["overlapped"] <= 0.015, told


def test_bounds_are_bounds() -> None:
    """No bound exceeds the simulated time of 2,000 random pipelines; GPipe's is the time where transfers overlap."""
    gaps = check_bounds(0, 2_000)
    assert len(gaps) == len(SCHEDULES) * len(SEMANTICS)
    assert max(gaps["gpipe", "overlapped"]) < 1e-12


def test_bounds_are_close() -> None:
    """The best bound of 1F1B is at most 3 % below the simulated time, mean over 2,000 pipelines."""
    check_gaps(1, 2_000)


@pytest.mark.proof
def test_bounds_are_bounds_widely() -> None:
    """No bound exceeds the simulated time of 20,000 random pipelines."""
    check_bounds(2, 20_000)


@pytest.mark.proof
def test_bounds_are_close_widely() -> None:
    """Mean over 20,000 pipelines."""
    check_gaps(3, 20_000)


@pytest.mark.parametrize("stages", [1, 2, 4, 7])
@pytest.mark.parametrize("num_microbatches", [8, 13])
def test_tight_on_equal_stages(stages: int, num_microbatches: int) -> None:
    """With equal stages, no hops and more micro-batches than stages the bounds of 1F1B are the exact time."""
    pipeline = uniform(Shape(stages=stages, num_microbatches=num_microbatches), 1.0, 2.0)
    exact = (num_microbatches + stages - 1) * 3.0
    found = each_bound(pipeline)
    assert found.keys() == {"lower_bound", "round_trip", "window", "1f1b"}
    assert [float(bound[0]) for bound in found.values()] == pytest.approx([exact] * 4, rel=1e-12)


def test_window_sees_a_slow_hop() -> None:
    """Strict 1F1B pays a slow hop once per micro-batch, which the window bound knows and the round trip does not."""
    pipeline = uniform(Shape(stages=4, num_microbatches=64), 1.0, 2.0)
    pipeline.hop_s[0, 1] = 4.0
    found, time = each_bound(pipeline), float(step_s(pipeline.shape, *pipeline.times).max())
    assert time > 64 * (3 + 4)
    assert found["window"][0] > 0.97 * time
    assert found["round_trip"][0] < 0.6 * time


def test_rendezvous_sees_transfers_of_both_sides() -> None:
    """Where transfers keep both stages busy, a stage between two hops is busy with both, each way."""
    pipeline = uniform(Shape(stages=3, num_microbatches=64, transfers="rendezvous"), 1.0, 2.0, hop_s=0.5)
    found = each_bound(pipeline)
    assert found["rendezvous"][0] > 64 * (3 + 4 * 0.5) > found["window"][0]


def test_nobody_waits_for_the_last_weight_gradients() -> None:
    """A last stage with slow weight gradients ends while the way back over a slow hop is long done: 156 s, not 206."""
    shape = Shape(schedule="zb-h1", stages=3, num_microbatches=1, transfers="rendezvous")
    pipeline = uniform(shape, 1.0, 1.0, 1.0)
    pipeline.work_s[0, 2, 2] = 100.0
    pipeline.hop_s[0] = [50.0, 1.0, 0.0]
    assert step_s(shape, *pipeline.times).max() == 156.0
    assert each_bound(pipeline)["rendezvous"][0] == 156.0
