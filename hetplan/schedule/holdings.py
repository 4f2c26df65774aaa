"""What a stage holds in memory at once, by the order of its work."""

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from hetplan.schedule.base import BACKWARD, FORWARD, Ints, ahead
from hetplan.schedule.schedules import schedule
from hetplan.schedule.simulator import Shape, order_of

Holding = tuple[int, ...]
Bools = npt.NDArray[np.bool_]


@lru_cache(maxsize=4096)
def holdings(shape: Shape, stage: int) -> tuple[Holding, ...]:
    """The moments at which a stage holds most.

    Each is micro-batches of each chunk before their backward, shape (v,), then micro-batches of each chunk that wait
    for their weight gradients alone, (v,). Moments that hold less are left out.
    """
    if shape.schedule == "1f1b":
        return ((int(ahead(shape.stages, shape.num_microbatches, shape.warmup)[stage]) + 1, 0),)
    if shape.schedule == "gpipe":
        return ((shape.num_microbatches, 0),)
    if shape.schedule == "breadth-first":
        return ((shape.num_microbatches,) * shape.virtual_stages + (0,) * shape.virtual_stages,)
    if shape.steady is not shape:
        return holdings(shape.steady, stage)
    return tuple(tuple(row) for row in _most(_counts(shape, stage)).tolist())


def _counts(shape: Shape, stage: int) -> Ints:
    """What is held after each operation of a stage."""
    v, m = shape.virtual_stages, shape.num_microbatches
    plan = schedule(shape.schedule)
    row = order_of(shape)[stage]
    kind, chunk = row // m // v, row // m % v
    change = np.zeros((len(row), 2 * v), dtype=np.int64)
    at = np.arange(len(row))
    change[at, chunk] = np.where(kind == FORWARD, 1, np.where(kind == BACKWARD, -1, 0))
    if plan.splits_backward:
        # Between the two halves of a backward pass its activations stay.
        change[at, v + chunk] = np.where(kind == FORWARD, 0, np.where(kind == BACKWARD, 1, -1))
    held: Ints = np.cumsum(change, axis=0)
    return held


def _most(held: Ints) -> Ints:
    """Rows that no other row reaches in every entry."""
    # No two moments in a row are both the most: only those before something is given back can be.
    peaks = np.append((np.diff(held, axis=0) < 0).any(axis=1), True)
    rows = np.unique(held[peaks], axis=0)
    reached: Bools = np.asarray((rows[None, :, :] >= rows[:, None, :]).all(axis=2))
    np.fill_diagonal(reached, False)
    kept: Ints = rows[~reached.any(axis=1)]
    return kept
