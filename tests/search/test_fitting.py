"""Whether a plan fits, and how much memory is missing, against every plan of small problems."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from hetplan.predict import plan_mistakes, predict_in
from hetplan.schedule.schedules import schedule
from hetplan.search.fitting import Fit, closest_fit, first_fit, least_single_stage, missing_bytes, plan_of
from hetplan.search.infeasible import fits
from tests.search.brute import Space
from tests.search.instances import Instance, random_instance, slow_link_instance
from tests.search.spaces import NAMES, all_groups, options_of, setting_of, under, with_memory

MIB = 2.0**20
SEEDS = range(300, 305)
SCARCE = (0.3, 1.0)
KINDS = ("plain", "others")


@cache
def problems(kind: str, factor: float) -> list[Instance]:
    """Small problems with so much of their memory.

    plain: fast links under 1F1B alone; others: slow links, one or two problems under each schedule.
    """
    if kind == "plain":
        found = [random_instance(seed) for seed in SEEDS]
    else:
        found = [under(name)(seed) for i, name in enumerate(NAMES) for seed in (i, i + 7)[: 1 + i % 3 // 2]]
    return [with_memory(instance, factor) for instance in found]


def pipeline(instance: Instance) -> Fit | None:
    """The planner's answer for plans with two stages or more."""
    return first_fit(setting_of(instance), options_of(instance), all_groups(instance))


def closest(instance: Instance) -> Fit | None:
    """The pipeline that lacks least."""
    return closest_fit(setting_of(instance), options_of(instance), all_groups(instance))


def alone(instance: Instance) -> float:
    """Bytes that the best plan with one stage lacks, infinite where there is none."""
    found = least_single_stage(setting_of(instance), instance.limits, all_groups(instance))
    return found[0] if found is not None else np.inf


_KNOWN: dict[int, tuple[Instance, tuple[bool, bool]]] = {}


def any_fits(instance: Instance) -> tuple[bool, bool]:
    """Whether any plan with one stage and any pipeline fits, by listing all plans; known for the same object."""
    if id(instance) not in _KNOWN:
        _KNOWN[id(instance)] = instance, _any_fits(instance)
    return _KNOWN[id(instance)][1]


def _any_fits(instance: Instance) -> tuple[bool, bool]:
    space, held = Space(instance), [False, False]
    for job, shape, chains in space.by_shape():
        several = shape.stages > 1
        if not held[several]:
            held[several] = bool(np.isfinite(space.batch(job, shape, chains).time_s).any())
    return held[False], held[True]


def edge(instance: Instance) -> float | None:
    """The memory factor at which pipelines begin to fit, by bisection on the planner's answer."""
    low, high = 1e-3, 64.0
    if pipeline(with_memory(instance, high)) is None:
        return None
    while high / low > 1 + 1e-7:
        middle = (low * high) ** 0.5
        low, high = (low, middle) if pipeline(with_memory(instance, middle)) is not None else (middle, high)
    return high


@pytest.mark.parametrize("kind", KINDS)
def test_fits_exactly_where_some_plan_does(kind: str) -> None:
    """With little and with enough memory, the planner's yes or no is that of the list of all plans."""
    said = {False: 0, True: 0}
    for instance in [*problems(kind, SCARCE[0])[::2], *problems(kind, SCARCE[1])[1::2]]:
        single, several = any_fits(instance)
        assert (pipeline(instance) is not None) == several, instance
        assert (alone(instance) <= 0) == single, instance
        if kind == "plain":
            assert fits(setting_of(instance), options_of(instance)) == (single or several)
        said[several] += 1
    assert min(said.values()) > 0


def test_schedules_together_fit_where_any_does() -> None:
    """Of several schedules those that need no less memory than 1F1B are left out, and nothing is lost."""
    said = {False: 0, True: 0}
    for seed in (2, 6, 8):
        for factor in SCARCE:
            instance = with_memory(slow_link_instance(seed), factor)
            several = any_fits(instance)[1]
            assert (pipeline(instance) is not None) == several
            said[several] += 1
            assert len(instance.schedules) > 2
    assert min(said.values()) > 0


