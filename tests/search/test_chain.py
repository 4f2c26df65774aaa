"""Chains: bounds and enumerations against every split, under every schedule. `test_roots` has their exact times."""

from functools import cache
from itertools import islice

import numpy as np
import pytest

from hetplan.search.chain import Chain
from hetplan.search.paths import PathPool
from tests.search.spaces import NAMES, Floats, Ints, random_chain, timed

TARGETS = (0.95, 1 + 1e-9, 1.03, 1.5)
"""Times the best: below it nothing is left, above it the best and more."""
KINDS = ("plain", "others")


@cache
def chains(kind: str) -> list[tuple[int, Chain, Ints, Floats]]:
    """Random chains that have a choice of splits, with all that fit and their times.

    plain: 1F1B with overlapped transfers; others: one of every schedule, 1F1B with transfers that keep someone busy.
    """
    found = []
    for name in ("1f1b",) if kind == "plain" else NAMES:
        listed = ((seed, chain, *timed(chain)) for seed in range(100) for chain in [random_chain(seed, name)])
        fine = (entry for entry in listed if 12 <= len(entry[2]) <= 40)
        if name == "1f1b":
            fine = (entry for entry in fine if (entry[1].shape.transfers == "overlapped") == (kind == "plain"))
        found += list(islice(fine, 4 if kind == "plain" else 1))
    return found


def contains(rows: Ints, split: Ints) -> bool:
    """Whether a split is among the rows."""
    return bool((rows == split).all(axis=1).any())


def below(time_s: Floats, target: float) -> Ints:
    """Rows with a time below a target, but for rounding."""
    return np.flatnonzero(time_s < target * (1 - 1e-11))


