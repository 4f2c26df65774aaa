"""Schedules that split weight gradients off the backward pass and fill idle time with them."""

import numpy as np

from hetplan.plan import ScheduleName
from hetplan.schedule.base import BACKWARD, FORWARD, WEIGHT, Flow, Ints, PipelineSchedule


class ZeroBubbleH1(PipelineSchedule):
    """ZB-H1: 1F1B whose weight gradients wait, by one micro-batch more on every stage, and fill the drain."""

    name: ScheduleName = "zb-h1"
    description = "1F1B with weight gradients split off to fill the drain; no more memory than 1F1B's first stage"
    splits_backward = True
    bubble = "(p - 1) (F + B - W) where W <= F"
    source = "Qi et al. 2023, arXiv 2401.10241"
    frameworks = (
        "sail-sg/zero-bubble-pipeline-parallelism --enable-zero-bubble",
        "torch.distributed.pipelining ScheduleInterleavedZeroBubble",
    )

    def order(self, stages: int, num_microbatches: int, virtual_stages: int, warmup: tuple[int, ...]) -> Ints:
        """As 1F1B; stage j does weight gradients j micro-batches late."""
        m = num_microbatches
        rows = []
        for j in range(stages):
            row = list(range(min(stages - 1 - j, m)))
            ahead_of = len(row)
            for i in range(m):
                row += [ahead_of + i] if ahead_of + i < m else []
                row += [m + i]
                row += [2 * m + i - j] if i >= j else []
            rows.append(row + list(range(2 * m + max(0, m - j), 3 * m)))
        return np.array(rows, dtype=np.int64)


class ZeroBubbleV(PipelineSchedule):
    """ZB-V: two chunks per stage, the second ones in reverse order, and weight gradients split off."""

    name: ScheduleName = "zb-v"
    description = "two chunks per stage in a V and weight gradients split off; hardly any bubble"
    shape: Flow = "v"
    splits_backward = True
    two = True
    bubble = "(p - 1) B / 2 where F = B = W, all of it before a stage's first or after its last operation"
    source = "Qi et al. 2023, arXiv 2401.10241, section 6"
    frameworks = (
        "sail-sg/zero-bubble-pipeline-parallelism --zero-bubble-v-schedule",
        "torch.distributed.pipelining ScheduleZBVZeroBubble",
    )

    def order(self, stages: int, num_microbatches: int, virtual_stages: int, warmup: tuple[int, ...]) -> Ints:
        """Fill the first chunk, alternate, then forwards and both backwards of either chunk in turn."""
        m = num_microbatches
        # The order of a batch that fills the pipeline, less the micro-batches that there are not.
        whole = max(2 * stages - 1, m)
        rows = []
        for j in range(stages):
            row = _Row(2, m)
            row.add(FORWARD, 0, 2 * (stages - j) - 1)
            for _ in range(j):
                row.add(FORWARD, 1)
                row.add(FORWARD, 0)
            for _ in range(stages - j):
                row.add(FORWARD, 1)
                row.backward(1)
            while row.next[FORWARD][1] < row.next[FORWARD][0] or row.next[FORWARD][0] < whole:
                if row.next[FORWARD][0] < whole:
                    row.add(FORWARD, 0)
                row.backward(0)
                row.add(FORWARD, 1)
                row.backward(1)
            for _ in range(j):
                row.add(BACKWARD, 0)
                row.add(BACKWARD, 1)
            for _ in range(stages - j):
                row.backward(0)
            row.add(WEIGHT, 1, whole - row.next[WEIGHT][1])
            row.add(WEIGHT, 0, whole - row.next[WEIGHT][0])
            rows.append(row.operations)
        return np.array(rows, dtype=np.int64)


class DualPipe(PipelineSchedule):
    """DualPipe: two pipelines in opposite directions, each over all stages, so every stage holds two parts.

    The published code runs a forward and a backward of the main part as one operation, to hide the all-to-all of
    experts in it. Here they follow each other, and each result leaves when it is ready: that hides no all-to-all, and
    saves up to (p / 2 - 1) B of the bubble.
    """

    name: ScheduleName = "dualpipe"
    description = "micro-batches enter from both ends: every stage holds two parts of the model, so weights twice"
    shape: Flow = "both"
    splits_backward = True
    two = True
    copies = 2
    bubble = "(p / 2 - 1) (F + B - W) where W <= B <= F <= B + W"
    source = "DeepSeek-AI 2024, arXiv 2412.19437; deepseek-ai/DualPipe"
    frameworks = ("deepseek-ai/DualPipe",)

    def obstacle(self, stages: int, num_microbatches: int) -> str | None:
        """An even number of stages and of micro-batches, and two micro-batches per stage."""
        if stages % 2:
            return "needs an even number of stages"
        if num_microbatches % 2 or num_microbatches < 2 * stages:
            return f"needs an even number of micro-batches, {2 * stages} or more"
        return None

    def order(self, stages: int, num_microbatches: int, virtual_stages: int, warmup: tuple[int, ...]) -> Ints:
        """The eight steps of the publication, forwards and backwards of the main part in turn."""
        half, rows = stages // 2, []
        for j in range(stages):
            near = min(j, stages - 1 - j)
            # The near direction enters at this end of the pipeline.
            a, b = (0, 1) if j < half else (1, 0)
            row = _Row(2, num_microbatches, start=(0, num_microbatches // 2))
            row.add(FORWARD, a, 2 * (half - near - 1))
            for _ in range(near + 1):
                row.add(FORWARD, a)
                row.add(FORWARD, b)
            for _ in range(half - near - 1):
                row.backward(b)
                row.add(FORWARD, b)
            for _ in range(num_microbatches // 2 - stages + near + 1):
                row.add(FORWARD, a)
                row.backward(b)
                row.add(FORWARD, b)
                row.backward(a)
            for _ in range(half - near - 1):
                row.backward(b)
                row.add(FORWARD, b)
                row.backward(a)
            late: list[int] = []
            for i in range(2 * (near + 1)):
                chunk = b if i % 2 == 0 else a
                if i > near:
                    row.add(BACKWARD, chunk)
                    late.append(chunk)
                else:
                    row.backward(chunk)
            for _ in range(half - near - 1):
                row.add(WEIGHT, late.pop(0))
                row.add(BACKWARD, a)
                late.append(a)
            for chunk in late:
                row.add(WEIGHT, chunk)
            rows.append(row.operations)
        return np.array(rows, dtype=np.int64)


class _Row:
    """A stage's order under construction; each kind and chunk takes its micro-batches in turn."""

    def __init__(self, chunks: int, num_microbatches: int, start: tuple[int, ...] | None = None) -> None:
        self.chunks, self.num_microbatches = chunks, num_microbatches
        self.next = [list(start or (0,) * chunks) for _ in range(3)]
        self.operations: list[int] = []

    def add(self, kind: int, chunk: int, count: int = 1) -> None:
        """The next micro-batches of a kind; those beyond the batch are left out."""
        for _ in range(count):
            i = self.next[kind][chunk]
            if i < self.num_microbatches:
                self.operations.append((kind * self.chunks + chunk) * self.num_microbatches + i)
            self.next[kind][chunk] = i + 1

    def backward(self, chunk: int) -> None:
        """Both halves of a backward pass."""
        self.add(BACKWARD, chunk)
        self.add(WEIGHT, chunk)
