"""Exact pipeline time by the recurrence of operation ends, for many candidates at once.

    end(op) = max(end(previous op of the stage), end(op it waits for) + hop) + duration

Forward of a chunk waits for the forward of the chunk before it on the micro-batch's route, backward for the backward
of the chunk after it, and on the route's last chunk for its own forward. Which operation waits for which depends only
on the pipeline's shape: it is worked out once, cut into levels whose operations are independent, and evaluated for K
candidates with a few numpy calls a level.

Transfers take the time of a hop. `Transfers` says whom they keep busy:

    overlapped   nobody: a delay, any number at once
    eager        the sender's queue: a stage's transfers leave one after another, in the order of their operations
    rendezvous   both stages, which neither compute nor transfer anything else meanwhile

Source of the three: the blocking and buffered sends of NVIDIA/Megatron-LM, NCCL and microsoft/DeepSpeed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Literal

import numpy as np
import numpy.typing as npt

from hetplan.plan import ScheduleName
from hetplan.schedule.base import BACKWARD, FORWARD, WEIGHT, Route, routes
from hetplan.schedule.schedules import schedule

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Transfers = Literal["overlapped", "eager", "rendezvous"]
HELD = 8_000_000
"""Operation ends held at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What fixes the order of work and who waits for whom."""

    schedule: ScheduleName = "1f1b"
    stages: int
    num_microbatches: int
    virtual_stages: int = 1
    warmup: tuple[int, ...] = ()
    transfers: Transfers = "overlapped"

    @property
    def units(self) -> int:
        """Durations of a stage: forward of each chunk, backward of each chunk, weight gradients of each chunk."""
        return (3 if schedule(self.schedule).splits_backward else 2) * self.virtual_stages

    @property
    def loops(self) -> bool:
        """Whether micro-batches go from the last stage to the first one."""
        return schedule(self.schedule).shape == "loop"

    @property
    def steady(self) -> Shape:
        """A pipeline with fewer micro-batches that fills, holds and drains like this one.

        From 4 p micro-batches on, further ones only repeat what a stage does in turn.
        """
        if self.schedule == "breadth-first" or self.num_microbatches <= 4 * self.stages:
            return self
        return replace(self, num_microbatches=4 * self.stages)

    @property
    def routes(self) -> tuple[Route, ...]:
        """The chunks that micro-batches pass."""
        plan = schedule(self.schedule)
        return routes(plan.shape, self.stages, self.virtual_stages, self.num_microbatches)


@dataclass(frozen=True, slots=True)
class Level:
    """Operations that wait only for earlier levels: indices into ends and durations."""

    operation: Ints
    previous: Ints
    dependency: Ints
    delay: Ints
    duration: Ints


@dataclass(frozen=True)
class Program:
    """A pipeline's operations, cut into levels.

    Operation k of stage j has index j n + k with n numbers per stage; transfers follow, and the last index is
    "nothing", which ends at 0. Durations are those of a stage's units, then the hops, then 0.
    """

    shape: Shape
    levels: tuple[Level, ...]
    size: int
    numbers: int
    """Operation numbers per stage, n."""
    last: Ints
    """Each chunk's last operation, shape (p, v)."""
    crossings: tuple[Ints, Ints, Ints]
    """Of each transfer between stages: the operation that waits for it, the operation whose result it carries, the
    hop."""
    transfers: Ints
    """The transfers' own indices, where they keep someone busy; empty where they are delays."""

    @property
    def completion(self) -> Ints:
        """As of `completion`."""
        return completion(self.shape)

    def ends(self, work_s: Floats, hop_s: Floats) -> Floats:
        """When every operation ends, seconds, shape (size, K).

        `work_s` holds the seconds of each stage's units, shape (K, p, units); `hop_s` one-way seconds from each stage
        to the next, the last one's back to the first, shape (K, p).
        """
        candidates = len(work_s)
        durations = np.concatenate(
            [work_s.reshape(candidates, self.shape.stages * self.shape.units), hop_s, np.zeros((candidates, 1))], axis=1
        )
        durations = np.ascontiguousarray(durations.T)
        end = np.zeros((self.size, candidates))
        for level in self.levels:
            ready = end[level.dependency]
            ready += durations[level.delay]
            np.maximum(ready, end[level.previous], out=ready)
            ready += durations[level.duration]
            end[level.operation] = ready
        return end

    @cached_property
    def _steps(self) -> list[tuple[int, int, int, int, int]]:
        """Operation, previous, dependency, delay and duration, in an order that can be followed."""
        columns = [
            np.concatenate([getattr(level, name) for level in self.levels]).tolist()
            for name in ("operation", "previous", "dependency", "delay", "duration")
        ]
        return list(zip(*columns, strict=True))

    def ends_of_one(self, durations_s: list[float]) -> list[float]:
        """As `ends` for one candidate, which numpy is slow for; durations as of the class."""
        end = [0.0] * self.size
        for operation, previous, dependency, delay, duration in self._steps:
            ready, free = end[dependency] + durations_s[delay], end[previous]
            end[operation] = (ready if ready > free else free) + durations_s[duration]
        return end

    def finishes(self, ends: Floats, after_s: Floats) -> Floats:
        """When every stage has done all, shape (K, p).

        `after_s` (K, p, v) follows each chunk's last backward: its gradient synchronisation, which waits for that of
        the chunks complete before; what a stage does at the very end is added to the chunk that is complete last.
        """
        stage = np.arange(self.shape.stages)
        finish = np.zeros((after_s.shape[0], self.shape.stages))
        for chunk in self.completion.T:
            finish = np.maximum(finish, ends[self.last[stage, chunk]].T) + after_s[:, stage, chunk]
        return finish

    @cached_property
    def before(self) -> tuple[list[int], list[int], list[int], list[int]]:
        """Per operation: the previous one of its stage, its dependency, the delay and the duration it takes."""
        table = np.zeros((4, self.size), dtype=np.int64)
        for level in self.levels:
            table[:, level.operation] = (level.previous, level.dependency, level.delay, level.duration)
        previous, dependency, delay, duration = (row.tolist() for row in table)
        return previous, dependency, delay, duration


