"""What a pipeline schedule is: the order in which each stage does its work.

With v chunks (virtual stages) per stage and m micro-batches, an
operation is a number

    (kind v + chunk) m + micro-batch        kind: 0 forward, 1 backward, 2 weight gradients

and a stage's order is the row of its operations. Where a schedule splits the backward pass, kind 1 is the gradient
of the inputs alone, on which the stage above waits, and kind 2 the rest. `routes` says which chunks a micro-batch
passes. Everything else, such as activations in flight, follows from the order.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from hetplan.plan import ScheduleName

Ints = npt.NDArray[np.int64]
FORWARD, BACKWARD, WEIGHT = 0, 1, 2
Flow = Literal["line", "loop", "v", "both"]
"""How a micro-batch runs through the stages: once; v times around; down and up again; from both ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """The chunks that some micro-batches pass forward, first to last: stage and chunk of each."""

    microbatches: range
    stage: tuple[int, ...]
    chunk: tuple[int, ...]


class PipelineSchedule(ABC):
    """What a schedule tells the simulator, the memory model, the search and the reader."""

    name: ScheduleName
    description: str
    bubble: str
    """Idle time of every stage where all are alike, in F, B, W, p, v, m."""
    source: str
    frameworks: tuple[str, ...]
    """Which frameworks run it, under which name."""
    shape: Flow = "line"
    splits_backward = False
    """Whether weight gradients are operations of their own."""
    copies = 1
    """Copies of the model's weights in the pipeline."""
    once = False
    """Whether all micro-batches pass a chunk before the next one: ZeRO-2 and ZeRO-3 then move data once per chunk
    and step, not per micro-batch."""
    many = False
    """Whether a stage holds any number of chunks from 2."""
    two = False
    """Whether it holds exactly 2."""

    def chunks(self, virtual_stages: int) -> str | None:
        """What is wrong with this number of chunks per stage, None where nothing is."""
        if self.two:
            return None if virtual_stages == 2 else "takes 2 chunks per stage"
        if self.many:
            return None if virtual_stages >= 2 else "takes 2 or more chunks per stage"
        return None if virtual_stages == 1 else "takes 1 chunk per stage"

    def obstacle(self, stages: int, num_microbatches: int) -> str | None:
        """Why the schedule does not exist for these numbers, None where it does."""
        return None

    @abstractmethod
    def order(self, stages: int, num_microbatches: int, virtual_stages: int, warmup: tuple[int, ...]) -> Ints:
        """Operations of each stage in the order it does them, shape (p, operations).

        `warmup` holds further forwards of each stage ahead of its first backward, none where it is empty.
        """

    def level(self, stages: int, num_microbatches: int, warmup: tuple[int, ...]) -> Ints | None:
        """A number for each operation, shape (p, operations by number), that grows along every dependency.

        Operations of one number are independent of each other. None where it has to be worked out.
        """
        return None


def routes(shape: Flow, stages: int, virtual_stages: int, num_microbatches: int) -> tuple[Route, ...]:
    """The routes of all micro-batches."""
    p, everything = stages, range(num_microbatches)
    if shape == "v":
        down, up = tuple(range(p)), tuple(range(p - 1, -1, -1))
        return (Route(microbatches=everything, stage=down + up, chunk=(0,) * p + (1,) * p),)
    if shape == "both":
        half = num_microbatches // 2
        return (
            Route(microbatches=range(half), stage=tuple(range(p)), chunk=(0,) * p),
            Route(microbatches=range(half, num_microbatches), stage=tuple(range(p - 1, -1, -1)), chunk=(1,) * p),
        )
    stage = tuple(i % p for i in range(p * virtual_stages))
    return (Route(microbatches=everything, stage=stage, chunk=tuple(i // p for i in range(p * virtual_stages))),)


def ahead(stages: int, num_microbatches: int, warmup: tuple[int, ...] = ()) -> Ints:
    """w_j of 1F1B: forwards of each stage ahead of the pair of the last one before its first backward, shape (p,).

    min(p - j + further, m) - 1.
    """
    extra = np.array(warmup, dtype=np.int64) if warmup else np.zeros(stages, dtype=np.int64)
    before: Ints = np.minimum(stages - np.arange(stages) + extra, num_microbatches) - 1
    return before
