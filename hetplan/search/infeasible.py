"""Why no plan fits, and the smallest single changes with which one would, each found by searching again."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from hetplan.plan import Plan
from hetplan.predict.setting import Setting
from hetplan.search.fitting import closest_fit, first_fit, least_single_stage, memory_of, missing_bytes, plan_of
from hetplan.search.options import SearchOptions
from hetplan.search.result import Fix, Infeasible
from hetplan.specs.accelerator import AcceleratorSpec
from hetplan.specs.catalog import all_accelerators
from hetplan.specs.cluster import GroupSpec

GIB = 2**30
MOST = {"nodes": 1_000_000, "accelerators": 1024}
"""How far a group is grown."""
Attempt = Callable[..., tuple[float, Plan] | None]
"""Search again in a setting, under other schedules if given: (seconds per iteration, plan), or None."""


def fits(setting: Setting, options: SearchOptions) -> bool:
    """Whether any plan of the space fits."""
    groups = tuple(range(len(setting.cluster.groups)))
    alone = least_single_stage(setting, options.limits, groups)
    return (alone is not None and alone[0] <= 0) or first_fit(setting, options, groups) is not None


def explain(setting: Setting, options: SearchOptions, attempt: Attempt) -> Infeasible:
    """What binds, by how much, and the nearest things that would fit."""
    groups = tuple(range(len(setting.cluster.groups)))
    found = []
    pipeline = closest_fit(setting, options, groups)
    if pipeline is not None:
        found.append(plan_of(pipeline))
    alone = least_single_stage(setting, options.limits, groups)
    if alone is not None:
        found.append(alone[1])
    if not found:
        return Infeasible(
            binding="divisibility",
            message="the plan space is empty: no degrees divide the model and the batch within its limits",
            shortfall_bytes=0.0,
            group=None,
            stage=None,
            closest=None,
            memory=None,
            usable_bytes=None,
            nearest="a global batch with small divisors, or wider limits (--max-microbatches, --max-microbatch-size)",
            fixes=(),
        )
    closest = min(found, key=lambda plan: missing_bytes(setting, plan))
    uses = memory_of(setting, closest)
    worst = max(range(len(uses)), key=lambda i: uses[i][0].total_bytes - uses[i][1])
    memory, usable = uses[worst]
    shortfall = memory.total_bytes - usable
    fixes = [*_other_schedule(setting, options, attempt), *_fixes(setting, options, attempt)]
    group = closest.stages[worst].group
    return Infeasible(
        binding="memory",
        message=f"memory: the closest plan lacks {shortfall / GIB:.1f} GiB per accelerator on group {group}",
        shortfall_bytes=shortfall,
        group=group,
        stage=worst,
        closest=closest,
        memory=memory,
        usable_bytes=usable,
        nearest=f"{fixes[0].change} ({fixes[0].before} to {fixes[0].after})" if fixes else "none within reach",
        fixes=tuple(fixes),
    )


def _other_schedule(setting: Setting, options: SearchOptions, attempt: Attempt) -> list[Fix]:
    """Plain 1F1B, where it was not asked for: no schedule needs less memory in a line."""
    if "1f1b" in options.schedules or not fits(setting, replace(options, schedules=("1f1b",))):
        return []
    result = attempt(setting, ("1f1b",))
    if result is None:
        return []
    time_s, plan = result
    before = ", ".join(options.schedules)
    return [Fix(change="another schedule", before=before, after="1f1b", iteration_time_s=time_s, plan=_words(plan))]


def _with_group(setting: Setting, index: int, group: GroupSpec) -> Setting:
    groups = list(setting.cluster.groups)
    groups[index] = group
    cluster = setting.cluster.model_copy(update={"groups": tuple(groups)})
    return Setting(cluster=cluster, model=setting.model, training=setting.training, stack=setting.stack)


def _grown(group: GroupSpec, part: str, count: int) -> GroupSpec:
    """The group with so many nodes, or with so many accelerators in each node."""
    if part == "nodes":
        return group.model_copy(update={"nodes": count, "hosts": ()})
    return group.model_copy(update={"accelerators_per_node": count, "nvlink_domain": None})


def _fits_grown(setting: Setting, options: SearchOptions, index: int, part: str, count: int) -> bool:
    group = _grown(setting.cluster.groups[index], part, count)
    return fits(_with_group(setting, index, group), options)


def _with_layers(setting: Setting, layers: int) -> Setting:
    architecture = setting.model.architecture.model_copy(update={"layers": layers})
    model = setting.model.model_copy(update={"architecture": architecture})
    return Setting(cluster=setting.cluster, model=model, training=setting.training, stack=setting.stack)


def _least(low: int, high: int, works: Callable[[int], bool]) -> int | None:
    """The least number above `low` that works, where all above it do too: doubling, then bisection."""
    step = max(1, low)
    top = low
    while top < high:
        top = min(high, top + step)
        step *= 2
        if works(top):
            bottom = low
            while top - bottom > 1:
                middle = (top + bottom) // 2
                if works(middle):
                    top = middle
                else:
                    bottom = middle
            return top
        low = top
    return None


def _fixes(setting: Setting, options: SearchOptions, attempt: Attempt) -> list[Fix]:
    """Single changes that fit: of the hardware, the smallest first, then of the model."""
    found: list[tuple[float, Fix]] = []

    def keep(size: float, changed: Setting, change: str, before: str, after: str) -> None:
        result = attempt(changed)
        if result is not None:
            time_s, plan = result
            fix = Fix(change=change, before=before, after=after, iteration_time_s=time_s, plan=_words(plan))
            found.append((size, fix))

    for i, group in enumerate(setting.cluster.groups):
        # More nodes need a network, which a file with one node need not give.
        part = "nodes" if group.inter_node is not None else "accelerators"
        size = group.nodes if part == "nodes" else group.accelerators_per_node
        least = _least(size, MOST[part], partial(_fits_grown, setting, options, i, part))
        if least is not None:
            changed = _grown(group, part, least)
            change = f"{changed.accelerators} accelerators in {group.name}"
            before, after = (f"{count} node{'s' if count > 1 else ''}" for count in (size, least))
            if part == "accelerators":
                before, after = f"{size} in the node", f"{least}"
            keep(least / size, _with_group(setting, i, changed), change, before, after)
        larger = _larger(setting, options, i, group)
        if larger is not None:
            changed = group.model_copy(update={"accelerator": larger, "usable_memory_bytes": None})
            before, after = (f"{s.memory_size_bytes / 1e9:.0f} GB" for s in (group.accelerator, larger))
            change = f"{larger.name} in place of {group.accelerator.name}"
            keep(
                larger.memory_size_bytes / group.accelerator.memory_size_bytes,
                _with_group(setting, i, changed),
                change,
                before,
                after,
            )
    layers = _most_layers(setting, options)
    if layers:
        total = setting.model.architecture.layers
        # A smaller model is another model: it comes last.
        keep(float("inf"), _with_layers(setting, layers), "fewer layers", str(total), str(layers))
    found.sort(key=lambda entry: entry[0])
    return [fix for _, fix in found]


def _larger(setting: Setting, options: SearchOptions, index: int, group: GroupSpec) -> AcceleratorSpec | None:
    """The catalogue's smallest accelerator of the same maker with which a plan fits."""
    sheet = group.accelerator
    bigger = [
        other
        for other in all_accelerators()
        if other.vendor == sheet.vendor
        and other.supports(setting.training.precision)
        and other.memory_size_bytes > sheet.memory_size_bytes
    ]
    for other in sorted(bigger, key=lambda other: (other.memory_size_bytes, other.name)):
        changed = group.model_copy(update={"accelerator": other, "usable_memory_bytes": None})
        if fits(_with_group(setting, index, changed), options):
            return other
    return None


def _most_layers(setting: Setting, options: SearchOptions) -> int:
    """The most blocks with which a plan fits; 0 where none does."""
    arch = setting.model.architecture
    low, high = arch.dense_layers, arch.layers
    while high - low > 1:
        middle = (low + high) // 2
        if fits(_with_layers(setting, middle), options):
            low = middle
        else:
            high = middle
    return low if low > arch.dense_layers else 0


def _words(plan: Plan) -> str:
    degrees = sorted({f"tp{stage.tp}" for stage in plan.stages})
    stages = len(plan.stages)
    return f"{'|'.join(degrees)} dp{plan.stages[0].dp}, {stages} stage{'s' if stages > 1 else ''}"