def test_edge_of_memory_is_exact() -> None:
    """The memory at which the planner begins to say yes is the least with which any pipeline fits, to one in 10^5."""
    checked = 0
    for seed in SEEDS[2:]:
        instance = random_instance(seed)
        factor = edge(instance)
        if factor is None:
            assert not any_fits(with_memory(instance, 64.0))[1]
            continue
        assert any_fits(with_memory(instance, factor * (1 + 1e-5)))[1], seed
        assert not any_fits(with_memory(instance, factor * (1 - 1e-5)))[1], seed
        checked += 1
    assert checked >= 3


@pytest.mark.parametrize("kind", KINDS)
def test_missing_memory_is_the_least(kind: str) -> None:
    """With the missing bytes more (and 1 MiB) a pipeline fits, with 2 MiB less than that none does."""
    checked = 0
    for instance in problems(kind, SCARCE[0]):
        fit = None if any_fits(instance)[1] else closest(instance)
        if fit is None:
            continue
        assert fit.missing_bytes > 0
        assert any_fits(with_memory(instance, more_bytes=fit.missing_bytes + MIB))[1]
        assert not any_fits(with_memory(instance, more_bytes=fit.missing_bytes - 2 * MIB))[1]
        checked += 1
    assert checked >= 4


def test_missing_memory_of_one_stage_is_the_least() -> None:
    """With the bytes that the best plan with one stage lacks it fits, with 2 MiB less no such plan does."""
    checked = 0
    for instance in problems("plain", SCARCE[0]):
        missing = alone(instance)
        if not 0 < missing < np.inf:
            continue
        assert any_fits(with_memory(instance, more_bytes=missing * (1 + 1e-9) + 1))[0]
        assert not any_fits(with_memory(instance, more_bytes=missing - 2 * MIB))[0]
        checked += 1
    assert checked >= 4


@pytest.mark.parametrize("factor", SCARCE)
@pytest.mark.parametrize("kind", KINDS)
def test_plans_of_fits_are_plans(kind: str, factor: float) -> None:
    """The plan of a fit belongs to the cluster and model, and lacks no more than the fit says; without lack it fits."""
    checked = 0
    for instance in problems(kind, factor)[:: 1 if kind == "plain" else 2]:
        setting = setting_of(instance)
        for fit in (pipeline(instance), closest(instance)):
            if fit is None:
                continue
            plan = plan_of(fit)
            assert plan_mistakes(plan, instance.cluster, instance.model, instance.training) == []
            assert plan.schedule.name in instance.schedules
            assert len(plan.stages) == sum(fit.counts) >= 2
            copies = schedule(plan.schedule.name).copies
            assert [stage.layers for stage in plan.stages] == [copies * blocks for blocks in fit.blocks[::-1]]
            lacking = missing_bytes(setting, plan)
            assert lacking <= fit.missing_bytes + 1
            assert predict_in(setting, plan).fits == (lacking <= 0)
            checked += 1
    assert checked >= 4


def test_several_sequences_where_micro_batches_are_limited() -> None:
    """Where micro-batches of one sequence are too many, fits are looked for with the next size that is allowed."""
    checked = 0
    for seed in range(3033, 3036):
        instance = random_instance(seed)
        limits = {"max_microbatches": 4, "max_microbatch_size": 4}
        limited = replace_limits(instance, **limits)
        single, several = any_fits(limited)
        assert (pipeline(limited) is not None) == several, seed
        assert (alone(limited) <= 0) == single, seed
        checked += single or several
    assert checked >= 2


def replace_limits(instance: Instance, **values: int) -> Instance:
    """The same problem under other limits."""
    return replace(instance, limits=replace(instance.limits, **values))
