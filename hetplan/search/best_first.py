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
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import combinations, count

import numpy as np

from hetplan.predict.setting import Setting
from hetplan.search.chain import ROUNDING, Floats, Ints
from hetplan.search.fitting import first_fit
from hetplan.search.options import Progress, SearchOptions
from hetplan.search.program import Ties, solve
from hetplan.search.proposals import STRUCTURES_AT_ONCE, Proposals
from hetplan.search.result import StoppedBy
from hetplan.search.roots import Structure
from hetplan.search.rough import arithmetic_bound_s, rough_bound_s
from hetplan.search.shared import Shared
from hetplan.search.single import single_stage_plans
from hetplan.search.structures import Structures

SPLITS_AT_ONCE = 400_000
"""Partial splits of one chain held at once; a chain with more keeps its bound and is deferred."""
FEW_SPLITS = 2_000
"""Splits that are timed at once, without bounds on them."""
RANGES = 3
"""How often the worst range of the bottleneck is halved before structures are taken one by one."""
GUESSES = (1.02, 1.05, 1.1, 1.2, 1.4, 2.0, 4.0, 16.0)
"""Targets over a root's bound that are tried while there is no plan."""
REOPENED = 0.9995
"""Share of its target by which the present one must have fallen before something deferred is tried again."""
PROBES = 4
"""Structures of a root that are timed as soon as they are listed: early plans make the target tight."""


@dataclass(order=True, slots=True)
class _Node:
    """Plans of a root with a lower bound: all of them, or its ordered structures with `stages` stages."""

    bound_s: float
    order: int
    root: int = field(compare=False)
    rough: bool = field(compare=False, default=False)
    """Whether the bound is the rough one at least."""
    opened: bool = field(compare=False, default=False)
    stages: int = field(compare=False, default=0)
    rows: Structures | None = field(compare=False, default=None)
    solved: bool = field(compare=False, default=False)
    """Whether the program has bounded them."""


class _Stop(Exception):  # noqa: N818 - not an error
    """A limit was reached."""

    def __init__(self, by: StoppedBy) -> None:
        self.by = by


