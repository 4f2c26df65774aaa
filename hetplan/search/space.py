"""The plan space: what is decided once for the job, and what each group may choose.

A root fixes the samples W of one micro-batch step over all replicas, hence m = B / W micro-batches, and the order of
work: schedule, virtual stages, further warm-up per change of group, and the number of stages where the order depends
on it. In the uniform space it also fixes dp and the micro-batch size for all groups; in the per-group space every
group splits W into dp and micro-batch size on its own.

Under a root each group takes at most one option: a tensor parallel degree t inside a domain, with dp and micro-batch
size, and then a number of stages. Stages of a group are neighbours in the pipeline; groups come in any order; groups
and accelerators may stay unused. The leading dense blocks of a mixture of experts stay in the model's first chunk,
and chunks hold whole periods of `moe_every` blocks. A stage's blocks are spread evenly over its chunks.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from hetplan.cost.stages import Degrees, StageCosts
from hetplan.plan import ScheduleName
from hetplan.predict.setting import Setting
from hetplan.schedule.schedules import schedule
from hetplan.search.options import SearchOptions
from hetplan.search.result import Limits

Floats = npt.NDArray[np.float64]
WARMUPS = (0, 1, 2, 4)
"""Further forwards per change of group that are searched: a slow hop of x needs about 2 x / (F + B)."""
VIRTUAL_STAGES = (2, 4)
"""Chunks per stage that are searched where a schedule takes any number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Root:
    """Choices shared by all stages."""

    samples: int
    """Sequences of one micro-batch step over all replicas, W."""
    num_microbatches: int
    schedule: ScheduleName = "1f1b"
    virtual_stages: int = 1
    warmup: int = 0
    """Further forwards ahead of the first backward per change of group downstream."""
    stages: int | None = None
    """The number of stages, where the order of work and what is in flight depend on more than the depth."""
    dp: int | None = None
    """None: every group its own."""
    microbatch_size: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Option:
    """One choice of degrees on one group, under a root."""

    group: int
    """Index of the group in the cluster."""
    name: str
    tp: int
    dp: int
    microbatch_size: int
    zero: int
    max_stages: int
    costs: StageCosts

    @property
    def key(self) -> tuple[int, int, int, int]:
        """What tells it from the group's other options."""
        return self.group, self.tp, self.dp, self.microbatch_size


