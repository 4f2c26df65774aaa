"""What may be chosen in a small problem: jobs, chains of groups, and where the blocks of a split lie, for `brute`.

A job is a schedule with its chunks per stage and further warm-up, and a number of micro-batches. A chain is groups in
some order, each with tensor parallel degree, dp, micro-batch size, ZeRO stage and a number of stages. A split is
blocks per stage.

In the uniform space ZeRO-0 with replicas is listed next to ZeRO-1, though the definition leaves it out: it must never
be better.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import combinations, permutations
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hetplan.plan import ScheduleName
from hetplan.predict import Setting
from hetplan.schedule.schedules import schedule
from hetplan.schedule.simulator import Shape
from hetplan.specs.architecture import ArchitectureSpec
from tests.search.brute_tables import BOTH, FIRST, LAST, LAST_TOGETHER, NONE, Option, Tables
from tests.search.instances import Instance

Ints = npt.NDArray[np.int64]


class Run(NamedTuple):
    """Neighbouring stages on one group."""

    group: int
    tp: int
    dp: int
    microbatch_size: int
    zero: int
    stages: int

    @property
    def option(self) -> Option:
        """All but the stages."""
        return Option(*self[:-1])


Chain = tuple[Run, ...]
"""Each group in use, in pipeline order."""


@dataclass(frozen=True, slots=True, order=True)
class Job:
    """What all stages share."""

    schedule: ScheduleName
    virtual_stages: int
    warmup: int
    """Further forwards per change of group."""
    num_microbatches: int


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the blocks of every split lie: K splits, p stages, v chunks."""

    splits: Ints
    """Blocks per stage, (K, p)."""
    start: Ints
    """First block of each chunk, (K, p, v)."""
    size: Ints
    ends: Ints
    """Which ends of the model each chunk holds, (p, v)."""
    first: tuple[int, int]
    """Stage and chunk of the model's first blocks, of one copy."""
    last: tuple[int, int]


def _compositions(total: int, parts: int) -> Ints:
    """Every way to write a number as a sum of non-negative ones, shape (K, parts)."""
    rows = [np.diff((-1, *cuts, total + parts - 1)) - 1 for cuts in combinations(range(total + parts - 1), parts - 1)]
    return np.array(rows, dtype=np.int64).reshape(-1, parts)


