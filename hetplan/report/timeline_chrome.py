"""The timeline in the Trace Event Format, which Perfetto and chrome://tracing open.

One process per stage: a thread for its work, one for gradient synchronisation, one for each stage that sends to it
(more, where transfers overlap: events of a thread may not). Complete events, in microseconds. Micro-batches and
virtual stages are counted from 1, as in the pictures.
Source of the format: "Trace Event Format", the Chromium project.
"""

import json
from collections.abc import Iterator

import numpy as np

from hetplan.prediction import TRACE_KINDS
from hetplan.report.style import printable
from hetplan.report.timeline import GRADIENT_SYNC, TRANSFER, Timeline, title
from hetplan.report.timeline_style import kind_name

WORK, SYNC, FIRST_TRANSFER = 1, 2, 3
"""Threads of a process."""


def chrome_trace(shown: Timeline) -> str:
    """The trace as text, one event per line."""
    events = [*_stages(shown), *_events(shown)]
    about = {"plan": printable(title(shown)), "iteration_time_s": shown.iteration_s, "predicted": True}
    return (
        f'{{\n"displayTimeUnit": "ms",\n"otherData": {json.dumps(about)},\n"traceEvents": [\n'
        + ",\n".join(events)
        + "\n]\n}\n"
    )


def _stages(shown: Timeline) -> Iterator[str]:
    for lane in shown.lanes:
        name = printable(f"S{lane.index} {lane.group}")
        yield _metadata("process_name", lane.index, 0, {"name": name})
        yield _metadata("process_sort_index", lane.index, 0, {"sort_index": lane.index})
        yield _metadata("thread_name", lane.index, WORK, {"name": "work"})
        yield _metadata("thread_name", lane.index, SYNC, {"name": "gradient sync"})


def _metadata(name: str, stage: int, thread: int, arguments: dict[str, str | int]) -> str:
    return json.dumps({"ph": "M", "name": name, "pid": stage + 1, "tid": thread, "args": arguments})


def _events(shown: Timeline) -> Iterator[str]:
    trace = shown.trace
    order = np.lexsort((trace.start_s, trace.stage))
    kinds, stages, chunks, microbatches, senders = (
        column[order].tolist() for column in (trace.kind, trace.stage, trace.chunk, trace.microbatch, trace.sender)
    )
    # Both ends are rounded to nanoseconds, so that events that touch still do.
    starts, ends = (np.rint(column[order] * 1e9).astype(np.int64) for column in (trace.start_s, trace.end_s))
    names = [kind_name(kind, shown) for kind in TRACE_KINDS]
    threads = _TransferThreads()
    for kind, stage, chunk, microbatch, sender, start, end in zip(
        kinds, stages, chunks, microbatches, senders, starts.tolist(), ends.tolist(), strict=True
    ):
        thread = SYNC if kind == GRADIENT_SYNC else WORK
        if kind == TRANSFER:
            thread, new = threads.place(stage, sender, start, end)
            if new:
                yield _metadata("thread_name", stage, thread, {"name": f"from S{sender}"})
        label = shown.label(chunk, microbatch)
        arguments = []
        if microbatch >= 0:
            arguments.append(f'"microbatch": {microbatch + 1}')
        if chunk >= 0 and shown.chunks > 1:
            arguments.append(f'"virtual_stage": {chunk + 1}')
        if sender >= 0:
            arguments.append(f'"sender": "S{sender}"')
        yield (
            f'{{"ph": "X", "name": "{names[kind]}{" " if label else ""}{label}", "cat": "{TRACE_KINDS[kind]}", '
            f'"pid": {stage + 1}, "tid": {thread}, "ts": {start / 1000:.3f}, "dur": {(end - start) / 1000:.3f}, '
            f'"args": {{{", ".join(arguments)}}}}}'
        )


class _TransferThreads:
    """Gives each transfer a thread on which nothing overlaps with it. Transfers to a stage come by start."""

    def __init__(self) -> None:
        self._free: dict[tuple[int, int], list[tuple[int, int]]] = {}
        self._count: dict[int, int] = {}

    def place(self, stage: int, sender: int, start: int, end: int) -> tuple[int, bool]:
        """The thread, and whether it is new."""
        threads = self._free.setdefault((stage, sender), [])
        for i, (thread, until) in enumerate(threads):
            if until <= start:
                threads[i] = thread, end
                return thread, False
        thread = FIRST_TRANSFER + self._count.get(stage, 0)
        self._count[stage] = self._count.get(stage, 0) + 1
        threads.append((thread, end))
        return thread, True
