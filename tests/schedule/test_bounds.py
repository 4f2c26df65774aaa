"""Bounds stay below the simulated time, and close to it."""

import numpy as np
import pytest

from hetplan.schedule.bounds import replica_bound, round_trip, window
from hetplan.schedule.simulator import CriticalPath, Floats, critical_path, stage_ends
from tests.schedule.shapes import Pipeline, random_pipeline, retimed

SLACK = 1 + 1e-12


def rows(pipeline: Pipeline) -> tuple[Floats, Floats, Floats]:
    """Forward, backward and hops of one candidate."""
    return pipeline.forward_s[None], pipeline.backward_s[None], pipeline.hop_s[None]


def ends_of(pipeline: Pipeline) -> Floats:
    """When each stage ends, shape (p,)."""
    ends: Floats = stage_ends("1f1b", *rows(pipeline), pipeline.num_microbatches)[0]
    return ends


def path_of(pipeline: Pipeline) -> CriticalPath:
    """A longest path, with what follows the last backward."""
    return critical_path(
        "1f1b",
        pipeline.forward_s,
        pipeline.backward_s,
        pipeline.hop_s,
        pipeline.after_s,
        pipeline.num_microbatches,
    )


def length(path: CriticalPath, pipeline: Pipeline) -> float:
    """Seconds along a path."""
    return float(
        path.forward @ pipeline.forward_s
        + path.backward @ pipeline.backward_s
        + path.hop @ pipeline.hop_s
        + path.after @ pipeline.after_s
    )


def check_bounds(seed: int, cases: int) -> float:
    """All bounds of random pipelines; returns the mean gap of the best one."""
    rng = np.random.default_rng(seed)
    gaps = []
    for _ in range(cases):
        pipeline = random_pipeline(rng)
        m, ends = pipeline.num_microbatches, ends_of(pipeline)
        # Stage 0 ends last of all.
        assert ends[0] == ends.max()
        best = 0.0
        for bound in (round_trip(*rows(pipeline), m), window(*rows(pipeline), m)):
            assert bound.shape == (1, len(ends))
            assert bound.max() <= ends[0] * SLACK
            best = max(best, float(bound.max()))
        whole = float((ends + pipeline.after_s).max())
        assert replica_bound(*rows(pipeline), pipeline.after_s[None], m)[0] <= whole * SLACK
        # Without anything afterwards the bound is that of the pipeline.
        assert replica_bound(*rows(pipeline), np.zeros((1, len(ends))), m)[0] == pytest.approx(best, rel=1e-12)
        gaps.append(1 - best / float(ends[0]))
    return float(np.mean(gaps))


def check_paths(seed: int, cases: int) -> None:
    """A longest path sums to its own plan's time and bounds other plans of its shape; so do mixtures."""
    rng = np.random.default_rng(seed)
    for _ in range(cases):
        pipeline = random_pipeline(rng)
        path = path_of(pipeline)
        own = float((ends_of(pipeline) + pipeline.after_s).max())
        assert length(path, pipeline) == pytest.approx(own, rel=1e-12)
        assert path.after.sum() == 1
        other = retimed(pipeline, rng)
        mixed = path.mixed(path_of(other), float(rng.random()))
        for plan in (other, retimed(pipeline, rng)):
            time = float((ends_of(plan) + plan.after_s).max())
            assert length(path, plan) <= time * SLACK
            assert length(mixed, plan) <= time * SLACK


def test_bounds_are_bounds() -> None:
    """No bound exceeds the simulated time of 2,000 random pipelines, and the best is under 1 % below it on average."""
    gap = check_bounds(0, 2_000)
    assert 0 < gap < 0.01, f"mean gap {gap:.4f}"


def test_longest_paths_are_bounds() -> None:
    """A longest path is exact for its own plan and a bound for 4,000 others."""
    check_paths(1, 2_000)


@pytest.mark.proof
def test_bounds_are_bounds_widely() -> None:
    """The same for 20,000 pipelines."""
    gap = check_bounds(2, 20_000)
    assert 0 < gap < 0.01, f"mean gap {gap:.4f}"


@pytest.mark.proof
def test_longest_paths_are_bounds_widely() -> None:
    """The same for 20,000 plans and 40,000 others."""
    check_paths(3, 20_000)


@pytest.mark.parametrize("stages", [1, 2, 4, 7])
@pytest.mark.parametrize("num_microbatches", [8, 13])
def test_tight_on_equal_stages(stages: int, num_microbatches: int) -> None:
    """With equal stages, no hops and more micro-batches than stages the window bound is the exact time."""
    pipeline = Pipeline(
        forward_s=np.full(stages, 1.0),
        backward_s=np.full(stages, 2.0),
        hop_s=np.zeros(stages - 1),
        after_s=np.zeros(stages),
        num_microbatches=num_microbatches,
    )
    exact = (num_microbatches + stages - 1) * 3.0
    assert float(window(*rows(pipeline), num_microbatches).max()) == pytest.approx(exact, rel=1e-12)
    assert float(round_trip(*rows(pipeline), num_microbatches)[0, -1]) == pytest.approx(exact, rel=1e-12)
