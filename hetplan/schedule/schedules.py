"""Pipeline schedules: the order in which each stage does its work.

A schedule is a class and its entry in `SCHEDULES`.
"""

from typing import Protocol

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


class PipelineSchedule(Protocol):
    """What a schedule tells the simulator, the memory model and the reader."""

    name: str
    description: str

    def order(self, stages: int, num_microbatches: int) -> Ints:
        """Operations of each stage in the order it does them, shape (p, 2 m): i is forward i, m + i backward i."""
        ...

    def level(self, stages: int, num_microbatches: int) -> Ints:
        """A number for each operation that grows along every dependency, shape (p, 2 m), columns as in `order`.

        Operations of one number are independent of each other.
        """
        ...

    def in_flight(self, stages: int, stage: int, num_microbatches: int) -> int:
        """Micro-batches whose activations the stage holds at once, at most."""
        ...


class OneForwardOneBackward:
    """1F1B, non-interleaved (Narayanan et al., SC'21): warm up, then one forward and one backward in turn."""

    name = "1f1b"
    description = "one forward, one backward in turn after a warm-up of the stages below"

    def order(self, stages: int, num_microbatches: int) -> Ints:
        """Warm-up forwards, pairs of one forward and one backward, the backwards left."""
        m = num_microbatches
        rows = []
        for stage in range(stages):
            warmup = min(stages - 1 - stage, m)
            steady = np.arange(m - warmup)
            pairs = np.stack([warmup + steady, m + steady], axis=1).ravel()
            rows.append(np.concatenate([np.arange(warmup), pairs, np.arange(2 * m - warmup, 2 * m)]))
        return np.array(rows, dtype=np.int64)

    def level(self, stages: int, num_microbatches: int) -> Ints:
        """When each operation would run if all took one unit of time: counted from 1.

        Forward i of stage j at j + 1 + i during the warm-up and j + 1 + 2 i after it; backward i at 2 p - j + 2 i.
        """
        j = np.arange(stages)[:, None]
        i = np.arange(num_microbatches)[None, :]
        forward = np.where(i <= stages - 1 - j, j + 1 + i, j + 1 + 2 * i)
        return np.concatenate([forward, 2 * stages - j + 2 * i], axis=1)

    def in_flight(self, stages: int, stage: int, num_microbatches: int) -> int:
        """min(p - stage, m)."""
        return min(stages - stage, num_microbatches)


SCHEDULES: tuple[PipelineSchedule, ...] = (OneForwardOneBackward(),)


def schedule(name: str) -> PipelineSchedule:
    """The schedule of this name; KeyError where there is none."""
    for entry in SCHEDULES:
        if entry.name == name:
            return entry
    raise KeyError(name)
