"""Bounds on whole sets of plans of a root, in numpy: combinations of options first, then ordered structures.

By the round-trip bound T >= C + V + 2 X + A_first + fixed, with C the bottleneck and V the sum of stage times.
A bottleneck caps the blocks of every stage; V is at least what it takes to place all blocks under those caps,
the fastest option first. A combination leaves stage counts and order open; an ordered structure fixes both,
so the depth of every stage and all hops are known and the bound is close to the exact time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise, permutations, product

import numpy as np

from hetplan.search.chain import Floats, Ints
from hetplan.search.roots import RootSpace, Structure

GRID = 48
"""Bottlenecks at which the curve of a root is evaluated."""


class Capacities:
    """Most blocks per stage of each option under a bottleneck, order and position left open."""

    def __init__(self, space: RootSpace) -> None:
        self.space = space
        self.layers = space.setting.model.architecture.layers
        entries = space.program_options
        self.tied: list[Floats] = []
        """Per option, least c over depths up to row + 1, over places and over n and more blocks, shape (K, L + 1)."""
        self.per_block: list[float] = []
        """Per option, least seconds per block of any stage."""
        count = np.maximum(np.arange(self.layers + 1), 1)
        for o, entry in enumerate(entries):
            tied = np.minimum(entry.middle_c, entry.first_c)
            tied[0] = entry.last_c
            tied = np.minimum.accumulate(tied, axis=0)
            self.tied.append(np.minimum.accumulate(tied[:, ::-1], axis=1)[:, ::-1])
            times = [space.table(o, place).time_s[0] for place in ("middle", "first", "last")]
            self.per_block.append(float(min((time / count)[1:].min() for time in times)))
        firsts = [space.table(o, "first") for o in range(len(entries))]
        self.after = min(
            (float(np.where(np.isfinite(table.backward_s[0]), table.after_s, np.inf).min()) for table in firsts),
            default=0.0,
        )
        index = np.arange(self.layers + 1)
        # An option that fits nowhere takes no part in any combination; its pace is infinite.
        paces = [pace if np.isfinite(pace) else 0.0 for pace in self.per_block]
        self.first_extra = [float((entry.first_t[0] - index * paces[o]).min()) for o, entry in enumerate(entries)]
        """Per option, least seconds of the first stage beyond its blocks, with what follows its last backward."""
        self.last_extra = [float((entry.last_t - index * paces[o]).min()) for o, entry in enumerate(entries)]
        self.fixed = space.setting.stack.step_fixed_s

    def cap(self, option: int, bottleneck: float, stages: int) -> int:
        """Most blocks that a stage of the option may hold in a pipeline of so many stages."""
        return int(np.searchsorted(self.tied[option][stages - 1], bottleneck, side="right")) - 1

    @cached_property
    def combinations(self) -> Ints:
        """Every choice of at most one option per group, at least one in all, shape (N, groups); -1 is unused."""
        by_group: dict[int, list[int]] = {}
        for o, entry in enumerate(self.space.options):
            by_group.setdefault(entry.group, [-1]).append(o)
        found = np.array(list(product(*by_group.values())), dtype=np.int64)
        dead = [o for o, pace in enumerate(self.per_block) if not np.isfinite(pace)]
        used: Ints = found[(found >= 0).any(axis=1) & ~np.isin(found, dead).any(axis=1)]
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
        base = self.fixed + ends + 2 * (fewest - 1) * hop
        low = base + least + self.layers * pace.min(axis=1)
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

    # -- ordered structures

    @cached_property
    def by_depth(self) -> list[Floats]:
        """Per option, least c at each depth over places and over n and more blocks, shape (K, L + 1)."""
        found = []
        for entry in self.space.program_options:
            tied = np.minimum(entry.middle_c, entry.first_c)
            tied[0] = entry.last_c
            found.append(np.minimum.accumulate(tied[:, ::-1], axis=1)[:, ::-1])
        return found

    def _held_by_depth(self, bottlenecks: Floats) -> Floats:
        """Blocks that the stages of an option at depths 1 .. k hold, shape (options, C, K + 1)."""
        depths = self.space.max_stages
        held = np.zeros((len(self.by_depth), len(bottlenecks), depths + 1))
        for o, tied in enumerate(self.by_depth):
            for k in range(depths):
                caps = np.searchsorted(tied[k], bottlenecks, side="right") - 1.0
                # A stage that cannot hold one block breaks every structure that has it.
                held[o, :, k + 1] = held[o, :, k] + np.where(caps >= 1, caps, -1e9)
        return held

    def structures(self, target: float, limit: int, check: Callable[[], None] = lambda: None) -> Structures | None:
        """Ordered structures that could hold a plan below the target, least bound first; None if too many.

        `check` is called now and then and may raise to end the search.
        """
        alive = self.bounds(2, self.space.max_stages, target) < target
        least = self.least_bottleneck(self.space.max_stages)
        top = target - self.fixed - self.after - self.layers * min(self.per_block)
        if not np.isfinite(target):
            return None
        if not alive.any() or top <= least:
            return Structures.empty(len(self.space.groups))
        grid = least * (1 - 1e-12) + (top - least) * np.linspace(0.0, 1.0, GRID + 1) ** 2
        held = self._held_by_depth(grid * (1 + 1e-12))
        found = []
        size = 0
        for combination in self.combinations[alive]:
            check()
            used = tuple(int(o) for o in combination if o >= 0)
            counts = self._counts(used, target, grid)
            for order in permutations(range(len(used))) if len(counts) else ():
                part = self._ordered(tuple(used[i] for i in order), counts[:, order], target, grid, held)
                size += len(part.bound_s)
                if size > limit:
                    return None
                found.append(part)
        return Structures.join(found, len(self.space.groups))

    def _fill(self, room: Floats, used: tuple[int, ...]) -> Floats:
        """Least seconds to place all blocks in `room` blocks per group, shape (N,); infinite where they do not fit."""
        left, fill = np.full(len(room), float(self.layers)), np.zeros(len(room))
        for i in sorted(range(len(used)), key=lambda i: self.per_block[used[i]]):
            taken = np.clip(room[:, i], 0.0, left)
            fill += taken * self.per_block[used[i]]
            left -= taken
        return np.where(left > 1e-6, np.inf, fill)

    def _counts(self, used: tuple[int, ...], target: float, grid: Floats) -> Ints:
        """Stage counts per group that could hold a plan below the target in some order, shape (N, groups)."""
        space = self.space
        ranges = [np.arange(1, min(space.options[o].max_stages, space.max_stages) + 1) for o in used]
        counts = np.stack([axis.ravel() for axis in np.meshgrid(*ranges, indexing="ij")], axis=1)
        total = counts.sum(axis=1)
        counts = counts[(total >= 2) & (total <= space.max_stages)]
        base = self.fixed + min(self.first_extra[o] for o in used) + min(self.last_extra[o] for o in used)
        caps = [
            np.array([np.searchsorted(row, grid * (1 + 1e-12), side="right") - 1.0 for row in self.tied[o]])
            for o in used
        ]
        fill = np.full(len(counts), self.layers * min(self.per_block[o] for o in used))
        for _ in range(3):
            cells = np.searchsorted(grid, target - base - fill, side="left")
            possible = (cells > 0) & (cells <= GRID)
            counts, cells = counts[possible], cells[possible]
            depth = counts.sum(axis=1) - 1
            room = np.stack([counts[:, i] * caps[i][depth, cells] for i in range(len(used))], axis=1)
            fill = self._fill(room, used)
            keep = np.isfinite(fill)
            counts, fill = counts[keep], fill[keep]
        possible_counts: Ints = counts
        return possible_counts

    def _ordered(self, order: tuple[int, ...], counts: Ints, target: float, grid: Floats, held: Floats) -> Structures:
        """Structures of one order of options, the last of the pipeline first, whose bound is below the target."""
        space = self.space
        inner = [np.concatenate([[0.0], np.cumsum(space.inner_hops(o, space.options[o].max_stages))]) for o in order]
        cross = sum(space.cross_hop(b, a) for a, b in pairwise(order))
        base = self.fixed + self.first_extra[order[-1]] + self.last_extra[order[0]] + 2 * cross

        def blocks(cells: Ints, counts: Ints) -> Floats:
            """Blocks held by each group at a bottleneck cell, shape (N, groups)."""
            depth = np.zeros(len(counts), dtype=np.int64)
            found = np.empty(counts.shape)
            for i, o in enumerate(order):
                deeper = depth + counts[:, i]
                found[:, i] = held[o, cells, deeper] - held[o, cells, depth]
                depth = deeper
            return found

        fill = np.full(len(counts), self.layers * min(self.per_block[o] for o in order))
        limits = np.full(counts.shape, float(self.layers))
        for _ in range(4):
            hops = base + 2 * np.sum([inner[i][counts[:, i] - 1] for i in range(len(order))], axis=0)
            cells = np.searchsorted(grid, target - hops - fill, side="left")
            possible = (cells > 0) & (cells <= GRID)
            counts, cells, hops, limits = counts[possible], cells[possible], hops[possible], limits[possible]
            room = np.minimum(blocks(cells, counts), limits)
            limits = np.minimum(room, self._ended(order, counts, room, target))
            fill = self._fill(limits, order)
            keep = np.isfinite(fill) & (limits >= counts).all(axis=1)
            counts, fill, hops, limits = counts[keep], fill[keep], hops[keep], limits[keep]
            if not len(counts):
                return Structures.empty(len(self.space.groups))
        # The bound itself: the least cell of lower C and upper caps.
        bound, bottleneck = np.full(len(counts), np.inf), np.full(len(counts), np.inf)
        for cell in range(1, GRID + 1):
            fill = self._fill(np.minimum(blocks(np.full(len(counts), cell), counts), limits), order)
            bound = np.minimum(bound, grid[cell - 1] + fill + hops)
            bottleneck = np.minimum(bottleneck, np.where(np.isfinite(fill), grid[cell - 1], np.inf))
        keep = bound < target
        options = np.broadcast_to(np.array(order), (int(keep.sum()), len(order)))
        return Structures.padded(options, counts[keep], bound[keep], bottleneck[keep], len(self.space.groups))

    @cached_property
    def _slopes(self) -> list[tuple[float, Floats]]:
        """Per option, least forward seconds per block, and per depth least (c + A) per block."""
        count = np.maximum(np.arange(self.layers + 1), 1)
        found = []
        for o, entry in enumerate(self.space.program_options):
            tables = [self.space.table(o, place) for place in ("middle", "first", "last")]
            forwards = [np.where(np.isfinite(t.backward_s[0]), t.forward_s, np.inf) / count for t in tables]
            forward = min(float(values[1:].min()) for values in forwards)
            middle, first, last = (table.after_s for table in tables)
            both = np.minimum(entry.middle_c + middle, entry.first_c + first)
            both[0] = entry.last_c + last
            found.append((forward, np.minimum.accumulate((both / count)[:, 1:].min(axis=1))))
        return found

    def _ended(self, order: tuple[int, ...], counts: Ints, room: Floats, target: float) -> Floats:
        """Most blocks of each group so that its own stages can end by the target, shape (N, groups).

        For each stage j: T >= sum_{i<j} (F_i + x_i) + sum_{i>=j} t_i + 2 X_{>=j} + c_j + A_j. With n blocks costing
        at least f n, tau n and sigma n (for F, t and c + A), the convex combination of a group's S rows with
        weights falling by 1 + (tau - f) / sigma from stage to stage gives every block the same weight:

            T >= sum_{groups above} f H + sum_{groups below} tau H + (tau + kappa) H_g
            kappa = (tau - f) / ((1 + (tau - f) / sigma)^S - 1)

        The other groups hold at least what is left when the rest is full, and the remainder at the least pace.
        """
        space = self.space
        depth = np.cumsum(counts, axis=1)
        inner = [np.concatenate([[0.0], np.cumsum(space.inner_hops(o, space.options[o].max_stages))]) for o in order]
        inside = np.stack([inner[i][counts[:, i] - 1] for i in range(len(order))], axis=1)
        cross = [space.cross_hop(b, a) for a, b in pairwise(order)]
        spare = room.sum(axis=1, keepdims=True) - room
        least = np.maximum(self.layers - spare, counts)
        found = np.empty(room.shape)
        for i, o in enumerate(order):
            forward, sigma_by_depth = self._slopes[o]
            pace = self.per_block[o]
            sigma = np.maximum(sigma_by_depth[depth[:, i] - 1], 1e-12)
            gain = pace - forward
            with np.errstate(over="ignore", divide="ignore"):
                kappa = gain / np.expm1(counts[:, i] * np.log1p(gain / sigma))
            # Groups are listed from the last of the pipeline: those before i lie below it.
            others = [(k, self.per_block[p] if k < i else self._slopes[p][0]) for k, p in enumerate(order) if k != i]
            swiftest = min((speed for _, speed in others), default=0.0)
            held = sum(least[:, k] for k, _ in others)
            spent = sum(least[:, k] * speed for k, speed in others)
            # Hops of the groups below are crossed both ways, the group's own and those above at least once.
            hops = 2 * (inside[:, :i].sum(axis=1) + sum(cross[:i])) + inside[:, i:].sum(axis=1) + sum(cross[i:])
            budget = target - self.fixed - self.last_extra[order[0]] - hops
            free = budget - spent - (self.layers - held) * swiftest
            found[:, i] = np.where(pace + kappa > swiftest, free / np.maximum(pace + kappa - swiftest, 1e-15), np.inf)
        return np.maximum(np.floor(found * (1 + 1e-9)), 0.0)


@dataclass(frozen=True, slots=True)
class Structures:
    """Ordered structures, the last group of the pipeline first; -1 and 0 pad unused groups."""

    options: Ints
    counts: Ints
    bound_s: Floats
    bottleneck_s: Floats
    """A lower bound on C."""

    @staticmethod
    def empty(groups: int) -> Structures:
        """None at all."""
        none = np.zeros((0, groups), np.int64)
        return Structures(none, none, np.zeros(0), np.zeros(0))

    @staticmethod
    def padded(options: Ints, counts: Ints, bound_s: Floats, bottleneck_s: Floats, groups: int) -> Structures:
        """Structures of fewer groups in the common shape."""
        missing = ((0, 0), (0, groups - options.shape[1]))
        return Structures(np.pad(options, missing, constant_values=-1), np.pad(counts, missing), bound_s, bottleneck_s)

    @staticmethod
    def join(parts: list[Structures], groups: int) -> Structures:
        """All parts, least bound first; ties in the order of the parts."""
        if not parts:
            return Structures.empty(groups)
        whole = Structures(
            np.concatenate([part.options for part in parts]),
            np.concatenate([part.counts for part in parts]),
            np.concatenate([part.bound_s for part in parts]),
            np.concatenate([part.bottleneck_s for part in parts]),
        )
        return whole.rows(np.argsort(whole.bound_s, kind="stable"))

    def rows(self, index: Ints) -> Structures:
        """Some of them, by index or mask."""
        return Structures(self.options[index], self.counts[index], self.bound_s[index], self.bottleneck_s[index])

    @property
    def stages(self) -> Ints:
        """Stages of each structure."""
        total: Ints = self.counts.sum(axis=1)
        return total

    def structure(self, row: int) -> Structure:
        """One of them, in pipeline order."""
        entries = zip(self.options[row], self.counts[row], strict=True)
        return tuple((int(o), int(n)) for o, n in entries if o >= 0)[::-1]