def step_s(shape: Shape, work_s: Floats, hop_s: Floats, after_s: Floats) -> Floats:
    """Seconds until every stage has done all, shape (K, p); arguments as in `Program.ends` and `finishes`."""
    if shape.stages == 1 and shape.virtual_stages == 1:
        alone: Floats = shape.num_microbatches * work_s.sum(axis=2) + after_s[:, :, 0]
        return alone
    program = compile_shape(shape)
    parts = []
    for at in range(0, max(1, len(work_s)), max(1, HELD // program.size)):
        some = slice(at, at + max(1, HELD // program.size))
        parts.append(program.finishes(program.ends(work_s[some], hop_s[some]), after_s[some]))
    return np.concatenate(parts)


def barrier(finishes: Floats) -> tuple[Floats, Floats]:
    """Replicas of a stage that end at different times: when all have ended, and how long each waits.

    Shapes (R, p) -> (p,), (R, p). The reduction over the replicas starts with the slowest.
    """
    end = finishes.max(axis=0)
    return end, end - finishes


@lru_cache(maxsize=256)
def order_of(shape: Shape) -> Ints:
    """Operations of each stage in the order it does them, shape (p, operations); not to be changed."""
    order = schedule(shape.schedule).order(shape.stages, shape.num_microbatches, shape.virtual_stages, shape.warmup)
    order.setflags(write=False)
    return order


@lru_cache(maxsize=1024)
def completion(shape: Shape) -> Ints:
    """Each stage's chunks in the order in which their gradients are complete, shape (p, v)."""
    p, v, m = shape.stages, shape.virtual_stages, shape.num_microbatches
    if v == 1:
        return np.zeros((p, 1), dtype=np.int64)
    if shape.steady is not shape:
        return completion(shape.steady)
    order = order_of(shape)
    unit = order // m
    ends = np.stack(
        [order.shape[1] - np.argmax(unit[:, ::-1] == shape.units - v + c, axis=1) for c in range(v)], axis=1
    )
    return np.argsort(ends, axis=1)


def _dependencies(shape: Shape, numbers: int) -> tuple[Ints, Ints]:
    """Per operation the one it waits for on another chunk, and the hop crossed (-1: none); (p n,), "nothing" = p n."""
    p, v, m = shape.stages, shape.virtual_stages, shape.num_microbatches
    nothing = p * numbers
    waits, hop = np.full(nothing, nothing, dtype=np.int64), np.full(nothing, -1, dtype=np.int64)
    for route in shape.routes:
        i = np.array(route.microbatches, dtype=np.int64)
        stops = list(zip(route.stage, route.chunk, strict=True))
        indices = [[j * numbers + (kind * v + c) * m + i for j, c in stops] for kind in range(shape.units // v)]
        forward, backward = indices[FORWARD], indices[BACKWARD]
        for k, (j, _) in enumerate(stops):
            if k:
                above = stops[k - 1][0]
                waits[forward[k]], waits[backward[k - 1]] = forward[k - 1], backward[k]
                # Stages k and k - 1 are neighbours, or the last and the first.
                crossed = -1 if above == j else p - 1 if shape.loops and j == 0 else min(above, j)
                hop[forward[k]] = hop[backward[k - 1]] = crossed
        waits[backward[-1]] = forward[-1]
        if len(indices) > WEIGHT:
            for k in range(len(stops)):
                waits[indices[WEIGHT][k]] = backward[k]
    return waits, hop


def _waves(order: Ints, waits: Ints, nothing: int) -> Ints:
    """When each operation would run if all took one unit of time, counted from 1; 0 for those that there are not."""
    level = np.zeros(nothing + 1, dtype=np.int64)
    at, wave = np.zeros(len(order), dtype=np.int64), 0
    open_rows = np.arange(len(order))
    while len(open_rows):
        wave += 1
        next_op = order[open_rows, at[open_rows]]
        waited = waits[next_op]
        ready = (waited == nothing) | (level[waited] > 0)
        if not ready.any():
            raise ValueError("the order of work waits for itself")
        level[next_op[ready]] = wave
        at[open_rows[ready]] += 1
        open_rows = open_rows[at[open_rows] < order.shape[1]]
    return level[:-1]


@lru_cache(maxsize=128)
def compile_shape(shape: Shape) -> Program:
    """The operations of a pipeline and what they wait for."""
    p, m, v = shape.stages, shape.num_microbatches, shape.virtual_stages
    plan = schedule(shape.schedule)
    numbers = shape.units * m
    nothing = p * numbers
    row = np.arange(p)[:, None]
    order = order_of(shape) + numbers * row
    waits, hop = _dependencies(shape, numbers)
    # Under rendezvous levels also decide which transfer goes first: then they are those of unit time.
    known = None if shape.transfers == "rendezvous" else plan.level(p, m, shape.warmup)
    level = _waves(order, waits, nothing) if known is None else known.ravel() + 1
    duration = np.arange(nothing) // m  # stage * units + unit
    zero = p * shape.units + p
    lasts = np.full((p, v), -1, dtype=np.int64)
    kind = shape.units // v - 1
    for j in range(p):
        for c in range(v):
            lasts[j, c] = order[j][(order[j] - j * numbers) // m == kind * v + c][-1]
    queues, own = [*order], np.zeros(0, dtype=np.int64)
    size = nothing
    crossing = np.flatnonzero((hop >= 0) & (waits < nothing))
    crossings = (crossing, waits[crossing], hop[crossing])
    if shape.transfers == "overlapped":
        delay = np.where(hop >= 0, p * shape.units + hop, zero)
        previous = _previous(queues, size)
    else:
        size = nothing + len(crossing)
        own = np.arange(nothing, size)
        sender, receiver = waits[crossing] // numbers, crossing // numbers
        level = np.concatenate([7 * level, 7 * level[waits[crossing]] + _rank(shape, sender, receiver)])
        duration = np.concatenate([duration, p * shape.units + hop[crossing]])
        produced = waits[crossing]
        waits = np.where(waits == nothing, size, waits)
        waits[crossing] = own
        delay = np.full(size, zero)
        if shape.transfers == "eager":
            queues += [_by_level(own[sender == j], level) for j in range(p)]
            previous = _previous(queues, size)
            waits = np.concatenate([waits, produced])
        else:
            rows = [np.concatenate([order[j], own[(sender == j) | (receiver == j)]]) for j in range(p)]
            previous, other = _two_previous([_by_level(row, level) for row in rows], own, sender, receiver, size)
            waits = np.concatenate([waits, other])
    used = np.flatnonzero(level > 0)
    by_level = used[np.argsort(level[used], kind="stable")]
    cuts = np.flatnonzero(np.diff(level[by_level])) + 1
    levels = tuple(
        Level(part, previous[part], waits[part], delay[part], duration[part]) for part in np.split(by_level, cuts)
    )
    return Program(
        shape=shape,
        levels=levels,
        size=size + 1,
        numbers=numbers,
        last=lasts,
        crossings=crossings,
        transfers=own,
    )


def _by_level(operations: Ints, level: Ints) -> Ints:
    return operations[np.argsort(level[operations], kind="stable")]


def _previous(queues: list[Ints], size: int) -> Ints:
    """Per operation the one before it in its queue; `size` is "nothing"."""
    previous = np.full(size, size, dtype=np.int64)
    for queue in queues:
        previous[queue[1:]] = queue[:-1]
    return previous


def _two_previous(rows: list[Ints], own: Ints, sender: Ints, receiver: Ints, size: int) -> tuple[Ints, Ints]:
    """The operation before each in its stage, and for transfers the one before in the other stage."""
    previous, tables = np.full(size, size, dtype=np.int64), np.full((len(rows), size), size, dtype=np.int64)
    for j, row in enumerate(rows):
        tables[j, row[1:]] = row[:-1]
        previous[row] = tables[j, row]
    previous[own] = tables[sender, own]
    return previous, tables[receiver, own]


def _rank(shape: Shape, sender: Ints, receiver: Ints) -> Ints:
    """1 .. 6: the turn of transfers whose operations end together, so that no stage has two in one turn.

    Downwards before upwards, of even stages before odd ones, from the last stage to the first (and back) at the end.
    """
    around = shape.loops & (np.abs(sender - receiver) == shape.stages - 1)
    down = np.where(around, sender > receiver, sender < receiver)
    turn: Ints = 1 + np.where(down, 0, 3) + np.where(around, 2, sender % 2)
    return turn
