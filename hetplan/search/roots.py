"""A root with its options and tables: what the program, the chains and the enumeration of structures share."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import permutations

import numpy as np

from hetplan.cost.stages import Holding
from hetplan.plan import Plan
from hetplan.predict.setting import Setting
from hetplan.schedule.holdings import holdings
from hetplan.schedule.schedules import schedule
from hetplan.schedule.simulator import Shape, completion
from hetplan.search.building import build_plan
from hetplan.search.chain import Chain, Ints
from hetplan.search.forms import form, tied
from hetplan.search.paths import PathPool
from hetplan.search.program import ProgramOption
from hetplan.search.result import Limits
from hetplan.search.shared import Shared
from hetplan.search.space import WARMUPS, Option, Root, options, rates
from hetplan.search.tables import Floats, Layout, Place, StageTable, stage_layout, stage_parts

Structure = tuple[tuple[int, int], ...]
"""(option index, stages) of each group in use, in pipeline order."""


@dataclass(frozen=True, kw_only=True, eq=False)
class RootSpace:
    """All plans with a pipeline under one root, on some of the groups."""

    setting: Setting
    limits: Limits
    groups: tuple[int, ...]
    root: Root
    counters: dict[str, int] = field(repr=False)
    pools: dict[Shape, PathPool] = field(default_factory=dict, repr=False)
    """Paths by the pipeline's shape."""
    shared: Shared = field(default_factory=Shared, repr=False)
    own_tables: dict[tuple[int, Place], StageTable] = field(default_factory=dict, repr=False)

    @cached_property
    def options(self) -> list[Option]:
        """Options of the groups, the same for roots that differ in the order of work alone."""
        key = (self.groups, self.root.samples, self.root.dp, schedule(self.root.schedule).once)
        if key not in self.shared.options:
            self.shared.options[key] = options(self.setting, self.root, self.limits, self.groups)
        return self.shared.options[key]

    @cached_property
    def max_stages(self) -> int:
        """Stages that a pipeline can have at most: P_max, also by the number of blocks."""
        most = len(self.rates) - 1
        if self.root.stages is not None:
            return self.root.stages if self.root.stages <= most else 0
        return most

    @property
    def rates(self) -> Floats:
        """Most blocks per second of 0, 1, .. stages, as many as there may be."""
        key = (self.groups, self.root.samples, self.root.dp, schedule(self.root.schedule).once)
        if key not in self.shared.rates:
            per_group: dict[int, int] = {}
            for option in self.options:
                per_group[option.group] = max(per_group.get(option.group, 0), option.max_stages)
            most = min(self.limits.max_stages, sum(per_group.values()), self.setting.model.architecture.layers)
            paces = [(e, min(c.forward_s + c.backward_s for c in e.costs.layers.values())) for e in self.options]
            self.shared.rates[key] = rates(paces, most)
        return self.shared.rates[key]

    @property
    def min_stages(self) -> int:
        """Stages that a pipeline has at least."""
        return self.root.stages or 2

    def count(self) -> int:
        """Configurations: stages per group and degrees, order not counted."""
        per_group: dict[int, int] = {}
        for option in self.options:
            per_group[option.group] = per_group.get(option.group, 0) + option.max_stages
        total = 1
        for stages in per_group.values():
            total *= 1 + stages
        return total - 1

    # -- tables

    @cached_property
    def fixed_shape(self) -> Shape:
        """The pipeline's shape where the root fixes the number of stages."""
        return self.shape((self.root.stages or 2,))

    def shape(self, counts: tuple[int, ...]) -> Shape:
        """The pipeline's shape for stages per group, in pipeline order."""
        deeper: list[int] = []
        for i, count in enumerate(counts if self.root.warmup else ()):
            deeper += [self.root.warmup * (len(counts) - 1 - i)] * count
        return Shape(
            schedule=self.root.schedule,
            stages=sum(counts),
            num_microbatches=self.root.num_microbatches,
            virtual_stages=self.root.virtual_stages,
            warmup=tuple(deeper) if any(deeper) else (),
            transfers=self.setting.stack.transfers,
        )

    @cached_property
    def _flying_rows(self) -> tuple[tuple[Holding, ...], ...]:
        """1F1B: every number of micro-batches in flight."""
        deepest = self.max_stages + max(w for w in WARMUPS if w <= self.limits.max_warmup) * (len(self.groups) - 1)
        return tuple(((flying, 0),) for flying in range(1, min(deepest, self.root.num_microbatches) + 1))

    def holding_rows(self, place: Place) -> tuple[tuple[Holding, ...], ...]:
        """What a stage at a place may hold, as `row` numbers it."""
        if self.root.schedule == "gpipe":
            return (((self.root.num_microbatches, 0),),)
        if self.root.schedule == "1f1b":
            return self._flying_rows[:1] if place == "last" else self._flying_rows
        shape, p = self.fixed_shape, self.root.stages or 2
        depths = {"first": range(p, p + 1), "last": range(1, 2)}.get(place, range(2, max(p, 3)))
        return tuple(holdings(shape, max(p - depth, 0)) for depth in depths)

    def row(self, place: Place, depth: int, changes: int) -> int:
        """The row of a stage with so many changes of group below it."""
        if self.root.schedule == "1f1b":
            return min(depth + self.root.warmup * changes, self.root.num_microbatches) - 1
        return depth - 2 if self.root.stages is not None and place == "middle" else 0

    def depths(self, place: Place) -> range:
        """Where a stage at a place may stand, counted from the last stage as 1."""
        if place == "last":
            return range(1, 2)
        if self.root.stages is None:
            return range(1, self.max_stages + 1)
        return range(self.root.stages, self.root.stages + 1) if place == "first" else range(2, self.root.stages)

    def layout(self, option: int, place: Place) -> Layout:
        """The chunks of a stage of an option at a place."""
        shape = schedule(self.root.schedule).shape
        key = (self.options[option].key, place, self.root.virtual_stages, shape, shape == "both" and self.root.stages)
        if key not in self.shared.layouts:
            self.shared.layouts[key] = self._layout(option, place)
        return self.shared.layouts[key]

    def _layout(self, option: int, place: Place) -> Layout:
        costs, root = self.options[option].costs, self.root
        shape, v = schedule(root.schedule).shape, root.virtual_stages
        first, last = place == "first", place == "last"
        if shape == "v":
            return stage_layout(costs, 2, 0 if first else None, 1 if first else None, 0)
        if shape == "both":
            embedding = 0 if first else 1 if last else None
            return stage_layout(costs, 2, embedding, None if embedding is None else 1 - embedding, root.stages or 2)
        return stage_layout(costs, v, 0 if first else None, v - 1 if last else None, 0)

    def table(self, option: int, place: Place) -> StageTable:
        """Work of an option at a place of the pipeline, by row and blocks."""
        if (option, place) in self.own_tables:
            return self.own_tables[option, place]
        entry, order = self.options[option], schedule(self.root.schedule)
        rows = self.holding_rows(place)
        parts = self.root.stages if order.shape == "both" else None
        base = (entry.key, place, self.root.virtual_stages, order.shape, order.splits_backward, parts)
        if (base, rows) not in self.shared.tables:
            if base not in self.shared.parts:
                usable = self.setting.cluster.groups[entry.group].usable_bytes
                plan = self.layout(option, place)
                self.shared.parts[base] = stage_parts(entry.costs, plan, usable, splits=order.splits_backward)
            self.shared.tables[base, rows] = self.shared.parts[base].table(rows)
        self.own_tables[option, place] = self.shared.tables[base, rows]
        return self.own_tables[option, place]

    # -- the bound's terms, by depth

    def _by_depth(self, option: int, place: Place, changes: int, term: str) -> Floats:
        """Fill or tied seconds of an option, shape (depths, L + 1); infinite where impossible."""
        table, root = self.table(option, place), self.root
        depths = self.depths(place)
        rows = [self.row(place, depth, changes) for depth in depths]
        if root.stages is None:
            forward, backward = table.forward_s[0], table.backward_s[rows, 0]
            if term == "fill":
                values = forward + backward
            else:
                m = root.num_microbatches
                ahead = np.minimum(np.array(depths) + root.warmup * changes, m) - 1.0
                if root.schedule == "gpipe":
                    ahead = ahead * 0
                values = tied(forward, backward, ahead[:, None], m)
            return np.where(table.possible[rows], values, np.inf)
        paths, stages = form(self.fixed_shape), root.stages
        found = np.full((1 if place == "last" else self.max_stages, table.possible.shape[1]), np.inf)
        works = table.works_s(rows)
        values = paths.fills(works)
        if term == "tied":
            own = paths.own[[stages - depth for depth in depths]]
            values = np.einsum("ru,run->rn", own, works) - values
        found[[depth - 1 for depth in depths]] = np.where(table.possible[rows], values, np.inf)
        return found

    @cached_property
    def _terms(self) -> dict[tuple[int, Place, int, str], Floats]:
        return {}

    def term(self, option: int, place: Place, changes: int, term: str) -> Floats:
        """`fill` (f) or `tied` (c) of an option with so many changes of group below it, shape (depths, L + 1)."""
        key = (option, place, changes, term)
        if key not in self._terms:
            self._terms[key] = self._by_depth(*key)
        return self._terms[key]

    def after_first(self, option: int) -> Floats:
        """What follows the first stage's last backward on every path, shape (L + 1,)."""
        table = self.table(option, "first")
        share = np.ones(1) if self.root.stages is None else form(self.fixed_shape).after
        after: Floats = share @ table.after_s
        if self.root.stages is None or share[int(completion(self.fixed_shape)[0, -1])] > 0:
            after = after + table.optimizer_s
        return after

    @property
    def hop_weight(self) -> float:
        """How often a path crosses each hop at least, h."""
        return 2.0 if self.root.stages is None else form(self.fixed_shape).hop

    @property
    def own_ends(self) -> bool:
        """Whether the bound through a stage also bounds its own end: F above it, F + B from it on."""
        return self.root.stages is None

    @cached_property
    def most_changes(self) -> int:
        """Changes of group below a stage at most, as far as they matter."""
        return len({option.group for option in self.options}) - 1 if self.root.warmup else 0

    # -- hops

    def inner_hops(self, option: int, stages: int) -> list[float]:
        """Hops between the stages of one group, in order."""
        costs = self.options[option].costs
        return [costs.inner_hop_s(j) for j in range(stages - 1)]

    @cached_property
    def least_inner_hop(self) -> list[float]:
        """Per option the least hop between two of its stages."""
        return [min(self.inner_hops(o, entry.max_stages), default=0.0) for o, entry in enumerate(self.options)]

    @cached_property
    def least_cross_hop(self) -> float:
        """The least hop between stages of two groups."""
        pairs = [
            self.cross_hop(a, b)
            for a, first in enumerate(self.options)
            for b, second in enumerate(self.options)
            if first.group != second.group
        ]
        return min(pairs, default=0.0)

    @cached_property
    def _cross(self) -> dict[tuple[int, int], float]:
        return {}

    def cross_hop(self, a: int, b: int) -> float:
        """Hop from the last stage of option a to the first stage of option b, on two groups."""
        if (a, b) not in self._cross:
            first, second = self.options[a], self.options[b]
            self._cross[a, b] = self.setting.hop_s(first.costs, first.name, second.costs, second.name, 0)
        return self._cross[a, b]

    def _wrap_hop(self, structure: Structure) -> float:
        """From the last stage back to the first."""
        (a, _), (b, _) = structure[-1], structure[0]
        if len(structure) == 1:
            return self.options[a].costs.wrap_hop_s(structure[0][1])
        return self.cross_hop(a, b)

    # -- the program, chains and plans

    @cached_property
    def program_options(self) -> list[ProgramOption]:
        """The tables in the form that the program takes: order open, so the best number of changes below."""

        def least(option: int, place: Place, term: str) -> Floats:
            changes = range(self.most_changes + 1)
            found: Floats = np.min([self.term(option, place, e, term) for e in changes], axis=0)
            return found

        return [
            ProgramOption(
                group=entry.group,
                max_stages=entry.max_stages,
                inner_hop_s=self.least_inner_hop[o],
                middle_t=least(o, "middle", "fill"),
                middle_c=least(o, "middle", "tied"),
                first_t=least(o, "first", "fill") + self.after_first(o),
                first_c=least(o, "first", "tied"),
                last_t=self.term(o, "last", 0, "fill")[0],
                last_c=self.term(o, "last", 0, "tied")[0],
            )
            for o, entry in enumerate(self.options)
        ]

    def orders(self, structure: Structure) -> Iterator[Structure]:
        """The structure's groups in every order: all pairs of groups are linked."""
        yield from permutations(structure)

    def chain(self, structure: Structure) -> Chain:
        """The chain of a structure, stages in pipeline order."""
        shape = self.shape(tuple(stages for _, stages in structure))
        total, work, possible, after, hops = shape.stages, [], [], [], []
        last_chunk = completion(shape)[:, -1]
        at = 0
        for run, (option, stages) in enumerate(structure):
            for _ in range(stages):
                table = self.table(option, self.place(at, total))
                row = self.table_row(structure, at)
                work.append(table.work_s(row))
                possible.append(table.possible[row])
                ending = table.after_s.T.copy()
                ending[:, last_chunk[at]] += table.optimizer_s
                after.append(ending)
                at += 1
            hops += self.inner_hops(option, stages)
            if run + 1 < len(structure):
                hops.append(self.cross_hop(option, structure[run + 1][0]))
        hops.append(self._wrap_hop(structure) if shape.loops else 0.0)
        self._couple(structure, after)
        return Chain(
            shape=shape,
            work_s=np.array(work),
            possible=np.array(possible),
            after_s=np.array(after),
            hop_s=np.array(hops),
            fixed_s=self.setting.stack.step_fixed_s,
            counters=self.counters,
            pool=self.pools.setdefault(shape, PathPool()),
        )

    def _couple(self, structure: Structure, after: list[Floats]) -> None:
        """Add what two stages exchange that hold the same weights."""
        owners = [self.options[option] for option, stages in structure for _ in range(stages)]
        p, order = len(owners), schedule(self.root.schedule)
        if order.copies == 2:
            for j in range(p):
                for c in (0, 1):
                    a, b = owners[j], owners[p - 1 - j]
                    sizes = []
                    for entry, stage, chunk in ((a, j, c), (b, p - 1 - j, 1 - c)):
                        table = self.table(self.options.index(entry), self.place(stage, p))
                        run, n = table.layout.runs[chunk], self.setting.model.architecture.layers // p
                        held = entry.costs.parameters(int(run.start[n]), int(run.stop[n]), run.ends)
                        sizes.append(entry.costs.gradient_bytes(float(held[0]), float(held[1])))
                    after[j][:, c] += self.setting.exchange_s(a.costs, a.name, sizes[0], b.costs, b.name, sizes[1])
        elif order.shape != "v":
            first, last = owners[0], owners[-1]
            tie = self.setting.tied_sync_s(first.costs, first.name, last.costs, last.name)
            after[0][:, 0] += tie
            after[-1][:, -1] += tie

    @staticmethod
    def place(at: int, total: int) -> Place:
        """Where a stage stands."""
        return "first" if at == 0 else "last" if at == total - 1 else "middle"

    def table_row(self, structure: Structure, at: int) -> int:
        """The row of a structure's stage in its table."""
        total, below = sum(stages for _, stages in structure), 0
        for run, (_, stages) in enumerate(structure):
            below += stages
            if at < below:
                return self.row(self.place(at, total), total - at, len(structure) - 1 - run)
        raise IndexError(at)

    def plan(self, structure: Structure, split: Ints) -> Plan:
        """The plan of a split, with the recomputation that the tables chose."""
        ways, at, total = [], 0, len(split)
        for option, stages in structure:
            for _ in range(stages):
                table, row = self.table(option, self.place(at, total)), self.table_row(structure, at)
                ways.append((int(table.selective[row, split[at]]), int(table.full[row, split[at]])))
                at += 1
        return self.plan_with(structure, split, ways)

    def plan_with(self, structure: Structure, split: Ints, ways: list[tuple[int, int]]) -> Plan:
        """The plan of a split with so many selectively and fully recomputed blocks of every stage."""
        owners, layouts, at, total = [], [], 0, len(split)
        for option, stages in structure:
            for _ in range(stages):
                owners.append(self.options[option])
                layouts.append(self.layout(option, self.place(at, total)))
                at += 1
        shape = self.shape(tuple(stages for _, stages in structure))
        return build_plan(self.setting, shape, owners, layouts, split.tolist(), ways)
