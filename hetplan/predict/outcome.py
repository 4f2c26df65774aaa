"""Plan -> Prediction: iteration time by the exact recurrence, memory by term, and what they mean.

    T = max over stages of (end of its last backward + gradient synchronisation + optimizer) + fixed time

Source of the form: each stage synchronises its gradients as soon as its own backward passes are over
(NVIDIA/Megatron-LM), chunk by chunk where it holds several, and all meet at the end of the step.
"""

from dataclasses import replace

import numpy as np

from hetplan.cost.layers import model_flops_per_token
from hetplan.cost.profiles import StackSpec, load_stack
from hetplan.errors import SpecError
from hetplan.plan import Plan
from hetplan.predict.checks import plan_mistakes, rules_broken
from hetplan.predict.setting import Setting
from hetplan.predict.timing import Timing, timing
from hetplan.prediction import Binding, Breakdown, Idle, Prediction, SingleType, StagePrediction, Verdict
from hetplan.schedule.holdings import holdings
from hetplan.schedule.simulator import Floats
from hetplan.specs.cluster import ClusterSpec
from hetplan.specs.model import ModelSpec
from hetplan.specs.training import TrainingSpec

TIGHT = 0.05
"""A stage that leaves less of its memory free is tight: fragmentation alone often takes as much."""


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


def _bindings(timed: Timing) -> list[Binding]:
    """What stops each stage from taking another block."""
    stages, links = timed.stages, timed.hop_s.tolist()
    times = [timed.microbatch_s(i) for i in range(len(stages))]
    slowest = max(times)
    found: list[Binding] = []
    for i, s in enumerate(stages):
        near = [*links[max(0, i - 1) : i], *links[i : i + 1]]
        if times[i] >= 0.99 * slowest:
            found.append("link" if near and max(near) > times[i] else "compute")
        elif _grown_bytes(timed, i) > s.group.usable_bytes:
            found.append("memory")
        else:
            found.append("none")
    return found


def _grown_bytes(timed: Timing, index: int) -> float:
    """Bytes of a stage with one more block, recomputing everything; 0 where there is no block before its first chunk.

    The block is the one before, so that the stage holds a run that exists.
    """
    stage = timed.stages[index]
    grown = [replace(part, selective=0, full=part.stop - part.start) for part in stage.parts]
    roomy = next((i for i, part in enumerate(grown) if part.start > 0), None)
    if roomy is None:
        return 0.0
    part = grown[roomy]
    grown[roomy] = replace(part, start=part.start - 1, full=part.full + 1)
    return stage.costs.memory(tuple(grown), holdings(timed.shape, index)).total_bytes


def _breakdown(timed: Timing, total: float, idle: Floats, slowest: int) -> Breakdown:
    """Where the iteration goes on the slowest stage."""
    setting, worst, m = timed.setting, timed.stages[slowest], timed.passes_per_chunk
    fixed = setting.stack.step_fixed_s
    links_s = total - fixed - float(timed.finishes(timed.hop_s * 0).max())
    links_s = min(max(links_s, 0.0), float(idle[slowest]))
    return Breakdown(
        forward=m * worst.total("forward_s"),
        backward=m * worst.total("backward_s"),
        recompute=m * worst.total("recompute_s"),
        fill_and_drain=float(idle[slowest]) - links_s,
        exposed_links=links_s,
        gradient_sync=float(timed.exposed_sync_s[slowest]),
        optimizer=float(timed.optimizer_s[slowest]),
        other=fixed,
    )


def predict_in(setting: Setting, plan: Plan, single_types: tuple[SingleType, ...] | None = None) -> Prediction:
    """`predict` for a plan known to belong to the setting, which keeps costs between calls."""
    timed = timing(setting, plan)
    m, count = timed.passes_per_chunk, len(timed.stages)
    fixed = setting.stack.step_fixed_s
    total = float(timed.finishes().max()) + fixed
    # Chunks may reduce their gradients while others still work: only what follows the last operation takes time.
    sync, optimizer = timed.exposed_sync_s, timed.optimizer_s
    busy = m * timed.work_s.sum(axis=1)
    idle = np.maximum(total - fixed - busy - sync - optimizer, 0.0)  # rounding may leave it just below
    slowest = int(np.argmax(busy))
    warnings: list[str] = []
    bindings = _bindings(timed)
    predicted = []
    for i, s in enumerate(timed.stages):
        memory = timed.memory(i)
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
                forward_s=m * s.total("forward_s"),
                backward_s=m * (s.total("backward_s") + s.total("recompute_s")),
                recompute_s=m * s.total("recompute_s"),
                idle_s=float(idle[i]),
                gradient_sync_s=float(sync[i]),
                optimizer_s=float(optimizer[i]),
                microbatch_s=timed.microbatch_s(i),
                hop_s=float(timed.hop_s[i]) if i < count - 1 else None,
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
    breakdown = _breakdown(timed, total, idle, slowest)
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
