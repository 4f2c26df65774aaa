"""Work of a stage by what it holds in flight and its number of blocks, with the best recomputation that fits, in numpy.

What recomputation a stage needs depends on the activations it holds, its `Holding`s, and on nothing else of the plan.
For every set of holdings and number of blocks the fastest recomputation is found exactly, which takes it out of the
program without loss. Stages with one chunk may mix none, selective and full recomputation; those with several do the
same for all blocks.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
import numpy.typing as npt

from hetplan.cost.layers import EndCost
from hetplan.cost.stages import Holding, StageCosts

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Place = Literal["first", "middle", "last", "only"]
FULL = 1 - 1e-12
"""Share of memory that a plan may fill: keeps sums in another order from tipping over the edge."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Where the blocks of one chunk lie when its stage holds n of them, for n = 0 .. layers."""

    start: Ints
    stop: Ints
    ends: tuple[EndCost, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The chunks of a stage for n = 0 .. layers; `allowed` says which n may be."""

    runs: tuple[Run, ...]
    allowed: Bools

    @property
    def ends(self) -> tuple[EndCost, ...]:
        """Of all chunks."""
        return tuple(end for run in self.runs for end in run.ends)


def stage_layout(costs: StageCosts, chunks: int, embedding: int | None, head: int | None, stages: int) -> Layout:
    """The chunks of a stage; `embedding` and `head` name the chunk that is the model's first or last one.

    Blocks after the leading dense ones repeat with period `moe_every`, so a chunk costs the same wherever it begins;
    the table takes the first run of the pattern. Whole periods are spread over the chunks, the first ones get what is
    over; the model's first chunk also holds the leading dense blocks, its last one what is left of a period.
    `stages`: all chunks alike, as many as the model has parts for so many stages; 0: any number of blocks.
    """
    arch = costs.architecture
    total, unit = arch.layers, arch.moe_every if arch.experts else 1
    dense = min(arch.dense_layers, total) if arch.experts else 0
    n = np.arange(total + 1)
    lead = dense if embedding is not None else 0
    tail = (total - dense) % unit if head is not None else 0
    periods, over = np.divmod(n - lead - tail, unit)
    allowed = (over == 0) & (periods >= 0)
    runs = []
    for c in range(chunks):
        if stages:
            # One part of the model per chunk, and n counts the blocks of one part.
            size = np.where(n * stages == total, n, 0)
            allowed &= (size > 0) & (size % unit == 0) & ((size - dense) % unit == 0) & (size >= dense)
        else:
            size = unit * (periods // chunks + (c < periods % chunks))
            size = size + (lead if c == embedding else 0) + (tail if c == head else 0)
        allowed &= size >= 1
        size = np.clip(size, 0, total)
        if c == embedding:
            start = np.zeros_like(n)
        elif c == head:
            start = total - size
        else:
            start = np.minimum(dense, total - size)
        ends = costs.ends(first=c == embedding, last=c == head, together=embedding is not None)
        runs.append(Run(start=start, stop=start + size, ends=ends))
    if embedding is not None and head is not None and not stages:
        # Nothing is left for other stages, or everything has to be here.
        allowed &= (n == total) if chunks == 1 else (n < total)
    elif not stages:
        # Other stages hold the leading dense blocks, and at least one block.
        allowed &= n <= total - (max(dense, 1) if embedding is None else 1)
    return Layout(runs=tuple(runs), allowed=allowed)


def place_layout(costs: StageCosts, place: Place) -> Layout:
    """The only chunk of a stage at one place of a line."""
    return stage_layout(
        costs, 1, 0 if place in ("first", "only") else None, 0 if place in ("last", "only") else None, 0
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTable:
    """One option at one place. Arrays over blocks n = 0 .. layers, some also over rows of holdings."""

    forward_s: Floats
    """(v, L + 1)"""
    backward_s: Floats
    """(rows, v, L + 1), recomputation included, without what is split off."""
    weight_s: Floats | None
    """(v, L + 1) where weight gradients are split off."""
    after_s: Floats
    """Gradient synchronisation of each chunk, shape (v, L + 1)."""
    optimizer_s: Floats
    """(L + 1,)"""
    possible: Bools
    """(rows, L + 1): allowed, and something fits."""
    selective: Ints
    """Blocks per stage, (rows, L + 1); with several chunks all or none."""
    full: Ints
    layout: Layout

    def work_s(self, row: int) -> Floats:
        """Seconds of every unit, shape (L + 1, units)."""
        work: Floats = self.works_s([row])[0].T
        return work

    def works_s(self, rows: list[int]) -> Floats:
        """Seconds of every unit for some rows, shape (rows, units, L + 1)."""
        backward = self.backward_s[rows]
        parts = [np.broadcast_to(self.forward_s, backward.shape), backward]
        if self.weight_s is not None:
            parts.append(np.broadcast_to(self.weight_s, backward.shape))
        works: Floats = np.concatenate(parts, axis=1)
        return works


@dataclass(frozen=True, slots=True, kw_only=True)
class StageParts:
    """What of a table does not depend on what the stage holds."""

    costs: StageCosts
    layout: Layout
    splits: bool
    room_bytes: Floats
    """Left for activations, shape (L + 1,)."""
    forward_s: Floats
    backward_s: Floats
    """Without recomputation and what is split off, (v, L + 1)."""
    weight_s: Floats
    after_s: Floats
    optimizer_s: Floats
    kept_bytes: tuple[Floats, ...]
    """Of one micro-batch of each chunk before its backward, then of one that waits for its weight gradients, for each
    way of recomputing all blocks: (2 v, L + 1)."""
    extra_s: Floats
    """Seconds of recomputation of each way, (3, v, L + 1)."""

    def table(self, rows: tuple[tuple[Holding, ...], ...]) -> StageTable:
        """The table for each row of holdings."""
        if len(self.layout.runs) == 1:
            extra, selective, full = _mixes(self.costs, self.layout.runs[0], self.room_bytes, rows)
            extra = extra[:, None, :]
        else:
            extra, selective, full = self._whole(rows)
        possible = self.layout.allowed & np.isfinite(extra[:, 0])
        return StageTable(
            forward_s=self.forward_s,
            backward_s=self.backward_s + np.where(possible[:, None, :], extra, 0.0),
            weight_s=self.weight_s if self.splits else None,
            after_s=self.after_s,
            optimizer_s=self.optimizer_s,
            possible=possible,
            selective=selective,
            full=full,
            layout=self.layout,
        )

    def _whole(self, rows: tuple[tuple[Holding, ...], ...]) -> tuple[Floats, Ints, Ints]:
        """The first that fits of: nothing recomputed, the attention core, everything, for all chunks alike."""
        blocks = sum(run.stop - run.start for run in self.layout.runs)
        fits = []
        for (_, whole), kept in zip(WAYS, self.kept_bytes, strict=True):
            fits.append(most_held(kept, rows) + whole * self.costs.block_bytes <= self.room_bytes)
        chosen = np.argmax(fits, axis=0)
        found = np.moveaxis(self.extra_s[chosen, :, np.arange(len(self.room_bytes))], 2, 1)
        found = np.where(np.any(fits, axis=0)[:, None, :], found, np.inf)
        return found, np.where(chosen == 1, blocks, 0), np.where(chosen == 2, blocks, 0)


WAYS = ((0, 0), (1, 0), (0, 1))
"""Recomputation of all blocks of a stage: nothing, the attention core, everything."""


def kept_bytes(costs: StageCosts, plan: Layout) -> tuple[Floats, ...]:
    """As of `StageParts`."""
    plain = [costs.kept_bytes(run.start, run.stop, 0, 0, run.ends) for run in plan.runs]
    found = []
    for core, whole in WAYS:
        sizes = [(run, run.stop - run.start) for run in plan.runs]
        kept = [costs.kept_bytes(run.start, run.stop, core * n, whole * n, run.ends) for run, n in sizes]
        found.append(np.array(kept + plain, dtype=np.float64))
    return tuple(found)


def stage_parts(costs: StageCosts, plan: Layout, usable_bytes: float, *, splits: bool) -> StageParts:
    """The parts of one option's table at one place; `splits`: weight gradients apart."""
    runs = plan.runs
    held = [costs.parameters(run.start, run.stop, run.ends) for run in runs]
    backward = np.array([costs.backward_s(run.start, run.stop, run.ends) for run in runs], dtype=np.float64)
    weight = np.array([costs.weight_s(run.start, run.stop, run.ends) for run in runs], dtype=np.float64)
    room = np.full(plan.allowed.shape, usable_bytes * FULL - costs.fixed_bytes(plan.ends))
    for run in runs:
        room = room - costs.state_bytes(run.start, run.stop, run.ends)
    extra = [
        [costs.recompute_s(run.stop, core * (run.stop - run.start), whole * (run.stop - run.start)) for run in runs]
        for core, whole in WAYS
    ]
    return StageParts(
        costs=costs,
        layout=plan,
        splits=splits,
        room_bytes=room,
        forward_s=np.array([costs.forward_s(run.start, run.stop, run.ends) for run in runs], dtype=np.float64),
        backward_s=backward - weight if splits else backward,
        weight_s=weight,
        after_s=np.array([costs.gradient_sync_s(*parameters) for parameters in held], dtype=np.float64),
        optimizer_s=np.sum([costs.optimizer_s(*parameters) for parameters in held], axis=0, dtype=np.float64),
        kept_bytes=kept_bytes(costs, plan),
        extra_s=np.array(extra, dtype=np.float64),
    )


def stage_table(
    costs: StageCosts, plan: Layout, usable_bytes: float, rows: tuple[tuple[Holding, ...], ...], *, splits: bool
) -> StageTable:
    """Tables of one option at one place for each row of holdings; `splits`: weight gradients apart."""
    return stage_parts(costs, plan, usable_bytes, splits=splits).table(rows)


def most_held(sizes: Floats, rows: tuple[tuple[Holding, ...], ...]) -> Floats:
    """Activation bytes at the worst of each row's holdings, shape (rows, L + 1)."""
    counts, begins = _counts(rows)
    used = counts.shape[1]
    most: Floats = np.maximum.reduceat(counts @ sizes[:used], begins, axis=0)
    return most


@lru_cache(maxsize=1024)
def _counts(rows: tuple[tuple[Holding, ...], ...]) -> tuple[Floats, Ints]:
    """Holdings of all rows one below the other, and where each row begins."""
    counts = np.array([holding for row in rows for holding in row], dtype=np.float64)
    if not counts[:, counts.shape[1] // 2 :].any():
        # Nothing waits for its weight gradients alone.
        counts = counts[:, : counts.shape[1] // 2]
    return np.ascontiguousarray(counts), np.cumsum([0, *(len(row) for row in rows[:-1])])


def _mixes(
    costs: StageCosts, run: Run, room: Floats, rows: tuple[tuple[Holding, ...], ...]
) -> tuple[Floats, Ints, Ints]:
    """Least extra seconds of recomputation that fits, with its counts, shape (rows, layers + 1).

    Savings grow along the blocks, so for a number of fully recomputed blocks the least number of selective ones
    is a binary search; numbers of full blocks are tried from the least that suffices alone downwards, until
    selective recomputation of all other blocks no longer makes up for the rest.
    """
    start, stop = run.start, run.stop
    kept = costs.kept_bytes(start, stop, 0, 0, run.ends)
    none = costs.prefix("kept_bytes")
    by_full = none - costs.prefix("full_bytes")
    by_core = none - costs.prefix("selective_bytes")
    full_s, core_s = costs.prefix("full_s"), costs.prefix("selective_s")
    # What one micro-batch before its backward has to save, so that the row's worst holding fits.
    shape = (len(rows), len(room))
    lacking, lacking_full = np.full(shape, -np.inf), np.full(shape, -np.inf)
    for i, row in enumerate(rows):
        for flying, late in row:
            missing = (flying + late) * kept - room
            with_block = missing + costs.block_bytes
            if flying:
                lacking[i] = np.maximum(lacking[i], missing / flying)
                lacking_full[i] = np.maximum(lacking_full[i], with_block / flying)
            else:
                # No recomputation helps what waits for its weight gradients alone.
                lacking[i] = np.where(missing > 0, np.inf, lacking[i])
                lacking_full[i] = np.where(with_block > 0, np.inf, lacking_full[i])
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
