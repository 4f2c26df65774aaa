"""Ordered structures of a root: options, stage counts and order fixed, blocks left open. Bounds in numpy.

The depth of every stage and all hops are known, so two families of bounds are close to the exact time:

    T >= C + V + 2 X + A_first + fixed                                             (through the bottleneck)
    T >= sum_{i<j} (F_i + x_i) + sum_{i>=j} (t_i + 2 x_i) + c_j + A_j + fixed      (every stage j's own end)

For a target, both cap the blocks of every stage. The caps give the groups room; a group must hold what is left
when the others are full; that raises the sums, which lowers the caps. What cannot hold the model is dropped.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise, permutations

import numpy as np

from hetplan.search.capacities import GRID, Capacities, fill_of, least_table
from hetplan.search.chain import Floats, Ints
from hetplan.search.roots import Structure

ROUNDS = 4
"""How often caps and sums tighten each other."""
BROKEN = -1e9
"""Blocks of a stage that cannot hold one: breaks every structure that has it."""


class StructureSearch:
    """Lists the ordered structures of one root that could hold a plan below a target."""

    def __init__(self, capacities: Capacities) -> None:
        self.capacities = capacities
        self.space = capacities.space
        self.layers = capacities.layers

    @cached_property
    def _ends(self) -> list[Floats]:
        """Per option and depth, least c + A + B over places and over n and more blocks, shape (K, L + 1)."""
        found = []
        for o, entry in enumerate(self.space.program_options):
            middle, first, last = (self.space.table(o, place) for place in ("middle", "first", "last"))
            found.append(
                least_table(
                    entry.middle_c + middle.after_s + middle.backward_s,
                    entry.first_c + first.after_s + first.backward_s,
                    entry.last_c + last.after_s + last.backward_s[0],
                )
            )
        return found

    @cached_property
    def _forward(self) -> list[float]:
        """Per option, least forward seconds per block."""
        count = np.maximum(np.arange(self.layers + 1), 1)
        found = []
        for o in range(len(self.space.options)):
            tables = [self.space.table(o, place) for place in ("middle", "first", "last")]
            forwards = [np.where(np.isfinite(t.backward_s[0]), t.forward_s, np.inf) / count for t in tables]
            found.append(min(float(values[1:].min()) for values in forwards))
        return found

    @cached_property
    def _inner(self) -> list[Floats]:
        """Per option, sum of the hops between its first n stages, n from 0."""
        space = self.space
        return [
            np.concatenate([[0.0, 0.0], np.cumsum(space.inner_hops(o, entry.max_stages))])
            for o, entry in enumerate(space.options)
        ]

    def _held(self, tables: list[Floats], limits: Floats) -> Floats:
        """Blocks that the stages of an option at depths 1 .. k hold under each limit: (options, limits, K + 1)."""
        depths = self.space.max_stages
        held = np.zeros((len(tables), len(limits), depths + 1))
        for o, table in enumerate(tables):
            for k in range(depths):
                caps = np.searchsorted(table[k], limits, side="right") - 1.0
                held[o, :, k + 1] = held[o, :, k] + np.where(caps >= 1, caps, BROKEN)
        return held

    def below(self, target: float, limit: int, check: Callable[[], None] = lambda: None) -> Structures | None:
        """Ordered structures that could hold a plan below the target, least bound first; None if too many.

        `check` is called now and then and may raise to end the search.
        """
        capacities, space = self.capacities, self.space
        if not np.isfinite(target):
            return None
        alive = capacities.bounds(2, space.max_stages, target) < target
        least = capacities.least_bottleneck(space.max_stages)
        top = target - capacities.fixed - capacities.after - self.layers * min(capacities.per_block)
        if not alive.any() or top <= least:
            return Structures.empty(len(space.groups))
        grid = least * (1 - 1e-12) + (top - least) * np.linspace(0.0, 1.0, GRID + 1) ** 2
        ledger = _Ledger(
            target=target,
            grid=grid,
            held=self._held(capacities.by_depth, grid * (1 + 1e-12)),
            end_grid=target * np.linspace(0.0, 1.0, END_GRID + 1),
            end_held=self._held(self._ends, target * np.linspace(0.0, 1.0, END_GRID + 1) * (1 + 1e-12)),
        )
        found = []
        size = 0
        for combination in capacities.combinations[alive]:
            check()
            used = tuple(int(o) for o in combination if o >= 0)
            counts = capacities.counts(used, target, grid)
            for order in permutations(range(len(used))) if len(counts) else ():
                part = self._ordered(tuple(used[i] for i in order), counts[:, order], ledger)
                size += len(part.bound_s)
                if size > limit:
                    return None
                found.append(part)
        return Structures.join(found, len(space.groups))

    def _ordered(self, order: tuple[int, ...], counts: Ints, ledger: _Ledger) -> Structures:
        """Structures of one order of options, the last of the pipeline first, whose bound is below the target."""
        capacities, space, target = self.capacities, self.space, ledger.target
        pace = [capacities.per_block[o] for o in order]
        cross = [space.cross_hop(b, a) for a, b in pairwise(order)]
        base = capacities.fixed + capacities.first_extra[order[-1]] + capacities.last_extra[order[0]] + 2 * sum(cross)
        inside = np.stack([self._inner[o][counts[:, i]] for i, o in enumerate(order)], axis=1)
        hops = base + 2 * inside.sum(axis=1)
        fill = np.full(len(counts), self.layers * min(pace))
        room = np.full(counts.shape, float(self.layers))
        held = counts.astype(np.float64)
        for _ in range(ROUNDS):
            cells = np.minimum(np.searchsorted(ledger.grid, target - hops - fill, side="left"), GRID)
            keep = cells > 0
            counts, hops, inside, room, held = counts[keep], hops[keep], inside[keep], room[keep], held[keep]
            room = np.minimum(room, self._blocks(order, ledger.held, cells[keep], counts))
            for i in range(len(order)):
                own = self._end_budget(order, i, held, inside, cross, target)
                cells = np.clip(np.searchsorted(ledger.end_grid, own, side="left"), 0, END_GRID)
                room[:, i] = np.minimum(room[:, i], self._blocks(order, ledger.end_held, cells, counts)[:, i])
            held = np.maximum(held, self.layers - (room.sum(axis=1, keepdims=True) - room))
            fill = fill_of(room, pace, self.layers, held)
            keep = np.isfinite(fill) & (room >= held).all(axis=1)
            counts, fill, hops, inside, room, held = (array[keep] for array in (counts, fill, hops, inside, room, held))
            if not len(counts):
                return Structures.empty(len(space.groups))
        # The bound itself: the least cell of lower C and upper caps.
        cells = np.broadcast_to(np.arange(1, GRID + 1), (len(counts), GRID)).reshape(-1)
        each = np.repeat(np.arange(len(counts)), GRID)
        caps = np.minimum(self._blocks(order, ledger.held, cells, counts[each]), room[each])
        fills = fill_of(caps, pace, self.layers, held[each]).reshape(len(counts), GRID)
        bound = (ledger.grid[:-1] + fills).min(axis=1) + hops
        bottleneck = np.where(np.isfinite(fills), ledger.grid[:-1], np.inf).min(axis=1)
        keep = bound < target
        options = np.broadcast_to(np.array(order), (int(keep.sum()), len(order)))
        return Structures.padded(options, counts[keep], bound[keep], bottleneck[keep], len(space.groups))

    @staticmethod
    def _blocks(order: tuple[int, ...], held: Floats, cells: Ints, counts: Ints) -> Floats:
        """Blocks held by each group under the limit of a cell, shape (N, groups)."""
        depth = np.zeros(len(counts), dtype=np.int64)
        found = np.empty(counts.shape)
        for i, o in enumerate(order):
            deeper = depth + counts[:, i]
            found[:, i] = held[o, cells, deeper] - held[o, cells, depth]
            depth = deeper
        return found

    def _end_budget(
        self, order: tuple[int, ...], i: int, held: Floats, inside: Floats, cross: list[float], target: float
    ) -> Floats:
        """What c_j + A_j + B_j may be at most for a stage of group i, shape (N,).

        The target less the hops and the least sums of the other terms: blocks of groups below pass forward and
        backward, those above and the group's own at least forward. Groups are listed from the last one up.
        """
        capacities = self.capacities
        speed = [capacities.per_block[o] if k < i else self._forward[o] for k, o in enumerate(order)]
        spent = held @ np.array(speed) + np.maximum(self.layers - held.sum(axis=1), 0.0) * min(speed)
        hops = 2 * (inside[:, :i].sum(axis=1) + sum(cross[:i])) + inside[:, i:].sum(axis=1) + sum(cross[i:])
        last = max(capacities.last_extra[order[0]], 0.0) if i else 0.0
        budget: Floats = target - capacities.fixed - last - hops - spent
        return budget


END_GRID = 400
"""Cells of the budget of a stage's own end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ledger:
    """What the structures of one listing share: grids of limits and the blocks held under them."""

    target: float
    grid: Floats
    held: Floats
    end_grid: Floats
    end_held: Floats


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
