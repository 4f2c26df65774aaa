"""Round-trip bounds in the form that sets of plans are bounded with.

    T >= max_j c_j + sum_i f_i + h sum of hops + A_first + fixed

f_i and c_j depend on a stage's own number of blocks, depth and holdings alone: f is what every stage adds to a path
through another one, c what the stage adds through which the path goes. `hetplan.schedule.bounds` has the paths of 1F1B
and GPipe in closed form (f = F + B, h = 2); those of other schedules come from `hetplan.schedule.paths.trips`.
"""

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from hetplan.schedule.paths import CriticalPath, trips
from hetplan.schedule.schedules import schedule
from hetplan.schedule.simulator import Shape
from hetplan.search.tables import Floats

Counts = tuple[tuple[float, ...], ...]


@dataclass(frozen=True, slots=True)
class Form:
    """Paths of one kind through every stage of a pipeline with a fixed number of stages."""

    elsewhere: Floats
    """Units that a path visits on other stages, one row for each variant, shape (variants, units); f is the least."""
    own: Floats
    """Units on the stage itself, shape (p, units)."""
    hop: float
    """How often each hop is crossed at least."""
    after: Floats
    """How much of what follows each chunk of the first stage lies on every path, shape (v,)."""

    def fill(self, work_s: Floats) -> Floats:
        """F for units along the last axis."""
        least: Floats = (work_s @ self.elsewhere.T).min(axis=-1)
        return least

    def fills(self, works_s: Floats) -> Floats:
        """F for units along the second axis of three."""
        least: Floats = (self.elsewhere @ works_s).min(axis=1)
        return least

    def tied(self, stage: int, work_s: Floats) -> Floats:
        """C of a stage."""
        through: Floats = work_s @ self.own[stage] - self.fill(work_s)
        return through


def tied(forward_s: Floats, backward_s: Floats, ahead: Floats, num_microbatches: int) -> Floats:
    """What a stage adds to the round-trip bound of 1F1B, c = (m - 1) t - w min(F, B)."""
    value: Floats = (num_microbatches - 1) * (forward_s + backward_s) - ahead * np.minimum(forward_s, backward_s)
    return value


@lru_cache(maxsize=4096)
def form(shape: Shape) -> Form:
    """The kind of path that is longest where all stages are alike."""
    if shape.steady is not shape:
        # Further micro-batches add a stage's own work alone.
        few = form(shape.steady)
        more = (shape.num_microbatches - shape.steady.num_microbatches) / schedule(shape.schedule).copies
        return replace(few, own=few.own + more)
    units = np.ones((1, shape.stages, shape.units)) / shape.virtual_stages
    if not schedule(shape.schedule).splits_backward:
        units[:, :, shape.virtual_stages :] *= 2
    none = np.zeros((1, shape.stages))
    after = np.zeros((1, shape.stages, shape.virtual_stages))

    def longest(paths: tuple[CriticalPath, ...]) -> float:
        return max(float(path.length_s(units, none, after)[0]) for path in paths)

    paths = max(trips(shape), key=longest)
    work = np.array([path.work for path in paths])
    others = work[~np.eye(shape.stages, dtype=bool)]
    return Form(
        elsewhere=np.unique(others, axis=0),
        own=work[np.arange(shape.stages), np.arange(shape.stages)],
        hop=float(np.min([path.hop[: shape.stages - 1] for path in paths])),
        after=np.min([path.after[0] for path in paths], axis=0),
    )
