"""Time of a stage by its depth and number of blocks, with the best recomputation that fits, in numpy.

Depth counts from the end: the last stage has depth 1. Under 1F1B a stage of depth k holds min(k, m)
micro-batches, whatever the number of stages, so one table serves all plans of a root. For every depth and
number of blocks the fastest mix of none, selective and full recomputation is found exactly, which takes
recomputation out of the program without loss.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from hetplan.cost.layers import EndCost
from hetplan.cost.stages import StageCosts

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Place = Literal["first", "middle", "last", "only"]
FULL = 1 - 1e-12
"""Share of memory that a plan may fill: keeps sums in another order from tipping over the edge."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Where the blocks of a stage lie when it holds n of them, for n = 0 .. layers; `allowed` says which n may be."""

    start: Ints
    stop: Ints
    allowed: npt.NDArray[np.bool_]
    ends: tuple[EndCost, ...]


def run_of(costs: StageCosts, place: Place) -> Run:
    """Blocks of a stage at one place of the pipeline.

    Blocks after the leading dense ones repeat with period `moe_every`, so a middle stage costs the same
    wherever it begins; the table takes the first run of the pattern.
    """
    arch = costs.architecture
    total, unit = arch.layers, arch.moe_every if arch.experts else 1
    dense = min(arch.dense_layers, total) if arch.experts else 0
    n = np.arange(total + 1)
    if place == "first":
        start, stop = np.zeros_like(n), n
        allowed = (n >= max(1, dense)) & ((n - dense) % unit == 0) & (n < total)
    elif place == "middle":
        start, stop = np.full_like(n, dense), np.minimum(dense + n, total)
        allowed = (n >= 1) & (n % unit == 0) & (dense + n < total)
    elif place == "last":
        start, stop = total - n, np.full_like(n, total)
        allowed = (n >= 1) & ((total - n - dense) % unit == 0) & (n <= total - max(dense, 1))
    else:
        start, stop = np.zeros_like(n), n
        allowed = n == total
    ends = costs.ends(first=place in ("first", "only"), last=place in ("last", "only"))
    return Run(start=start, stop=stop, allowed=allowed, ends=ends)


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTable:
    """One option at one place. Arrays over blocks n = 0 .. layers; `backward_s` also over depth 1 .. K (row 0)."""

    forward_s: Floats
    backward_s: Floats
    """Recomputation included; infinite where nothing fits or n is not allowed."""
    after_s: Floats
    """Gradient synchronisation and optimizer."""
    selective: Ints
    full: Ints

    @property
    def time_s(self) -> Floats:
        """Forward and backward of one micro-batch, shape (K, layers + 1)."""
        return self.forward_s + self.backward_s


def stage_table(costs: StageCosts, place: Place, usable_bytes: float, depths: int) -> StageTable:
    """Tables of one option at one place for depths 1 .. `depths`."""
    run = run_of(costs, place)
    start, stop, ends = run.start, run.stop, run.ends
    held = costs.parameters(start, stop, ends)
    forward = np.asarray(costs.forward_s(start, stop, ends), dtype=np.float64)
    backward = np.asarray(costs.backward_s(start, stop, ends), dtype=np.float64)
    after = np.asarray(costs.gradient_sync_s(*held) + costs.optimizer_s(*held), dtype=np.float64)
    room = usable_bytes * FULL - costs.fixed_bytes(ends) - costs.state_bytes(start, stop, ends)
    extra, selective, full = _recompute(costs, run, room, depths)
    return StageTable(
        forward_s=forward,
        backward_s=np.where(run.allowed, backward + extra, np.inf),
        after_s=after,
        selective=selective,
        full=full,
    )


def _recompute(costs: StageCosts, run: Run, room: Floats, depths: int) -> tuple[Floats, Ints, Ints]:
    """Least extra seconds of recomputation that fits, with its counts, shape (depths, layers + 1).

    Savings grow along the blocks, so for a number of fully recomputed blocks the least number of selective ones
    is a binary search; numbers of full blocks are tried from the least that suffices alone downwards, until
    selective recomputation of all other blocks no longer makes up for the rest.
    """
    start, stop = run.start, run.stop
    kept = costs.kept_bytes(start, stop, 0, 0, run.ends)
    flying = np.minimum(np.arange(1, depths + 1), costs.num_microbatches)[:, None]
    none = costs.prefix("kept_bytes")
    by_full = none - costs.prefix("full_bytes")
    by_core = none - costs.prefix("selective_bytes")
    full_s, core_s = costs.prefix("full_s"), costs.prefix("selective_s")
    per_flight = room / flying
    lacking = kept - per_flight
    lacking_full = kept + costs.block_bytes / flying - per_flight
    shape = lacking.shape
    origin = np.broadcast_to(start, shape)

    def core_start(end: Ints, missing: Floats) -> Ints:
        """First block recomputed selectively so that blocks up to `end` save `missing` bytes; below start: none do."""
        found = np.searchsorted(by_core, by_core[end] - missing, side="right") - 1
        return np.where(missing <= 0, end, found)

    best = np.where(lacking <= 0, 0.0, np.inf)
    selective, full = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64)
    end = np.broadcast_to(stop, shape)
    first_core = core_start(end, lacking)
    works = (lacking > 0) & (first_core >= origin)
    best = np.where(works, core_s[end] - core_s[np.maximum(first_core, 0)], best)
    selective = np.where(works, end - first_core, selective)

    first_full = np.searchsorted(by_full, by_full[stop] - lacking_full, side="right") - 1
    first_full = np.minimum(first_full, end - 1)
    # Rows that still fail with every block recomputed never fit.
    open_rows = (lacking > 0) & (first_full >= origin)
    cut = np.where(open_rows, first_full, end)
    while open_rows.any():
        missing = lacking_full - (by_full[stop] - by_full[cut])
        first_core = core_start(cut, missing)
        works = open_rows & (first_core >= origin)
        cost = full_s[stop] - full_s[cut] + core_s[cut] - core_s[np.clip(first_core, 0, None)]
        better = works & (cost < best)
        best = np.where(better, cost, best)
        full = np.where(better, end - cut, full)
        selective = np.where(better, cut - first_core, selective)
        cut = cut + 1
        open_rows = works & (cut < end)
        cut = np.where(open_rows, cut, end)
    return best, selective, full
