"""Bounds along paths against the exact time of every split."""

from itertools import islice

import numpy as np
import pytest

from hetplan.plan import ScheduleName
from hetplan.search.paths import KEPT, PathPool, least_split, suffix_sums
from tests.search.spaces import NAMES, compositions, random_chain, timed


@pytest.mark.parametrize("nth", range(2))
@pytest.mark.parametrize("name", NAMES)
def test_mixtures_bound_every_split(name: ScheduleName, nth: int) -> None:
    """A path of one split, and any mixture of paths, is a lower bound on the exact time of every split."""
    rng = np.random.default_rng(nth)
    able = (chain for seed in range(50) if len(timed(chain := random_chain(seed, name))[0]) > 5)
    chain = next(islice(able, nth, None))
    splits, time_s = timed(chain)
    stage = np.arange(chain.stages)
    row = int(rng.integers(len(splits)))
    mixture = chain.path(splits[row])
    own = chain.weigh(mixture)[stage, splits[row]].sum() + chain.fixed_s
    assert own == pytest.approx(time_s[row], rel=1e-12), "a longest path is as long as its plan takes"
    for _ in range(6):
        weight = chain.weigh(mixture)
        along = weight[stage, splits].sum(axis=1) + chain.fixed_s
        assert (along <= time_s * (1 + 1e-12)).all()
        least = suffix_sums(weight)[0, chain.layers] + chain.fixed_s
        assert least <= time_s.min() * (1 + 1e-12)
        mixture = mixture.mixed(chain.path(splits[int(rng.integers(len(splits)))]), float(rng.uniform(0.05, 0.9)))


@pytest.mark.parametrize("seed", range(25))
def test_suffix_sums_are_the_least(seed: int) -> None:
    """The sum for every suffix and number of blocks is the least over all of its splits, and `least_split` has it."""
    rng = np.random.default_rng(seed)
    stages, layers = int(rng.integers(1, 5)), int(rng.integers(4, 8))
    weight = rng.uniform(0.0, 1.0, (stages, layers + 1))
    weight[rng.random(weight.shape) < 0.3] = np.inf
    weight[:, 0] = np.inf
    sums = suffix_sums(weight)
    for j in range(stages):
        for left in range(layers + 1):
            rows = compositions(left, stages - j)
            listed = [sum(weight[j + i, n] for i, n in enumerate(split)) for split in rows]
            assert sums[j, left] == pytest.approx(min(listed, default=np.inf), rel=1e-12)
    assert sums[stages, 0] == 0
    assert np.isinf(sums[stages, 1:]).all()
    if np.isfinite(sums[0, layers]):
        split = least_split(weight, sums)
        assert split.sum() == layers
        assert weight[np.arange(stages), split].sum() == pytest.approx(sums[0, layers], rel=1e-12)


def test_pool_keeps_the_useful_paths_first() -> None:
    """A path that has just helped comes first, once; the one that helped longest ago is forgotten."""
    chain = random_chain(8)
    splits, _ = timed(chain)
    paths = [chain.path(splits[i]) for i in range(KEPT + 1)]
    pool = PathPool()
    for path in paths:
        pool.promote(path)
    assert len(pool.paths) == KEPT
    assert pool.paths[0] is paths[-1]
    assert all(path is not paths[0] for path in pool.paths)
    pool.promote(paths[3])
    assert pool.paths[0] is paths[3]
    assert sum(path is paths[3] for path in pool.paths) == 1
