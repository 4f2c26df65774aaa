"""Roots, structures and splits of small random problems, listed one by one."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations, permutations, product

import numpy as np
import numpy.typing as npt

from hetplan.predict import Setting
from hetplan.search.chain import Chain
from hetplan.search.roots import RootSpace, Structure
from hetplan.search.space import pipeline_roots
from tests.search.instances import Instance, random_instance

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


def setting_of(instance: Instance) -> Setting:
    """What plans of a problem are judged against."""
    return Setting(cluster=instance.cluster, model=instance.model, training=instance.training, stack=instance.stack)


def root_spaces(instance: Instance) -> list[RootSpace]:
    """The roots of a problem that have room for two stages."""
    setting, groups = setting_of(instance), tuple(range(len(instance.cluster.groups)))
    spaces = [
        RootSpace(setting=setting, limits=instance.limits, groups=groups, root=root, counters={})
        for root in pipeline_roots(setting, instance.limits, groups)
    ]
    return [space for space in spaces if space.options and space.max_stages >= 2]


def some_spaces(seeds: range, per_seed: int = 2) -> Iterator[tuple[int, RootSpace]]:
    """A few roots of each seed, picked at random."""
    for seed in seeds:
        spaces = root_spaces(random_instance(seed))
        picked = np.random.default_rng(seed).permutation(len(spaces))[:per_seed]
        for i in picked:
            yield seed, spaces[i]


def structures(space: RootSpace) -> list[Structure]:
    """Every ordered structure of a root with two or more stages."""
    by_group: dict[int, list[tuple[int, int] | None]] = {}
    for o, option in enumerate(space.options):
        by_group.setdefault(option.group, [None]).extend((o, n) for n in range(1, option.max_stages + 1))
    found: list[Structure] = []
    for chosen in product(*by_group.values()):
        used = [entry for entry in chosen if entry is not None]
        if 2 <= sum(n for _, n in used) <= space.max_stages:
            found += permutations(used)
    return found


def compositions(layers: int, stages: int) -> Ints:
    """Every way to give each stage a block or more, shape (K, stages)."""
    rows = [np.diff((0, *cuts, layers)) for cuts in combinations(range(1, layers), stages - 1)]
    return np.array(rows, dtype=np.int64).reshape(-1, stages)


def timed(chain: Chain) -> tuple[Ints, Floats]:
    """All splits of a chain that fit, with their exact seconds."""
    splits = compositions(chain.layers, chain.stages)
    time_s = chain.simulate(splits)
    fits = np.isfinite(time_s)
    return splits[fits], time_s[fits]


def random_chain(seed: int) -> Chain:
    """Three to five stages with random tables, independent of any model: some entries impossible, some jumps."""
    rng = np.random.default_rng(seed)
    p, layers, m = int(rng.integers(3, 6)), int(rng.integers(6, 10)), int(rng.choice([1, 2, 3, 5, 8]))
    blocks = np.arange(layers + 1)
    forward = rng.uniform(0.5, 3.0, (p, 1)) * blocks + rng.uniform(0.0, 1.0, (p, 1))
    backward = forward * rng.uniform(0.4, 2.5, (p, 1)) + np.cumsum(rng.uniform(0.0, 0.5, (p, layers + 1)), axis=1)
    backward[rng.random(backward.shape) < 0.1] = np.inf
    backward[:, 0] = np.inf
    for j in range(p):
        backward[j, int(rng.integers(layers // p + 1, layers + 2)) :] = np.inf
    return Chain(
        forward_s=forward,
        backward_s=backward,
        after_s=rng.exponential(rng.choice([0.1, 5.0]), (p, 1)) + rng.uniform(0, 0.5, (p, 1)) * blocks,
        hop_s=rng.exponential(rng.choice([0.01, 1.0, 5.0]), p - 1),
        num_microbatches=m,
        fixed_s=float(rng.choice([0.0, 3.0])),
    )


def with_memory(instance: Instance, factor: float = 1.0, more_bytes: float = 0.0) -> Instance:
    """The same problem with other memory on every accelerator."""
    groups = tuple(
        group.model_copy(update={"usable_memory_bytes": group.usable_bytes * factor + more_bytes})
        for group in instance.cluster.groups
    )
    return replace(instance, cluster=instance.cluster.model_copy(update={"groups": groups}))
