"""How the model is trained: batch, sequence, number format, optimizer."""

from typing import Literal

from pydantic import Field

from hetplan.specs.accelerator import Format
from hetplan.specs.quantities import Spec

Optimizer = Literal["adam", "sgd"]


class TrainingSpec(Spec):
    """One training step. Every value can also be given on the command line, which wins."""

    global_batch_size: int = Field(512, ge=1, le=10_000_000, description="sequences per optimizer step")
    sequence_length: int = Field(4096, ge=1, le=100_000_000, description="tokens per sequence")
    precision: Format = Field("bf16", description="number format of the matrix products")
    optimizer: Optimizer = Field("adam", description="adam keeps 12 bytes per parameter, sgd with momentum 8")
