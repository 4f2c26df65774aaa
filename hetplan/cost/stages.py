"""One pipeline stage: seconds and bytes of any run of blocks, vectorised over runs.

Recomputation inside a stage: the last `full` blocks recompute everything, the `selective` blocks before them
the attention core, the blocks before those nothing.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from hetplan.cost.collectives import Fabric, Side
from hetplan.cost.compute import rates
from hetplan.cost.layers import EndCost, Kind, LayerCost, Work
from hetplan.cost.memory import StateBytes, state_bytes
from hetplan.cost.profiles import StackSpec
from hetplan.prediction import MemoryUse
from hetplan.specs.accelerator import AcceleratorSpec
from hetplan.specs.model import ArchitectureSpec
from hetplan.specs.training import TrainingSpec

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Degrees:
    """How one stage is split: what may differ between the stages of a plan."""

    tp: int
    dp: int
    cp: int = 1
    ep: int = 1
    microbatch_size: int = 1
    zero: int = 0

    @property
    def width(self) -> int:
        """Accelerators of one replica."""
        return self.tp * self.cp

    @property
    def accelerators(self) -> int:
        """Accelerators of the stage."""
        return self.width * self.dp


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Consecutive blocks start .. stop - 1 of a stage, with how many recompute what."""

    start: int
    stop: int
    selective: int = 0
    full: int = 0
    ends: tuple[EndCost, ...] = ()


Holding = tuple[int, ...]
"""Micro-batches of each part whose activations a stage holds at some moment: those whose backward is still to come,
then those that wait for their weight gradients alone."""


