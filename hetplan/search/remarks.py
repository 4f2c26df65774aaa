"""What to say beside a result: what an order of work gains, what it needs, and why accelerators stay idle."""

from hetplan.plan import Schedule
from hetplan.predict import predict_in
from hetplan.predict.setting import Setting
from hetplan.prediction import Prediction
from hetplan.search.best_first import PlanSearch
from hetplan.search.result import OPTIMAL_GAP, Plain, RankedPlan
from hetplan.search.space import tensor_degrees

SLOW_HOP = 0.1
"""Forward passes that a hop takes to be what holds a pipeline up."""


def plain(setting: Setting, search: PlanSearch | None, plans: tuple[RankedPlan, ...], gap: float) -> Plain | None:
    """The best plan under plain 1F1B, and where the best of all saves its time."""
    if search is None or not search.found or not plans:
        return None
    rival = search.ranked()[0]
    best, plan = plans[0].prediction, rival.plan
    own_gap = max(0.0, (rival.time_s - search.bound_s) / rival.time_s)
    saved = rival.time_s - best.iteration_time_s
    why = ""
    if saved > OPTIMAL_GAP * rival.time_s:
        why = _saved(setting, plans[0], predict_in(setting, plan))
    return Plain(iteration_time_s=rival.time_s, gap=own_gap, plan=plan, why=why)


def _saved(setting: Setting, best: RankedPlan, plain: Prediction) -> str:
    """What a plan does better than the best one under plain 1F1B, in words."""
    plan, prediction = best.plan, best.prediction
    if plan.schedule.warmup is not None:
        flat = predict_in(setting, plan.model_copy(update={"schedule": Schedule()}))
        slowest = max(range(len(plan.stages) - 1), key=lambda j: prediction.stages[j].hop_s or 0.0)
        a, b = plan.stages[slowest], plan.stages[slowest + 1]
        hop, forward = prediction.stages[slowest].hop_s or 0.0, prediction.stages[slowest].forward_s
        passes = hop * plan.num_microbatches / forward
        without = f"without the deeper warm-up its stages would take {_seconds(flat.iteration_time_s)}"
        if passes > SLOW_HOP:
            link = f"the hop from {a.group} to {b.group}"
            return f"{without}: {link} takes {passes:.2g} forward passes and would hold up every pair of micro-batches"
        return f"{without}: their forward and backward passes would wait for each other"
    parts = []
    for name in ("forward", "backward", "recompute", "fill_and_drain", "exposed_links", "gradient_sync", "optimizer"):
        less = getattr(plain.breakdown, name) - getattr(prediction.breakdown, name)
        if less > 0.1 * (plain.iteration_time_s - prediction.iteration_time_s):
            parts.append((less, name.replace("_", " ")))
    parts.sort(reverse=True)
    return ", ".join(f"{_seconds(less)} less for {name}" for less, name in parts[:3]) or "its parts add up to less"


def _seconds(value: float) -> str:
    return f"{value:.3g} s" if value >= 1 else f"{1000 * value:.3g} ms"


def warnings(counters: dict[str, int]) -> tuple[str, ...]:
    """What went wrong in the solver."""
    failures = counters.get("failures", 0)
    if not failures:
        return ()
    return (f"{failures} integer programs failed in the solver; their plans keep weaker bounds, none is lost",)


def needs(plans: tuple[RankedPlan, ...]) -> tuple[str, ...]:
    """What the best plan asks of the framework beyond a named schedule."""
    if not plans or plans[0].plan.schedule.warmup is None:
        return ()
    text = (
        "deeper warm-up needs a framework that takes an order of work, such as torch.distributed.pipelining; "
        "--max-warmup 0 does without"
    )
    return (text,)


def idle_reasons(main: PlanSearch) -> tuple[str, ...]:
    """Why the best plan leaves whole groups unused."""
    if not main.found:
        return ()
    ranked, reasons = main.ranked(), []
    used = {stage.group for stage in ranked[0].plan.stages}
    for index, group in enumerate(main.setting.cluster.groups):
        if group.name in used:
            continue
        rival = next((entry for entry in ranked if any(s.group == group.name for s in entry.plan.stages)), None)
        if rival is not None:
            ratio = rival.time_s / ranked[0].time_s
            longer = f"{ratio - 1:.1%} longer" if ratio < 2 else f"{ratio:.1f} times as long"
            why = f"the best plan found with it takes {longer}"
        elif not tensor_degrees(main.setting, index, main.options.limits):
            why = f"{group.accelerator.name} cannot train in {main.setting.training.precision}"
        else:
            why = "no plan that uses it fits, or bounds show that it cannot help"
        reasons.append(f"group {group.name} stays idle: {why}")
    return tuple(reasons)