@pytest.mark.parametrize("kind", KINDS)
def test_bounds_hold_for_every_split(kind: str) -> None:
    """The bound of a split is at most its time, and the bounds of whole suffixes are at most those of their splits."""
    for _, chain, splits, time_s in chains(kind):
        assert (chain.bound(splits) <= time_s * (1 + 1e-12)).all()
        suffixes, stage = chain.suffixes, np.arange(chain.stages)
        fill = chain.time_s[stage, splits].sum(axis=1) + chain.hop_weight * chain.hop_s[:-1].sum()
        assert suffixes.fill_s[0, chain.layers] == pytest.approx(fill.min(), rel=1e-12)
        assert suffixes.first_s == pytest.approx((fill + chain.ending_s[0, splits[:, 0]]).min(), rel=1e-12)
        tied = chain.tied_s[stage, splits].max(axis=1)
        assert suffixes.bottleneck_s[0, chain.layers] == pytest.approx(tied.min(), rel=1e-12, abs=1e-12)
        assert suffixes.end_s[0, chain.layers] + chain.fixed_s <= time_s.min() * (1 + 1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_all_splits_are_listed(kind: str) -> None:
    """Every split that the stages can hold, once."""
    for _, chain, splits, _ in chains(kind):
        listed = chain.all_splits()
        assert sorted(listed.tolist()) == sorted(splits.tolist())


@pytest.mark.parametrize("factor", TARGETS)
@pytest.mark.parametrize("kind", KINDS)
def test_no_split_below_the_target_is_lost(kind: str, factor: float) -> None:
    """Every split with a time below the target is listed, with a bound, in one of the open ranges; few others are."""
    listed_in_all = needed = everything = 0
    for seed, chain, splits, time_s in chains(kind):
        target = float(time_s.min()) * factor
        ranges = chain.open_ranges(target)
        listed, bounds, left_out = chain.splits_below(target, 10**6)
        assert left_out == np.inf
        assert (bounds < target).all()
        assert len(np.unique(listed, axis=0)) == len(listed), "a split is listed twice"
        tied = chain.tied_s[np.arange(chain.stages), splits].max(axis=1)
        for row in below(time_s, target):
            assert contains(listed, splits[row]), (seed, splits[row])
            assert any(part.low_s * (1 - 1e-12) <= tied[row] <= part.high_s * (1 + 1e-12) for part in ranges)
        if len(listed):
            exact = chain.simulate(listed)
            assert (bounds <= exact * (1 + 1e-12)).all()
        listed_in_all, needed = listed_in_all + len(listed), needed + len(below(time_s, target))
        everything += len(splits)
    assert needed <= listed_in_all < max(1, 3 * needed) + (factor < 1 or kind == "others") * everything / 10
    assert listed_in_all < everything / 2 or factor > 1.1


@pytest.mark.parametrize("limit", [0, 6])
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_left_out_keeps_a_bound(kind: str, limit: int) -> None:
    """Under a limit each split below the target is listed, or the bound on what was left out is at most its time."""
    left = 0
    for _, chain, splits, time_s in chains(kind):
        target = float(time_s.min()) * 1.3
        listed, _, left_out = chain.splits_below(target, limit)
        left += left_out < np.inf
        for row in below(time_s, target):
            assert contains(listed, splits[row]) or left_out <= time_s[row] * (1 + 1e-12)
    assert left > 0


@pytest.mark.parametrize("factor", TARGETS)
@pytest.mark.parametrize("kind", KINDS)
def test_excluded_is_never_wrong(kind: str, factor: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """With paths of other chains of its shape in the pool, a chain with a split below the target is not excluded."""
    rng, said = np.random.default_rng(3), 0
    for seed, chain, splits, time_s in chains(kind):
        pool = PathPool()
        for row in rng.permutation(len(splits))[:3]:
            pool.promote(chain.path(splits[row]).mixed(chain.path(splits[0]), 0.5))
        pool.promote(chain.path(splits[int(time_s.argmin())]))
        monkeypatch.setattr(chain.pool, "paths", pool.paths)
        target = float(time_s.min()) * factor
        if chain.excluded(target):
            said += 1
            assert not len(below(time_s, target)), seed
    if factor < 1:
        assert said > 0
    if factor > 1:
        assert said == 0


@pytest.mark.parametrize("kind", KINDS)
def test_heuristic_finds_exactly_timed_splits(kind: str) -> None:
    """The heuristic returns a split that fits with its exact time, on most chains the best one."""
    exact, count = 0, 0
    for _, chain, splits, time_s in chains(kind):
        found = chain.heuristic()
        assert found is not None
        split, seconds = found
        assert contains(splits, split)
        assert seconds == pytest.approx(float(chain.simulate(split[None])[0]), rel=1e-12)
        assert seconds <= 1.25 * float(time_s.min())
        exact += seconds <= float(time_s.min()) * (1 + 1e-12)
        count += 1
    assert exact >= 0.8 * count


def test_heuristic_says_none_where_nothing_fits() -> None:
    """Where no split fits the heuristic finds none, and nothing is open at any target."""
    hopeless = [chain for seed in range(200) if not len(timed(chain := random_chain(seed))[0])]
    assert len(hopeless) >= 3
    for chain in hopeless:
        assert chain.heuristic() is None
        assert chain.open_ranges(1e9) == []
        assert len(chain.splits_below(1e9, 10)[0]) == 0


@pytest.mark.parametrize("kind", KINDS)
def test_local_moves_never_make_it_worse(kind: str) -> None:
    """From any split the moves end at one that is no worse, timed exactly, and that no single move improves."""
    better = 0
    for seed, chain, splits, time_s in chains(kind):
        for row in np.random.default_rng(seed).permutation(len(splits))[:4]:
            split, seconds = chain.improve(splits[row], float(time_s[row]))
            assert seconds <= time_s[row]
            assert seconds == pytest.approx(float(chain.simulate(split[None])[0]), rel=1e-12)
            near = splits[np.abs(splits - split).sum(axis=1) == 2]
            assert not len(near) or chain.simulate(near).min() >= seconds * (1 - 1e-11)
            better += seconds < time_s[row]
    assert better > 10
