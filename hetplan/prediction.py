"""What is predicted of a plan, as plain data. `hetplan.predict` makes it, reports print it."""

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

Verdict = Literal["fits", "tight", "oom", "illegal"]
Binding = Literal["compute", "memory", "link", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryUse:
    """Bytes on one accelerator of a stage, by term."""

    weights_bytes: float
    gradients_bytes: float
    optimizer_bytes: float
    activations_bytes: float
    other_bytes: float

    @property
    def total_bytes(self) -> float:
        """All terms."""
        return (
            self.weights_bytes + self.gradients_bytes + self.optimizer_bytes + self.activations_bytes + self.other_bytes
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePrediction:
    """One stage: seconds per iteration unless said otherwise, bytes per accelerator."""

    group: str
    accelerator: str
    accelerators: int
    forward_s: float
    backward_s: float
    recompute_s: float
    idle_s: float
    gradient_sync_s: float
    optimizer_s: float
    microbatch_s: float
    """Forward and backward of one micro-batch, recomputation included."""
    hop_s: float | None
    """One-way transfer to the next stage; none on the last."""
    memory: MemoryUse
    memory_capacity_bytes: float
    verdict: Verdict
    binding: Binding


@dataclass(frozen=True, slots=True, kw_only=True)
class Breakdown:
    """Where the iteration goes on the slowest stage; sums to the iteration time."""

    forward: float
    backward: float
    recompute: float
    fill_and_drain: float
    exposed_links: float
    gradient_sync: float
    optimizer: float
    other: float

    @property
    def total_s(self) -> float:
        """All parts."""
        return (
            self.forward
            + self.backward
            + self.recompute
            + self.fill_and_drain
            + self.exposed_links
            + self.gradient_sync
            + self.optimizer
            + self.other
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Idle:
    """Accelerators of a group that the plan leaves unused."""

    group: str
    accelerators: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SingleType:
    """The best plan that uses accelerators of one type alone."""

    accelerator: str
    tokens_per_s: float | None
    """None where that type alone cannot run the model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Iteration time, memory and efficiency of one plan."""

    iteration_time_s: float
    iteration_time_low_s: float
    iteration_time_high_s: float
    """The 90 % band."""
    tokens_per_s: float
    mfu: float
    additive_ratio: float | None
    roofline_ratio: float
    best_single_type_ratio: float | None
    calibrated: bool
    breakdown: Breakdown
    bottleneck: int
    """Index of the slowest stage."""
    stages: tuple[StagePrediction, ...]
    idle: tuple[Idle, ...]
    warnings: tuple[str, ...]

    @property
    def fits(self) -> bool:
        """Whether every stage is legal and within memory."""
        return all(stage.verdict in ("fits", "tight") for stage in self.stages)


TraceKind = Literal["forward", "recompute", "backward", "weight", "transfer", "gradient_sync", "optimizer"]
TRACE_KINDS: tuple[TraceKind, ...] = get_args(TraceKind)
"""backward: input gradients alone where a schedule splits off the weight gradients (weight), else both."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """What every stage does when in one iteration: one entry per event, by stage and start."""

    iteration_time_s: float
    """The last event ends before it by the time that a step takes outside the pipeline."""
    kind: npt.NDArray[np.int64]
    """Index into TRACE_KINDS."""
    stage: npt.NDArray[np.int64]
    """The stage that works; of a transfer the one that receives."""
    chunk: npt.NDArray[np.int64]
    """Virtual stage on the stage, from 0; -1 for optimizer."""
    microbatch: npt.NDArray[np.int64]
    """From 0; -1 for gradient_sync and optimizer."""
    sender: npt.NDArray[np.int64]
    """The stage that sends; -1 for all but transfers."""
    start_s: npt.NDArray[np.float64]
    end_s: npt.NDArray[np.float64]
