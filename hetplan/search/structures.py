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
from hetplan.search.crossings import Crossings
from hetplan.search.roots import Structure
from hetplan.search.tables import Place

ROUNDS = 4
"""How often caps and sums tighten each other."""
PLACES: tuple[Place, ...] = ("middle", "first", "last")
BROKEN = -1e9
"""Blocks of a stage that cannot hold one: breaks every structure that has it."""


class StructureSearch:
    """Lists the ordered structures of one root that could hold a plan below a target."""

    def __init__(self, capacities: Capacities) -> None:
        self.capacities = capacities
        self.space = capacities.space
        self.layers = capacities.layers
        self.crossings = Crossings(self.space)

    @cached_property
    def _ties(self) -> list[list[Floats]]:
        """Per number of changes of group below and option, least c by depth as in `Capacities.by_depth`."""
        space = self.space
        if not space.most_changes:
            return [self.capacities.by_depth]
        return [
            [
                least_table(
                    space.term(o, "middle", e, "tied"),
                    space.term(o, "first", e, "tied"),
                    space.term(o, "last", 0, "tied")[0],
                    fixed=False,
                )
                for o in range(len(space.options))
            ]
            for e in range(space.most_changes + 1)
        ]

    @cached_property
    def _ends(self) -> list[list[Floats]]:
        """As `_ties`, least c + A + B; nothing where a bound through a stage says nothing of its own end."""
        space = self.space
        found = []
        for e in range(space.most_changes + 1) if space.own_ends else ():
            row = []
            for o in range(len(space.options)):
                tables = []
                for place in PLACES:
                    changes = 0 if place == "last" else e
                    table, tied = space.table(o, place), space.term(o, place, changes, "tied")
                    back = space.term(o, place, changes, "fill") - table.forward_s[0]
                    tables.append(
                        np.where(np.isfinite(tied), tied + table.after_s[0] + table.optimizer_s + back, np.inf)
                    )
                row.append(least_table(tables[0], tables[1], tables[2][0], fixed=False))
            found.append(row)
        return found

    @cached_property
    def _forward(self) -> list[float]:
        """Per option, least forward seconds per block."""
        count = np.maximum(np.arange(self.layers + 1), 1)
        found = []
        for o in range(len(self.space.options)):
            tables = [self.space.table(o, place) for place in PLACES]
            forwards = [np.where(t.possible.any(axis=0), t.forward_s.sum(axis=0), np.inf) / count for t in tables]
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

    def _held(self, tables: list[list[Floats]], limits: Floats) -> Floats:
        """Blocks that the stages at depths 1 .. k hold under each limit: (changes, options, limits, K + 1)."""
        depths = self.space.max_stages
        held = np.zeros((len(tables), len(self.space.options), len(limits), depths + 1))
        for e, row in enumerate(tables):
            for o, table in enumerate(row):
                for k in range(depths):
                    caps = np.searchsorted(table[k], limits, side="right") - 1.0
                    held[e, o, :, k + 1] = held[e, o, :, k] + np.where(caps >= 1, caps, BROKEN)
        return held

    def below(self, target: float, limit: int, check: Callable[[], None] = lambda: None) -> Structures | None:
        """Ordered structures that could hold a plan below the target, least bound first; None if too many.

        `check` is called now and then and may raise to end the search.
        """
        capacities, space = self.capacities, self.space
        if not np.isfinite(target):
            return None
        alive = capacities.bounds(space.min_stages, space.max_stages, target) < target
        least = capacities.least_bottleneck(space.max_stages)
        top = target - capacities.fixed - capacities.after - self.layers * min(capacities.per_block)
        if not alive.any() or top <= least:
            return Structures.empty(len(space.groups))
        grid = least * (1 - 1e-12) + (top - least) * np.linspace(0.0, 1.0, GRID + 1) ** 2
        ledger = _Ledger(
            target=target,
            grid=grid,
            held=self._held(self._ties, grid * (1 + 1e-12)),
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
        weight = space.hop_weight
        base = capacities.fixed + capacities.first_extra[order[-1]] + capacities.last_extra[order[0]]
        base += weight * sum(cross)
        inside = np.stack([self._inner[o][counts[:, i]] for i, o in enumerate(order)], axis=1)
        hops = base + weight * inside.sum(axis=1)
        fill = np.full(len(counts), self.layers * min(pace))
        room = np.full(counts.shape, float(self.layers))
        held = counts.astype(np.float64)
        for _ in range(ROUNDS):
            cells = np.minimum(np.searchsorted(ledger.grid, target - hops - fill, side="left"), GRID)
            keep = cells > 0
            counts, hops, inside, room, held = counts[keep], hops[keep], inside[keep], room[keep], held[keep]
            room = np.minimum(room, self._blocks(order, ledger.held, cells[keep], counts))
            for i in range(len(order) if len(ledger.end_held) else 0):
                own = self._end_budget(order, i, held, inside, cross, target)
                cells = np.clip(np.searchsorted(ledger.end_grid, own, side="left"), 0, END_GRID)
                room[:, i] = np.minimum(room[:, i], self._blocks(order, ledger.end_held, cells, counts)[:, i])
            if self.crossings.tied and len(order) > 1:
                room = self._tied_room(order, room, counts, held, target)
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

    def _tied_room(self, order: tuple[int, ...], room: Floats, counts: Ints, held: Floats, target: float) -> Floats:
        """Room less what the windows across hops between groups take from the stages on their sides.

        Nothing is left where a window alone reaches the target.
        """
        crossings, capacities = self.crossings, self.capacities
        pace = np.array([capacities.per_block[o] for o in order])
        depth, room = np.zeros(len(counts), dtype=np.int64), room.copy()
        for i in range(len(order) - 1):
            lower, upper = order[i], order[i + 1]
            depth = depth + counts[:, i]
            tie = crossings.tie(upper, lower, depth, i)
            above = held[:, i + 2 :] @ pace[i + 2 :] + 2 * sum(
                self.space.cross_hop(order[g + 1], order[g]) for g in range(i + 1, len(order) - 1)
            )
            spare = target - capacities.fixed - tie.rest_s - above
            pair = np.where(tie.laps > 0, spare / np.maximum(tie.laps, 1), np.where(spare > 0, np.inf, -1.0))
            for side, one, other in ((i, lower, upper), (i + 1, upper, lower)):
                limit = (pair - sum(crossings.least[other])) * (1 + 1e-12)
                cap = np.searchsorted(crossings.times[one], limit, side="right") - 1.0
                # One stage of the group holds `cap` at most, the others what they held.
                others = np.maximum(counts[:, side] - 1, 0) * self._most[one]
                room[:, side] = np.minimum(room[:, side], np.where(cap >= 1, cap + others, BROKEN))
        return room

    @cached_property
    def _most(self) -> list[float]:
        """Per option, most blocks of a stage."""
        return [
            float(
                max(np.flatnonzero(self.space.table(o, place).possible.any(axis=0)).max(initial=0) for place in PLACES)
            )
            for o in range(len(self.space.options))
        ]

    @staticmethod
    def _blocks(order: tuple[int, ...], held: Floats, cells: Ints, counts: Ints) -> Floats:
        """Blocks held by each group under the limit of a cell, shape (N, groups)."""
        depth = np.zeros(len(counts), dtype=np.int64)
        found = np.empty(counts.shape)
        for i, o in enumerate(order):
            deeper, table = depth + counts[:, i], held[min(i, len(held) - 1), o]
            found[:, i] = table[cells, deeper] - table[cells, depth]
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