def divisors(n: int) -> list[int]:
    """Divisors of n in ascending order."""
    small = [i for i in range(1, int(n**0.5) + 1) if n % i == 0]
    return small + [n // i for i in reversed(small) if i * i != n]


def tensor_degrees(setting: Setting, group: int, limits: Limits) -> list[int]:
    """Tensor parallel degrees that the model allows inside a domain of the group."""
    spec = setting.cluster.groups[group]
    if not spec.accelerator.supports(setting.training.precision):
        return []
    most = min(limits.max_tp, setting.fabrics[spec.name].domain)
    arch = setting.model.architecture
    return [tp for tp in range(1, most + 1) if arch.tp_obstacle(tp) is None]


def replica_slots(setting: Setting, group: int, tp: int) -> int:
    """Replicas of one stage that the group could hold at this degree."""
    spec = setting.cluster.groups[group]
    return setting.fabrics[spec.name].slots(tp, spec.accelerators)


def microbatch_sizes(limits: Limits) -> list[int]:
    """1, 2, 4, ..."""
    sizes = [1]
    while 2 * sizes[-1] <= limits.max_microbatch_size:
        sizes.append(2 * sizes[-1])
    return sizes


def batch_choices(setting: Setting, limits: Limits, groups: tuple[int, ...]) -> Iterator[tuple[int, int, int]]:
    """(dp, micro-batch size, micro-batches) whose product is the global batch."""
    batch = setting.training.global_batch_size
    most = max((replica_slots(setting, g, tp) for g in groups for tp in tensor_degrees(setting, g, limits)), default=0)
    for size in microbatch_sizes(limits):
        if batch % size == 0:
            for dp in divisors(batch // size):
                if dp <= most and batch // size // dp <= limits.max_microbatches:
                    yield dp, size, batch // size // dp


def base_roots(setting: Setting, search_options: SearchOptions, groups: tuple[int, ...]) -> list[Root]:
    """Roots by batch alone: degrees and micro-batches.

    The per-group space has one root for each W and holds the uniform space.
    """
    choices = batch_choices(setting, search_options.limits, groups)
    if search_options.space == "uniform":
        return [Root(samples=dp * b, num_microbatches=m, dp=dp, microbatch_size=b) for dp, b, m in choices]
    steps = sorted({(dp * b, m) for dp, b, m in choices})
    return [Root(samples=samples, num_microbatches=m) for samples, m in steps]


def orders_of_work(root: Root, search_options: SearchOptions, groups: tuple[int, ...], most_stages: int) -> list[Root]:
    """The root under every order of work that is asked for and exists, for up to so many stages.

    Where the order depends on the number of stages in more than the depth, there is a root for every number.
    """
    limits, found = search_options.limits, []
    for name in search_options.schedules:
        order = schedule(name)
        if name in ("1f1b", "gpipe"):
            deeper = [w for w in WARMUPS if w <= limits.max_warmup] if name == "1f1b" and len(groups) > 1 else [0]
            found += [replace(root, schedule=name, warmup=w) for w in deeper]
            continue
        for v in (1, *VIRTUAL_STAGES):
            if (order.many and v > limits.max_virtual_stages) or order.chunks(v) is not None:
                continue
            for stages in range(2, most_stages + 1):
                if order.obstacle(stages, root.num_microbatches) is None:
                    found.append(replace(root, schedule=name, virtual_stages=v, stages=stages))
    return found


def options(setting: Setting, root: Root, limits: Limits, groups: tuple[int, ...]) -> list[Option]:
    """Options of the groups under a root, those that hold at least one stage.

    ZeRO-1 moves no more bytes than an all-reduce, updates fewer parameters per rank and needs less memory, so
    ZeRO-0 with replicas can never be better and is left out here (`tests/search` checks it).
    """
    sizes = [root.microbatch_size] if root.microbatch_size is not None else microbatch_sizes(limits)
    splits = [(root.samples // size, size) for size in sizes if root.samples % size == 0]
    passes = 1 if schedule(root.schedule).once else root.num_microbatches
    found = []
    for group in groups:
        name = setting.cluster.groups[group].name
        for tp in tensor_degrees(setting, group, limits):
            for dp, size in splits:
                stages = min(limits.max_stages_per_group, replica_slots(setting, group, tp) // dp)
                if not stages:
                    continue
                zero = 1 if dp > 1 else 0
                degrees = Degrees(tp=tp, dp=dp, microbatch_size=size, zero=zero)
                found.append(
                    Option(
                        group=group,
                        name=name,
                        tp=tp,
                        dp=dp,
                        microbatch_size=size,
                        zero=zero,
                        max_stages=stages,
                        costs=setting.costs(name, degrees, True, passes),
                    )
                )
    return found


def rates(paces: list[tuple[Option, float]], most: int) -> Floats:
    """Most blocks per second of 0 .. `most` stages, by the seconds per block of the options; one option per group."""
    count = np.arange(most + 1)
    by_group: dict[int, Floats] = {}
    for option, pace in paces:
        rate = np.minimum(count, option.max_stages) / pace
        by_group[option.group] = np.maximum(by_group.get(option.group, np.zeros(most + 1)), rate)
    total = np.zeros(most + 1)
    for rate in by_group.values():
        # Row k: k stages of this group and the rest of the others.
        rows = [np.append(np.zeros(k), total[: len(count) - k]) + np.where(count >= k, rate[k], 0.0) for k in count]
        total = np.asarray(np.max(rows, axis=0), dtype=np.float64)
    return total
