"""Plan -> Prediction: iteration time by the exact recurrence, memory by term, and what they mean.

    T = max over stages of (end of its last backward + gradient synchronisation + optimizer) + fixed time

Source of the form: each stage synchronises its gradients as soon as its own backward passes are over
(NVIDIA/Megatron-LM), and all meet at the end of the step.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise

import numpy as np

from hetplan.cost.collectives import Bridge, Fabric, bridge, fabric
from hetplan.cost.layers import EndCost, Work, model_flops_per_token
from hetplan.cost.profiles import StackSpec, load_stack
from hetplan.cost.stages import Degrees, StageCosts
from hetplan.errors import SpecError
from hetplan.plan import Plan, Stage, plan_mistakes
from hetplan.prediction import Binding, Breakdown, Idle, MemoryUse, Prediction, SingleType, StagePrediction, Verdict
from hetplan.schedule.schedules import schedule
from hetplan.schedule.simulator import stage_ends
from hetplan.specs.cluster import ClusterSpec, GroupSpec
from hetplan.specs.model import ModelSpec
from hetplan.specs.training import TrainingSpec

TIGHT = 0.05
"""A stage that leaves less of its memory free is tight: fragmentation alone often takes as much."""


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

    def costs(self, group: str, degrees: Degrees, sequence_parallel: bool, num_microbatches: int) -> StageCosts:
        """Stage costs on a group under one choice of degrees, kept for the next call."""
        key = (group, degrees, sequence_parallel, num_microbatches)
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
                num_microbatches=num_microbatches,
                shared_work=self._works.get(alike),
            )
            self._works.setdefault(alike, self._costs[key].work)
        return self._costs[key]

    def hop_s(self, a: StageCosts, group_a: str, b: StageCosts, group_b: str, position: int) -> float:
        """One-way hop between neighbouring stages; `position` counts the stages of group a from 0."""
        if group_a != group_b:
            return self.bridges[group_a, group_b].hop_s(a.side(), b.side())
        return a.inner_hop_s(position)

    def tied_sync_s(self, first: StageCosts, first_group: str, last: StageCosts, last_group: str) -> float:
        """All-reduce of the shared table's gradient between the first and the last stage.

        Two ranks that halve, add and gather send the whole once, both ways at the same time.
        """
        size = first.tied_bytes()
        if not size:
            return 0.0
        a, b = (replace(costs.side(), size=size) for costs in (first, last))
        if first_group != last_group:
            return self.bridges[first_group, last_group].hop_s(a, b)
        return first.fabric.hop_s(size, a.width, a.replicas, crosses=first.fabric.domains > 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Timed:
    """One stage on its way to a StagePrediction."""

    stage: Stage
    group: GroupSpec
    costs: StageCosts
    ends: tuple[EndCost, ...]
    forward_s: float
    backward_s: float
    recompute_s: float
    sync_s: float
    optimizer_s: float

    @property
    def microbatch_s(self) -> float:
        return self.forward_s + self.backward_s + self.recompute_s


def rules_broken(setting: Setting, plan: Plan, index: int) -> list[str]:
    """Why a stage could not run, whatever its time and memory."""
    stage, arch = plan.stages[index], setting.model.architecture
    group = setting.cluster.group(stage.group)
    reasons = []
    obstacle = arch.tp_obstacle(stage.tp)
    if obstacle:
        reasons.append(obstacle)
    if stage.tp * stage.cp > setting.fabrics[stage.group].domain:
        reasons.append(f"tp {stage.tp} x cp {stage.cp} spans more than the {group.domain} accelerators of a domain")
    if stage.zero >= 2 and len(plan.stages) > 1:
        reasons.append(f"ZeRO-{stage.zero} needs a plan without a pipeline")
    if stage.ep > 1 and (arch.experts == 0 or arch.experts % stage.ep or (stage.dp * stage.cp) % stage.ep):
        reasons.append(f"ep {stage.ep} must divide {arch.experts} experts and dp x cp = {stage.dp * stage.cp}")
    if setting.training.sequence_length % stage.cp:
        reasons.append(f"cp {stage.cp} must divide the sequence of {setting.training.sequence_length}")
    if not group.accelerator.supports(setting.training.precision):
        reasons.append(f"{group.accelerator.name} cannot train in {setting.training.precision}")
    return reasons


def predict(
    cluster: ClusterSpec,
    model: ModelSpec,
    plan: Plan,
    training: TrainingSpec,
    stack: StackSpec | None = None,
    single_types: tuple[SingleType, ...] | None = None,
) -> Prediction:
    """Iteration time and memory of a plan, with where they come from.

    `single_types` holds the best plan of each accelerator type alone, for the two ratios that need it.
    Raises SpecError where the plan does not belong to this cluster and model.
    """
    mistakes = plan_mistakes(plan, cluster, model, training)
    if mistakes:
        raise SpecError(*mistakes)
    setting = Setting(cluster=cluster, model=model, training=training, stack=stack or load_stack())
    return predict_in(setting, plan, single_types)


def _timed(setting: Setting, plan: Plan) -> Iterator[_Timed]:
    last = len(plan.stages) - 1
    for i, stage in enumerate(plan.stages):
        degrees = Degrees(
            tp=stage.tp,
            dp=stage.dp,
            cp=stage.cp,
            ep=stage.ep,
            microbatch_size=stage.microbatch_size,
            zero=stage.zero,
        )
        costs = setting.costs(stage.group, degrees, plan.sequence_parallel, plan.num_microbatches)
        ends = costs.ends(first=i == 0, last=i == last)
        start, stop = stage.first_layer, stage.first_layer + stage.layers
        held = costs.parameters(start, stop, ends)
        yield _Timed(
            stage=stage,
            group=setting.cluster.group(stage.group),
            costs=costs,
            ends=ends,
            forward_s=float(costs.forward_s(start, stop, ends)),
            backward_s=float(costs.backward_s(start, stop, ends)),
            recompute_s=float(costs.recompute_s(stop, stage.recompute.selective, stage.recompute.full)),
            sync_s=float(costs.gradient_sync_s(*held)),
            optimizer_s=float(costs.optimizer_s(*held)),
        )


def _hops(setting: Setting, stages: list[_Timed]) -> list[float]:
    """One-way seconds of a micro-batch's hop from each stage to the next."""
    found, position = [], 0
    for a, b in pairwise(stages):
        found.append(setting.hop_s(a.costs, a.group.name, b.costs, b.group.name, position))
        position = position + 1 if a.group is b.group else 0
    return found


