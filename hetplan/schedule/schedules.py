"""The pipeline schedules: a schedule is a class and its entry in `SCHEDULES`."""

import numpy as np

from hetplan.plan import ScheduleName
from hetplan.schedule.base import Flow, Ints, PipelineSchedule, ahead
from hetplan.schedule.zero_bubble import DualPipe, ZeroBubbleH1, ZeroBubbleV


class OneForwardOneBackward(PipelineSchedule):
    """1F1B, non-interleaved: warm up, then one forward and one backward in turn."""

    name: ScheduleName = "1f1b"
    description = "one forward, one backward in turn after a warm-up of the stages below; warm-up may be deeper"
    bubble = "(p - 1) (F + B)"
    source = "Narayanan et al. 2021, arXiv 2104.04473"
    frameworks = (
        "Megatron-LM (default)",
        "torch.distributed.pipelining Schedule1F1B",
        "DeepSpeed TrainSchedule",
        "FlagScale",
        "deeper warm-up: torch.distributed.pipelining _PipelineScheduleRuntime (CSV)",
    )

    def order(self, stages: int, num_microbatches: int, virtual_stages: int, warmup: tuple[int, ...]) -> Ints:
        """Warm-up forwards, pairs of one forward and one backward, the backwards left."""
        m = num_microbatches
        rows = []
        for before in ahead(stages, m, warmup).tolist():
            steady = np.arange(m - before)
            pairs = np.stack([before + steady, m + steady], axis=1).ravel()
            rows.append(np.concatenate([np.arange(before), pairs, np.arange(2 * m - before, 2 * m)]))
        return np.array(rows, dtype=np.int64)

    def level(self, stages: int, num_microbatches: int, warmup: tuple[int, ...]) -> Ints | None:
        """Backward i of stage j at b_j + 2 i with b_j = 2 p + most extra - j; forwards after the warm-up between them.

        Warm-up forward i at j + i. It needs a warm-up that does not grow from stage to stage, short of a whole batch.
        """
        p, m = stages, num_microbatches
        before = ahead(p, m, warmup)
        if (before[1:] > before[:-1]).any() or ((before[1:] == before[:-1]) & (before[1:] < m - 1)).any():
            return None
        j, i = np.arange(p)[:, None], np.arange(m)[None, :]
        first = 2 * p + max(warmup, default=0) - j
        forward = np.where(i <= before[:, None], j + i, first + 2 * (i - before[:, None]) - 1)
        return np.concatenate([forward, first + 2 * i], axis=1)


class GPipe(PipelineSchedule):
    """GPipe: all forwards, then all backwards."""

    name: ScheduleName = "gpipe"
    description = "all forwards, then all backwards: every stage holds all micro-batches"
    once = True
    bubble = "(p - 1) (F + B)"
    source = "Huang et al. 2019, arXiv 1811.06965"
    frameworks = ("torch.distributed.pipelining ScheduleGPipe",)

    def order(self, stages: int, num_microbatches: int, virtual_stages: int, warmup: tuple[int, ...]) -> Ints:
        """Forwards in turn, backwards in the same turn."""
        return np.tile(np.arange(2 * num_microbatches), (stages, 1))

    def level(self, stages: int, num_microbatches: int, warmup: tuple[int, ...]) -> Ints | None:
        """Forward i of stage j at j + i, backwards after all of them."""
        p, m = stages, num_microbatches
        j, i = np.arange(p)[:, None], np.arange(m)[None, :]
        return np.concatenate([j + i, 2 * p + m - j + i], axis=1)


class Interleaved(PipelineSchedule):
    """Interleaved 1F1B: every stage holds v chunks, micro-batches run v times around in groups of p."""

    name: ScheduleName = "interleaved-1f1b"
    description = "1F1B over v chunks per stage: a shorter fill for more transfers and some more memory"
    shape: Flow = "loop"
    many = True
    bubble = "(p - 1) (F + B) / v"
    source = "Narayanan et al. 2021, arXiv 2104.04473"
    frameworks = (
        "Megatron-LM --num-layers-per-virtual-pipeline-stage",
        "torch.distributed.pipelining ScheduleInterleaved1F1B",
    )

    def obstacle(self, stages: int, num_microbatches: int) -> str | None:
        """Micro-batches go in groups of p."""
        if num_microbatches % stages:
            return f"needs micro-batches in whole groups of the {stages} stages"
        return None

    def order(self, stages: int, num_microbatches: int, virtual_stages: int, warmup: tuple[int, ...]) -> Ints:
        """Warm-up of 2 (p - 1 - j) + (v - 1) p chunks, then pairs."""
        p, m, v = stages, num_microbatches, virtual_stages
        k = np.arange(m * v)
        chunk, microbatch = k % (p * v) // p, k // (p * v) * p + k % p
        forward, backward = chunk * m + microbatch, (2 * v - 1 - chunk) * m + microbatch
        rows = []
        for j in range(p):
            before = min(2 * (p - 1 - j) + (v - 1) * p, m * v)
            pairs = np.stack([forward[before:], backward[: m * v - before]], axis=1).ravel()
            rows.append(np.concatenate([forward[:before], pairs, backward[m * v - before :]]))
        return np.array(rows, dtype=np.int64)


class BreadthFirst(PipelineSchedule):
    """Breadth-first: all micro-batches through a chunk before the next chunk, v times around."""

    name: ScheduleName = "breadth-first"
    description = "all micro-batches through one chunk, then the next: weights are gathered once per chunk"
    shape: Flow = "loop"
    many = True
    once = True
    bubble = "(p - 1) (F + B) / v"
    source = "Lamy-Poirier 2023, arXiv 2211.05953"
    frameworks = ("torch.distributed.pipelining ScheduleLoopedBFS",)

    def order(self, stages: int, num_microbatches: int, virtual_stages: int, warmup: tuple[int, ...]) -> Ints:
        """Forwards chunk by chunk, backwards chunk by chunk from the last."""
        m, v = num_microbatches, virtual_stages
        forward = np.arange(v * m)
        backward = v * m + forward.reshape(v, m)[::-1].ravel()
        return np.tile(np.concatenate([forward, backward]), (stages, 1))


SCHEDULES: tuple[PipelineSchedule, ...] = (
    OneForwardOneBackward(),
    GPipe(),
    Interleaved(),
    BreadthFirst(),
    ZeroBubbleH1(),
    ZeroBubbleV(),
    DualPipe(),
)


def schedule(name: str) -> PipelineSchedule:
    """The schedule of this name; KeyError where there is none."""
    for entry in SCHEDULES:
        if entry.name == name:
            return entry
    raise KeyError(name)
