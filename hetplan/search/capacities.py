"""Bounds on combinations of options of a root, in numpy: stage counts and order left open.

By the round-trip bound T >= C + V + 2 X + A_first + fixed, with C the bottleneck and V the sum of stage times.
A bottleneck caps the blocks of every stage; V is at least what it takes to place all blocks under those caps,
the fastest option first.
"""

from __future__ import annotations

from functools import cached_property
from itertools import product

import numpy as np

from hetplan.search.chain import Floats, Ints
from hetplan.search.roots import RootSpace

GRID = 48
"""Bottlenecks at which the curve of a root is evaluated."""


class Capacities:
    """Most blocks per stage of each option under a bottleneck, order and position left open."""

    def __init__(self, space: RootSpace) -> None:
        self.space = space
        self.layers = space.setting.model.architecture.layers
        entries = space.program_options
        fixed = space.root.stages is not None
        self.by_depth = [least_table(entry.middle_c, entry.first_c, entry.last_c, fixed=fixed) for entry in entries]
        """Per option and depth, least c over places and over n and more blocks, shape (K, L + 1)."""
        self.tied = [np.minimum.accumulate(table, axis=0) for table in self.by_depth]
        """The same, least over depths up to row + 1."""
        self.per_block: list[float] = []
        """Per option, least seconds per block of any stage."""
        count = np.maximum(np.arange(self.layers + 1), 1)
        for o in range(len(entries)):
            tables = [space.term(o, place, 0, "fill") for place in ("middle", "first", "last")]
            self.per_block.append(float(min((table.min(axis=0) / count)[1:].min() for table in tables)))
        self.after = min(
            (
                float(np.where(space.table(o, "first").possible.any(axis=0), space.after_first(o), np.inf).min())
                for o in range(len(entries))
            ),
            default=0.0,
        )
        index = np.arange(self.layers + 1)
        # An option that fits nowhere takes no part in any combination; its pace is infinite.
        paces = [pace if np.isfinite(pace) else 0.0 for pace in self.per_block]
        self.first_extra = [float((entry.first_t - index * paces[o]).min()) for o, entry in enumerate(entries)]
        """Per option, least seconds of the first stage beyond its blocks, with what follows its last backward."""
        self.last_extra = [float((entry.last_t - index * paces[o]).min()) for o, entry in enumerate(entries)]
        self.fixed = space.setting.stack.step_fixed_s

    @cached_property
    def combinations(self) -> Ints:
        """Every choice of at most one option per group, at least one in all, shape (N, groups); -1 is unused."""
        by_group: dict[int, list[int]] = {}
        for o, entry in enumerate(self.space.options):
            by_group.setdefault(entry.group, [-1]).append(o)
        found = np.array(list(product(*by_group.values())), dtype=np.int64)
        dead = [o for o, pace in enumerate(self.per_block) if not np.isfinite(pace)]
        # A deeper warm-up per change of group takes two groups.
        fewest = 2 if self.space.root.warmup else 1
        used: Ints = found[((found >= 0).sum(axis=1) >= fewest) & ~np.isin(found, dead).any(axis=1)]
        return used

    def _held(self, combinations: Ints, bottlenecks: Floats, stages: int) -> tuple[Floats, Floats, Floats]:
        """Blocks that combinations can hold in at most so many stages; per group caps and stage counts.

        Shapes (N, C), (N, G, C) and (N, G).
        """
        count = len(self.space.options)
        caps = np.zeros((count + 1, len(bottlenecks)))
        for o in range(count):
            caps[o] = np.searchsorted(self.tied[o][stages - 1], bottlenecks, side="right") - 1.0
        caps = np.maximum(caps, 0.0)[combinations]
        most = np.array([min(entry.max_stages, stages) for entry in self.space.options] + [0])[combinations]
        # At most `stages` stages in all, the roomiest first.
        order = np.argsort(-caps, axis=1, kind="stable")
        left = np.full((len(combinations), len(bottlenecks)), float(stages))
        total = np.zeros_like(left)
        for rank in range(order.shape[1]):
            group = order[:, rank, :]
            taken = np.minimum(left, np.take_along_axis(most, group, axis=1))
            total += taken * np.take_along_axis(caps, group[:, None, :], axis=1)[:, 0]
            left -= taken
        return total, caps, most.astype(np.float64)

    def least_bottleneck(self, stages: int) -> float:
        """Least C at which the cluster can hold the model in at most so many stages; infinite where it never can."""
        if not len(self.combinations) or stages < 1:
            return float("inf")
        rows = [row[stages - 1] for row in self.tied]
        values = np.unique(np.concatenate([row[np.isfinite(row)] for row in rows] or [[]]))
        low, high = 0, len(values)
        while low < high:
            middle = (low + high) // 2
            held = self._held(self.combinations, values[middle : middle + 1], stages)[0]
            if held.max() >= self.layers:
                high = middle
            else:
                low = middle + 1
        return float(values[low]) if low < len(values) else float("inf")

    def bounds(self, fewest: int, most: int, target: float) -> Floats:
        """Lower bounds on plans with fewest .. most stages, one per combination: the least of C + fill(C) over C.

        The fill gives blocks to the fastest options first, up to their caps. A grid cell takes its lower C and
        its upper caps, so the bound holds between the points; beyond the grid C alone reaches the target.
        """
        combinations = self.combinations
        least = self.least_bottleneck(most)
        if not np.isfinite(least):
            return np.full(len(combinations), np.inf)
        pace = np.array([*self.per_block, np.inf])[combinations]
        ends = np.array([*self.first_extra, np.inf])[combinations].min(axis=1)
        ends += np.array([*self.last_extra, np.inf])[combinations].min(axis=1)
        inner = np.array([*self.space.least_inner_hop, np.inf])[combinations].min(axis=1)
        hop = np.minimum(inner, self.space.least_cross_hop) if len(self.space.groups) > 1 else inner
        base = self.fixed + ends + self.space.hop_weight * (fewest - 1) * hop
        low: Floats = base + least + self.layers * pace.min(axis=1)
        top = target - float(base.min())
        if not np.isfinite(top) or top <= least:
            return low
        grid = least * (1 - 1e-12) + (top - least) * np.linspace(0.0, 1.0, GRID + 1) ** 2
        total, caps, counts = self._held(combinations, grid[1:], most)
        order = np.argsort(pace, axis=1, kind="stable")
        left, fill = np.full(total.shape, float(self.layers)), np.zeros(total.shape)
        for rank in range(order.shape[1]):
            group = order[:, rank : rank + 1]
            speed = np.take_along_axis(pace, group, axis=1)
            held = np.take_along_axis(counts, group, axis=1) * np.take_along_axis(caps, group[:, :, None], axis=1)[:, 0]
            taken = np.minimum(left, held)
            fill += np.where(taken > 0, taken * np.where(np.isfinite(speed), speed, 0.0), 0.0)
            left -= taken
        fill = np.where((left > 0.5) | (total < self.layers - 0.5), np.inf, fill)
        bound: Floats = np.maximum(low, np.minimum((grid[:-1] + fill).min(axis=1) + base, base + top))
        return bound

    def counts(self, used: tuple[int, ...], target: float, grid: Floats) -> Ints:
        """Stage counts per group that could hold a plan below the target in some order, shape (N, groups)."""
        space = self.space
        ranges = [np.arange(1, min(space.options[o].max_stages, space.max_stages) + 1) for o in used]
        counts = np.stack([axis.ravel() for axis in np.meshgrid(*ranges, indexing="ij")], axis=1)
        total = counts.sum(axis=1)
        counts = counts[(total >= space.min_stages) & (total <= space.max_stages)]
        base = self.fixed + min(self.first_extra[o] for o in used) + min(self.last_extra[o] for o in used)
        caps = [
            np.array([np.searchsorted(row, grid * (1 + 1e-12), side="right") - 1.0 for row in self.tied[o]])
            for o in used
        ]
        pace = [self.per_block[o] for o in used]
        fill = np.full(len(counts), self.layers * min(pace))
        for _ in range(3):
            # No plan below the target has C above the grid: a cell beyond it by rounding is its last one.
            cells = np.minimum(np.searchsorted(grid, target - base - fill, side="left"), GRID)
            possible = cells > 0
            counts, cells = counts[possible], cells[possible]
            depth = counts.sum(axis=1) - 1
            room = np.stack([counts[:, i] * caps[i][depth, cells] for i in range(len(used))], axis=1)
            fill = fill_of(room, pace, self.layers)
            keep = np.isfinite(fill)
            counts, fill = counts[keep], fill[keep]
        possible_counts: Ints = counts
        return possible_counts


def least_table(middle: Floats, first: Floats, last: Floats, *, fixed: bool) -> Floats:
    """Least of the places' tables at each depth, over n and more blocks, (K, L + 1); the last stage has depth 1.

    `fixed`: the first stage has depth K.
    """
    if fixed:
        table = middle.copy()
        table[-1] = first[-1]
    else:
        table = np.minimum(middle, first)
    table[0] = last
    return np.minimum.accumulate(table[:, ::-1], axis=1)[:, ::-1]


def fill_of(room: Floats, pace: list[float], layers: int, held: Floats | float = 0.0) -> Floats:
    """Least seconds to place all blocks in `room` blocks per group, at least `held` in each; infinite if they do not.

    `room` has groups on its last axis; the fastest group is filled first.
    """
    floor = np.minimum(np.broadcast_to(held, room.shape), np.maximum(room, 0.0))
    left = layers - floor.sum(axis=-1)
    fill = (floor * np.array(pace)).sum(axis=-1)
    for i in sorted(range(len(pace)), key=lambda i: pace[i]):
        taken = np.clip(room[..., i] - floor[..., i], 0.0, np.maximum(left, 0.0))
        fill = fill + taken * pace[i]
        left = left - taken
    return np.where(left > 1e-6, np.inf, fill)
