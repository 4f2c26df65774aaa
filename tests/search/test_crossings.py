"""Window bounds across slow hops against every split."""

from functools import cache

import numpy as np
import pytest

from hetplan.search.crossings import Crossings
from hetplan.search.roots import RootSpace
from tests.search.spaces import NAMES, some_spaces, structures, timed, under


@cache
def spaces() -> list[RootSpace]:
    """Roots under 1F1B with slow links and some micro-batches, with and without further warm-up."""
    found = [space for _, space in some_spaces(range(10), 50, under("1f1b"))]
    return [space for space in found if space.root.num_microbatches >= 6 and len(structures(space)) < 100]


def test_only_one_forward_one_backward_ties_stages() -> None:
    """Other schedules do not do forwards and backwards in strict turn."""
    for name in NAMES:
        for _, space in some_spaces(range(2), 1, under(name)):
            assert Crossings(space).tied == (name == "1f1b")


def test_every_crossing_bounds_every_split() -> None:
    """T >= what is tied + what lies besides, with the stages' own times and with the least ones."""
    checked = sharper = warm = 0
    for space in spaces():
        crossings, fixed_s = Crossings(space), space.setting.stack.step_fixed_s
        for structure in structures(space):
            chain = space.chain(structure)
            splits, time_s = timed(chain)
            if len(structure) < 2 or not len(splits):
                continue
            stage, at = np.arange(chain.stages), 0
            total = chain.time_s[stage, splits]
            for run in range(len(structure) - 1):
                at += structure[run][1]
                (upper, _), (lower, _) = structure[run : run + 2]
                tie = crossings.tie(upper, lower, np.array([chain.stages - at]), len(structure) - 2 - run)
                laps, rest_s = int(tie.laps[0]), float(tie.rest_s[0])
                bound = fixed_s + rest_s + laps * (total[:, at - 1] + total[:, at])
                assert (bound <= time_s * (1 + 1e-12)).all(), (space.root, structure, run)
                for o, k in ((upper, at - 1), (lower, at)):
                    forward, backward = crossings.least[o]
                    assert (forward + backward <= total[:, k] * (1 + 1e-12)).all()
                    times = crossings.times[o]
                    assert (times[1:] >= times[:-1]).all()
                    assert (times[splits[:, k]] <= total[:, k] * (1 + 1e-12)).all()
                trip = chain.tied_s[stage, splits].max(axis=1) + total.sum(axis=1) + 2 * chain.hop_s[:-1].sum()
                sharper += int((bound > trip + chain.ending_s[0, splits[:, 0]] + fixed_s).sum())
                warm += space.root.warmup > 0
                checked += len(splits)
    assert checked > 500
    assert warm > 20
    assert sharper > 20, "a bound that is never better than the round trip is no use"


def test_least_bound_of_two_options() -> None:
    """The least over depths and orders is at most the time of every plan that uses these two options alone."""
    checked, ratios = 0, []
    for space in spaces():
        crossings = Crossings(space)
        for structure in structures(space):
            _, time_s = timed(space.chain(structure))
            if len(structure) == 2 and len(time_s):
                (a, _), (b, _) = structure
                stages = sum(count for _, count in structure)
                least = crossings.least_s(a, b, stages)
                assert least == pytest.approx(crossings.least_s(b, a, stages), rel=1e-12)
                assert least <= time_s.min() * (1 + 1e-12), (space.root, structure)
                ratios.append(least / time_s.min())
                checked += 1
    assert checked > 50
    assert max(ratios) > 0.7
