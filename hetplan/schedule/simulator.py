"""Exact pipeline time by the recurrence of operation ends, for many candidates at once.

    end(op) = max(end(previous op of the stage), end(op it depends on) + hop) + duration

F(j, i) depends on F(j-1, i), B(j, i) on B(j+1, i), and B of the last stage on its own F. A hop is a delay that
occupies no stage (asynchronous transfer). Which operation waits for which depends only on the schedule, the
number of stages p and of micro-batches m: it is worked out once, cut into levels whose operations are
independent, and evaluated for K candidates with a few numpy calls a level.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
import numpy.typing as npt

from hetplan.schedule.schedules import schedule

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Level:
    """Operations that wait only for earlier levels: indices into ends, delays and durations."""

    operation: Ints
    previous: Ints
    dependency: Ints
    delay: Ints
    duration: Ints


@dataclass(frozen=True)
class Program:
    """A schedule for p stages and m micro-batches, cut into levels."""

    levels: tuple[Level, ...]
    size: int
    last: Ints
    """Each stage's last operation."""

    @cached_property
    def before(self) -> tuple[list[int], list[int], list[int], list[int]]:
        """Per operation: the previous one of its stage, its dependency, the delay and the duration it takes."""
        table = np.zeros((4, self.size), dtype=np.int64)
        for level in self.levels:
            table[:, level.operation] = (level.previous, level.dependency, level.delay, level.duration)
        previous, dependency, delay, duration = (row.tolist() for row in table)
        return previous, dependency, delay, duration


@lru_cache(maxsize=64)
def compile_schedule(name: str, stages: int, num_microbatches: int) -> Program:
    """Levels of a schedule. Operation F(j, i) has index 2 m j + i, B(j, i) has 2 m j + m + i; 2 m p is "nothing"."""
    p, m = stages, num_microbatches
    nothing, plan = 2 * m * p, schedule(name)
    stage = np.arange(p)[:, None]
    order = plan.order(p, m) + 2 * m * stage
    previous = np.empty(nothing, dtype=np.int64)
    previous[order[:, 1:]] = order[:, :-1]
    previous[order[:, 0]] = nothing
    forward = 2 * m * stage + np.arange(m)
    backward = forward + m
    dependency = np.empty(nothing, dtype=np.int64)
    dependency[forward[0]] = nothing
    dependency[forward[1:]] = forward[:-1]
    dependency[backward[:-1]] = backward[1:]
    dependency[backward[-1]] = forward[-1]
    # The hop that a dependency crosses; p - 1 stands for none.
    delay = np.empty(nothing, dtype=np.int64)
    delay[forward] = np.concatenate([[p - 1], np.arange(p - 1)])[:, None]
    delay[backward] = stage
    duration = np.empty(nothing, dtype=np.int64)
    duration[forward] = stage
    duration[backward] = stage + p
    level = plan.level(p, m).ravel()
    by_level = np.argsort(level, kind="stable")
    cuts = np.flatnonzero(np.diff(level[by_level])) + 1
    levels = tuple(
        Level(part, previous[part], dependency[part], delay[part], duration[part]) for part in np.split(by_level, cuts)
    )
    return Program(levels=levels, size=nothing + 1, last=order[:, -1].copy())


def stage_ends(name: str, forward_s: Floats, backward_s: Floats, hop_s: Floats, num_microbatches: int) -> Floats:
    """When each stage ends its last operation, seconds, shape (K, p).

    `forward_s` and `backward_s` are seconds per micro-batch, shape (K, p); `hop_s` one-way seconds from each
    stage to the next, shape (K, p-1).
    """
    if forward_s.shape[1] == 1:
        return num_microbatches * (forward_s + backward_s)
    program, end = _ends(name, forward_s, backward_s, hop_s, num_microbatches)
    return end[program.last].T


def _ends(
    name: str, forward_s: Floats, backward_s: Floats, hop_s: Floats, num_microbatches: int
) -> tuple[Program, Floats]:
    candidates, stages = forward_s.shape
    program = compile_schedule(name, stages, num_microbatches)
    end = np.zeros((program.size, candidates))
    durations = np.concatenate([forward_s, backward_s], axis=1).T.copy()
    delays = np.concatenate([hop_s, np.zeros((candidates, 1))], axis=1).T.copy()
    for level in program.levels:
        ready = end[level.dependency] + delays[level.delay]
        end[level.operation] = np.maximum(end[level.previous], ready) + durations[level.duration]
    return program, end


@dataclass(frozen=True, slots=True)
class CriticalPath:
    """How often each stage's forward, backward and hop lie on a path of operations that must follow each other.

    The sum along the path is a lower bound on the time of every plan with the same number of stages and
    micro-batches, whatever its stage times: the path stays a path.
    """

    forward: Floats
    """(p,)"""
    backward: Floats
    hop: Floats
    """(p - 1,)"""
    after: Floats
    """(p,): 1 at the stage on which the path ends, for what follows its last backward."""

    def mixed(self, other: CriticalPath, share: float) -> CriticalPath:
        """A convex combination of two paths, a lower bound like each of them."""
        return CriticalPath(
            self.forward + share * (other.forward - self.forward),
            self.backward + share * (other.backward - self.backward),
            self.hop + share * (other.hop - self.hop),
            self.after + share * (other.after - self.after),
        )


def critical_path(
    name: str, forward_s: Floats, backward_s: Floats, hop_s: Floats, after_s: Floats, num_microbatches: int
) -> CriticalPath:
    """A longest path of one plan; arguments as in `stage_ends` with K = 1, `after_s` (p,)."""
    program, ends = _ends(name, forward_s[None], backward_s[None], hop_s[None], num_microbatches)
    stages = len(forward_s)
    end = ends[:, 0].tolist()
    previous, dependency, delay, duration = program.before
    delays = [*hop_s.tolist(), 0.0]
    last = int(np.argmax(ends[program.last, 0] + after_s))
    counts, hops = [0] * (2 * stages), [0] * stages
    operation, nothing = int(program.last[last]), program.size - 1
    while operation != nothing:
        counts[duration[operation]] += 1
        waited = dependency[operation]
        if end[waited] + delays[delay[operation]] >= end[previous[operation]] and waited != nothing:
            hops[delay[operation]] += 1
            operation = waited
        else:
            operation = previous[operation]
    whole = np.array(counts, dtype=np.float64)
    return CriticalPath(
        whole[:stages],
        whole[stages:],
        np.array(hops[: stages - 1], dtype=np.float64),
        (np.arange(stages) == last).astype(np.float64),
    )
