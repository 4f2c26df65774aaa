"""A plan's stages in seconds and bytes, and the shape of its pipeline: what the simulator and the trace take."""

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from hetplan.cost.layers import EndCost
from hetplan.cost.stages import Degrees, Part, StageCosts
from hetplan.plan import Plan, Stage
from hetplan.predict.setting import Setting
from hetplan.prediction import MemoryUse
from hetplan.schedule.base import routes
from hetplan.schedule.holdings import holdings
from hetplan.schedule.schedules import schedule
from hetplan.schedule.simulator import Floats, Shape, compile_shape, step_s
from hetplan.specs.cluster import GroupSpec


def segments(plan: Plan) -> list[list[tuple[int, int]]]:
    """Stage and chunk of every run of layers in the model's order; two such lists where weights are held twice."""
    entry = plan.schedule
    shape = schedule(entry.name).shape
    found = routes(shape, len(plan.stages), entry.virtual_stages, plan.num_microbatches)
    return [list(zip(route.stage, route.chunk, strict=True)) for route in found]


def shape_of(setting: Setting, plan: Plan) -> Shape:
    """What the simulator needs to know of a plan besides seconds."""
    warmup = plan.schedule.warmup or ()
    return Shape(
        schedule=plan.schedule.name,
        stages=len(plan.stages),
        num_microbatches=plan.num_microbatches,
        virtual_stages=plan.schedule.virtual_stages,
        warmup=warmup if any(warmup) else (),
        transfers=setting.stack.transfers,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PartTimes:
    """One chunk of a stage: seconds of a micro-batch, and of what follows its last backward."""

    forward_s: float
    backward_s: float
    weight_s: float
    """Part of `backward_s`."""
    recompute_s: float
    sync_s: float
    optimizer_s: float
    held: tuple[float, float]
    """Parameters on one accelerator: all but routed experts, and routed experts."""


@dataclass(frozen=True, kw_only=True)
class StageTimes:
    """One stage of a plan."""

    stage: Stage
    group: GroupSpec
    costs: StageCosts
    parts: tuple[Part, ...]

    @cached_property
    def times(self) -> tuple[PartTimes, ...]:
        """Of each chunk."""
        return tuple(self._part(part) for part in self.parts)

    def _part(self, part: Part) -> PartTimes:
        costs, start, stop, ends = self.costs, part.start, part.stop, part.ends
        dense, experts = costs.parameters(start, stop, ends)
        return PartTimes(
            forward_s=float(costs.forward_s(start, stop, ends)),
            backward_s=float(costs.backward_s(start, stop, ends)),
            weight_s=float(costs.weight_s(start, stop, ends)),
            recompute_s=float(costs.recompute_s(stop, part.selective, part.full)),
            sync_s=float(costs.gradient_sync_s(dense, experts)),
            optimizer_s=float(costs.optimizer_s(dense, experts)),
            held=(float(dense), float(experts)),
        )

    def total(self, field: str) -> float:
        """Sum of a field over the chunks."""
        return float(sum(getattr(part, field) for part in self.times))

    @property
    def ends(self) -> tuple[EndCost, ...]:
        """Embedding and head, where the stage holds them."""
        return tuple(end for part in self.parts for end in part.ends)

    @property
    def microbatch_s(self) -> float:
        """Forward, backward and recomputation of one pass through every chunk."""
        return self.total("forward_s") + self.total("backward_s") + self.total("recompute_s")


@dataclass(frozen=True, kw_only=True)
class Timing:
    """A plan with the seconds of its stages and hops."""

    setting: Setting
    plan: Plan
    shape: Shape
    stages: tuple[StageTimes, ...]

    @property
    def passes_per_chunk(self) -> int:
        """Micro-batches that pass a chunk."""
        return self.plan.num_microbatches // schedule(self.shape.schedule).copies

    @cached_property
    def work_s(self) -> Floats:
        """Seconds of every unit, shape (p, units); recomputation stands at the start of the backward pass."""
        rows = []
        for stage in self.stages:
            times = stage.times
            row = [part.forward_s for part in times]
            if schedule(self.shape.schedule).splits_backward:
                row += [part.backward_s - part.weight_s + part.recompute_s for part in times]
                row += [part.weight_s for part in times]
            else:
                row += [part.backward_s + part.recompute_s for part in times]
            rows.append(row)
        return np.array(rows)

    @cached_property
    def hop_s(self) -> Floats:
        """One-way seconds from each stage to the next, the last one's back to the first (0 unless taken), (p,)."""
        found, position = [], 0
        for a, b in pairwise(self.stages):
            found.append(self.setting.hop_s(a.costs, a.group.name, b.costs, b.group.name, position))
            position = position + 1 if a.group is b.group else 0
        a, b = self.stages[-1], self.stages[0]
        if not self.shape.loops or len(self.stages) == 1:
            found.append(0.0)
        elif a.group is b.group:
            found.append(a.costs.wrap_hop_s(len(self.stages)))
        else:
            found.append(self.setting.hop_s(a.costs, a.group.name, b.costs, b.group.name, 0))
        return np.array(found)

    @cached_property
    def sync_s(self) -> Floats:
        """Gradient synchronisation of each chunk, shape (p, v)."""
        sync = np.array([[part.sync_s for part in stage.times] for stage in self.stages])
        p = len(self.stages)
        if schedule(self.shape.schedule).copies == 2:
            for j in range(p):
                for c in (0, 1):
                    a, b = self.stages[j], self.stages[p - 1 - j]
                    sizes = [s.costs.gradient_bytes(*s.times[k].held) for s, k in ((a, c), (b, 1 - c))]
                    sync[j, c] += self.setting.exchange_s(
                        a.costs, a.group.name, sizes[0], b.costs, b.group.name, sizes[1]
                    )
            return sync
        route = segments(self.plan)[0]
        (j, c), (k, d) = route[0], route[-1]
        if j != k:
            first, last = self.stages[j], self.stages[k]
            tied = self.setting.tied_sync_s(first.costs, first.group.name, last.costs, last.group.name)
            sync[j, c] += tied
            sync[k, d] += tied
        return sync

    @cached_property
    def optimizer_s(self) -> Floats:
        """Seconds of every stage's optimizer, shape (p,)."""
        return np.array([stage.total("optimizer_s") for stage in self.stages])

    @cached_property
    def after_s(self) -> Floats:
        """What follows each chunk's last backward, shape (p, v): the optimizer runs when the last one is complete."""
        after = self.sync_s.copy()
        if self.shape.stages == 1 and self.shape.virtual_stages == 1:
            after[:, 0] += self.optimizer_s
            return after
        last = compile_shape(self.shape).completion[:, -1]
        after[np.arange(len(self.stages)), last] += self.optimizer_s
        return after

    def finishes(self, hop_s: Floats | None = None) -> Floats:
        """When every stage has done all, shape (p,), with other hops where given."""
        hops = self.hop_s if hop_s is None else hop_s
        found: Floats = step_s(self.shape, self.work_s[None], hops[None], self.after_s[None])[0]
        return found

    @cached_property
    def exposed_sync_s(self) -> Floats:
        """Seconds of every stage's gradient synchronisation that follow its last operation, shape (p,)."""
        alone = step_s(self.shape, self.work_s[None], self.hop_s[None], 0 * self.after_s[None])[0]
        exposed: Floats = np.maximum(self.finishes() - alone - self.optimizer_s, 0.0)
        # Rounding leaves a trace where there is nothing to synchronise.
        return np.where(self.sync_s.sum(axis=1) > 0, exposed, 0.0)

    def microbatch_s(self, index: int) -> float:
        """Forward, backward and recomputation of one micro-batch on a stage."""
        return self.stages[index].microbatch_s / schedule(self.shape.schedule).copies

    def memory(self, index: int) -> MemoryUse:
        """Bytes on one accelerator of a stage."""
        stage = self.stages[index]
        return stage.costs.memory(stage.parts, holdings(self.shape, index))


def timing(setting: Setting, plan: Plan) -> Timing:
    """A plan known to belong to the setting, with its seconds."""
    shape = shape_of(setting, plan)
    order = schedule(plan.schedule.name)
    routes_ = segments(plan)
    first = {route[0] for route in routes_}
    last = {route[-1] for route in routes_}
    with_embedding = {stage for stage, _ in first}
    passes = 1 if order.once else plan.num_microbatches
    stages = []
    for i, stage in enumerate(plan.stages):
        degrees = Degrees(
            tp=stage.tp,
            dp=stage.dp,
            cp=stage.cp,
            ep=stage.ep,
            microbatch_size=stage.microbatch_size,
            zero=stage.zero,
        )
        costs = setting.costs(stage.group, degrees, plan.sequence_parallel, passes)
        parts = tuple(
            Part(
                start=part.first_layer,
                stop=part.first_layer + part.layers,
                selective=part.recompute.selective,
                full=part.recompute.full,
                ends=costs.ends(first=(i, c) in first, last=(i, c) in last, together=i in with_embedding),
            )
            for c, part in enumerate(stage.parts)
        )
        group = setting.cluster.group(stage.group)
        stages.append(StageTimes(stage=stage, group=group, costs=costs, parts=parts))
    return Timing(setting=setting, plan=plan, shape=shape, stages=tuple(stages))


def stage_memory(setting: Setting, plan: Plan) -> tuple[MemoryUse, ...]:
    """Bytes on one accelerator of every stage, by term."""
    whole = timing(setting, plan)
    return tuple(whole.memory(i) for i in range(len(plan.stages)))
