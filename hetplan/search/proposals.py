"""Good plans without proof: structures that are timed because they look promising."""

import time
from collections.abc import Callable, Iterator
from itertools import groupby

import numpy as np

from hetplan.predict.setting import Setting
from hetplan.search.capacities import Capacities
from hetplan.search.chain import Ints
from hetplan.search.fitting import Fit
from hetplan.search.incumbents import Incumbents
from hetplan.search.options import SearchOptions
from hetplan.search.roots import RootSpace, Structure
from hetplan.search.rough import arithmetic_bound_s
from hetplan.search.shared import Shared
from hetplan.search.space import Root, base_roots, orders_of_work
from hetplan.search.structures import StructureSearch

STRUCTURES_AT_ONCE = 2_000_000
"""Ordered structures of one root listed at once; a root with more keeps its bound."""
NEARBY, NEARBY_ROOTS, ALTERNATIVES, MIXED = 0.1, 6, 4, 30
"""For the ranking: how far above the best time, how many roots, structures of each, up to how many combinations."""
TRANSPLANTED = 12
"""Plans known at the start whose structure is tried under every order of work."""


class Proposals(Incumbents):
    """The roots of a search, and ways to find a good plan of a structure."""

    def __init__(
        self, setting: Setting, groups: tuple[int, ...], search_options: SearchOptions, shared: Shared | None = None
    ) -> None:
        super().__init__(search_options.gap)
        self.setting = setting
        self.groups = groups
        self.options = search_options
        self.counters: dict[str, int] = {}
        self.shared = shared or Shared()
        self.roots = [space for root in base_roots(setting, search_options, groups) for space in self._spaces(root)]
        self.capacities: dict[int, Capacities] = {}
        self.searches: dict[int, StructureSearch] = {}
        self.tried: set[tuple[int, Structure]] = set()

    def _spaces(self, base: Root) -> Iterator[RootSpace]:
        """A root under every order of work."""
        alone = self._space(base)
        for root in orders_of_work(base, self.options, self.groups, alone.max_stages):
            yield self._space(root)

    def _space(self, root: Root) -> RootSpace:
        return RootSpace(
            setting=self.setting,
            limits=self.options.limits,
            groups=self.groups,
            root=root,
            counters=self.counters,
            shared=self.shared,
        )

    def add_split(self, root: int, structure: Structure, split: Ints, time_s: float) -> None:
        """Keep a split of a structure."""
        space = self.roots[root]
        # Plans that differ in their blocks or in the depth of the warm-up alone are one configuration.
        shared = (space.root.schedule, space.root.virtual_stages, space.root.num_microbatches)
        key = (shared, tuple((space.options[o].key, n) for o, n in structure))
        if key not in self.found or time_s < self.found[key].time_s:
            self.add(key, time_s, space.plan(structure, split))

    def _adopt_fit(self, fit: Fit) -> None:
        """Time the structure that is known to fit: a first plan, so that there is always a target."""
        root = next((i for i, space in enumerate(self.roots) if space.root == fit.space.root), None)
        if root is None:
            # Under another schedule than those asked for.
            return
        numbers = {entry.key: o for o, entry in enumerate(self.roots[root].options)}
        self._time(root, tuple((numbers[fit.space.options[o].key], count) for o, count in fit.structure))

    def _transplant(self, check: Callable[[], None]) -> None:
        """Time the best structures known under the orders of work of this search: early plans make the target tight."""
        by_batch: dict[tuple[int | None, int], list[int]] = {}
        for i, space in enumerate(self.roots):
            by_batch.setdefault((space.root.dp, space.root.samples), []).append(i)
        for entry in self.ranked()[:TRANSPLANTED]:
            stages, samples = entry.plan.stages, entry.plan.global_batch_size // entry.plan.num_microbatches
            degrees = [(stage.group, stage.tp, stage.dp, stage.microbatch_size) for stage in stages]
            runs = [(key, len(list(same))) for key, same in groupby(degrees)]
            for dp in {stages[0].dp, None}:
                for i in by_batch.get((dp, samples), []) if len(stages) > 1 else ():
                    space = self.roots[i]
                    if (space.root.stages or len(stages)) != len(stages) or (space.root.warmup and len(runs) == 1):
                        continue
                    numbers = {(o.name, o.tp, o.dp, o.microbatch_size): n for n, o in enumerate(space.options)}
                    if all(key in numbers for key, _ in runs):
                        check()
                        self._time(i, tuple((numbers[key], count) for key, count in runs))

    def _capacity(self, root: int) -> Capacities:
        if root not in self.capacities:
            self.capacities[root] = Capacities(self.roots[root])
        return self.capacities[root]

    def _least(self, root: int, target_s: float) -> float:
        """The least bound of a root's combinations."""
        space = self.roots[root]
        bounds = self._capacity(root).bounds(space.min_stages, space.max_stages, target_s)
        return float(bounds.min(initial=np.inf))

    def _structures(self, root: int) -> StructureSearch:
        if root not in self.searches:
            self.searches[root] = StructureSearch(self._capacity(root))
        return self.searches[root]

    def _time(self, root: int, structure: Structure, limit_s: float | None = None) -> None:
        """Find a good split of an ordered structure, unless bounds keep it above the best time (or a limit)."""
        if (root, structure) in self.tried:
            return
        self.tried.add((root, structure))
        chain = self.roots[root].chain(structure)
        result = None if chain.excluded(limit_s or self.best_s) else chain.heuristic()
        if result is not None:
            self.add_split(root, structure, *result)

    def explore(self, deadline: float) -> None:
        """Time the most promising structures of the roots near the best plan: alternatives for the ranking.

        Only where few types are mixed: with many, listing structures above the best time takes too long.
        """
        near = self.best_s * (1 + NEARBY)
        order = sorted((arithmetic_bound_s(self.roots[i]), i) for i in range(len(self.roots)))
        looked = 0
        for bound, root in order:
            if bound >= near or looked == NEARBY_ROOTS or time.monotonic() > deadline:
                return
            if len(self._capacity(root).combinations) > MIXED or self._least(root, near) >= near:
                continue
            looked += 1
            found = self._structures(root).below(near, STRUCTURES_AT_ONCE)
            for row in range(min(ALTERNATIVES, 0 if found is None else len(found.bound_s))):
                self._time(root, found.structure(row), limit_s=near)  # type: ignore[union-attr]
