"""A root with its options and tables: what the program, the chains and the enumeration of structures share."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import permutations

import numpy as np

from hetplan.plan import Plan, Recompute, Stage
from hetplan.predict import Setting
from hetplan.search.chain import Chain, Ints, tied
from hetplan.search.paths import PathPool
from hetplan.search.program import ProgramOption
from hetplan.search.result import Limits
from hetplan.search.space import Option, Root, options
from hetplan.search.tables import Place, StageTable, stage_table

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
    pools: dict[int, PathPool] = field(default_factory=dict, repr=False)
    """Paths by number of stages."""
    _tables: dict[tuple[int, Place], StageTable] = field(default_factory=dict, repr=False)

    @cached_property
    def options(self) -> list[Option]:
        """Options of the groups."""
        return options(self.setting, self.root, self.limits, self.groups)

    @cached_property
    def max_stages(self) -> int:
        """Stages that a pipeline can have at most: P_max, also by the number of blocks."""
        per_group: dict[int, int] = {}
        for option in self.options:
            per_group[option.group] = max(per_group.get(option.group, 0), option.max_stages)
        return min(self.limits.max_stages, sum(per_group.values()), self.setting.model.architecture.layers)

    def table(self, option: int, place: Place) -> StageTable:
        """Stage times of an option at a place of the pipeline, by depth and blocks."""
        key = (option, place)
        if key not in self._tables:
            entry = self.options[option]
            usable = self.setting.cluster.groups[entry.group].usable_bytes
            depths = 1 if place in ("last", "only") else self.max_stages
            self._tables[key] = stage_table(entry.costs, place, usable, depths)
        return self._tables[key]

    def count(self) -> int:
        """Configurations: stages per group and degrees, order not counted."""
        per_group: dict[int, int] = {}
        for option in self.options:
            per_group[option.group] = per_group.get(option.group, 0) + option.max_stages
        total = 1
        for stages in per_group.values():
            total *= 1 + stages
        return total - 1

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

    def cross_hop(self, a: int, b: int) -> float:
        """Hop from the last stage of option a to the first stage of option b, on two groups."""
        first, second = self.options[a], self.options[b]
        return self.setting.hop_s(first.costs, first.name, second.costs, second.name, 0)

    @cached_property
    def program_options(self) -> list[ProgramOption]:
        """The tables in the form that the program takes."""
        m = self.root.num_microbatches
        ahead = (np.minimum(np.arange(1, self.max_stages + 1), m) - 1.0)[:, None]

        found = []
        for o, entry in enumerate(self.options):
            middle, first, last = (self.table(o, place) for place in ("middle", "first", "last"))
            found.append(
                ProgramOption(
                    group=entry.group,
                    max_stages=entry.max_stages,
                    inner_hop_s=self.least_inner_hop[o],
                    middle_t=middle.time_s,
                    middle_c=tied(middle.forward_s, middle.backward_s, ahead, m),
                    first_t=first.time_s + first.after_s,
                    first_c=tied(first.forward_s, first.backward_s, ahead, m),
                    last_t=last.time_s[0],
                    last_c=tied(last.forward_s, last.backward_s, np.zeros((1, 1)), m)[0],
                )
            )
        return found

    def orders(self, structure: Structure) -> Iterator[Structure]:
        """The structure's groups in every order: all pairs of groups are linked."""
        yield from permutations(structure)

    def chain(self, structure: Structure) -> Chain:
        """The chain of a structure, stages in pipeline order."""
        forward, backward, after, hops = [], [], [], []
        total = sum(stages for _, stages in structure)
        at = 0
        for run, (option, stages) in enumerate(structure):
            for _ in range(stages):
                place: Place = "first" if at == 0 else "last" if at == total - 1 else "middle"
                table = self.table(option, place)
                depth = total - at
                forward.append(table.forward_s)
                backward.append(table.backward_s[depth - 1 if place != "last" else 0])
                after.append(table.after_s)
                at += 1
            hops += self.inner_hops(option, stages)
            if run + 1 < len(structure):
                hops.append(self.cross_hop(option, structure[run + 1][0]))
        tied = self._tied(structure[0][0], structure[-1][0])
        after[0] = after[0] + tied
        after[-1] = after[-1] + tied
        return Chain(
            forward_s=np.array(forward),
            backward_s=np.array(backward),
            after_s=np.array(after),
            hop_s=np.array(hops),
            num_microbatches=self.root.num_microbatches,
            fixed_s=self.setting.stack.step_fixed_s,
            counters=self.counters,
            pool=self.pools.setdefault(total, PathPool()),
        )

    def _tied(self, a: int, b: int) -> float:
        first, last = self.options[a], self.options[b]
        return self.setting.tied_sync_s(first.costs, first.name, last.costs, last.name)

    def plan(self, structure: Structure, split: Ints) -> Plan:
        """The plan of a split, with the recomputation that the tables chose."""
        stages = []
        total, layer, at = len(split), 0, 0
        for option, count in structure:
            for _ in range(count):
                place: Place = "first" if at == 0 else "last" if at == total - 1 else "middle"
                row = 0 if place == "last" else total - at - 1
                stages.append(self.stage(option, place, row, int(split[at]), layer))
                layer += int(split[at])
                at += 1
        return self.whole_plan(stages)

    def stage(self, option: int, place: Place, row: int, layers: int, first_layer: int) -> Stage:
        """One stage of a plan."""
        entry, table = self.options[option], self.table(option, place)
        selective, full = int(table.selective[row, layers]), int(table.full[row, layers])
        return Stage(
            group=entry.name,
            first_layer=first_layer,
            layers=layers,
            tp=entry.tp,
            dp=self.root.dp,
            microbatch_size=self.root.microbatch_size,
            recompute=Recompute(none=layers - selective - full, selective=selective, full=full),
            zero=self.root.zero,  # type: ignore[arg-type]
        )

    def whole_plan(self, stages: list[Stage]) -> Plan:
        """A plan of these stages."""
        return Plan(
            global_batch_size=self.setting.training.global_batch_size,
            num_microbatches=self.root.num_microbatches,
            sequence_parallel=True,
            stages=tuple(stages),
        )
