"""The planner against every plan of small random problems."""

import math
from dataclasses import replace

import numpy as np
import pytest

from hetplan.predict import predict_in
from hetplan.search.options import SearchOptions
from hetplan.search.planner import search
from hetplan.search.result import SearchResult
from tests.search.brute import Enumeration, enumerate_plans, timed_by_predict
from tests.search.instances import Instance, random_instance, tiny_instance

SAME = 1e-9
FIXED_SEEDS = range(60)
PROOF_SEEDS = range(800)


def run(instance: Instance, gap: float) -> SearchResult:
    """The planner's answer."""
    return search(
        instance.cluster,
        instance.model,
        instance.training,
        instance.stack,
        SearchOptions(gap=gap, limits=instance.limits),
    )


def check_answer(found: Enumeration, result: SearchResult, gap: float) -> None:
    """The planner's best, bound, status and plans agree with the enumeration."""
    if not math.isfinite(found.best_s):
        assert (result.status, result.plans) == ("infeasible", ())
        return
    assert result.status == "optimal" or (gap > 0 and result.status == "feasible")
    assert result.stopped_by == "gap"
    best = result.plans[0].prediction.iteration_time_s
    assert best >= found.best_s * (1 - SAME), "a plan faster than any enumerated one"
    assert best <= found.best_s / (1 - gap) * (1 + SAME), "a faster plan was missed"
    assert result.bound_s <= found.best_s * (1 + SAME), "the bound is above a plan"
    assert result.bound_s >= best * (1 - gap) * (1 - SAME), "the bound does not prove the gap"
    for entry in result.plans:
        assert entry.prediction.fits
        # KeyError here: a plan outside the space.
        assert found.time_s(entry.plan) == pytest.approx(entry.prediction.iteration_time_s, rel=1e-12)


def check_times(found: Enumeration, sample: int) -> None:
    """A sample of the enumerated times is what `predict` says of the same plans, their mixes found anew."""
    rng = np.random.default_rng(0)
    entries = [(key, entry) for key, entry in found.timed.items() if len(entry.time_s)]
    for i in rng.permutation(len(entries))[:sample]:
        (job, chain), entry = entries[i]
        row = int(rng.integers(len(entry.time_s)))
        mixes = found.space.mixes(job, chain, entry.splits[row])
        plan = found.space.plan(job, chain, entry.splits[row], tuple(fitting[0] for fitting in mixes))
        prediction = predict_in(found.space.setting, plan)
        assert prediction.fits
        assert prediction.iteration_time_s == pytest.approx(float(entry.time_s[row]), rel=1e-12)


def check_seed(seed: int) -> Enumeration:
    """The planner at gap 0 on the problem of a seed."""
    instance = random_instance(seed)
    found = enumerate_plans(instance)
    check_answer(found, run(instance, 0.0), 0.0)
    return found


@pytest.mark.parametrize("seed", FIXED_SEEDS)
def test_best_of_all_plans(seed: int) -> None:
    """At gap 0 the planner's best is the best of all plans, and its bound is not above it."""
    check_times(check_seed(seed), 3)


@pytest.mark.parametrize("seed", FIXED_SEEDS[::3])
def test_gap_holds(seed: int) -> None:
    """At gap 0.02 the bound is below the best of all plans, and the planner's best is within 2 % of it."""
    instance = random_instance(seed)
    check_answer(enumerate_plans(instance), run(instance, 0.02), 0.02)


def test_fixed_problems_are_mixed() -> None:
    """The fixed problems hold infeasible ones, ones that need recomputation, and thousands of plans."""
    found = [enumerate_plans(random_instance(seed)) for seed in FIXED_SEEDS]
    assert sum(entry.plans for entry in found) > 30_000
    assert 3 <= sum(not math.isfinite(entry.best_s) for entry in found) <= 15
    assert sum(entry.fitting < entry.plans for entry in found if math.isfinite(entry.best_s)) >= 20
    best = [entry.best() for entry in found if math.isfinite(entry.best_s)]
    assert sum(any(stage.recompute.none < stage.layers for stage in plan.stages) for plan in best) >= 5
    assert sum(len({stage.group for stage in plan.stages}) > 1 for plan in best) >= 5
    assert sum(len(plan.stages) == 1 for plan in best) >= 5


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(103, id="only-forwards-above-a-stage-count-towards-its-end"),
        pytest.param(188, id="hops-above-a-stage-count-once-towards-its-end"),
        pytest.param(134, id="first-plan-that-fits-takes-its-fastest-mix"),
        pytest.param(233, id="first-plan-fits-by-selective-recomputation-alone"),
        pytest.param(1103, id="one-stage-fits-by-zero-2-and-selective-recomputation-alone"),
        pytest.param(65, id="nothing-fits-within-few-microbatches"),
    ],
)
def test_once_wrong(seed: int) -> None:
    """Problems that the planner once got wrong."""
    check_seed(seed)


def test_only_larger_microbatches_are_few_enough() -> None:
    """Where micro-batches of one sequence would be too many, plans with larger ones are found."""
    instance = random_instance(3035)
    limits = replace(instance.limits, max_microbatches=4, max_microbatch_size=4)
    instance = replace(instance, limits=limits)
    found = enumerate_plans(instance)
    assert {stage.microbatch_size for stage in found.best().stages} != {1}
    check_answer(found, run(instance, 0.0), 0.0)


def check_mixes(seed: int) -> int:
    """Every split of a tiny problem takes the time of its best combination of mixes; returns their number."""
    found = enumerate_plans(tiny_instance(seed))
    total = 0
    for job, chain, split, best, plans in timed_by_predict(found.space):
        entry = found.timed[job, chain]
        row = np.flatnonzero((entry.splits == split).all(axis=1))
        assert len(row) == math.isfinite(best)
        if len(row):
            assert float(entry.time_s[row[0]]) == pytest.approx(best, rel=1e-12)
        total += plans
    return total


def test_best_mix_per_stage_is_enough() -> None:
    """All combinations of recomputation mixes, judged by `predict` alone, hold no other plan and no faster one."""
    assert check_mixes(30) > 1_000


@pytest.mark.proof
def test_best_of_a_million_plans() -> None:
    """The planner is exact on 800 problems with a million plans in all."""
    plans = 0
    for seed in PROOF_SEEDS:
        found = check_seed(seed)
        check_times(found, 1)
        plans += found.plans
    assert plans > 1_000_000


@pytest.mark.proof
@pytest.mark.parametrize("seed", range(1000, 1200))
def test_gap_holds_widely(seed: int) -> None:
    """At gap 0.02 bound and best keep their promise on more problems."""
    instance = random_instance(seed)
    check_answer(enumerate_plans(instance), run(instance, 0.02), 0.02)


@pytest.mark.proof
@pytest.mark.parametrize("seed", range(40))
def test_best_mix_per_stage_is_enough_widely(seed: int) -> None:
    """The same on more problems."""
    check_mixes(seed)
