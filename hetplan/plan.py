"""The plan as plain data: what every other room talks about."""

from itertools import pairwise
from typing import Literal

from pydantic import Field

from hetplan.errors import Mistake
from hetplan.specs.cluster import ClusterSpec
from hetplan.specs.model import ModelSpec
from hetplan.specs.quantities import Spec
from hetplan.specs.training import TrainingSpec


class Recompute(Spec):
    """How many of a stage's layers run with each kind of activation recomputation."""

    none: int = Field(0, ge=0, description="keep everything")
    selective: int = Field(0, ge=0, description="recompute the attention core")
    full: int = Field(0, ge=0, description="keep the layer's input alone")

    @property
    def layers(self) -> int:
        """Layers counted."""
        return self.none + self.selective + self.full


class Stage(Spec):
    """One pipeline stage: consecutive layers on accelerators of one group."""

    group: str = Field(description="group of cluster.yaml")
    first_layer: int = Field(ge=0, description="index of its first transformer block")
    layers: int = Field(ge=1, description="transformer blocks")
    tp: int = Field(1, ge=1, description="tensor parallel degree")
    dp: int = Field(1, ge=1, description="data parallel degree (replicas)")
    cp: int = Field(1, ge=1, description="context parallel degree")
    ep: int = Field(1, ge=1, description="expert parallel degree, inside tp x dp x cp")
    microbatch_size: int = Field(1, ge=1, description="sequences per micro-batch and replica")
    recompute: Recompute = Field(description="layers by recomputation; sums to layers")
    zero: Literal[0, 1, 2, 3] = Field(0, description="ZeRO stage over dp")

    @property
    def accelerators(self) -> int:
        """Accelerators that the stage occupies."""
        return self.tp * self.dp * self.cp


class Schedule(Spec):
    """Order of work in the pipeline."""

    name: Literal["1f1b"] = Field("1f1b", description="pipeline schedule")
    virtual_stages: int = Field(1, ge=1, description="chunks per stage")
    warmup: tuple[int, ...] | None = Field(None, description="extra warm-up micro-batches per stage")


class Plan(Spec):
    """Which layers run where, how they are split, and in which order."""

    schedule: Schedule = Field(default_factory=Schedule, description="pipeline schedule")
    global_batch_size: int = Field(ge=1, description="sequences per step")
    num_microbatches: int = Field(ge=1, description="micro-batches per replica and step")
    sequence_parallel: bool = Field(True, description="shard norms and residuals over tp")
    stages: tuple[Stage, ...] = Field(min_length=1, description="from the embedding to the head")

    @property
    def accelerators(self) -> int:
        """Accelerators in use."""
        return sum(stage.accelerators for stage in self.stages)


def plan_mistakes(plan: Plan, cluster: ClusterSpec, model: ModelSpec, training: TrainingSpec) -> list[Mistake]:
    """What makes a plan meaningless for these inputs: it cannot even be timed."""
    found: list[tuple[str, str, str]] = []
    names = [group.name for group in cluster.groups]
    if plan.schedule.virtual_stages != 1:
        hint = "only one chunk per stage is simulated"
        found.append(("schedule.virtual_stages", f"is {plan.schedule.virtual_stages}", hint))
    if plan.schedule.warmup is not None:
        found.append(("schedule.warmup", "extra warm-up is not simulated", "write null"))
    layer = 0
    for i, stage in enumerate(plan.stages):
        key = f"stages[{i}]"
        if stage.group not in names:
            found.append((f"{key}.group", f'no group "{stage.group}" in the cluster', f"groups: {', '.join(names)}"))
        if stage.first_layer != layer:
            found.append((f"{key}.first_layer", f"is {stage.first_layer}, but the stage begins at {layer}", ""))
        if stage.recompute.layers != stage.layers:
            counted = f"recompute counts {stage.recompute.layers} layers, the stage has {stage.layers}"
            found.append((f"{key}.recompute", counted, "none + selective + full = layers"))
        batch = stage.dp * stage.microbatch_size * plan.num_microbatches
        if batch != plan.global_batch_size:
            product = f"dp {stage.dp} x microbatch {stage.microbatch_size} x {plan.num_microbatches} micro-batches"
            found.append((key, f"{product} is {batch}, not the global batch of {plan.global_batch_size}", ""))
        layer += stage.layers
    if layer != model.architecture.layers:
        hint = f"the model has {model.architecture.layers}"
        found.append(("stages", f"the stages hold {layer} layers in all", hint))
    if plan.global_batch_size != training.global_batch_size:
        hint = f"the training block says {training.global_batch_size}"
        found.append(("global_batch_size", f"is {plan.global_batch_size}", hint))
    for group in cluster.groups:
        used = sum(stage.accelerators for stage in plan.stages if stage.group == group.name)
        if used > group.accelerators:
            message = f"uses {used} accelerators of group {group.name}, which has {group.accelerators}"
            found.append(("stages", message, ""))
    runs = [s.group for i, s in enumerate(plan.stages) if i == 0 or plan.stages[i - 1].group != s.group]
    for a, b in pairwise(runs):
        if a in names and b in names and all(set(link.between) != {a, b} for link in cluster.links):
            found.append(("stages", f"neighbouring stages on {a} and {b}, which have no link", ""))
    return [Mistake(kind="plan", key=key, message=what, hint=hint) for key, what, hint in found]
