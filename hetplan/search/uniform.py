"""The search: best first over roots and ranges of the bottleneck, certified by the exact recurrence.

1. Every root gets a bound from arithmetic, then from its combinations of options; the queue always takes the
   least bound.
2. A root's ordered structures that could beat the target are bounded in numpy and queued by their number of
   stages. Without a plan yet, the target is a guess above the root's bound.
3. The integer program bounds all plans of a root with so many stages and a bottleneck in a range, and proposes
   a structure; dynamic programs and local moves turn it into a plan, timed by the recurrence.
4. Where the program leaves plans open, the ordered structures are taken one by one: all splits whose bound is
   below the target are timed by the recurrence.
The search ends when no open bound is below (1 - gap) x the best time. What is left open sets the bound.
"""

import heapq
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import count

import numpy as np

from hetplan.plan import Plan
from hetplan.predict import Setting
from hetplan.search.capacities import Capacities
from hetplan.search.chain import ROUNDING, Floats, Ints
from hetplan.search.fitting import Fit, first_fit
from hetplan.search.options import Progress, SearchOptions
from hetplan.search.program import solve
from hetplan.search.result import StoppedBy
from hetplan.search.roots import RootSpace, Structure
from hetplan.search.single import single_stage_plans
from hetplan.search.space import pipeline_roots
from hetplan.search.structures import Structures, StructureSearch

SPLITS_AT_ONCE = 400_000
"""Partial splits of one chain held at once; a chain with more keeps its bound and stays open."""
STRUCTURES_AT_ONCE = 2_000_000
"""Ordered structures of one root listed at once; a root with more keeps its bound."""
RANGES = 3
"""How often the worst range of the bottleneck is halved before structures are taken one by one."""
GUESSES = (1.02, 1.05, 1.1, 1.2, 1.4, 2.0, 4.0, 16.0)
"""Targets over a root's bound that are tried while there is no plan."""
NEARBY, NEARBY_ROOTS, ALTERNATIVES, MIXED = 0.1, 6, 4, 30
"""For the ranking: how far above the best time, how many roots, structures of each, up to how many combinations."""
PROBES = 4
"""Structures of a root that are timed as soon as they are listed: early plans make the target tight."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A timed plan of the search."""

    time_s: float
    plan: Plan


@dataclass(order=True, slots=True)
class _Node:
    """Plans of a root with a lower bound: all of them, or its ordered structures with `stages` stages."""

    bound_s: float
    order: int
    root: int = field(compare=False)
    opened: bool = field(compare=False, default=False)
    stages: int = field(compare=False, default=0)
    rows: Structures | None = field(compare=False, default=None)
    solved: bool = field(compare=False, default=False)
    """Whether the program has bounded them."""


class _Stop(Exception):  # noqa: N818 - not an error
    """A limit was reached."""

    def __init__(self, by: StoppedBy) -> None:
        self.by = by