def _bindings(stages: list[_Timed], links: list[float], plan: Plan) -> list[Binding]:
    """What stops each stage from taking another block."""
    slowest = max(s.microbatch_s for s in stages)
    order = schedule(plan.schedule.name)
    found: list[Binding] = []
    for i, s in enumerate(stages):
        near = [*links[max(0, i - 1) : i], *links[i : i + 1]]
        stop = s.stage.first_layer + s.stage.layers
        grown = s.stage.layers + 1
        start = max(0, stop - grown)
        flying = order.in_flight(len(stages), i, plan.num_microbatches)
        more = 0.0
        if start + grown <= stop:
            more = s.costs.memory(start, start + grown, 0, grown, s.ends, flying).total_bytes
        if s.microbatch_s >= 0.99 * slowest:
            found.append("link" if near and max(near) > s.microbatch_s else "compute")
        elif start + grown <= stop and more > s.group.usable_bytes:
            found.append("memory")
        else:
            found.append("none")
    return found


def stage_memory(setting: Setting, plan: Plan) -> tuple[MemoryUse, ...]:
    """Bytes on one accelerator of every stage, by term."""
    return tuple(_memory(s, i, plan) for i, s in enumerate(_timed(setting, plan)))


def _memory(timed: _Timed, index: int, plan: Plan) -> MemoryUse:
    recompute, start = timed.stage.recompute, timed.stage.first_layer
    flying = schedule(plan.schedule.name).in_flight(len(plan.stages), index, plan.num_microbatches)
    stop = start + timed.stage.layers
    return timed.costs.memory(start, stop, recompute.selective, recompute.full, timed.ends, flying)


