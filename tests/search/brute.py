"""Every plan of the uniform space of a small problem, timed by the exact recurrence.

Written from the definition of the space, apart from `hetplan.search`: only its limits are read. One plan is a
dp, a micro-batch size and a ZeRO stage for the job; groups in some order, each with a tensor parallel degree and
a number of stages; and blocks per stage. Seconds and bytes of a stage are those of `hetplan.cost`, the time of a
plan is that of `hetplan.predict`.

Recomputation: for each stage all numbers of selective and full blocks are tried by a loop of their own, and the
one with the least backward seconds is kept among those that fit. A stage's memory does not depend on other
stages, and no plan is faster for a slower backward pass: `timed_by_predict` lists all combinations instead.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import combinations, permutations, product

import numpy as np
import numpy.typing as npt

from hetplan.cost.stages import Degrees, StageCosts
from hetplan.plan import Plan, Recompute, Stage
from hetplan.predict import Setting, predict_in
from hetplan.schedule.simulator import stage_ends
from hetplan.specs.architecture import ArchitectureSpec
from tests.search.instances import Instance

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Mix = tuple[int, int]
"""(selective, full) blocks of a stage."""
Chain = tuple[tuple[int, int, int], ...]
"""(group, tp, stages) of each group in use, in pipeline order."""


@dataclass(frozen=True, slots=True, order=True)
class Job:
    """What all stages share."""

    dp: int
    microbatch_size: int
    zero: int
    num_microbatches: int


@dataclass(frozen=True, slots=True)
class Timed:
    """All splits of a job and a chain that fit, with their seconds."""

    splits: Ints
    time_s: Floats


@dataclass(frozen=True, slots=True)
class Seconds:
    """Stage seconds by first block and number of blocks, shape (L, L + 1); infinite where no mix fits."""

    forward: Floats
    backward: Floats
    after: Floats


@dataclass(frozen=True, slots=True)
class Grid:
    """All (first block, blocks, selective, full) of a model, those of one stage side by side."""

    start: Ints
    stop: Ints
    selective: Ints
    full: Ints
    begins: Ints
    """Where each stage's mixes begin."""


@cache
def grid(layers: int) -> Grid:
    """All stages and mixes of a model with so many blocks."""
    rows: list[tuple[int, int, int, int]] = []
    begins = []
    for start in range(layers):
        for n in range(1, layers - start + 1):
            begins.append(len(rows))
            rows += [(start, start + n, s, f) for f in range(n + 1) for s in range(n - f + 1)]
    start_of, stop, selective, full = np.array(rows, dtype=np.int64).T
    return Grid(start_of, stop, selective, full, np.array(begins))


@cache
def splits(architecture: ArchitectureSpec, stages: int) -> Ints:
    """Blocks per stage: leading dense blocks together on the first stage, periods of `moe_every` whole."""
    layers, every, dense = architecture.layers, 1, 0
    if architecture.experts:
        every, dense = architecture.moe_every, architecture.dense_layers
    cuts = [n for n in range(max(1, dense), layers) if (n - dense) % every == 0]
    rows = [np.diff((0, *chosen, layers)) for chosen in combinations(cuts, stages - 1)]
    return np.array(rows, dtype=np.int64).reshape(-1, stages)


