"""Bytes on one accelerator: parameters with their training state, and activations.

Bytes per parameter in 16-bit training with Adam: 2 weight + 4 gradient + 4 master weight + 8 moments = 18.
ZeRO-1 spreads the last 12 over the data-parallel ranks, ZeRO-2 the gradients too, ZeRO-3 everything (and then
gathers two blocks' weights at a time, or a block's and a larger table's).
Source: NVIDIA/Megatron-LM theoretical_memory_usage.py.
"""

from dataclasses import dataclass

from hetplan.cost.profiles import StackSpec
from hetplan.specs.training import TrainingSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class StateBytes:
    """Bytes per parameter held by one accelerator, after sharding."""

    weights: float
    gradients: float
    optimizer: float

    @property
    def total(self) -> float:
        """All training state of one parameter."""
        return self.weights + self.gradients + self.optimizer


def state_bytes(training: TrainingSpec, stack: StackSpec, zero: int, shards: int) -> StateBytes:
    """Bytes per parameter under a ZeRO stage over `shards` data-parallel ranks."""
    wide = training.precision in ("fp32", "tf32")
    weights: float = 4 if wide else 2
    gradients: float = 4 if wide else stack.gradient_bytes
    moments = 8 if training.optimizer == "adam" else 4
    optimizer: float = moments + (0 if wide else 4)
    if zero >= 1:
        optimizer /= shards
    if zero >= 2:
        gradients /= shards
    if zero >= 3:
        weights /= shards
    return StateBytes(weights=weights, gradients=gradients, optimizer=optimizer)
