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
        return tuple(row.tolist() for row in table)  # type: ignore[return-value]


@lru_cache(maxsize=256)
def compile_schedule(name: str, stages: int, num_microbatches: int) -> Program:
    """Levels of a schedule. Operation F(j, i) has index 2 m j + i, B(j, i) has 2 m j + m + i; 2 m p is "nothing"."""
    p, m = stages, num_microbatches
    nothing = 2 * m * p
    orders = [schedule(name).order(p, j, m) for j in range(p)]

    def index(stage: int, kind: str, i: int) -> int:
        return 2 * m * stage + (m if kind == "B" else 0) + i

    level_of = np.full(nothing + 1, -1, dtype=np.int64)
    level_of[nothing] = 0
    rows: list[list[tuple[int, int, int, int, int]]] = []
    at = [0] * p
    waiting = True
    while waiting:
        waiting = False
        for j in range(p):
            # Run each stage as far as its dependencies allow, then let the others catch up.
            while at[j] < 2 * m:
                kind, i = orders[j][at[j]]
                if kind == "F":
                    dependency, delay = (index(j - 1, "F", i), j - 1) if j else (nothing, p - 1)
                else:
                    dependency, delay = (index(j + 1, "B", i), j) if j < p - 1 else (index(j, "F", i), p - 1)
                if level_of[dependency] < 0:
                    break
                previous = index(j, *orders[j][at[j] - 1]) if at[j] else nothing
                level = int(max(level_of[previous], level_of[dependency])) + 1
                operation = index(j, kind, i)
                level_of[operation] = level
                while len(rows) < level:
                    rows.append([])
                rows[level - 1].append((operation, previous, dependency, delay, j + (p if kind == "B" else 0)))
                at[j] += 1
                waiting = True
    levels = tuple(Level(*(np.ascontiguousarray(column) for column in np.array(row, dtype=np.int64).T)) for row in rows)
    return Program(levels=levels, size=nothing + 1, last=np.array([index(j, *orders[j][-1]) for j in range(p)]))


def stage_ends(name: str, forward_s: Floats, backward_s: Floats, hop_s: Floats, num_microbatches: int) -> Floats:
    """When each stage ends its last operation, seconds, shape (K, p).

    `forward_s` and `backward_s` are seconds per micro-batch, shape (K, p); `hop_s` one-way seconds from each
    stage to the next, shape (K, p-1).
    """
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
