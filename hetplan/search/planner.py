"""`search`: the whole job from specs to ranked plans with a proven bound."""

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from hetplan.cost.profiles import StackSpec, load_stack
from hetplan.plan import Plan, ScheduleName
from hetplan.predict import Setting, predict_in
from hetplan.prediction import SingleType
from hetplan.search.best_first import PlanSearch
from hetplan.search.infeasible import Attempt, explain, fits
from hetplan.search.options import Progress, SearchOptions
from hetplan.search.remarks import idle_reasons, needs, plain, warnings
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
from hetplan.search.shared import Shared
from hetplan.search.space import tensor_degrees
from hetplan.specs.cluster import ClusterSpec
from hetplan.specs.model import ModelSpec
from hetplan.specs.training import TrainingSpec

SINGLE_TYPE_GAP = 0.01
SINGLE_TYPE_SHARE = 0.2
"""Share of the time limit that plans of one type alone may take."""
FIX_GAP = 0.05
PLAIN: tuple[ScheduleName, ...] = ("1f1b",)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """A search over a part of the space ahead of the whole, and the share of the time limit by which it ends."""

    options: SearchOptions
    share: float
    plain: bool = False
    """Whether it is the one of plain 1F1B."""


def _steps(options: SearchOptions, groups: tuple[int, ...]) -> list[_Step]:
    """Plain 1F1B first, then the uniform space: their plans make the target of the next step tight.

    What they have searched the whole search does not search again, and their plans make it never worse.
    """
    found = []
    if "1f1b" in options.schedules:
        limits = replace(options.limits, max_warmup=0)
        plain = replace(options, space="uniform", schedules=PLAIN, limits=limits)
        found.append(_Step(options=plain, share=0.4, plain=True))
    if options.space != "uniform":
        found.append(_Step(options=replace(options, space="uniform"), share=0.6))
    alike = (options, replace(options, limits=replace(options.limits, max_warmup=0)))
    return [step for step in found if step.options not in alike[: 1 + (len(groups) == 1)]]


class _Staged:
    """A search of the whole space, after searches of parts of it."""

    def __init__(
        self,
        setting: Setting,
        groups: tuple[int, ...],
        search_options: SearchOptions,
        started: float,
        deadline: float,
        shared: Shared,
        observe: Callable[[Progress], None] | None,
    ) -> None:
        self.setting, self.groups, self.observe = setting, groups, observe
        self.started, self.deadline = started, deadline
        self.main = PlanSearch(setting, groups, search_options, deadline=deadline, observe=observe, shared=shared)
        self.candidates = sum(space.count() for space in self.main.roots)
        """Configurations of the space."""
        self.plain: PlanSearch | None = None
        """The search under plain 1F1B, where it is a part."""
        self.parts: list[PlanSearch] = [self.main]
        self.closed: list[PlanSearch] = []
        """Parts that were searched to the end."""

    def run(self) -> StoppedBy:
        """Search until the gap is closed or a limit is reached."""
        main, length = self.main, self.deadline - self.started
        for step in _steps(main.options, self.groups):
            earlier = PlanSearch(
                self.setting,
                self.groups,
                replace(step.options, node_limit=self._nodes_left()),
                deadline=self.started + step.share * length,
                observe=self.observe,
                shared=main.shared,
            )
            earlier.adopt(main, plain=step.plain)
            for closed in self.closed:
                earlier.follow(closed)
            stopped = earlier.run()
            self.parts.append(earlier)
            main.adopt(earlier)
            if step.plain:
                self.plain = earlier
            if stopped == "gap":
                self.closed.append(earlier)
                main.follow(earlier)
            elif stopped == "interrupt" or self._nodes_left() == 0:
                return stopped
            # What ran out of its share of the time, or left something open, is searched again with the rest.
        main.options = replace(main.options, node_limit=self._nodes_left())
        return main.run()

    def _nodes_left(self) -> int | None:
        limit = self.main.options.node_limit
        used = sum(part.counters.get("nodes", 0) for part in self.parts)
        return None if limit is None else max(0, limit - used)


