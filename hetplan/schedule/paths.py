"""Paths of operations that must follow each other: lower bounds that hold for all times of a pipeline's shape.

A path visits units of work, crosses hops and ends with what follows a chunk's last backward. Its sum is a lower bound
on the iteration of every plan of that shape, because the path stays a path whatever the times; so is every mixture.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from hetplan.schedule.base import BACKWARD, FORWARD
from hetplan.schedule.schedules import schedule
from hetplan.schedule.simulator import Floats, Ints, Program, Shape, compile_shape, completion, order_of


@dataclass(frozen=True, slots=True)
class CriticalPath:
    """How often each stage's units and hops lie on a path, or on a mixture of paths."""

    work: Floats
    """(p, units)"""
    hop: Floats
    """(p,)"""
    after: Floats
    """(p, v)"""

    def mixed(self, other: CriticalPath, share: float) -> CriticalPath:
        """A convex combination of two paths, a lower bound like each of them."""
        return CriticalPath(
            self.work + share * (other.work - self.work),
            self.hop + share * (other.hop - self.hop),
            self.after + share * (other.after - self.after),
        )

    def length_s(self, work_s: Floats, hop_s: Floats, after_s: Floats) -> Floats:
        """Seconds along the path for K candidates, shape (K,); arguments as in `step_s`."""
        total: Floats = (
            np.einsum("kju,ju->k", work_s, self.work) + hop_s @ self.hop + np.einsum("kjc,jc->k", after_s, self.after)
        )
        return total


def critical_path(shape: Shape, work_s: Floats, hop_s: Floats, after_s: Floats) -> CriticalPath:
    """A longest path of one plan; arguments as in `step_s` without the first axis."""
    program = compile_shape(shape)
    durations = np.concatenate([work_s.ravel(), hop_s, [0.0]]).tolist()
    end = program.ends_of_one(durations)
    ends = np.array(end)[:, None]
    stage = int(np.argmax(program.finishes(ends, after_s[None])[0]))
    after = np.zeros((shape.stages, shape.virtual_stages))
    operation = _last_of(program, end, stage, after_s[stage], after)
    return _walk(program, operation, end, durations, after)


def _last_of(program: Program, end: list[float], stage: int, after_s: Floats, after: Floats) -> int:
    """The operation whose end decides when a stage has done all; marks what follows it in `after`."""
    order = program.completion[stage].tolist()
    best, chosen, finish = -1, -1, 0.0
    for place, chunk in enumerate(order):
        operation = int(program.last[stage, chunk])
        if end[operation] >= finish or best < 0:
            best, chosen, finish = operation, place, end[operation]
        finish += float(after_s[chunk])
    after[stage, order[chosen:]] = 1.0
    return best


def _walk(program: Program, operation: int, end: list[float], durations: list[float], after: Floats) -> CriticalPath:
    shape, nothing = program.shape, program.size - 1
    previous, dependency, delay, duration = program.before
    counts = [0] * len(durations)
    while operation != nothing:
        counts[duration[operation]] += 1
        waited = dependency[operation]
        if waited != nothing and end[waited] + durations[delay[operation]] >= end[previous[operation]]:
            counts[delay[operation]] += 1
            operation = waited
        else:
            operation = previous[operation]
    work = np.array(counts[: shape.stages * shape.units], dtype=np.float64).reshape(shape.stages, shape.units)
    hop = np.array(counts[shape.stages * shape.units : -1], dtype=np.float64)
    return CriticalPath(work, hop, after)