@cache
def layout(architecture: ArchitectureSpec, name: str, stages: int, chunks: int) -> Layout:
    """Blocks of every split. Leading dense blocks stand together in the first chunk, periods of `moe_every` whole."""
    layers, unit, dense = architecture.layers, 1, 0
    if architecture.experts:
        unit, dense = architecture.moe_every, architecture.dense_layers
    down = [[(j, c) for j in range(stages)] for c in range(chunks)]
    shape = schedule(name).shape
    orders = [[place for chunk in down for place in chunk]]
    if shape in ("v", "both"):
        up = down[1][::-1]
        orders = [down[0] + up] if shape == "v" else [down[0], up]
    first, last = {order[0] for order in orders}, {order[-1] for order in orders}
    ends = np.full((stages, chunks), NONE)
    for j, c in first:
        ends[j, c] = FIRST
    for j, c in last:
        together = j in {stage for stage, _ in first}
        ends[j, c] = BOTH if (j, c) in first else LAST_TOGETHER if together else LAST
    rest = (layers - dense) % unit
    if shape == "both":
        each = layers // stages
        fine = layers % stages == 0 and each % unit == 0 and each >= dense and (each - dense) % unit == 0
        size = np.full((int(fine), stages, chunks), each)
    else:
        periods = _compositions((layers - dense - rest) // unit, stages)
        size = np.stack([unit * (periods // chunks + (periods % chunks > c)) for c in range(chunks)], axis=2)
        for (j, c), more in ((orders[0][0], dense), (orders[0][-1], rest)):
            size[:, j, c] += more
    size = size[(size >= 1).all(axis=(1, 2))]
    start = np.zeros_like(size)
    for order in orders:
        at = np.zeros(len(size), dtype=np.int64)
        for j, c in order:
            start[:, j, c] = at
            at = at + size[:, j, c]
        assert (at == layers).all()
    return Layout(size.sum(axis=2), start, size, ends, orders[0][0], orders[0][-1])


class Choices:
    """All jobs and chains of a problem."""

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        self.setting = Setting(
            cluster=instance.cluster, model=instance.model, training=instance.training, stack=instance.stack
        )
        self.architecture, self.groups = instance.model.architecture, instance.cluster.groups
        self.tables = Tables(self.setting, list(self.options()))

    def slots(self, group: int, tp: int) -> int:
        """Replicas of `tp` accelerators that the group holds, each inside one domain."""
        left, domain, count = self.groups[group].accelerators, self.groups[group].domain, 0
        while left > 0:
            count += min(left, domain) // tp
            left -= domain
        return count

    def options(self) -> Iterator[Option]:
        """Every group with its degrees. ZeRO without replicas shards nothing and is no option of its own."""
        batch, limits = self.instance.training.global_batch_size, self.instance.limits
        for group, spec in enumerate(self.groups):
            if not spec.accelerator.supports(self.instance.training.precision):
                continue
            for tp in range(1, limits.max_tp + 1):
                if self.architecture.tp_obstacle(tp) is not None:
                    continue
                for dp in range(1, self.slots(group, tp) + 1):
                    size = 1
                    while size <= limits.max_microbatch_size:
                        if batch % (dp * size) == 0 and batch // (dp * size) <= limits.max_microbatches:
                            for zero in range(4 if dp > 1 else 1):
                                yield Option(group, tp, dp, size, zero)
                        size *= 2

    def microbatches(self, option: Option) -> int:
        """Of a step."""
        return self.instance.training.global_batch_size // (option.dp * option.microbatch_size)

    def jobs(self, num_microbatches: int) -> Iterator[Job]:
        """All jobs with so many micro-batches."""
        limits = self.instance.limits
        for name in self.instance.schedules:
            order = schedule(name)
            for v in (1, 2, 4):
                if order.chunks(v) is None and (v == 1 or v <= limits.max_virtual_stages):
                    for warmup in (0, 1, 2, 4) if name == "1f1b" else (0,):
                        if warmup <= limits.max_warmup:
                            yield Job(name, v, warmup, num_microbatches)

    def runs(self, num_microbatches: int) -> Iterator[list[Run]]:
        """Runs that may stand in one chain: in the uniform space those with the same dp, micro-batch size and ZeRO."""
        alike: dict[tuple[int, ...], list[Run]] = defaultdict(list)
        for option in self.tables.options:
            if self.microbatches(option) == num_microbatches and option.zero <= 1:
                if self.instance.space == "per-group" and option.zero < (option.dp > 1):
                    continue
                held = self.slots(option.group, option.tp) // option.dp
                key = () if self.instance.space == "per-group" else option[2:]
                for stages in range(1, min(held, self.instance.limits.max_stages_per_group) + 1):
                    alike[key].append(Run(*option, stages))
        yield from alike.values()

    def pipelines(self, num_microbatches: int) -> Iterator[Chain]:
        """All chains of two stages or more."""
        most = min(self.instance.limits.max_stages, self.architecture.layers)

        def chosen(groups: int, runs: list[Run], room: int) -> Iterator[tuple[Run, ...]]:
            if groups == 0:
                yield ()
                return
            for rest in chosen(groups - 1, runs, room):
                yield rest
                taken = sum(run.stages for run in rest)
                yield from ((*rest, run) for run in runs if run.group == groups - 1 and taken + run.stages <= room)

        for runs in self.runs(num_microbatches):
            for used in chosen(len(self.groups), runs, most):
                if sum(run.stages for run in used) >= 2:
                    yield from permutations(used)

    def shape(self, job: Job, chain: Chain) -> Shape:
        """Order of work: the further warm-up of a stage grows with every change of group below it."""
        warmup = [job.warmup * (len(chain) - 1 - i) for i, run in enumerate(chain) for _ in range(run.stages)]
        return Shape(
            schedule=job.schedule,
            stages=len(warmup),
            num_microbatches=job.num_microbatches,
            virtual_stages=job.virtual_stages,
            warmup=tuple(warmup) if any(warmup) else (),
            transfers=self.instance.stack.transfers,
        )

    def by_shape(self) -> Iterator[tuple[Job, Shape, list[Chain]]]:
        """All jobs and chains, those of one shape together."""
        for m in sorted({self.microbatches(option) for option in self.tables.options}):
            alone = [(Run(*option, 1),) for option in self.tables.options if self.microbatches(option) == m]
            patterns: dict[tuple[int, ...], list[Chain]] = defaultdict(list)
            for chain in self.pipelines(m):
                patterns[tuple(run.stages for run in chain)].append(chain)
            found: dict[tuple[Job, Shape], list[Chain]] = defaultdict(list)
            first = Job("1f1b", 1, 0, m)
            found[first, self.shape(first, alone[0])] += alone
            for job in self.jobs(m):
                for pattern, chains in patterns.items():
                    if job.warmup and len(pattern) == 1:
                        continue
                    if schedule(job.schedule).obstacle(sum(pattern), m) is None:
                        found[job, self.shape(job, chains[0])] += chains
            for (job, shape), chains in found.items():
                yield job, shape, chains
