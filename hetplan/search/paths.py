"""Bounds learned from simulation: longest paths of one plan are paths of every plan of that shape.

A path of the schedule's operations visits stage j's forward a_j times and its backward b_j times and crosses
hops; it ends on a stage i. For all plans with as many stages and micro-batches

    T >= sum_j (a_j F_j + b_j B_j) + sum hops + A_i             (for every unit of work, with chunks)

Weights of several paths may be mixed. For one mixture the bound is a sum over stages, so its least value over
all splits is a small dynamic program, with integer blocks and caps: a Lagrangian bound. Mixing in the longest
path of the split that attains it (Frank-Wolfe) raises it, and the same sums with their suffixes prune the
enumeration of splits.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from itertools import combinations

import numpy as np

from hetplan.schedule.paths import CriticalPath
from hetplan.schedule.simulator import Floats, Ints
from hetplan.search.tables import Bools

KEPT = 6
"""Paths kept per shape."""


@dataclass(slots=True)
class PathPool:
    """Paths and mixtures of one shape, shared by all chains of that shape, useful ones first."""

    paths: list[CriticalPath] = field(default_factory=list)

    def promote(self, path: CriticalPath) -> None:
        """Put a path that has just decided a chain first; forget the least useful."""
        self.paths = [path, *(other for other in self.paths if other is not path)][:KEPT]


def weigh(path: CriticalPath, work_s: Floats, possible: Bools, after_s: Floats, hop_s: Floats) -> Floats:
    """A path's seconds by stage and blocks, shape (p, L + 1); its hops stand in the first row."""
    weight = np.einsum("jnu,ju->jn", work_s, path.work) + np.einsum("jnc,jc->jn", after_s, path.after)
    weight[0] += float(path.hop @ hop_s)
    return np.where(possible, weight, np.inf)


def suffix_sums(weight: Floats) -> Floats:
    """Least sum of `weight` over the splits of stages j.. with r blocks, shape (p + 1, L + 1)."""
    stages, size = weight.shape
    best = np.full((stages + 1, size), np.inf)
    best[stages, 0] = 0.0
    padded = np.full(2 * size - 1, np.inf)
    for j in range(stages - 1, -1, -1):
        padded[size - 1 :] = best[j + 1]
        rest = np.lib.stride_tricks.sliding_window_view(padded, size)
        best[j] = (rest + weight[j, ::-1]).min(axis=1)
    return best


def least_split(weight: Floats, suffixes: Floats) -> Ints:
    """The split with the least sum of `weight`."""
    stages, size = weight.shape
    split, left = np.zeros(stages, dtype=np.int64), size - 1
    for j in range(stages):
        reach = weight[j, : left + 1] + suffixes[j + 1, left::-1]
        split[j] = int(np.argmin(reach))
        left -= int(split[j])
    return split


@lru_cache(maxsize=64)
def compositions(layers: int, stages: int) -> Ints:
    """All ways to give each stage at least one of the blocks, shape (K, p)."""
    cuts = np.array(list(combinations(range(1, layers), stages - 1)), dtype=np.int64).reshape(-1, stages - 1)
    ends = np.full((len(cuts), 1), layers)
    found: Ints = np.diff(np.concatenate([np.zeros_like(ends), cuts, ends], axis=1), axis=1)
    return found