class Space:
    """The plan space of a problem."""

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        self.setting = Setting(
            cluster=instance.cluster, model=instance.model, training=instance.training, stack=instance.stack
        )
        self.architecture = instance.model.architecture
        self.groups = instance.cluster.groups
        self._seconds: dict[tuple[Job, int, int, bool, bool, int], Seconds] = {}

    # -- what may be chosen

    def slots(self, group: int, tp: int) -> int:
        """Replicas of `tp` accelerators that the group holds, each inside one domain."""
        left, domain, count = self.groups[group].accelerators, self.groups[group].domain, 0
        while left > 0:
            count += min(left, domain) // tp
            left -= domain
        return count

    def degrees(self, group: int) -> list[int]:
        """Tensor parallel degrees of a group."""
        spec = self.groups[group]
        if not spec.accelerator.supports(self.instance.training.precision):
            return []
        return [tp for tp in range(1, self.instance.limits.max_tp + 1) if self.architecture.tp_obstacle(tp) is None]

    def jobs(self) -> Iterator[Job]:
        """All jobs, ZeRO 2 and 3 too. ZeRO without replicas shards nothing and is no plan of its own."""
        batch, size, limits = self.instance.training.global_batch_size, 1, self.instance.limits
        while size <= limits.max_microbatch_size:
            for dp in range(1, batch + 1):
                if batch % (dp * size) == 0 and batch // (dp * size) <= limits.max_microbatches:
                    for zero in range(4 if dp > 1 else 1):
                        yield Job(dp, size, zero, batch // (dp * size))
            size *= 2

    def chains(self, job: Job) -> Iterator[Chain]:
        """All groups in use with their degrees and stages, in every order."""
        limits = self.instance.limits
        most = min(limits.max_stages, self.architecture.layers) if job.zero < 2 else 1
        choices = []
        for group in range(len(self.groups)):
            entries: list[tuple[int, int, int] | None] = [None]
            for tp in self.degrees(group):
                held = min(self.slots(group, tp) // job.dp, limits.max_stages_per_group)
                entries += [(group, tp, stages) for stages in range(1, held + 1)]
            choices.append(entries)
        for chosen in product(*choices):
            used = [entry for entry in chosen if entry is not None]
            if used and sum(stages for _, _, stages in used) <= most:
                yield from permutations(used)

    # -- seconds

    def costs(self, job: Job, group: int, tp: int) -> StageCosts:
        """Stage costs of a group under a job."""
        degrees = Degrees(tp=tp, dp=job.dp, microbatch_size=job.microbatch_size, zero=job.zero)
        return self.setting.costs(self.groups[group].name, degrees, True, job.num_microbatches)

    def seconds(self, job: Job, group: int, tp: int, first: bool, last: bool, in_flight: int) -> Seconds:
        """Seconds of all stages of a group at one place, each with its best mix."""
        key = (job, group, tp, first, last, in_flight)
        if key not in self._seconds:
            self._seconds[key] = self._best_mixes(self.costs(job, group, tp), group, first, last, in_flight)
        return self._seconds[key]

    def _best_mixes(self, costs: StageCosts, group: int, first: bool, last: bool, in_flight: int) -> Seconds:
        mixes, ends = grid(self.architecture.layers), costs.ends(first=first, last=last)
        start, stop, selective, full = mixes.start, mixes.stop, mixes.selective, mixes.full
        held = costs.state_bytes(start, stop, ends) + costs.fixed_bytes(ends)
        held = held + in_flight * costs.kept_bytes(start, stop, selective, full, ends)
        held = held + np.where(full > 0, costs.block_bytes, 0.0)
        backward = costs.backward_s(start, stop, ends) + costs.recompute_s(stop, selective, full)
        backward = np.where(held <= self.groups[group].usable_bytes, backward, np.inf)
        a, b = start[mixes.begins], stop[mixes.begins]
        parameters = costs.parameters(a, b, ends)
        shape = (self.architecture.layers, self.architecture.layers + 1)
        found = Seconds(np.full(shape, np.inf), np.full(shape, np.inf), np.full(shape, np.inf))
        found.forward[a, b - a] = costs.forward_s(a, b, ends)
        found.backward[a, b - a] = np.minimum.reduceat(backward, mixes.begins)
        found.after[a, b - a] = costs.gradient_sync_s(*parameters) + costs.optimizer_s(*parameters)
        return found

    def hops(self, job: Job, chain: Chain) -> list[float]:
        """One-way seconds from each stage to the next."""
        found = []
        for i, (group, tp, stages) in enumerate(chain):
            here, name = self.costs(job, group, tp), self.groups[group].name
            found += [self.setting.hop_s(here, name, here, name, j) for j in range(stages - 1)]
            if i + 1 < len(chain):
                there, other = self.costs(job, *chain[i + 1][:2]), self.groups[chain[i + 1][0]].name
                found.append(self.setting.hop_s(here, name, there, other, stages - 1))
        return found

    def _tied_s(self, job: Job, chain: Chain) -> float:
        (a, a_tp, _), (b, b_tp, _) = chain[0], chain[-1]
        first, last = self.costs(job, a, a_tp), self.costs(job, b, b_tp)
        return self.setting.tied_sync_s(first, self.groups[a].name, last, self.groups[b].name)

    def rows(self, job: Job, chain: Chain) -> tuple[Ints, list[Floats]]:
        """Splits that fit, and their forward, backward and hop seconds and what follows the last backward."""
        owners = [(group, tp) for group, tp, stages in chain for _ in range(stages)]
        p = len(owners)
        blocks = splits(self.architecture, p)
        starts = np.cumsum(blocks, axis=1) - blocks
        tables = [
            self.seconds(job, *owner, j == 0, j == p - 1, min(p - j, job.num_microbatches))
            for j, owner in enumerate(owners)
        ]
        backward = np.stack([t.backward[starts[:, j], blocks[:, j]] for j, t in enumerate(tables)], axis=1)
        fits = np.isfinite(backward).all(axis=1)
        blocks, starts, backward = blocks[fits], starts[fits], backward[fits]
        forward = np.stack([t.forward[starts[:, j], blocks[:, j]] for j, t in enumerate(tables)], axis=1)
        after = np.stack([t.after[starts[:, j], blocks[:, j]] for j, t in enumerate(tables)], axis=1)
        if p > 1:
            after[:, [0, -1]] += self._tied_s(job, chain)
        hops = np.broadcast_to(np.array(self.hops(job, chain)), (len(blocks), p - 1))
        return blocks, [forward, backward, hops, after]

    # -- plans

    def mixes(self, job: Job, chain: Chain, split: Ints) -> list[list[Mix]]:
        """Each stage's mixes that fit, least backward seconds first."""
        owners = [(group, tp) for group, tp, stages in chain for _ in range(stages)]
        found, start, p = [], 0, len(owners)
        for j, (group, tp) in enumerate(owners):
            costs, stop = self.costs(job, group, tp), start + int(split[j])
            ends, flying = costs.ends(first=j == 0, last=j == p - 1), min(p - j, job.num_microbatches)
            fitting: list[Mix] = []
            for full in range(stop - start + 1):
                for selective in range(stop - start - full + 1):
                    held = costs.memory(start, stop, selective, full, ends, flying).total_bytes
                    if held <= self.groups[group].usable_bytes:
                        fitting.append((selective, full))
            found.append(sorted(fitting, key=lambda mix: float(costs.recompute_s(stop, *mix))))
            start = stop
        return found

    def plan(self, job: Job, chain: Chain, split: Ints, mixes: tuple[Mix, ...]) -> Plan:
        """The plan in the program's own form."""
        owners = [(group, tp) for group, tp, stages in chain for _ in range(stages)]
        stages, start = [], 0
        for (group, tp), n, (selective, full) in zip(owners, split.tolist(), mixes, strict=True):
            stages.append(
                Stage(
                    group=self.groups[group].name,
                    first_layer=start,
                    layers=n,
                    tp=tp,
                    dp=job.dp,
                    microbatch_size=job.microbatch_size,
                    recompute=Recompute(none=n - selective - full, selective=selective, full=full),
                    zero=job.zero,  # type: ignore[arg-type]
                )
            )
            start += n
        return Plan(
            global_batch_size=self.instance.training.global_batch_size,
            num_microbatches=job.num_microbatches,
            stages=tuple(stages),
        )


@dataclass(frozen=True)
class Enumeration:
    """All plans of a problem."""

    space: Space
    plans: int
    """Plans looked at, those that do not fit too."""
    timed: dict[tuple[Job, Chain], Timed]

    @cached_property
    def fitting(self) -> int:
        """Plans that fit."""
        return sum(len(entry.time_s) for entry in self.timed.values())

    @cached_property
    def best_s(self) -> float:
        """Seconds of the fastest plan, infinite where none fits."""
        return min((float(entry.time_s.min()) for entry in self.timed.values() if len(entry.time_s)), default=np.inf)

    def best(self) -> Plan:
        """The fastest plan with the mixes that make it so."""
        fitting = {key: entry for key, entry in self.timed.items() if len(entry.time_s)}
        job, chain = min(fitting, key=lambda key: float(fitting[key].time_s.min()))
        split = fitting[job, chain].splits[int(fitting[job, chain].time_s.argmin())]
        mixes = self.space.mixes(job, chain, split)
        return self.space.plan(job, chain, split, tuple(stage[0] for stage in mixes))

    def time_s(self, plan: Plan) -> float:
        """Enumerated seconds of a plan; KeyError where it is not one of those that fit."""
        first = plan.stages[0]
        job = Job(first.dp, first.microbatch_size, first.zero, plan.num_microbatches)
        shared = (job.dp, job.microbatch_size, job.zero, 1, 1)
        if any((s.dp, s.microbatch_size, s.zero, s.cp, s.ep) != shared for s in plan.stages):
            raise KeyError("stages differ in what the job fixes")
        names = [group.name for group in self.space.groups]
        runs: list[tuple[int, int, int]] = []
        for stage in plan.stages:
            entry = (names.index(stage.group), stage.tp)
            if runs and runs[-1][:2] == entry:
                runs[-1] = (*entry, runs[-1][2] + 1)
            else:
                runs.append((*entry, 1))
        listed = self.timed[job, tuple(runs)]
        row = np.flatnonzero((listed.splits == [stage.layers for stage in plan.stages]).all(axis=1))
        if len(row) != 1:
            raise KeyError("no such split fits")
        return float(listed.time_s[row[0]])


def enumerate_plans(instance: Instance) -> Enumeration:
    """Time every plan of a problem, those of a job with as many stages together."""
    space = Space(instance)
    timed: dict[tuple[Job, Chain], Timed] = {}
    plans = 0
    for job in space.jobs():
        by_stages: dict[int, list[tuple[Chain, Ints, list[Floats]]]] = {}
        for chain in space.chains(job):
            stages = sum(n for _, _, n in chain)
            plans += len(splits(space.architecture, stages))
            blocks, rows = space.rows(job, chain)
            by_stages.setdefault(stages, []).append((chain, blocks, rows))
        for entries in by_stages.values():
            forward, backward, hops, after = (
                np.concatenate(part) for part in zip(*(e[2] for e in entries), strict=True)
            )
            ends = stage_ends("1f1b", forward, backward, hops, job.num_microbatches)
            time_s = (ends + after).max(axis=1) + instance.stack.step_fixed_s
            begin = 0
            for chain, blocks, _ in entries:
                timed[job, chain] = Timed(blocks, time_s[begin : begin + len(blocks)])
                begin += len(blocks)
    return Enumeration(space=space, plans=plans, timed=timed)


def timed_by_predict(space: Space) -> Iterator[tuple[Job, Chain, Ints, float, int]]:
    """Each split with its best time over all combinations of mixes, as `predict` alone sees them, and their number.

    The time is infinite where no combination fits by its prediction.
    """
    for job in space.jobs():
        for chain in space.chains(job):
            for split in splits(space.architecture, sum(stages for _, _, stages in chain)):
                every = [[(s, f) for f in range(n + 1) for s in range(n - f + 1)] for n in split.tolist()]
                best, plans = np.inf, 0
                for mixes in product(*every):
                    prediction = predict_in(space.setting, space.plan(job, chain, split, mixes))
                    plans += 1
                    if prediction.fits:
                        best = min(best, prediction.iteration_time_s)
                yield job, chain, split, best, plans
