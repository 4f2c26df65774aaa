"""The JSON record of `timeline`: totals by stage, and every event as columns."""

import json
from typing import Literal

from pydantic import Field

from hetplan.plan import Plan
from hetplan.prediction import TRACE_KINDS, TraceKind
from hetplan.report.records import SCHEMA_VERSION, Count, Seconds, Share, Version
from hetplan.report.timeline import MAIN, Lane, Timeline
from hetplan.specs.quantities import Spec

_COLUMNS = ("stage", "chunk", "microbatch", "sender", "start_s", "end_s")


class TimelineStageRecord(Spec):
    """Seconds of one stage in one iteration. From forward_s to other_s they add up to the iteration time."""

    group: str = Field(description="group of the cluster")
    accelerator: str = Field(description="its accelerator")
    accelerators: Count = Field(description="accelerators of the stage")
    layers: Count = Field(description="transformer blocks")
    forward_s: Seconds = Field(description="forward passes")
    recompute_s: Seconds = Field(description="recomputed forward passes")
    backward_s: Seconds = Field(description="backward passes; of the inputs alone where weight_s is apart")
    weight_s: Seconds = Field(description="gradients of the weights, where the schedule splits them off")
    gradient_sync_s: Seconds = Field(description="gradient synchronisation while the stage does nothing else")
    optimizer_s: Seconds = Field(description="optimizer step")
    idle_s: Seconds = Field(description="waiting")
    other_s: Seconds = Field(description="step time outside the pipeline")
    hidden_sync_s: Seconds = Field(description="gradient synchronisation behind other work")
    transfer_s: Seconds = Field(description="time in which something is sent to the stage")
    busy: Share = Field(description="forward, recompute, backward and weight over the iteration time")


class TimelineEventsRecord(Spec):
    """Events by stage and start: the i-th entries of all columns are one event."""

    kind: tuple[TraceKind, ...] = Field(description="what is done")
    stage: tuple[int, ...] = Field(description="the stage that works; of a transfer the one that receives")
    chunk: tuple[int, ...] = Field(description="virtual stage on the stage, from 0; -1 for optimizer")
    microbatch: tuple[int, ...] = Field(description="micro-batch, from 0; -1 for gradient_sync and optimizer")
    sender: tuple[int, ...] = Field(description="the stage that sends; -1 for all but transfers")
    start_s: tuple[float, ...] = Field(description="seconds from the start of the iteration")
    end_s: tuple[float, ...] = Field(description="seconds from the start of the iteration")


class TimelineRecord(Spec):
    """What every stage does when in one iteration of a plan."""

    schema_version: Version = Field(SCHEMA_VERSION)
    command: Literal["timeline"] = Field("timeline", description="command that wrote this")
    rank: int | None = Field(description="rank of the plan in its result; null where it is the only one")
    iteration_time_s: Seconds = Field(description="seconds per optimizer step")
    plan: Plan = Field(description="the plan")
    stages: tuple[TimelineStageRecord, ...] = Field(description="from the embedding to the head")
    events: TimelineEventsRecord = Field(description="every event")


def timeline_record(shown: Timeline) -> TimelineRecord:
    """The record of a timeline."""
    trace = shown.trace
    columns = {name: tuple(getattr(trace, name).tolist()) for name in _COLUMNS}
    return TimelineRecord(
        rank=shown.rank,
        iteration_time_s=shown.iteration_s,
        plan=shown.plan,
        stages=tuple(_stage(lane) for lane in shown.lanes),
        events=TimelineEventsRecord(kind=tuple(TRACE_KINDS[kind] for kind in trace.kind.tolist()), **columns),
    )


def timeline_json(record: TimelineRecord) -> str:
    """The record as text: like other records, but with one line for each column of the events."""
    data = record.model_dump(mode="json")
    columns = data.pop("events")
    head = json.dumps(data, indent=2, allow_nan=False).removesuffix("\n}")
    lines = (
        f'    "{name}": {json.dumps(values, separators=(",", ":"), allow_nan=False)}'
        for name, values in columns.items()
    )
    return f'{head},\n  "events": {{\n' + ",\n".join(lines) + "\n  }\n}\n"


def _stage(lane: Lane) -> TimelineStageRecord:
    seconds = {f"{kind}_s": value for kind, value in zip(MAIN, lane.seconds, strict=True)}
    return TimelineStageRecord(
        group=lane.group,
        accelerator=lane.accelerator,
        accelerators=lane.accelerators,
        layers=lane.layers,
        **seconds,
        idle_s=lane.idle_s,
        other_s=lane.outside_s,
        hidden_sync_s=lane.hidden_sync_s,
        transfer_s=lane.transfer_s,
        busy=lane.busy,
    )
