"""Ordered structures against the best exact time of each."""

import numpy as np
import pytest

from hetplan.search.capacities import Capacities
from hetplan.search.structures import Structures, StructureSearch
from tests.search.spaces import timed
from tests.search.test_capacities import KINDS, best_times

MANY = 10**6


@pytest.mark.parametrize("factor", [0.9, 1 + 1e-9, 1.02, 1.3, 3.0])
@pytest.mark.parametrize("kind", KINDS)
def test_no_structure_below_the_target_is_lost(kind: str, factor: float) -> None:
    """Every structure with a best time below the target is listed, once; listed bounds are at most their best times."""
    kept = needed = everything = 0
    for space, best in best_times(kind):
        least = min(best.values(), default=np.inf)
        if not np.isfinite(least):
            continue
        target = least * factor
        found = StructureSearch(Capacities(space)).below(target, MANY)
        assert found is not None
        assert (found.bound_s < target).all()
        assert (np.diff(found.bound_s) >= 0).all()
        rows = [found.structure(i) for i in range(len(found.bound_s))]
        assert len(set(rows)) == len(rows)
        assert set(rows) <= set(best), "not a structure of the root"
        for i, structure in enumerate(rows):
            assert found.bound_s[i] <= best[structure] * (1 + 1e-12)
            assert found.stages[i] == sum(n for _, n in structure)
        below = {structure for structure, time_s in best.items() if time_s < target}
        assert below <= set(rows)
        kept, needed, everything = kept + len(rows), needed + len(below), everything + len(best)
    assert needed > 0 or factor < 1
    assert kept < everything
    assert kept < 8 * max(needed, 8)


@pytest.mark.parametrize("kind", KINDS)
def test_bottleneck_is_a_lower_bound(kind: str) -> None:
    """The bottleneck of a listed structure is at most that of each of its plans below the target."""
    checked = 0
    for space, best in best_times(kind):
        least = min(best.values(), default=np.inf)
        if not np.isfinite(least):
            continue
        target = least * 1.3
        found = StructureSearch(Capacities(space)).below(target, MANY)
        assert found is not None
        for i in range(len(found.bound_s)):
            chain = space.chain(found.structure(i))
            splits, time_s = timed(chain)
            splits = splits[time_s < target]
            if len(splits):
                tied = chain.tied_s[np.arange(chain.stages), splits].max(axis=1)
                assert found.bottleneck_s[i] <= tied.min() * (1 + 1e-12)
                checked += 1
    assert checked > 30


@pytest.mark.parametrize("kind", KINDS)
def test_limits_of_a_listing(kind: str) -> None:
    """No target or more structures than allowed: no listing; `check` may end it."""
    space, best = next(entry for entry in best_times(kind) if sum(map(np.isfinite, entry[1].values())) > 5)
    search, target = StructureSearch(Capacities(space)), 2 * max(t for t in best.values() if np.isfinite(t))
    assert search.below(float("inf"), MANY) is None
    assert search.below(target, 1) is None
    found = search.below(target, MANY)
    assert found is not None
    assert len(found.bound_s) > 1

    def stop() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        search.below(target, MANY, stop)


def test_join_and_pad() -> None:
    """Parts of different widths are padded, joined and put in order of their bounds; rows read from the first stage."""
    one = Structures.padded(np.array([[2]]), np.array([[3]]), np.array([5.0]), np.array([1.0]), 3)
    two = Structures.padded(np.array([[0, 1]]), np.array([[1, 2]]), np.array([4.0]), np.array([2.0]), 3)
    whole = Structures.join([one, two, Structures.empty(3)], 3)
    assert whole.bound_s.tolist() == [4.0, 5.0]
    assert whole.bottleneck_s.tolist() == [2.0, 1.0]
    assert [whole.structure(0), whole.structure(1)] == [((1, 2), (0, 1)), ((2, 3),)]
    assert whole.stages.tolist() == [3, 3]
    assert len(Structures.join([], 3).bound_s) == 0