class UniformSearch:
    """One search over the uniform space on some groups of the cluster."""

    def __init__(
        self,
        setting: Setting,
        groups: tuple[int, ...],
        search_options: SearchOptions,
        *,
        deadline: float,
        observe: Callable[[Progress], None] | None = None,
    ) -> None:
        self.setting = setting
        self.groups = groups
        self.options = search_options
        self.deadline = deadline
        self.observe = observe
        self.started = time.monotonic()
        self.counters: dict[str, int] = {}
        self.found: dict[tuple[object, ...], Found] = {}
        self.best_s = float("inf")
        self.open_s = float("inf")
        """Least bound of what was left open for want of space."""
        self.listed = False
        self.current: _Node | None = None
        self.roots = [
            RootSpace(setting=setting, limits=search_options.limits, groups=groups, root=root, counters=self.counters)
            for root in pipeline_roots(setting, search_options.limits, groups)
        ]
        self.capacities: dict[int, Capacities] = {}
        self.searches: dict[int, StructureSearch] = {}
        self.probed = False
        self.tried: set[tuple[int, Structure]] = set()
        self.queue: list[_Node] = []
        self.numbers = count()

    # -- incumbents

    @property
    def target_s(self) -> float:
        """Plans at or above this time need not be looked at."""
        # A hair inside the gap that was asked for, so that rounding does not put the result outside it.
        return self.best_s * (1 - self.options.gap * (1 - 1e-6))

    def add(self, key: tuple[object, ...], time_s: float, plan: Plan) -> None:
        """Keep a plan if it is the best of its configuration."""
        if key not in self.found or time_s < self.found[key].time_s:
            self.found[key] = Found(time_s=time_s, plan=plan)
            self.best_s = min(self.best_s, time_s)

    def add_split(self, root: int, structure: Structure, split: Ints, time_s: float) -> None:
        """Keep a split of a structure."""
        space = self.roots[root]
        key = (space.root, tuple((space.options[o].name, space.options[o].tp, n) for o, n in structure))
        if key not in self.found or time_s < self.found[key].time_s:
            self.add(key, time_s, self.roots[root].plan(structure, split))

    def adopt(self, other: "UniformSearch") -> None:
        """Take over the plans of a search over some of the groups."""
        for key, entry in other.found.items():
            self.add(key, entry.time_s, entry.plan)

    def ranked(self) -> list[Found]:
        """Distinct configurations, best first."""
        return sorted(self.found.values(), key=lambda entry: (entry.time_s, entry.plan.model_dump_json()))

    # -- the search

    def run(self) -> StoppedBy:
        """Search until the gap is closed or a limit is reached."""
        try:
            for key, time_s, plan in single_stage_plans(self.setting, self.options.limits, self.groups):
                self.add(key, time_s, plan)
            fit = first_fit(self.setting, self.options.limits, self.groups)
            if fit is not None:
                self._adopt_fit(fit)
            elif not self.found:
                return "gap"
            for i in range(len(self.roots)):
                self._push(_Node(self._arithmetic_bound(i), 0, i))
            self.listed = True
            while self.queue and self.queue[0].bound_s < self.target_s:
                limit = self.options.node_limit
                if limit is not None and self.counters.get("nodes", 0) >= limit:
                    return "nodes"
                self._check()
                # Until it is done with, the node in hand counts as open: a limit may end the search inside it.
                self.current = heapq.heappop(self.queue)
                self._expand(self.current)
                self.current = None
            return "gap"
        except _Stop as stop:
            return stop.by
        except KeyboardInterrupt:
            return "interrupt"

    @property
    def bound_s(self) -> float:
        """No plan of the space is faster than this.

        Whatever was pruned had a bound at or above the target of its time, and targets only fall: so the target
        bounds it, unless it is among what was left open.
        """
        if not self.listed:
            return min([self.best_s, *(self._arithmetic_bound(i) for i in range(len(self.roots)))])
        waiting = [node.bound_s for node in ([self.current] if self.current else []) + self.queue]
        return min([self.best_s, self.target_s, self.open_s, *waiting])

    def _check(self) -> None:
        now = time.monotonic()
        if now > self.deadline:
            raise _Stop("time")
        if self.observe is not None:
            best = self.best_s if np.isfinite(self.best_s) else None
            bound = min(self.bound_s, self.target_s) if self.listed else 0.0
            self.observe(
                Progress(
                    best_s=best,
                    bound_s=bound,
                    nodes=self.counters.get("nodes", 0),
                    open_nodes=len(self.queue),
                    elapsed_s=now - self.started,
                )
            )

    def _adopt_fit(self, fit: Fit) -> None:
        """Time the structure that is known to fit: a first plan, so that there is always a target."""
        root = next(i for i, space in enumerate(self.roots) if space.root == fit.root)
        numbers = {(entry.group, entry.tp): o for o, entry in enumerate(self.roots[root].options)}
        upwards = zip(fit.options, fit.counts, strict=True)
        self._time(root, tuple((numbers[option.group, option.tp], count) for option, count in upwards)[::-1])

    def _push(self, node: _Node) -> None:
        if node.bound_s < self.target_s:
            node.order = next(self.numbers)
            heapq.heappush(self.queue, node)

    def _arithmetic_bound(self, root: int) -> float:
        """Blocks of all micro-batches over the blocks per second of all stages: no stage is busy for longer than T."""
        space = self.roots[root]
        rate: dict[int, float] = {}
        for option in space.options:
            block = min(cost.forward_s + cost.backward_s for cost in option.costs.layers.values())
            rate[option.group] = max(rate.get(option.group, 0.0), option.max_stages / block)
        if not rate:
            return float("inf")
        work = space.root.num_microbatches * self.setting.model.architecture.layers
        return work / sum(rate.values()) + self.setting.stack.step_fixed_s

    def _expand(self, node: _Node) -> None:
        self.counters["nodes"] = self.counters.get("nodes", 0) + 1
        if not node.opened:
            space = self.roots[node.root]
            bound = float(self._capacity(node.root).bounds(2, space.max_stages, self.target_s).min(initial=np.inf))
            if not np.isfinite(bound):
                self.counters["memory"] = self.counters.get("memory", 0) + space.count()
            self._push(replace(node, bound_s=max(node.bound_s, bound), opened=True))
        elif node.rows is None:
            self._list(node)
        elif node.solved:
            self._certify(node.root, node.rows)
        else:
            # Bounds of all ranges come before the splits of any: the programs also propose better plans.
            self._push(replace(node, bound_s=self._solve(node, node.rows), solved=True))

    def _capacity(self, root: int) -> Capacities:
        if root not in self.capacities:
            self.capacities[root] = Capacities(self.roots[root])
        return self.capacities[root]

    def _structures(self, root: int) -> StructureSearch:
        if root not in self.searches:
            self.searches[root] = StructureSearch(self._capacity(root))
        return self.searches[root]

    def _list(self, node: _Node) -> None:
        """Queue the ordered structures of a root by number of stages."""
        if not self.probed:
            self.probed = True
            self._probe(node)
        found = self._structures(node.root).below(self.target_s, STRUCTURES_AT_ONCE, self._check)
        if found is None:
            # Too many to list: take the bound as it is.
            self.open_s = min(self.open_s, node.bound_s)
            return
        for row in range(min(PROBES, len(found.bound_s))):
            self._time(node.root, found.structure(row))
        for stages in np.unique(found.stages):
            rows = found.rows(np.flatnonzero(found.stages == stages))
            self._push(_Node(float(rows.bound_s[0]), 0, node.root, True, int(stages), rows))

    def _probe(self, node: _Node) -> None:
        """Time the best structures of a root and of the next few in the queue, under guessed targets.

        The first good plan: without one most structures are open. A target just above a root's bound leaves few.
        """
        nearby = [node, *(entry for entry in sorted(self.queue)[: 2 * PROBES])]
        for entry in nearby:
            capacity, stages = self._capacity(entry.root), self.roots[entry.root].max_stages
            bound = max(entry.bound_s, float(capacity.bounds(2, stages, self.target_s).min(initial=np.inf)))
            for slack in GUESSES if bound < self.target_s else ():
                self._check()
                found = self._structures(entry.root).below(
                    min(self.target_s, bound * slack), STRUCTURES_AT_ONCE, self._check
                )
                if found is None:
                    break
                for row in range(min(PROBES, len(found.bound_s))):
                    self._time(entry.root, found.structure(row))
                if len(found.bound_s):
                    break

    def _solve(self, node: _Node, rows: Structures) -> float:
        """Bound the plans of a root with so many stages by programs over ranges of C, halving the worst range."""
        capacity = self._capacity(node.root)
        kept = sorted({int(o) for o in rows.options.ravel() if o >= 0})
        low = float(rows.bottleneck_s.min())
        high = self.target_s - capacity.fixed - capacity.after - capacity.layers * min(capacity.per_block)
        open_structures = {rows.structure(row) for row in range(len(rows.bound_s))}
        ranges = [self._program(node, kept, open_structures, low, high)]
        for _ in range(RANGES):
            bound, low, high = heapq.heappop(ranges)
            if bound >= self.target_s or (high - low) <= 0.5 * self.options.gap * bound:
                heapq.heappush(ranges, (bound, low, high))
                break
            middle = (low + high) / 2
            for part in ((low, middle), (middle, high)):
                heapq.heappush(ranges, self._program(node, kept, open_structures, *part))
        return max(node.bound_s, ranges[0][0])

    def _program(
        self, node: _Node, kept: list[int], open_structures: set[Structure], low: float, high: float
    ) -> tuple[float, float, float]:
        """Solve the program of a bottleneck range and time its proposal: (bound, low, high)."""
        space = self.roots[node.root]
        outcome = solve(
            [space.program_options[o] for o in kept],
            layers=self.setting.model.architecture.layers,
            stages=node.stages,
            cap_c=high,
            cross_hop_s=space.least_cross_hop,
            solver=self.options.solver,
            seed=self.options.seed,
            time_limit_s=max(0.1, min(10.0, self.deadline - time.monotonic())),
            relative_gap=min(1e-4, self.options.gap / 10),
        )
        self.counters["programs"] = self.counters.get("programs", 0) + 1
        if outcome.answer == "failed":
            self.counters["failures"] = self.counters.get("failures", 0) + 1
        if outcome.stages is not None:
            proposed = tuple((o, n) for o, n in zip(kept, outcome.stages, strict=True) if n)
            for order in space.orders(proposed):
                if order in open_structures:
                    self._time(node.root, order)
        return low + outcome.bound_s + self.setting.stack.step_fixed_s, low, high

    def _time(self, root: int, structure: Structure, limit_s: float | None = None) -> None:
        """Find a good split of an ordered structure, unless bounds keep it above the best time (or a limit)."""
        if (root, structure) in self.tried:
            return
        self.tried.add((root, structure))
        chain = self.roots[root].chain(structure)
        result = None if chain.excluded(limit_s or self.best_s) else chain.heuristic()
        if result is not None:
            self.add_split(root, structure, *result)

    def _certify(self, root: int, rows: Structures) -> None:
        """Close ordered structures: time every split whose bound is below the target."""
        for row in range(len(rows.bound_s)):
            if rows.bound_s[row] >= self.target_s:
                break
            self._check()
            structure = rows.structure(row)
            chain = self.roots[root].chain(structure)
            if chain.closed(self.target_s):
                continue
            self._time(root, structure)
            splits, bounds, left_out = chain.splits_below(self.target_s, SPLITS_AT_ONCE)
            self.open_s = min(self.open_s, max(left_out, float(rows.bound_s[row])))
            self._time_all(root, structure, splits, bounds)

    def _time_all(self, root: int, structure: Structure, splits: Ints, bounds: Floats) -> None:
        """Time splits in the order of their bounds; the longest path of the first of each batch raises all bounds."""
        chain = self.roots[root].chain(structure)
        stage = np.arange(chain.stages)
        size = 8
        while True:
            open_rows = bounds < self.target_s * (1 - ROUNDING)
            splits, bounds = splits[open_rows], bounds[open_rows]
            if not len(splits):
                return
            self._check()
            order = np.argsort(bounds, kind="stable")
            batch, rest = order[:size], order[size:]
            times = chain.simulate(splits[batch])
            best = int(np.argmin(times))
            if np.isfinite(times[best]):
                self.add_split(root, structure, splits[batch][best], float(times[best]))
            weight = chain.weigh(chain.path(splits[batch[0]]))
            splits, bounds = splits[rest], bounds[rest]
            bounds = np.maximum(bounds, weight[stage, splits].sum(axis=1) + chain.fixed_s)
            size = min(256, 2 * size)

    def explore(self) -> None:
        """Time the most promising structures of the roots near the best plan: alternatives for the ranking.

        Only where few types are mixed: with many, listing structures above the best time takes too long.
        """
        near = self.best_s * (1 + NEARBY)
        order = sorted((self._arithmetic_bound(i), i) for i in range(len(self.roots)))
        looked = 0
        for bound, root in order:
            if bound >= near or looked == NEARBY_ROOTS or time.monotonic() > self.deadline:
                return
            capacity, stages = self._capacity(root), self.roots[root].max_stages
            if len(capacity.combinations) > MIXED or capacity.bounds(2, stages, near).min(initial=np.inf) >= near:
                continue
            looked += 1
            found = self._structures(root).below(near, STRUCTURES_AT_ONCE)
            for row in range(min(ALTERNATIVES, 0 if found is None else len(found.bound_s))):
                self._time(root, found.structure(row), limit_s=near)  # type: ignore[union-attr]
