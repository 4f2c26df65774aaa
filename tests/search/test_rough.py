"""First bounds of roots against every plan of theirs."""

from collections.abc import Callable
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from hetplan.plan import ScheduleName
from hetplan.search.roots import RootSpace
from hetplan.search.rough import arithmetic_bound_s, rough_bound_s
from tests.search.instances import Instance, random_instance
from tests.search.spaces import NAMES, some_spaces, structures, timed, under

SEEDS = range(8)


def least_s(space: RootSpace) -> float:
    """The fastest of a good part of a root's plans."""
    chains = (space.chain(structure) for structure in structures(space)[:100])
    return min((float(timed(chain)[1].min(initial=np.inf)) for chain in chains), default=np.inf)


@pytest.mark.parametrize("name", NAMES)
def test_no_plan_is_faster(name: ScheduleName) -> None:
    """No plan of a root is faster than its bound by arithmetic, nor than its rough bound where it has one."""
    ratios = []
    for _, space in some_spaces(SEEDS, 2, under(name)):
        least = least_s(space)
        bounds = [arithmetic_bound_s(space)]
        if space.root.stages is not None:
            bounds.append(rough_bound_s(space))
        for bound in bounds:
            assert 0 < bound <= least * (1 + 1e-12)
        if np.isfinite(least):
            ratios.append(max(bounds) / least)
    assert len(ratios) >= 4
    assert np.median(ratios) > 0.25, "a bound that says nothing would pass the rest"


@pytest.mark.parametrize("make", [random_instance, under("1f1b"), under("dualpipe")])
def test_arithmetic_bound_is_the_best_rate(make: Callable[[int], Instance]) -> None:
    """The bound is the blocks of all micro-batches over the blocks per second of the fastest stages there can be."""
    for _, space in some_spaces(SEEDS, 2, make):
        layers, m = space.setting.model.architecture.layers, space.root.num_microbatches
        by_group: dict[int, list[tuple[int, float]]] = {}
        for option in space.options:
            pace = min(cost.forward_s + cost.backward_s for cost in option.costs.layers.values())
            ways = [(k, min(k, option.max_stages) / pace) for k in range(space.max_stages + 1)]
            by_group.setdefault(option.group, []).extend(ways)
        best = 0.0
        for chosen in product(*by_group.values()):
            if sum(k for k, _ in chosen) <= space.max_stages:
                best = max(best, sum(rate for _, rate in chosen))
        assert arithmetic_bound_s(space) == pytest.approx(m * layers / best + space.setting.stack.step_fixed_s)


def test_no_plan_in_too_few_stages() -> None:
    """A root with more stages than there is room for has none, and an infinite bound."""
    _, space = next(iter(some_spaces(SEEDS, 1, under("zb-h1"))))
    narrow = replace(space, root=replace(space.root, stages=99))
    assert narrow.max_stages == 0
    assert arithmetic_bound_s(narrow) == np.inf
