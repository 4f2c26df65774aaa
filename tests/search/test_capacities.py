"""Bounds on combinations of options against every plan of small roots."""

from functools import cache

import numpy as np
import pytest

from hetplan.search.capacities import GRID, Capacities, fill_of
from hetplan.search.roots import RootSpace, Structure
from tests.search.spaces import NAMES, compositions, some_spaces, structures, timed, under

KINDS = ("plain", "others")


@cache
def best_times(kind: str) -> list[tuple[RootSpace, dict[Structure, float]]]:
    """Roots with the best exact time of every ordered structure, infinite where none of its splits fits.

    plain: 1F1B and fast links; others: slow links under every schedule, 1F1B with further warm-up too, and in both
    spaces.
    """
    if kind == "plain":
        spaces = [space for _, space in some_spaces(range(212, 224))]
    else:
        spaces = [space for name in NAMES for _, space in some_spaces(range(6), 1, under(name))]
    found = []
    for space in spaces:
        listed = structures(space)
        if len(listed) < MOST:
            best = {structure: float(timed(space.chain(structure))[1].min(initial=np.inf)) for structure in listed}
            found.append((space, best))
    return found


MOST = 200
"""Structures of a root: roots with more are left out."""


def options_of(structure: Structure) -> frozenset[int]:
    """Options in use, order left open."""
    return frozenset(o for o, _ in structure)


@pytest.mark.parametrize("factor", [0.5, 1.01, 2.0, np.inf])
@pytest.mark.parametrize("kind", KINDS)
def test_combination_bounds_hold(kind: str, factor: float) -> None:
    """A combination's bound is at most the best time of its structures; where those reach the target it may be more."""
    checked = tight = 0
    for space, best in best_times(kind):
        capacities = Capacities(space)
        least = min(best.values(), default=np.inf)
        target = least * factor if np.isfinite(least) else np.inf
        for fewest, most in {(space.min_stages, space.max_stages), (2, 2), (space.max_stages, space.max_stages)}:
            if not space.min_stages <= most <= space.max_stages:
                continue
            bounds = capacities.bounds(fewest, most, target)
            assert len(bounds) == len(capacities.combinations)
            by_options: dict[frozenset[int], float] = {}
            for structure, time_s in best.items():
                if fewest <= sum(n for _, n in structure) <= most:
                    key = options_of(structure)
                    by_options[key] = min(time_s, by_options.get(key, np.inf))
            listed = {
                frozenset(int(o) for o in row if o >= 0): float(bound)
                for row, bound in zip(capacities.combinations, bounds, strict=True)
            }
            for key, time_s in by_options.items():
                if np.isfinite(time_s):
                    assert min(listed[key], target) <= time_s * (1 + 1e-12)
                    checked += 1
                    tight += listed[key] > 0.7 * time_s
    assert checked > 60
    assert tight > checked / 12


@pytest.mark.parametrize("kind", KINDS)
def test_least_bottleneck_is_at_most_that_of_any_plan(kind: str) -> None:
    """No plan has a bottleneck below the least one; where there are plans it is finite."""
    checked = 0
    for space, best in best_times(kind):
        capacities = Capacities(space)
        for structure, time_s in best.items():
            if not np.isfinite(time_s):
                continue
            chain = space.chain(structure)
            splits, _ = timed(chain)
            bottleneck = chain.tied_s[np.arange(chain.stages), splits].max(axis=1).min()
            assert capacities.least_bottleneck(chain.stages) <= bottleneck * (1 + 1e-12)
            checked += 1
    assert checked > 150


@pytest.mark.parametrize("kind", KINDS)
def test_caps_hold_every_stage(kind: str) -> None:
    """A stage whose c is at most the bottleneck holds no more blocks than the cap of its option."""
    for space, _ in best_times(kind)[:20]:
        capacities = Capacities(space)
        for structure in structures(space)[:20]:
            chain = space.chain(structure)
            owners = [o for o, count in structure for _ in range(count)]
            for bottleneck in np.unique(chain.tied_s[np.isfinite(chain.tied_s)])[::3]:
                for j, o in enumerate(owners):
                    held = np.flatnonzero(chain.tied_s[j] <= bottleneck)
                    if len(held):
                        row = capacities.tied[o][chain.stages - 1]
                        assert held[-1] < np.searchsorted(row, float(bottleneck) * (1 + 1e-12), side="right")


@pytest.mark.parametrize("factor", [1 + 1e-9, 1.05, 1.5, 4.0])
@pytest.mark.parametrize("kind", KINDS)
def test_no_stage_counts_are_lost(kind: str, factor: float) -> None:
    """Stage counts of every structure whose best time is below the target are among the possible ones."""
    kept = everything = 0
    for space, best in best_times(kind):
        least = min(best.values(), default=np.inf)
        if not np.isfinite(least):
            continue
        capacities, target = Capacities(space), least * factor
        bottleneck = capacities.least_bottleneck(space.max_stages)
        top = target - capacities.fixed - capacities.after - capacities.layers * min(capacities.per_block)
        grid = bottleneck * (1 - 1e-12) + (top - bottleneck) * np.linspace(0.0, 1.0, GRID + 1) ** 2
        found: dict[tuple[int, ...], set[tuple[int, ...]]] = {}
        for structure, time_s in best.items():
            used = tuple(sorted(o for o, _ in structure))
            if not np.isfinite([capacities.per_block[o] for o in used]).all():
                # No combination holds an option that fits nowhere.
                assert not np.isfinite(time_s)
                continue
            if used not in found:
                found[used] = {tuple(row) for row in capacities.counts(used, target, grid).tolist()}
                kept += len(found[used])
            if time_s < target:
                assert tuple(n for _, n in sorted(structure)) in found[used]
        everything += len({tuple(sorted(structure)) for structure in best})
    assert 0 < kept < everything or factor > 1.2


def test_fill_is_the_least() -> None:
    """`fill_of` gives the least seconds over all ways to spread the blocks, infinite where they do not fit."""
    rng = np.random.default_rng(0)
    for _ in range(200):
        groups, layers = int(rng.integers(1, 4)), int(rng.integers(3, 8))
        room = rng.integers(0, 6, groups).astype(np.float64)
        held = np.minimum(rng.integers(0, 2, groups), room).astype(np.float64)
        pace = rng.uniform(0.5, 2.0, groups).tolist()
        ways = compositions(layers + groups, groups) - 1
        legal = ways[(ways <= room).all(axis=1) & (ways >= held).all(axis=1)]
        least = (legal * pace).sum(axis=1).min(initial=np.inf)
        if held.sum() <= layers:
            assert fill_of(room[None], pace, layers, held[None])[0] == pytest.approx(least, rel=1e-12)