@dataclass(frozen=True, kw_only=True)
class StageCosts:
    """Costs of stages on one group under one choice of degrees."""

    architecture: ArchitectureSpec
    training: TrainingSpec
    stack: StackSpec
    accelerator: AcceleratorSpec
    fabric: Fabric
    degrees: Degrees
    sequence_parallel: bool
    passes: int
    """How often in a step ZeRO-2 and ZeRO-3 move a block's gradients and weights: once per micro-batch, or once where
    the schedule takes all micro-batches through a chunk before the next."""
    shared_work: Work | None = None
    """Per-block costs worked out before: they depend neither on dp nor on ZeRO nor on micro-batches."""

    @cached_property
    def work(self) -> Work:
        """Per-block costs."""
        return self.shared_work or Work(
            architecture=self.architecture,
            training=self.training,
            stack=self.stack,
            rates=rates(self.accelerator, self.stack, self.training.precision),
            fabric=self.fabric,
            tp=self.degrees.tp,
            cp=self.degrees.cp,
            ep=self.degrees.ep,
            microbatch_size=self.degrees.microbatch_size,
            sequence_parallel=self.sequence_parallel and self.degrees.tp > 1,
        )

    @property
    def layers(self) -> dict[Kind, LayerCost]:
        """Cost of each kind of block that the model has."""
        return self.work.layers

    def prefix(self, field: str) -> Floats:
        """Sums of a LayerCost field over the first n blocks, shape (layers + 1,)."""
        return self.work.prefixes[field]

    @cached_property
    def state(self) -> StateBytes:
        """Training state per parameter outside the experts."""
        return state_bytes(self.training, self.stack, self.degrees.zero, self.degrees.dp * self.degrees.cp)

    @cached_property
    def expert_state(self) -> StateBytes:
        """Training state per expert parameter: shared by fewer ranks under expert parallelism."""
        shards = max(1, self.degrees.dp * self.degrees.cp // self.degrees.ep)
        return state_bytes(self.training, self.stack, self.degrees.zero, shards)

    def ends(self, *, first: bool, last: bool, together: bool = False) -> tuple[EndCost, ...]:
        """What the model's first and last part hold and do besides their blocks; `together`: on the same stage."""
        ends: tuple[EndCost, ...] = (self.work.embedding_cost,) if first else ()
        if last:
            ends += (self.work.lone_head_cost if first or together else self.work.head_cost,)
        return ends

    def forward_s(self, start: Any, stop: Any, ends: tuple[EndCost, ...]) -> Any:
        """Forward seconds of one micro-batch through blocks start..stop-1."""
        sums = self.prefix("forward_s")
        return sums[stop] - sums[start] + sum(end.forward_s for end in ends)

    def backward_s(self, start: Any, stop: Any, ends: tuple[EndCost, ...]) -> Any:
        """Backward seconds of one micro-batch without recomputation."""
        sums = self.prefix("backward_s")
        return sums[stop] - sums[start] + sum(end.backward_s for end in ends)

    def weight_s(self, start: Any, stop: Any, ends: tuple[EndCost, ...]) -> Any:
        """The part of `backward_s` that works out weight gradients."""
        sums = self.prefix("weight_s")
        return sums[stop] - sums[start] + sum(end.weight_s for end in ends)

    def recompute_s(self, stop: Any, selective: Any, full: Any) -> Any:
        """Extra backward seconds of one micro-batch for recomputation."""
        core, whole = self.prefix("selective_s"), self.prefix("full_s")
        return whole[stop] - whole[stop - full] + core[stop - full] - core[stop - full - selective]

    def parameters(self, start: Any, stop: Any, ends: tuple[EndCost, ...]) -> tuple[Any, Any]:
        """Parameters held by one accelerator: all but routed experts, and routed experts."""
        dense, experts = self.prefix("parameters"), self.prefix("expert_parameters")
        return (
            dense[stop] - dense[start] + sum(end.parameters for end in ends),
            experts[stop] - experts[start] + sum(end.expert_parameters for end in ends),
        )

    def state_bytes(self, start: Any, stop: Any, ends: tuple[EndCost, ...]) -> Any:
        """Bytes of weights, gradients and optimizer state."""
        dense, experts = self.parameters(start, stop, ends)
        return dense * self.state.total + experts * self.expert_state.total

    def kept_bytes(self, start: Any, stop: Any, selective: Any, full: Any, ends: tuple[EndCost, ...]) -> Any:
        """Activation bytes kept for one micro-batch in flight."""
        none, core, whole = self.prefix("kept_bytes"), self.prefix("selective_bytes"), self.prefix("full_bytes")
        after_none, after_core = stop - full - selective, stop - full
        return (
            none[after_none]
            - none[start]
            + core[after_core]
            - core[after_none]
            + whole[stop]
            - whole[after_core]
            + sum(end.kept_bytes for end in ends)
        )

    @cached_property
    def block_bytes(self) -> float:
        """Activations of one block at work while it is recomputed in full."""
        return max(cost.kept_bytes for cost in self.layers.values())

    def fixed_bytes(self, ends: tuple[EndCost, ...]) -> float:
        """Bytes that depend neither on blocks nor on micro-batches in flight: logits, workspace, gathered weights."""
        gathered = 0.0
        if self.degrees.zero == 3:
            block = max(cost.parameters + cost.expert_parameters for cost in self.layers.values())
            largest = sorted([block, block, *(end.parameters + end.expert_parameters for end in ends)])[-2:]
            gathered = sum(largest) * self.work.rates.element_bytes
        return sum(end.transient_bytes for end in ends) + self.stack.workspace_bytes + gathered

    def memory(self, parts: tuple[Part, ...], holdings: tuple[Holding, ...]) -> MemoryUse:
        """Bytes on one accelerator of a stage, by term, at the worst of its holdings.

        A micro-batch that waits for its weight gradients alone is held without recomputation.
        """
        dense = experts = 0.0
        kept, whole = [], []
        for part in parts:
            held = self.parameters(part.start, part.stop, part.ends)
            dense, experts = dense + float(held[0]), experts + float(held[1])
            kept.append(float(self.kept_bytes(part.start, part.stop, part.selective, part.full, part.ends)))
            whole.append(float(self.kept_bytes(part.start, part.stop, 0, 0, part.ends)))
        activations = max(
            sum(count * size for count, size in zip(holding, kept + whole, strict=True)) for holding in holdings
        )
        recomputed = self.block_bytes if any(part.full for part in parts) else 0.0
        return MemoryUse(
            weights_bytes=dense * self.state.weights + experts * self.expert_state.weights,
            gradients_bytes=dense * self.state.gradients + experts * self.expert_state.gradients,
            optimizer_bytes=dense * self.state.optimizer + experts * self.expert_state.optimizer,
            activations_bytes=activations + recomputed,
            other_bytes=self.fixed_bytes(tuple(end for part in parts for end in part.ends)),
        )

    def gradient_sync_s(self, dense: Any, experts: Any) -> Any:
        """Exposed seconds of gradient reduction and weight gathering after (ZeRO-2, 3: during) the pipeline.

        ZeRO-0 all-reduces gradients; ZeRO-1 reduce-scatters them and all-gathers the new weights; ZeRO-2
        reduce-scatters after every micro-batch; ZeRO-3 also gathers the weights twice per micro-batch.
        Source: Rajbhandari et al. 2020 (ZeRO), section 7.
        """
        degrees, fabric = self.degrees, self.fabric
        element = self.work.rates.element_bytes
        wire = element if self.training.precision in ("fp32", "tf32") else self.stack.gradient_bytes

        def exchange(parameters: Any, width: int, replicas: int) -> Any:
            reduce = fabric.replicas_s(parameters * wire, width, replicas)
            gather = fabric.replicas_s(parameters * (wire if degrees.zero == 0 else element), width, replicas)
            after, during = self.stack.gradient_sync_exposed, self.stack.weight_gather_exposed
            if degrees.zero <= 1:
                return (reduce + gather) * after
            if degrees.zero == 2:
                return self.passes * reduce * during + gather * after
            return self.passes * (reduce + 2 * gather) * during

        ranks = degrees.dp * degrees.cp
        time = exchange(dense, degrees.tp, ranks)
        if "moe" in self.layers:
            time = time + exchange(experts, degrees.tp * degrees.ep, max(1, ranks // degrees.ep))
        return time

    def optimizer_s(self, dense: Any, experts: Any) -> Any:
        """Seconds of the optimizer on this accelerator's share."""
        shards = self.degrees.dp * self.degrees.cp if self.degrees.zero else 1
        expert_shards = max(1, shards // self.degrees.ep)
        moved = (dense / shards + experts / expert_shards) * self.stack.optimizer_traffic_bytes
        return moved / self.work.rates.memory_bytes_per_s

    def side(self) -> Side:
        """This stage as one end of a hop: activations of one micro-batch per replica."""
        hidden = self.training.sequence_length * self.architecture.hidden_size
        size = self.degrees.microbatch_size * hidden * self.work.rates.element_bytes
        return Side(fabric=self.fabric, width=self.degrees.width, replicas=self.degrees.dp, size=size)

    def inner_hop_s(self, stage: int) -> float:
        """One-way hop from stage `stage` of this group (counted from 0) to its next one."""
        side = self.side()
        crosses = self.fabric.crosses(side.width, side.replicas, stage)
        return self.fabric.hop_s(side.size, side.width, side.replicas, crosses=crosses)

    def wrap_hop_s(self, stages: int) -> float:
        """One-way hop from the last of this group's `stages` stages back to its first."""
        side = self.side()
        per_domain = self.fabric.replicas_per_domain(side.width)
        crosses = self.fabric.domains > 1 and stages * side.replicas > per_domain
        return self.fabric.hop_s(side.size, side.width, side.replicas, crosses=crosses)

    def gradient_bytes(self, dense: float, experts: float) -> float:
        """Gradient bytes of a replica, spread over the replicas: what two copies of a chunk exchange per replica."""
        element = self.work.rates.element_bytes
        wire = element if self.training.precision in ("fp32", "tf32") else self.stack.gradient_bytes
        return (dense + experts) * wire * self.degrees.width / self.degrees.dp

    def tied_bytes(self) -> float:
        """Gradient bytes of the shared table that first and last stage exchange per replica, summed over ranks."""
        if not self.architecture.tied_embeddings:
            return 0.0
        rows = self.work.vocabulary * self.degrees.tp
        return rows * self.architecture.embedding_width * float(self.stack.gradient_bytes)
