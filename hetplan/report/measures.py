"""What screens say of a plan beyond its prediction: words and figures derived from the records."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from hetplan.plan import Plan, Schedule, Stage
from hetplan.report import numbers
from hetplan.report.records import InputsRecord, PlanRecord, PredictionRecord, StageRecord
from hetplan.report.style import GROUP_STYLES
from hetplan.specs.cluster import ClusterSpec

RECOMPUTE_KINDS = ("none", "selective", "full")
LITTLE_HEADROOM = 0.05
"""Below this share of memory left over, a plan is marked: allocators lose about as much to fragmentation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRun:
    """Neighbouring stages on one group."""

    group: str
    first: int
    stages: tuple[Stage, ...]

    @property
    def last(self) -> int:
        """Index of the last stage."""
        return self.first + len(self.stages) - 1

    @property
    def accelerators(self) -> int:
        """Accelerators of all its stages."""
        return sum(stage.accelerators for stage in self.stages)


def group_runs(plan: Plan) -> tuple[GroupRun, ...]:
    """Stages of the plan by group, in pipeline order."""
    runs, first = [], 0
    for group, stages in groupby(plan.stages, key=lambda stage: stage.group):
        run = GroupRun(group=group, first=first, stages=tuple(stages))
        runs.append(run)
        first = run.last + 1
    return tuple(runs)


def group_style(cluster: ClusterSpec, group: str) -> str:
    """Colour of a group, by its place in cluster.yaml."""
    names = [g.name for g in cluster.groups]
    place = names.index(group) if group in names else len(names)
    return GROUP_STYLES[place] if place < len(GROUP_STYLES) else ""


def one_or_each(values: Sequence[object]) -> str:
    """A value that all share, or each of them: 4, 8|4."""
    texts = [str(value) for value in values]
    return texts[0] if len(set(texts)) == 1 else "|".join(texts)


TWO_CHUNKS = ("zb-v", "dualpipe")
"""Schedules that always have two chunks per stage."""


def parallel_text(stages: Sequence[Stage]) -> str:
    """Parallel degrees, in stage order where they differ: tp4 dp32, tp8|tp4 dp16; cp and ep only where not 1."""
    parts = [one_or_each([f"tp{s.tp}" for s in stages]), one_or_each([f"dp{s.dp}" for s in stages])]
    if any(s.cp != 1 for s in stages):
        parts.append(one_or_each([f"cp{s.cp}" for s in stages]))
    if any(s.ep != 1 for s in stages):
        parts.append(one_or_each([f"ep{s.ep}" for s in stages]))
    return " ".join(parts)


def plan_parallel_text(plan: Plan) -> str:
    """Parallel degrees of the plan, those of each run's first stage where groups differ."""
    return parallel_text([run.stages[0] for run in group_runs(plan)])


def schedule_text(schedule: Schedule) -> str:
    """1f1b, 1f1b+2 with up to 2 forwards of deeper warm-up, interleaved-1f1b×4 with 4 chunks per stage."""
    if schedule.warmup is not None and any(schedule.warmup):
        return f"{schedule.name}+{max(schedule.warmup)}"
    if schedule.virtual_stages == 1 or schedule.name in TWO_CHUNKS:
        return schedule.name
    return f"{schedule.name}×{schedule.virtual_stages}"


def microbatch_text(plan: Plan) -> str:
    """Sequences per micro-batch."""
    return one_or_each([run.stages[0].microbatch_size for run in group_runs(plan)])


def zero_text(plan: Plan) -> str:
    """ZeRO stage."""
    return one_or_each([run.stages[0].zero for run in group_runs(plan)])


def dp_text(plan: Plan) -> str:
    """Data parallel degree."""
    return one_or_each([run.stages[0].dp for run in group_runs(plan)])


def recompute_text(stages: Sequence[Stage]) -> str:
    """How many layers recompute what: none, full, 8 none + 4 selective."""
    counts = {kind: sum(getattr(s.recompute, kind) for s in stages) for kind in RECOMPUTE_KINDS}
    used = [kind for kind in RECOMPUTE_KINDS if counts[kind]]
    if len(used) <= 1:
        return used[0] if used else "none"
    return " + ".join(f"{counts[kind]} {kind}" for kind in used)


def recompute_words(text: str) -> str:
    """The same as part of a sentence: no recompute, full recompute."""
    return f"{'no' if text == 'none' else text} recompute"


def layers_text(layers: Sequence[int], *, longest: int = 30) -> str:
    """Layers by stage: 9 9 8, or 3 each; long lists by repetition (4×20 3×12), the longest as a range."""
    if len(layers) > 1 and len(set(layers)) == 1:
        return f"{layers[0]} each"
    plain = " ".join(str(n) for n in layers)
    if len(plain) <= longest:
        return plain
    repeated = " ".join(f"{n}×{len(list(same))}" for n, same in groupby(layers))
    return repeated if len(repeated) <= longest else f"{min(layers)}–{max(layers)}"


def stage_headroom(stage: StageRecord) -> float:
    """Share of the stage's usable memory that is left over; negative where it does not fit."""
    return 1 - stage.memory_bytes / stage.memory_capacity_bytes if stage.memory_capacity_bytes else 0.0


def headroom(prediction: PredictionRecord) -> float:
    """The least headroom over all stages."""
    return min(stage_headroom(stage) for stage in prediction.stages)


def usd_per_mtok(inputs: InputsRecord, prediction: PredictionRecord) -> float | None:
    """USD per million tokens, the whole cluster paid for, idle or not; None where a group has no price."""
    prices = [
        (group.accelerators, group.price_per_hour)
        for group in inputs.cluster.groups
        if group.price_per_hour is not None
    ]
    if len(prices) < len(inputs.cluster.groups) or prediction.tokens_per_s <= 0:
        return None
    usd_per_s = sum(number * price for number, price in prices) / 3600
    return usd_per_s / prediction.tokens_per_s * 1e6


def inside_range(entry: PlanRecord, best: PlanRecord) -> bool:
    """Whether a plan's time lies inside the prediction range of the best, so that their order is not to be trusted."""
    return entry.prediction.iteration_time_s < best.prediction.iteration_time_high_s


def idle_total(entry: PlanRecord) -> int:
    """Accelerators that the plan leaves unused."""
    return sum(idle.accelerators for idle in entry.idle)


def accelerator_counts(cluster: ClusterSpec) -> dict[str, int]:
    """Accelerators of the cluster by kind, in order of cluster.yaml."""
    counts: dict[str, int] = {}
    for group in cluster.groups:
        counts[group.accelerator.name] = counts.get(group.accelerator.name, 0) + group.accelerators
    return counts


def plural(number: int, one: str, many: str | None = None) -> str:
    """1 node, 1,208 nodes."""
    return f"{numbers.count(number)} {one if number == 1 else many or one + 's'}"