def predict_in(setting: Setting, plan: Plan, single_types: tuple[SingleType, ...] | None = None) -> Prediction:
    """`predict` for a plan known to belong to the setting, which keeps costs between calls."""
    stages = list(_timed(setting, plan))
    links = _hops(setting, stages)
    m, count = plan.num_microbatches, len(stages)
    forward = np.array([[s.forward_s for s in stages]])
    backward = np.array([[s.backward_s + s.recompute_s for s in stages]])
    hop = np.array(links).reshape(1, count - 1)
    ends = stage_ends(plan.schedule.name, forward, backward, hop, m)[0]
    tied = 0.0
    if count > 1:
        first, last = stages[0], stages[-1]
        tied = setting.tied_sync_s(first.costs, first.group.name, last.costs, last.group.name)
    sync = np.array([s.sync_s for s in stages])
    sync[[0, -1]] += tied
    optimizer = np.array([s.optimizer_s for s in stages])
    fixed = setting.stack.step_fixed_s
    total = float((ends + (sync + optimizer)).max()) + fixed

    busy = m * (forward + backward)[0]
    idle = np.maximum(total - fixed - busy - sync - optimizer, 0.0)  # rounding may leave it just below
    slowest = int(np.argmax(busy))
    without = stage_ends(plan.schedule.name, forward, backward, hop * 0, m)[0]
    links_s = total - fixed - float((without + (sync + optimizer)).max())
    links_s = min(max(links_s, 0.0), float(idle[slowest]))
    worst = stages[slowest]
    breakdown = Breakdown(
        forward=m * worst.forward_s,
        backward=m * worst.backward_s,
        recompute=m * worst.recompute_s,
        fill_and_drain=float(idle[slowest]) - links_s,
        exposed_links=links_s,
        gradient_sync=float(sync[slowest]),
        optimizer=float(optimizer[slowest]),
        other=fixed,
    )

    warnings: list[str] = []
    bindings = _bindings(stages, links, plan)
    predicted = []
    for i, s in enumerate(stages):
        memory = _memory(s, i, plan)
        capacity = s.group.usable_bytes
        reasons = rules_broken(setting, plan, i)
        warnings += [f"stage {i}: {reason}" for reason in reasons]
        verdict: Verdict = "fits"
        if reasons:
            verdict = "illegal"
        elif memory.total_bytes > capacity:
            verdict = "oom"
        elif memory.total_bytes > (1 - TIGHT) * capacity:
            verdict = "tight"
        predicted.append(
            StagePrediction(
                group=s.group.name,
                accelerator=s.group.accelerator.name,
                accelerators=s.stage.accelerators,
                forward_s=m * s.forward_s,
                backward_s=m * (s.backward_s + s.recompute_s),
                recompute_s=m * s.recompute_s,
                idle_s=float(idle[i]),
                gradient_sync_s=float(sync[i]),
                optimizer_s=float(optimizer[i]),
                microbatch_s=s.microbatch_s,
                hop_s=links[i] if i < count - 1 else None,
                memory=memory,
                memory_capacity_bytes=capacity,
                verdict=verdict,
                binding=bindings[i],
            )
        )
    tight = [str(i) for i, stage in enumerate(predicted) if stage.verdict == "tight"]
    if tight:
        which = f"stages {', '.join(tight)} leave" if len(tight) > 1 else f"stage {tight[0]} leaves"
        warnings.append(f"{which} under {TIGHT:.0%} of memory free; fragmentation alone often takes as much")
    return _summary(setting, plan, total, breakdown, slowest, tuple(predicted), warnings, single_types)


def _summary(  # noqa: PLR0917 - the parts of one prediction
    setting: Setting,
    plan: Plan,
    total: float,
    breakdown: Breakdown,
    slowest: int,
    stages: tuple[StagePrediction, ...],
    warnings: list[str],
    single_types: tuple[SingleType, ...] | None,
) -> Prediction:
    """Efficiency, band and warnings around a timed plan."""
    training, cluster = setting.training, setting.cluster
    precision = training.precision
    used = {stage.group for stage in plan.stages}
    sheets = {group.name: group.accelerator for group in cluster.groups}
    runnable = [group for group in cluster.groups if group.accelerator.supports(precision)]
    estimated = sorted({sheets[name].name for name in used if not sheets[name].is_measured(precision)})
    if estimated:
        warnings.append(
            f"{', '.join(estimated)}: no measured {precision} rate, times rest on an estimated share of the datasheet's"
        )
    band = setting.stack.band_estimated if estimated else setting.stack.band
    tokens_per_s = training.global_batch_size * training.sequence_length / total
    flops = model_flops_per_token(setting.model.architecture, training.sequence_length) * tokens_per_s
    peak = sum(stage.accelerators * sheets[stage.group].peak_flops_per_s(precision) for stage in plan.stages)
    achievable = sum(g.accelerators * g.accelerator.achievable_flops_per_s(precision) for g in runnable)
    additive = best_single = None
    if single_types:
        known = [single.tokens_per_s for single in single_types if single.tokens_per_s is not None]
        if len(known) == len(single_types):
            additive = tokens_per_s / sum(known)
        if known:
            best_single = tokens_per_s / max(known)
    idle = []
    for group in cluster.groups:
        left = group.accelerators - sum(s.accelerators for s in plan.stages if s.group == group.name)
        idle.append(Idle(group=group.name, accelerators=left))
    return Prediction(
        iteration_time_s=total,
        iteration_time_low_s=total * (1 - band),
        iteration_time_high_s=total * (1 + band),
        tokens_per_s=tokens_per_s,
        mfu=flops / peak,
        additive_ratio=additive,
        roofline_ratio=flops / achievable,
        best_single_type_ratio=best_single,
        calibrated=not estimated,
        breakdown=breakdown,
        bottleneck=slowest,
        stages=stages,
        idle=tuple(idle),
        warnings=tuple(warnings),
    )
