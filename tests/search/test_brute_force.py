"""The planner against every plan of small random problems."""

import math
from collections import Counter
from dataclasses import replace
from functools import lru_cache
from unittest.mock import patch

import numpy as np
import pytest

from hetplan.predict import plan_mistakes, predict_in
from hetplan.schedule.schedules import SCHEDULES
from hetplan.search import best_first
from hetplan.search.options import SearchOptions
from hetplan.search.planner import search
from hetplan.search.result import SearchResult
from tests.search.brute import Enumeration, enumerate_plans, timed_by_predict
from tests.search.brute_space import Chain, Job
from tests.search.instances import (
    Instance,
    random_instance,
    slow_link_instance,
    tiny_instance,
    tiny_slow_link_instance,
)

SAME = 1e-9
FIXED_SEEDS = range(60)
PROOF_SEEDS = range(800)
# Where every schedule wins somewhere, and three problems where nothing fits.
SLOW_SEEDS = (*range(124, 133), 134, 135, 137, *range(139, 145), *range(146, 149), 228, 267, 12, 47, 59, 3, 6, 9, 17)
SLOW_PROOF_SEEDS = range(300)


def run(instance: Instance, gap: float, *, listed: bool = False) -> SearchResult:
    """The planner's answer. `listed`: as it answers small problems, by timing all splits of what bounds leave open.

    Otherwise bounds and integer programs have to close them, as they do on large ones.
    """
    with patch.object(best_first, "FEW_SPLITS", best_first.FEW_SPLITS if listed else 0):
        return search(
            instance.cluster,
            instance.model,
            instance.training,
            instance.stack,
            SearchOptions(gap=gap, limits=instance.limits, schedules=instance.schedules, space=instance.space),
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
    instance = found.space.instance
    for i in rng.permutation(len(found.batches))[:sample]:
        batch = found.batches[i]
        fits = np.argwhere(np.isfinite(batch.time_s))
        if len(fits):
            chain, row = fits[int(rng.integers(len(fits)))].tolist()
            plan, time_s = found.at(batch, chain, row), float(batch.time_s[chain, row])
            assert plan_mistakes(plan, instance.cluster, instance.model, instance.training) == []
            prediction = predict_in(found.space.setting, plan)
            assert prediction.fits
            assert prediction.iteration_time_s == pytest.approx(time_s, rel=1e-12)
            assert found.time_s(plan) == time_s
        unfit = np.argwhere(np.isinf(batch.time_s))
        if len(unfit):
            chain, row = unfit[int(rng.integers(len(unfit)))].tolist()
            assert [] in found.space.mixes(batch.job, batch.chains[chain], batch.layout, row)


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


def check_mixes(instance: Instance, one_in: int = 1) -> int:
    """Splits of a tiny problem take the time of their best combination of mixes; returns the number of those."""
    found = enumerate_plans(instance)
    total = 0
    for job, chain, where, row, best, plans in timed_by_predict(found.space, one_in):
        entry = found.timed[job, chain]
        rows = np.flatnonzero((entry.splits == where.splits[row]).all(axis=1))
        assert len(rows) == math.isfinite(best)
        if len(rows):
            assert float(entry.time_s[rows[0]]) == pytest.approx(best, rel=1e-12)
        total += plans
    return total


def test_best_mix_per_stage_is_enough() -> None:
    """All combinations of recomputation mixes, judged by `predict` alone, hold no other plan and no faster one."""
    assert check_mixes(tiny_instance(30)) > 1_000


def test_best_mix_per_stage_is_enough_on_every_schedule() -> None:
    """The same with every schedule and degrees of each group's own."""
    assert sum(check_mixes(tiny_slow_link_instance(seed), 60) for seed in range(4)) > 1_000


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
    check_mixes(tiny_instance(seed))


@pytest.mark.proof
@pytest.mark.parametrize("seed", range(20))
def test_best_mix_per_stage_is_enough_on_every_schedule_widely(seed: int) -> None:
    """The same on more problems with every schedule."""
    check_mixes(tiny_slow_link_instance(seed), 5)


@lru_cache(maxsize=len(SLOW_SEEDS))
def slow_enumeration(seed: int) -> Enumeration:
    """All plans of a problem with slow links."""
    return enumerate_plans(slow_link_instance(seed))


@pytest.mark.parametrize("seed", SLOW_SEEDS)
def test_best_of_all_schedules(seed: int) -> None:
    """With slow hops, several schedules, warm-up and degrees by group, the planner's best is the best of all plans."""
    found = slow_enumeration(seed)
    check_times(found, 4)
    check_answer(found, run(found.space.instance, 0.0, listed=seed % 2 == 0), 0.0)


@pytest.mark.proof
@pytest.mark.parametrize("seed", SLOW_PROOF_SEEDS)
def test_best_of_all_schedules_widely(seed: int) -> None:
    """The same on 300 problems."""
    found = enumerate_plans(slow_link_instance(seed))
    check_times(found, 4)
    check_answer(found, run(found.space.instance, 0.0, listed=seed % 2 == 0), 0.0)


def uniform(job: Job, chain: Chain) -> bool:
    """All stages share dp and micro-batch size."""
    return len({(part.dp, part.microbatch_size) for part in chain}) == 1


def what_is_best(found: Enumeration) -> Counter[str]:
    """What the best plans of a problem have."""
    counts = Counter({"plans": found.plans})
    if not math.isfinite(found.best_s):
        return counts + Counter(["nothing fits"])

    def wins(name: str) -> bool:
        in_pipeline = found.least_s(lambda job, chain: job.schedule == name and sum(part.stages for part in chain) > 1)
        return in_pipeline == found.best_s

    counts.update(entry.name for entry in SCHEDULES if wins(entry.name))
    needed = {
        "further warm-up": found.least_s(lambda job, chain: not job.warmup),
        "several groups": found.least_s(lambda job, chain: len(chain) == 1),
        "degrees by group": found.least_s(uniform),
        "a pipeline": found.least_s(lambda job, chain: len(chain) == chain[0].stages == 1),
    }
    counts.update(name for name, without in needed.items() if without > found.best_s * (1 + SAME))
    if any(stage.recompute.none < stage.layers for stage in found.best().stages):
        counts["recomputation"] += 1
    return counts


def test_problems_with_slow_links_are_mixed() -> None:
    """The problems call for pipelines, several groups, warm-up and recomputation, and every schedule wins somewhere."""
    counts = sum((what_is_best(slow_enumeration(seed)) for seed in SLOW_SEEDS), Counter())
    assert counts["plans"] > 30_000
    assert [entry.name for entry in SCHEDULES if not counts[entry.name]] == [], counts
    for name in ("a pipeline", "several groups", "recomputation"):
        assert counts[name] >= 10, counts
    assert counts["nothing fits"] == 3, counts
    assert counts["further warm-up"] >= 2, counts
    assert counts["degrees by group"] >= 2, counts


@pytest.mark.proof
def test_every_choice_is_best_somewhere() -> None:
    """Each schedule wins somewhere, and so do further warm-up and degrees by group."""
    counts = sum((what_is_best(slow_enumeration(seed)) for seed in SLOW_PROOF_SEEDS), Counter())
    assert [entry.name for entry in SCHEDULES if not counts[entry.name]] == [], counts
    for name in ("further warm-up", "several groups", "degrees by group", "a pipeline", "recomputation"):
        assert counts[name] >= 5, counts