def search(
    cluster: ClusterSpec,
    model: ModelSpec,
    training: TrainingSpec,
    stack: StackSpec | None = None,
    search_options: SearchOptions | None = None,
    observe: Callable[[Progress], None] | None = None,
) -> SearchResult:
    """Ranked plans of a cluster and a model, with a proven bound.

    "optimal" holds within the plan space asked for under the printed time; see docs/formulation.md. Only the
    first plan is certified; the others are the best found of other configurations.
    """
    stack = stack or load_stack()
    options = search_options or SearchOptions(schedules=stack.schedules)
    started = time.monotonic()
    deadline = started + options.time_limit_s
    setting = Setting(cluster=cluster, model=model, training=training, stack=stack)
    groups = tuple(range(len(cluster.groups)))
    whole = _Staged(setting, groups, options, started, deadline, Shared(), observe)
    main = whole.main
    singles: tuple[SingleType, ...] = ()
    infeasible: Infeasible | None = None
    stopped: StoppedBy = "gap"
    try:
        if not fits(setting, options):
            infeasible = explain(setting, options, _attempt(options, deadline))
        else:
            singles, stopped = _single_types(whole)
            if stopped != "interrupt":
                stopped = whole.run()
            if not main.found and stopped == "gap":
                infeasible = explain(setting, options, _attempt(options, deadline))
            elif stopped == "gap":
                main.explore(deadline)
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
    counters: Counter[str] = Counter()
    for part in whole.parts:
        counters.update(part.counters)
    # Plans without a pipeline stand beside the roots.
    candidates = max(whole.candidates, len(main.found))
    memory = sum(part.counters.get("memory", 0) for part in (main, *main.earlier))
    return SearchResult(
        status=_status(ranked, gap, infeasible),
        stopped_by=stopped,
        bound_s=float("inf") if infeasible is not None else bound,
        gap=gap,
        limits=options.limits,
        space=options.space,
        schedules=options.schedules,
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
        pruned=_pruned(whole, candidates, memory, infeasible),
        infeasible=infeasible,
        plain=plain(setting, whole.plain, ranked, gap),
        single_types=singles,
        warnings=(*warnings(counters), *idle_reasons(main), *needs(ranked)),
        elapsed_s=time.monotonic() - started,
    )


def _status(plans: tuple[RankedPlan, ...], gap: float, infeasible: Infeasible | None) -> Status:
    if infeasible is not None:
        return "infeasible"
    if not plans:
        return "unknown"
    return "optimal" if gap <= OPTIMAL_GAP else "feasible"


def _pruned(whole: _Staged, candidates: int, memory: int, infeasible: Infeasible | None) -> Pruned:
    """Configurations left out: by rules of division, by memory, or because a bound keeps them from the best."""
    setting, limits = whole.setting, whole.main.options.limits
    ruled_out = 0
    for group in whole.groups:
        most = min(limits.max_tp, setting.fabrics[setting.cluster.groups[group].name].domain)
        ruled_out += most - len(tensor_degrees(setting, group, limits))
    if infeasible is not None:
        return Pruned(memory=candidates, divisibility=ruled_out)
    timed = sum(len({(r, tuple(sorted(s))) for r, s in part.tried}) for part in whole.parts)
    return Pruned(memory=memory, divisibility=ruled_out, bound=max(0, candidates - memory - timed))


def _attempt(options: SearchOptions, deadline: float) -> Attempt:
    """A quick search for the best plan of a changed setting."""

    def attempt(setting: Setting, schedules: tuple[ScheduleName, ...] = options.schedules) -> tuple[float, Plan] | None:
        groups = tuple(range(len(setting.cluster.groups)))
        quick = replace(options, gap=FIX_GAP, node_limit=None, schedules=schedules)
        again = PlanSearch(setting, groups, quick, deadline=min(deadline, time.monotonic() + 10))
        again.run()
        return (again.best_s, again.ranked()[0].plan) if again.found else None

    return attempt


def _single_types(whole: "_Staged") -> tuple[tuple[SingleType, ...], StoppedBy]:
    """Best plan of each accelerator type alone, to within 1 %; their plans start the whole search."""
    setting, options = whole.setting, whole.main.options
    tokens = setting.training.global_batch_size * setting.training.sequence_length
    types: dict[str, tuple[int, ...]] = {}
    for i, group in enumerate(setting.cluster.groups):
        types[group.accelerator.name] = (*types.get(group.accelerator.name, ()), i)
    if len(types) == 1:
        # One type is the whole cluster: its own best will be the result itself.
        return (), "gap"
    found = []
    until = whole.started + SINGLE_TYPE_SHARE * (whole.deadline - whole.started)
    for name, groups in types.items():
        quick = replace(options, gap=max(SINGLE_TYPE_GAP, options.gap), node_limit=None)
        alone = _Staged(whole.setting, groups, quick, time.monotonic(), until, whole.main.shared, None)
        stopped = alone.run()
        whole.main.adopt(alone.main)
        if stopped == "interrupt":
            return (), "interrupt"
        best = alone.main.best_s
        found.append(SingleType(accelerator=name, tokens_per_s=tokens / best if np.isfinite(best) else None))
    return tuple(found), "gap"