class PlanSearch(Proposals):
    """One search over the plan space on some groups of the cluster."""

    def __init__(
        self,
        setting: Setting,
        groups: tuple[int, ...],
        search_options: SearchOptions,
        *,
        deadline: float,
        observe: Callable[[Progress], None] | None = None,
        shared: Shared | None = None,
    ) -> None:
        super().__init__(setting, groups, search_options, shared)
        self.deadline = deadline
        self.observe = observe
        self.started = time.monotonic()
        self.earlier: list[PlanSearch] = []
        """Searches over parts of the space, whose roots are not searched again."""
        self.deferred: list[tuple[float, _Node]] = []
        """What was too much to list at once, each with the target of that time: less is open under a lower one."""
        self.listed = False
        self.current: _Node | None = None
        self.probed = False
        self.queue: list[_Node] = []
        self.numbers = count()

    def follow(self, other: "PlanSearch") -> None:
        """Take over the plans and the bound of a search over some of the roots, which are not searched again."""
        self.adopt(other)
        done = {space.root for space in other.roots}
        kept = [space for space in self.roots if space.root not in done]
        if len(kept) < len(self.roots):
            self.earlier.append(other)
            self.roots = kept

    # -- the search

    def run(self) -> StoppedBy:
        """Search until the gap is closed or a limit is reached."""
        try:
            for key, time_s, plan in single_stage_plans(self.setting, self.options.limits, self.groups):
                self.add(key, time_s, plan)
            fit = first_fit(self.setting, self.options, self.groups)
            if fit is not None:
                self._adopt_fit(fit)
            elif not self.found:
                return "gap"
            for i in range(len(self.roots)):
                self._push(_Node(arithmetic_bound_s(self.roots[i]), 0, i))
            self.listed = True
            self._transplant(self._check)
            while self._reopen():
                limit = self.options.node_limit
                if limit is not None and self.counters.get("nodes", 0) >= limit:
                    return "nodes"
                self._check()
                # Until it is done with, the node in hand counts as open: a limit may end the search inside it.
                self.current = heapq.heappop(self.queue)
                self._expand(self.current)
                self.current = None
            return "nodes" if any(node.bound_s < self.target_s for _, node in self.deferred) else "gap"
        except _Stop as stop:
            return stop.by
        except KeyboardInterrupt:
            return "interrupt"

    @property
    def bound_s(self) -> float:
        """No plan of the space is faster than this, nor of those that were searched earlier.

        Whatever was pruned had a bound at or above the target of its time, and targets only fall: so the target
        bounds it, unless it is among what was left open.
        """
        earlier = [other.bound_s for other in self.earlier]
        if not self.listed:
            return min([self.best_s, *earlier, *(arithmetic_bound_s(self.roots[i]) for i in range(len(self.roots)))])
        waiting = [*self.queue, *(node for _, node in self.deferred), *([self.current] if self.current else [])]
        return min([self.best_s, self.target_s, *earlier, *(node.bound_s for node in waiting)])

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

    def _reopen(self) -> bool:
        """Whether a node is open; where none is, what was deferred under a clearly higher target is queued again."""
        if not self.queue or self.queue[0].bound_s >= self.target_s:
            again = [entry for entry in self.deferred if self.target_s <= entry[0] * REOPENED]
            self.deferred = [entry for entry in self.deferred if self.target_s > entry[0] * REOPENED]
            for _, node in again:
                self._push(node)
        return bool(self.queue) and self.queue[0].bound_s < self.target_s

    def _defer(self, node: _Node) -> None:
        self.deferred.append((self.target_s, node))

    def _push(self, node: _Node) -> None:
        if node.bound_s < self.target_s:
            node.order = next(self.numbers)
            heapq.heappush(self.queue, node)

    def _expand(self, node: _Node) -> None:
        self.counters["nodes"] = self.counters.get("nodes", 0) + 1
        space = self.roots[node.root]
        if not node.rough and space.root.stages is not None:
            self._push(replace(node, bound_s=max(node.bound_s, rough_bound_s(space)), rough=True))
        elif not node.opened:
            bound = float(self._least(node.root, self.target_s))
            if not np.isfinite(bound):
                self.counters["memory"] = self.counters.get("memory", 0) + space.count()
            self._push(replace(node, bound_s=max(node.bound_s, bound), opened=True))
        elif node.rows is None:
            self._list(node)
        elif node.solved or self._few(node.stages, len(node.rows.bound_s)):
            self._certify(node, node.rows)
        else:
            # Bounds of all ranges come before the splits of any: the programs also propose better plans.
            self._push(replace(node, bound_s=self._solve(node, node.rows), solved=True))

    def _list(self, node: _Node) -> None:
        """Queue the ordered structures of a root by number of stages."""
        if not self.probed and not self.earlier:
            self.probed = True
            self._probe(node)
        found = self._structures(node.root).below(self.target_s, STRUCTURES_AT_ONCE, self._check)
        if found is None:
            self._defer(node)
            return
        for row in range(min(PROBES, len(found.bound_s))):
            self._time(node.root, found.structure(row))
        for stages in np.unique(found.stages):
            rows = found.rows(np.flatnonzero(found.stages == stages))
            self._push(_Node(float(rows.bound_s[0]), 0, node.root, True, True, int(stages), rows))

    def _probe(self, node: _Node) -> None:
        """Time the best structures of a root and of the next few in the queue, under guessed targets.

        The first good plan: without one most structures are open. A target just above a root's bound leaves few.
        """
        nearby = [node, *(entry for entry in sorted(self.queue)[: 2 * PROBES])]
        for entry in nearby:
            bound = max(entry.bound_s, self._least(entry.root, self.target_s))
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
            hop_weight=space.hop_weight,
            ties=self._ties(node, kept, low),
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

    def _ties(self, node: _Node, kept: list[int], low: float) -> Ties:
        """Window bounds across hops between pairs of options, less C1 and the fixed time."""
        crossings = self._structures(node.root).crossings
        groups = [self.roots[node.root].options[o].group for o in kept]
        if not crossings.tied:
            return {}
        less = low + self.setting.stack.step_fixed_s
        return {
            (a, b): crossings.least_s(kept[a], kept[b], node.stages) - less
            for a, b in combinations(range(len(kept)), 2)
            if groups[a] != groups[b]
        }

    def _few(self, stages: int, structures: int) -> bool:
        """Whether so many structures have few enough splits to time them all."""
        layers = self.setting.model.architecture.layers
        return structures * math.comb(layers - 1, stages - 1) <= FEW_SPLITS

    def _certify(self, node: _Node, rows: Structures) -> None:
        """Close ordered structures: time every split whose bound is below the target."""
        root = node.root
        for row in range(len(rows.bound_s)):
            if rows.bound_s[row] >= self.target_s:
                break
            self._check()
            structure = rows.structure(row)
            chain = self.roots[root].chain(structure)
            if self._few(chain.stages, 1):
                splits = chain.all_splits()
                self._time_all(root, structure, splits, np.full(len(splits), rows.bound_s[row]))
                continue
            if chain.closed(self.target_s):
                continue
            self._time(root, structure)
            splits, bounds, left_out = chain.splits_below(self.target_s, SPLITS_AT_ONCE)
            if np.isfinite(left_out):
                bound = max(left_out, float(rows.bound_s[row]))
                self._defer(replace(node, bound_s=bound, rows=rows.rows(np.array([row])), solved=True))
            self._time_all(root, structure, splits, bounds)

    def _time_all(self, root: int, structure: Structure, splits: Ints, bounds: Floats) -> None:
        """Time splits in the order of their bounds; the longest path of the first of each batch raises all bounds."""
        chain = self.roots[root].chain(structure)
        stage = np.arange(chain.stages)
        size = 8 if len(splits) > FEW_SPLITS else FEW_SPLITS
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
            if not len(rest):
                return
            weight = chain.weigh(chain.path(splits[batch[0]]))
            splits, bounds = splits[rest], bounds[rest]
            bounds = np.maximum(bounds, weight[stage, splits].sum(axis=1) + chain.fixed_s)
            size = min(256, 2 * size)
