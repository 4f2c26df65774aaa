"""The uniform plan space: what is decided once for the job, and what each group may choose.

A root fixes dp = d, micro-batch size b and ZeRO stage z for the whole job, hence m = B / (b d) micro-batches.
Under a root each group takes at most one option: a tensor parallel degree t inside a domain, and then a number
of stages. Stages of a group are neighbours in the pipeline; groups come in any order; groups and accelerators
may stay unused. The leading dense blocks of a mixture of experts stay on the first stage, and stages hold whole
periods of `moe_every` blocks.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from hetplan.cost.stages import Degrees, StageCosts
from hetplan.predict import Setting
from hetplan.search.result import Limits


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Root:
    """Choices shared by all stages."""

    dp: int
    microbatch_size: int
    zero: int
    num_microbatches: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Option:
    """One tensor parallel degree on one group, under a root."""

    group: int
    """Index of the group in the cluster."""
    name: str
    tp: int
    max_stages: int
    costs: StageCosts


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


def batch_choices(setting: Setting, limits: Limits, groups: tuple[int, ...]) -> Iterator[tuple[int, int, int]]:
    """(dp, micro-batch size, micro-batches) whose product is the global batch; micro-batch sizes 1, 2, 4, ..."""
    batch = setting.training.global_batch_size
    most = max((replica_slots(setting, g, tp) for g in groups for tp in tensor_degrees(setting, g, limits)), default=0)
    size = 1
    while size <= limits.max_microbatch_size:
        if batch % size == 0:
            for dp in divisors(batch // size):
                if dp <= most and batch // size // dp <= limits.max_microbatches:
                    yield dp, size, batch // size // dp
        size *= 2


def pipeline_roots(setting: Setting, limits: Limits, groups: tuple[int, ...]) -> list[Root]:
    """Roots of plans with a pipeline: ZeRO 0 without replicas, else 0 and 1.

    ZeRO-1 moves no more bytes than an all-reduce, updates fewer parameters per rank and needs less memory, so
    ZeRO-0 with replicas can never be better and is left out here (`tests/search` checks it).
    """
    return [
        Root(dp=dp, microbatch_size=size, zero=1 if dp > 1 else 0, num_microbatches=m)
        for dp, size, m in batch_choices(setting, limits, groups)
    ]


def options(setting: Setting, root: Root, limits: Limits, groups: tuple[int, ...]) -> list[Option]:
    """Options of the groups under a root, those that hold at least one stage."""
    found = []
    for group in groups:
        name = setting.cluster.groups[group].name
        for tp in tensor_degrees(setting, group, limits):
            stages = min(limits.max_stages_per_group, replica_slots(setting, group, tp) // root.dp)
            if stages:
                degrees = Degrees(tp=tp, dp=root.dp, microbatch_size=root.microbatch_size, zero=root.zero)
                costs = setting.costs(name, degrees, True, root.num_microbatches)
                found.append(Option(group=group, name=name, tp=tp, max_stages=stages, costs=costs))
    return found
