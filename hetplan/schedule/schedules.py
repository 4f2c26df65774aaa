"""Pipeline schedules: the order in which each stage does its work.

A schedule is a class and its entry in `SCHEDULES`.
"""

from typing import Protocol

Operation = tuple[str, int]
"""("F" or "B", micro-batch)."""


class PipelineSchedule(Protocol):
    """What a schedule tells the simulator, the memory model and the reader."""

    name: str
    description: str

    def order(self, stages: int, stage: int, num_microbatches: int) -> list[Operation]:
        """Operations of stage `stage` (0 is the first) in the order it does them."""
        ...

    def in_flight(self, stages: int, stage: int, num_microbatches: int) -> int:
        """Micro-batches whose activations the stage holds at once, at most."""
        ...


class OneForwardOneBackward:
    """1F1B, non-interleaved (Narayanan et al., SC'21): warm up, then one forward and one backward in turn."""

    name = "1f1b"
    description = "one forward, one backward in turn after a warm-up of the stages below"

    @staticmethod
    def warmup(stages: int, stage: int, num_microbatches: int) -> int:
        """Forwards done before the steady state begins."""
        return min(stages - 1 - stage, num_microbatches)

    def order(self, stages: int, stage: int, num_microbatches: int) -> list[Operation]:
        """Warm-up forwards, pairs of one forward and one backward, the backwards left."""
        warmup = self.warmup(stages, stage, num_microbatches)
        operations: list[Operation] = [("F", i) for i in range(warmup)]
        for i in range(num_microbatches - warmup):
            operations += [("F", warmup + i), ("B", i)]
        return operations + [("B", i) for i in range(num_microbatches - warmup, num_microbatches)]

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