@lru_cache(maxsize=1024)
def trips(shape: Shape) -> tuple[tuple[CriticalPath, ...], ...]:
    """Paths through every stage, p of each kind.

    1. a micro-batch's trip down, and back to the stage's first backward; all that the stage does from there to its
       last backward; the way back to the route's start;
    2. the way down to the stage's first operation; all that it does up to its last forward; that micro-batch's trip
       down and back to the route's start;
    3. the way down to the first operation; all up to the last backward; the way back;
    4. where weight gradients are split off, as 1, but all that the stage does to its end.
    """
    plan = schedule(shape.schedule)
    order = order_of(shape)
    kinds = order // (shape.virtual_stages * shape.num_microbatches)
    tours = _Tours(shape)
    found: list[list[CriticalPath]] = [[], [], [], []]
    for j, row in enumerate(order):
        backs = np.flatnonzero(kinds[j] == BACKWARD)
        first_back, last_back = int(backs[0]), int(backs[-1])
        last_forward = int(np.flatnonzero(kinds[j] == FORWARD)[-1])
        paths = [tours.path() for _ in range(4 if plan.splits_backward else 3)]
        tours.there_and_back(paths[0], j, row[first_back])
        tours.own(paths[0], j, row[first_back : last_back + 1])
        tours.up(paths[0], j, row[last_back])
        tours.down(paths[1], j, row[0])
        tours.own(paths[1], j, row[: last_forward + 1])
        tours.round_trip(paths[1], j, row[last_forward])
        tours.down(paths[2], j, row[0])
        tours.own(paths[2], j, row[: last_back + 1])
        tours.up(paths[2], j, row[last_back])
        if plan.splits_backward:
            tours.there_and_back(paths[3], j, row[first_back])
            tours.own(paths[3], j, row[first_back:])
            tours.end(paths[3], j, int(row[-1]) // shape.num_microbatches % shape.virtual_stages)
        for kind, path in enumerate(paths):
            found[kind].append(path)
    return tuple(tuple(kind) for kind in found if kind)


class _Tours:
    """Adds parts of a micro-batch's route to paths."""

    def __init__(self, shape: Shape) -> None:
        self.shape, self.completion = shape, completion(shape).tolist()
        p, v = shape.stages, shape.virtual_stages
        self.routes = []
        for route in shape.routes:
            stage, chunk = np.array(route.stage), np.array(route.chunk)
            unit = stage * shape.units + chunk
            last = shape.loops & (stage[:-1] == p - 1) & (stage[1:] == 0)
            hop = np.where(last, p - 1, np.minimum(stage[:-1], stage[1:]))
            hop = np.where(stage[:-1] == stage[1:], p, hop)
            self.routes.append((route.microbatches, list(zip(route.stage, route.chunk, strict=True)), unit, hop))
        self.back = v

    def path(self) -> CriticalPath:
        """Nothing yet."""
        p, v = self.shape.stages, self.shape.virtual_stages
        return CriticalPath(np.zeros((p, self.shape.units)), np.zeros(p), np.zeros((p, v)))

    def _place(self, stage: int, operation: int) -> tuple[list[tuple[int, int]], Ints, Ints, int]:
        """The route of an operation's micro-batch, and which of its stops the operation belongs to."""
        v, m = self.shape.virtual_stages, self.shape.num_microbatches
        operation = int(operation)
        chunk, microbatch = operation // m % v, operation % m
        _, stops, unit, hop = next(route for route in self.routes if microbatch in route[0])
        return stops, unit, hop, stops.index((stage, chunk))

    def _add(self, path: CriticalPath, units: Ints, hops: Ints) -> None:
        """Visits of units, each at most once, and crossings of hops."""
        path.work.reshape(-1)[units] += 1
        path.hop[:] += np.bincount(hops, minlength=self.shape.stages + 1)[: self.shape.stages]

    def down(self, path: CriticalPath, stage: int, operation: int) -> None:
        """From the start of the route to just before an operation."""
        _, unit, hop, at = self._place(stage, operation)
        self._add(path, unit[:at], hop[:at])

    def there_and_back(self, path: CriticalPath, stage: int, operation: int) -> None:
        """From the start of the route to its end, and back to just before a backward."""
        _, unit, hop, at = self._place(stage, operation)
        self._add(path, unit, hop)
        self._add(path, unit[at + 1 :] + self.back, hop[at:])

    def own(self, path: CriticalPath, stage: int, operations: Ints) -> None:
        """Operations of the stage itself."""
        path.work[stage] += np.bincount(operations // self.shape.num_microbatches, minlength=self.shape.units)

    def up(self, path: CriticalPath, stage: int, operation: int) -> None:
        """From just after a backward to the start of the route."""
        stops, unit, hop, at = self._place(stage, operation)
        self._add(path, unit[:at] + self.back, hop[:at])
        self.end(path, *stops[0])

    def round_trip(self, path: CriticalPath, stage: int, operation: int) -> None:
        """From just after a forward to the end of its route and back to the start."""
        stops, unit, hop, at = self._place(stage, operation)
        self._add(path, unit[at + 1 :], hop[at:])
        self._add(path, unit + self.back, hop)
        self.end(path, *stops[0])

    def end(self, path: CriticalPath, stage: int, chunk: int) -> None:
        """What follows a chunk's last backward: its own, and that of the chunks complete after it."""
        order = self.completion[stage]
        path.after[stage, order[order.index(chunk) :]] = 1.0
