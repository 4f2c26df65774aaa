"""What a plan is judged against: cluster, model, training and stack, with costs kept between plans."""

from dataclasses import dataclass, field, replace
from functools import cached_property

from hetplan.cost.collectives import Bridge, Fabric, bridge, fabric
from hetplan.cost.layers import Work
from hetplan.cost.profiles import StackSpec
from hetplan.cost.stages import Degrees, StageCosts
from hetplan.specs.cluster import ClusterSpec
from hetplan.specs.model import ModelSpec
from hetplan.specs.training import TrainingSpec


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Everything a plan is judged against."""

    cluster: ClusterSpec
    model: ModelSpec
    training: TrainingSpec
    stack: StackSpec
    _works: dict[tuple[str, Degrees, bool], Work] = field(default_factory=dict, repr=False, compare=False)
    _costs: dict[tuple[str, Degrees, bool, int], StageCosts] = field(default_factory=dict, repr=False, compare=False)

    @cached_property
    def fabrics(self) -> dict[str, Fabric]:
        """The links inside each group."""
        return {group.name: fabric(group, self.stack) for group in self.cluster.groups}

    @cached_property
    def bridges(self) -> dict[tuple[str, str], Bridge]:
        """The links between groups, both ways round."""
        groups = self.cluster.groups
        found = {}
        for i, a in enumerate(groups):
            for b in groups[i + 1 :]:
                found[a.name, b.name] = bridge(self.cluster, a, b, self.stack)
                found[b.name, a.name] = found[a.name, b.name].mirrored()
        return found

    def costs(self, group: str, degrees: Degrees, sequence_parallel: bool, passes: int) -> StageCosts:
        """Stage costs on a group under one choice of degrees, kept for the next call."""
        key = (group, degrees, sequence_parallel, passes if degrees.zero >= 2 else 1)
        if key not in self._costs:
            alike = (group, replace(degrees, dp=1, zero=0), sequence_parallel)
            self._costs[key] = StageCosts(
                architecture=self.model.architecture,
                training=self.training,
                stack=self.stack,
                accelerator=self.cluster.group(group).accelerator,
                fabric=self.fabrics[group],
                degrees=degrees,
                sequence_parallel=sequence_parallel,
                passes=passes,
                shared_work=self._works.get(alike),
            )
            self._works.setdefault(alike, self._costs[key].work)
        return self._costs[key]

    def hop_s(self, a: StageCosts, group_a: str, b: StageCosts, group_b: str, position: int) -> float:
        """One-way hop between neighbouring stages; `position` counts the stages of group a from 0."""
        if group_a != group_b:
            return self.bridges[group_a, group_b].hop_s(a.side(), b.side())
        return a.inner_hop_s(position)

    def exchange_s(
        self, a: StageCosts, group_a: str, size_a: float, b: StageCosts, group_b: str, size_b: float
    ) -> float:
        """Two stages that hold the same weights exchange gradients, `size` bytes per replica and side.

        Two ranks that halve, add and gather send the whole once, both ways at the same time.
        """
        if group_a != group_b:
            return self.bridges[group_a, group_b].hop_s(replace(a.side(), size=size_a), replace(b.side(), size=size_b))
        side = a.side()
        return a.fabric.hop_s(size_a, side.width, side.replicas, crosses=a.fabric.domains > 1)

    def tied_sync_s(self, first: StageCosts, first_group: str, last: StageCosts, last_group: str) -> float:
        """All-reduce of the shared table's gradient between the first and the last stage."""
        size = first.tied_bytes()
        if not size:
            return 0.0
        return self.exchange_s(first, first_group, size, last, last_group, last.tied_bytes())
