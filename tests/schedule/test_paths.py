"""Paths of operations: as long as the plan they come from, no longer than any other of its shape."""

import numpy as np
import pytest

from hetplan.plan import ScheduleName
from hetplan.schedule.paths import CriticalPath, critical_path, trips
from hetplan.schedule.schedules import SCHEDULES
from hetplan.schedule.simulator import Floats, Shape, Transfers, step_s
from tests.schedule.shapes import SEMANTICS, Pipeline, random_shape, random_times, uniform

SLACK = 1 + 1e-12
NAMES = [schedule.name for schedule in SCHEDULES]


def time_of(pipeline: Pipeline) -> Floats:
    """Seconds of every candidate, shape (K,)."""
    return np.asarray(step_s(pipeline.shape, *pipeline.times).max(axis=1))


def check_paths(seed: int, cases: int) -> None:
    """Two longest paths of a shape and a mixture of them on four plans of the shape."""
    rng = np.random.default_rng(seed)
    for _ in range(cases):
        shape = random_shape(rng)
        own, second, others = random_times(rng, shape), random_times(rng, shape), random_times(rng, shape, 2)
        path, other = critical_path(shape, *own.one), critical_path(shape, *second.one)
        assert path.length_s(*own.times) == pytest.approx(time_of(own), rel=1e-12), shape
        assert (path.after.sum(axis=1) > 0).sum() == 1, "a path ends on one stage"
        for mixed in (path, other, path.mixed(other, float(rng.random()))):
            for plan in (own, second, others):
                assert (mixed.length_s(*plan.times) <= time_of(plan) * SLACK).all(), shape


def check_trips(seed: int, cases: int) -> None:
    """Trips of random shapes on two plans each."""
    rng = np.random.default_rng(seed)
    for _ in range(cases):
        shape = random_shape(rng)
        plan = random_times(rng, shape, 2)
        time = time_of(plan)
        for kind in trips(shape):
            assert len(kind) == shape.stages
            for path in kind:
                assert (path.length_s(*plan.times) <= time * SLACK).all(), shape


def test_longest_paths_are_bounds() -> None:
    """A longest path is exact for its own plan and a bound for others, as mixtures are: 120 shapes, 4 plans each."""
    check_paths(0, 120)


def test_trips_are_bounds() -> None:
    """No trip takes longer than a plan of its shape: 250 shapes, two plans each."""
    check_trips(1, 250)


@pytest.mark.proof
def test_longest_paths_are_bounds_widely() -> None:
    """2,000 shapes, 4 plans each."""
    check_paths(2, 2_000)


@pytest.mark.proof
def test_trips_are_bounds_widely() -> None:
    """5,000 shapes."""
    check_trips(3, 5_000)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("transfers", SEMANTICS)
def test_paths_count_what_they_visit(name: ScheduleName, transfers: Transfers) -> None:
    """Counts are whole, and those of a path lie between nothing and all that there is."""
    rng = np.random.default_rng(4)
    shape = random_shape(rng, name, transfers)
    path = critical_path(shape, *random_times(rng, shape).one)
    for counts in (path.work, path.hop, path.after):
        assert (counts == np.round(counts)).all()
        assert (counts >= 0).all()
    assert path.work.max() <= shape.num_microbatches
    assert path.after.max() <= 1


def test_ends_of_a_mixture() -> None:
    """A mixture with a share of 0 or 1 is one of the two."""
    shape = Shape(stages=3, num_microbatches=4)
    paths = [critical_path(shape, *random_times(np.random.default_rng(seed), shape).one) for seed in (0, 1)]
    for share, expected in enumerate(paths):
        mixed = paths[0].mixed(paths[1], share)
        assert [mixed.work.tolist(), mixed.hop.tolist(), mixed.after.tolist()] == [
            expected.work.tolist(),
            expected.hop.tolist(),
            expected.after.tolist(),
        ]


def test_longest_path_by_hand() -> None:
    """Two stages, two micro-batches, stage 1 slow: down, all of stage 1, and back; then stage 0's gradients."""
    pipeline = uniform(Shape(stages=2, num_microbatches=2), 1.0, 2.0, hop_s=0.5)
    pipeline.work_s[0, 1] = 10.0
    pipeline.after_s[0, :, 0] = 7.0
    path = critical_path(pipeline.shape, *pipeline.one)
    assert path.work.tolist() == [[1.0, 1.0], [2.0, 2.0]]
    assert path.hop.tolist() == [2.0, 0.0]
    assert path.after.tolist() == [[1.0], [0.0]]


@pytest.mark.parametrize("name", NAMES)
def test_trips_are_tight_on_equal_stages(name: ScheduleName) -> None:
    """With equal stages and no hops the longest trip is the time; DualPipe's, from both ends, is close to it."""
    shape = random_shape(np.random.default_rng(5), name, "overlapped")
    shape = Shape(schedule=name, stages=4, num_microbatches=16, virtual_stages=shape.virtual_stages)
    pipeline = uniform(shape, 1.0, 1.0, 1.0) if shape.units // shape.virtual_stages == 3 else uniform(shape, 1.0, 2.0)
    best = max(float(path.length_s(*pipeline.times)[0]) for kind in trips(shape) for path in kind)
    assert best == pytest.approx(time_of(pipeline)[0], rel=0.03 if name == "dualpipe" else 1e-12)


def test_paths_are_plain_data() -> None:
    """A path's length is linear in the times."""
    path = CriticalPath(np.array([[1.0, 2.0]]), np.array([3.0]), np.array([[1.0]]))
    work, hop, after = np.array([[[5.0, 7.0]]]), np.array([[11.0]]), np.array([[13.0]])[None]
    assert path.length_s(work, hop, after).tolist() == [5.0 + 14.0 + 33.0 + 13.0]
    assert path.length_s(2 * work, 2 * hop, 2 * after).tolist() == [2 * 65.0]
