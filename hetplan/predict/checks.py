"""What makes a plan meaningless, so that it cannot even be timed, and what makes a stage illegal."""

from itertools import pairwise

from hetplan.errors import Mistake
from hetplan.plan import Plan
from hetplan.predict.setting import Setting
from hetplan.predict.timing import segments
from hetplan.schedule.schedules import schedule
from hetplan.specs.cluster import ClusterSpec
from hetplan.specs.model import ModelSpec
from hetplan.specs.training import TrainingSpec

Found = list[tuple[str, str, str]]
"""Key, what is wrong, hint."""


def plan_mistakes(plan: Plan, cluster: ClusterSpec, model: ModelSpec, training: TrainingSpec) -> list[Mistake]:
    """What makes a plan meaningless for these inputs: it cannot even be timed."""
    found = _schedule(plan)
    if schedule(plan.schedule.name).chunks(plan.schedule.virtual_stages) is None:
        found += _chunks(plan) or _layers(plan, model)
    names = [group.name for group in cluster.groups]
    for i, stage in enumerate(plan.stages):
        key = f"stages[{i}]"
        if stage.group not in names:
            found.append((f"{key}.group", f'no group "{stage.group}" in the cluster', f"groups: {', '.join(names)}"))
        batch = stage.dp * stage.microbatch_size * plan.num_microbatches
        if batch != plan.global_batch_size:
            product = f"dp {stage.dp} x microbatch {stage.microbatch_size} x {plan.num_microbatches} micro-batches"
            found.append((key, f"{product} is {batch}, not the global batch of {plan.global_batch_size}", ""))
    if plan.global_batch_size != training.global_batch_size:
        hint = f"the training block says {training.global_batch_size}"
        found.append(("global_batch_size", f"is {plan.global_batch_size}", hint))
    for group in cluster.groups:
        used = sum(stage.accelerators for stage in plan.stages if stage.group == group.name)
        if used > group.accelerators:
            message = f"uses {used} accelerators of group {group.name}, which has {group.accelerators}"
            found.append(("stages", message, ""))
    runs = [s.group for i, s in enumerate(plan.stages) if i == 0 or plan.stages[i - 1].group != s.group]
    meetings = list(pairwise(runs))
    if schedule(plan.schedule.name).shape == "loop" and len(runs) > 1 and runs[0] != runs[-1]:
        meetings.append((runs[-1], runs[0]))
    for a, b in meetings:
        if a in names and b in names and all(set(link.between) != {a, b} for link in cluster.links):
            found.append(("stages", f"neighbouring stages on {a} and {b}, which have no link", ""))
    return [Mistake(kind="plan", key=key, message=what, hint=hint) for key, what, hint in found]


def _schedule(plan: Plan) -> Found:
    """Numbers that the schedule does not exist for."""
    found: Found = []
    entry, stages = plan.schedule, len(plan.stages)
    order = schedule(entry.name)
    wrong = order.chunks(entry.virtual_stages)
    if wrong:
        found.append(("schedule.virtual_stages", f"is {entry.virtual_stages}", f"{entry.name} {wrong}"))
    obstacle = order.obstacle(stages, plan.num_microbatches)
    if obstacle:
        found.append(("schedule.name", f"{entry.name} {obstacle}", ""))
    if entry.warmup is not None:
        key = "schedule.warmup"
        if entry.name != "1f1b":
            found.append((key, f"{entry.name} has no further warm-up", "write null"))
        elif len(entry.warmup) != stages:
            found.append((key, f"has {len(entry.warmup)} numbers for {stages} stages", "one number per stage"))
        elif any(b > a for a, b in pairwise(entry.warmup)):
            found.append((key, "grows from a stage to the next", "a stage warms up at least as deep as the one below"))
    return found


def _chunks(plan: Plan) -> Found:
    """Chunks that are not those of the schedule, or do not add up to their stage."""
    found: Found = []
    chunks = plan.schedule.virtual_stages
    for i, stage in enumerate(plan.stages):
        key = f"stages[{i}]"
        if stage.chunks is None:
            if chunks > 1:
                found.append((f"{key}.chunks", "is missing", f"list the {chunks} chunks of the stage"))
        elif len(stage.chunks) != chunks or chunks == 1:
            hint = "write null" if chunks == 1 else f"the schedule has {chunks} chunks per stage"
            found.append((f"{key}.chunks", f"lists {len(stage.chunks)} chunks", hint))
        else:
            for field in ("layers", "recompute.none", "recompute.selective", "recompute.full"):
                own = _number(stage, field)
                total = sum(_number(chunk, field) for chunk in stage.chunks)
                if own != total:
                    found.append((f"{key}.{field}", f"is {own}, but the chunks have {total} in all", ""))
            if stage.first_layer != stage.chunks[0].first_layer:
                hint = "it is the first chunk's"
                found.append((f"{key}.first_layer", f"is {stage.first_layer}", hint))
    return found


def _number(part: object, field: str) -> int:
    for name in field.split("."):
        part = getattr(part, name)
    return int(part)  # type: ignore[call-overload, no-any-return]


def _layers(plan: Plan, model: ModelSpec) -> Found:
    """Layers that are lost, held twice, or out of order; recomputation that does not add up."""
    found: Found = []
    chunked = plan.schedule.virtual_stages > 1
    what = "chunk" if chunked else "stage"
    for route in segments(plan):
        layer = 0
        for stage, chunk in route:
            key = f"stages[{stage}].chunks[{chunk}]" if chunked else f"stages[{stage}]"
            part = plan.stages[stage].parts[chunk]
            if part.first_layer != layer:
                found.append((f"{key}.first_layer", f"is {part.first_layer}, but the {what} begins at {layer}", ""))
            if part.recompute.layers != part.layers:
                counted = f"recompute counts {part.recompute.layers} layers, the {what} has {part.layers}"
                found.append((f"{key}.recompute", counted, "none + selective + full = layers"))
            layer += part.layers
        if layer != model.architecture.layers:
            hint = f"the model has {model.architecture.layers}"
            found.append(("stages", f"the stages hold {layer} layers in all", hint))
    return found


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
    if stage.zero >= 2 and len(plan.stages) > 1 and not schedule(plan.schedule.name).once:
        reasons.append(f"ZeRO-{stage.zero} with a pipeline needs a schedule that passes a chunk once, as breadth-first")
    if stage.ep > 1 and (arch.experts == 0 or arch.experts % stage.ep or (stage.dp * stage.cp) % stage.ep):
        reasons.append(f"ep {stage.ep} must divide {arch.experts} experts and dp x cp = {stage.dp * stage.cp}")
    if setting.training.sequence_length % stage.cp:
        reasons.append(f"cp {stage.cp} must divide the sequence of {setting.training.sequence_length}")
    if not group.accelerator.supports(setting.training.precision):
        reasons.append(f"{group.accelerator.name} cannot train in {setting.training.precision}")
    return reasons
