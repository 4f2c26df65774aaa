"""`search`: the whole job from specs to ranked plans with a proven bound."""

import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from hetplan.cost.profiles import StackSpec, load_stack
from hetplan.plan import Plan
from hetplan.predict import Setting, predict_in
from hetplan.prediction import SingleType
from hetplan.search.infeasible import Attempt, explain, fits
from hetplan.search.options import Progress, SearchOptions
from hetplan.search.result import (
    OPTIMAL_GAP,
    Certificate,
    Infeasible,
    Pruned,
    RankedPlan,
    SearchResult,
    Status,
    StoppedBy,
)
from hetplan.search.space import tensor_degrees
from hetplan.search.uniform import UniformSearch
from hetplan.specs.cluster import ClusterSpec
from hetplan.specs.model import ModelSpec
from hetplan.specs.training import TrainingSpec

SINGLE_TYPE_GAP = 0.01
SINGLE_TYPE_SHARE = 0.2
"""Share of the time limit that plans of one type alone may take."""
FIX_GAP = 0.05


def search(
    cluster: ClusterSpec,
    model: ModelSpec,
    training: TrainingSpec,
    stack: StackSpec | None = None,
    search_options: SearchOptions | None = None,
    observe: Callable[[Progress], None] | None = None,
) -> SearchResult:
    """Ranked plans of a cluster and a model, with a proven bound.

    "optimal" holds within the uniform plan space under the printed time; see docs/formulation.md. Only the
    first plan is certified; the others are the best found of other configurations.
    """
    options = search_options or SearchOptions()
    started = time.monotonic()
    deadline = started + options.time_limit_s
    setting = Setting(cluster=cluster, model=model, training=training, stack=stack or load_stack())
    groups = tuple(range(len(cluster.groups)))
    main = UniformSearch(setting, groups, options, deadline=deadline, observe=observe)
    singles: tuple[SingleType, ...] = ()
    infeasible: Infeasible | None = None
    stopped: StoppedBy = "gap"
    try:
        if not fits(setting, options.limits):
            infeasible = explain(setting, options.limits, _attempt(options, deadline))
        else:
            singles, stopped = _single_types(setting, main, options, started)
            if stopped != "interrupt":
                stopped = main.run()
            if stopped == "gap":
                main.explore()
    except KeyboardInterrupt:
        stopped = "interrupt"
    best, bound = main.best_s, main.bound_s
    if not singles and np.isfinite(best) and len({group.accelerator.name for group in cluster.groups}) == 1:
        tokens = training.global_batch_size * training.sequence_length
        singles = (SingleType(accelerator=cluster.groups[0].accelerator.name, tokens_per_s=tokens / best),)
    gap = (best - bound) / best if np.isfinite(best) else 0.0
    ranked = tuple(
        RankedPlan(rank=i + 1, plan=entry.plan, prediction=predict_in(setting, entry.plan, singles))
        for i, entry in enumerate(main.ranked()[: options.top])
    )
    counters = main.counters
    candidates = sum(space.count() for space in main.roots)
    return SearchResult(
        status=_status(ranked, gap, infeasible),
        stopped_by=stopped,
        bound_s=float("inf") if infeasible is not None else bound,
        gap=gap,
        limits=options.limits,
        candidates=candidates,
        plans=ranked,
        certificate=Certificate(
            program=options.solver,
            programs=counters.get("programs", 0),
            simulations=counters.get("simulations", 0),
            dp_leaves=counters.get("dp_leaves", 0),
            nodes=counters.get("nodes", 0),
            failures=counters.get("failures", 0),
        ),
        pruned=_pruned(main, candidates, infeasible),
        infeasible=infeasible,
        single_types=singles,
        warnings=(*_warnings(counters), *_idle_reasons(main)),
        elapsed_s=time.monotonic() - started,
    )


def _status(plans: tuple[RankedPlan, ...], gap: float, infeasible: Infeasible | None) -> Status:
    if infeasible is not None:
        return "infeasible"
    if not plans:
        return "unknown"
    return "optimal" if gap <= OPTIMAL_GAP else "feasible"


def _warnings(counters: dict[str, int]) -> tuple[str, ...]:
    failures = counters.get("failures", 0)
    if not failures:
        return ()
    return (f"{failures} integer programs failed in the solver; their plans keep weaker bounds, none is lost",)


def _idle_reasons(main: UniformSearch) -> tuple[str, ...]:
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


def _pruned(main: UniformSearch, candidates: int, infeasible: Infeasible | None) -> Pruned:
    """Configurations left out: by rules of division, by memory, or because a bound keeps them from the best."""
    setting, limits = main.setting, main.options.limits
    ruled_out = 0
    for group in main.groups:
        most = min(limits.max_tp, setting.fabrics[setting.cluster.groups[group].name].domain)
        ruled_out += most - len(tensor_degrees(setting, group, limits))
    if infeasible is not None:
        return Pruned(memory=candidates, divisibility=ruled_out)
    memory = main.counters.get("memory", 0)
    timed = len({(root, tuple(sorted(structure))) for root, structure in main.tried})
    return Pruned(memory=memory, divisibility=ruled_out, bound=max(0, candidates - memory - timed))


def _attempt(options: SearchOptions, deadline: float) -> Attempt:
    """A quick search for the best plan of a changed setting."""

    def attempt(setting: Setting) -> tuple[float, Plan] | None:
        groups = tuple(range(len(setting.cluster.groups)))
        quick = replace(options, gap=FIX_GAP, node_limit=None)
        again = UniformSearch(setting, groups, quick, deadline=min(deadline, time.monotonic() + 10))
        again.run()
        return (again.best_s, again.ranked()[0].plan) if again.found else None

    return attempt


def _single_types(
    setting: Setting, main: UniformSearch, options: SearchOptions, started: float
) -> tuple[tuple[SingleType, ...], StoppedBy]:
    """Best plan of each accelerator type alone, to within 1 %; their plans start the whole search."""
    tokens = setting.training.global_batch_size * setting.training.sequence_length
    types: dict[str, tuple[int, ...]] = {}
    for i, group in enumerate(setting.cluster.groups):
        types[group.accelerator.name] = (*types.get(group.accelerator.name, ()), i)
    if len(types) == 1:
        # One type is the whole cluster: its own best will be the result itself.
        return (), "gap"
    found = []
    for name, groups in types.items():
        deadline = started + SINGLE_TYPE_SHARE * options.time_limit_s
        quick = replace(options, gap=max(SINGLE_TYPE_GAP, options.gap), node_limit=None)
        alone = UniformSearch(setting, groups, quick, deadline=deadline)
        if alone.run() == "interrupt":
            main.adopt(alone)
            return (), "interrupt"
        main.adopt(alone)
        best = alone.best_s
        found.append(SingleType(accelerator=name, tokens_per_s=tokens / best if np.isfinite(best) else None))
    return tuple(found), "gap"
