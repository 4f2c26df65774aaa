"""The options of `hetplan search`; names and defaults are those of `SearchOptions` and `Limits`."""

from dataclasses import fields
from typing import Any, get_args

from hetplan.cli.kinds import Choice, Number, Whole
from hetplan.cli.options import Declared, Flag
from hetplan.cost.profiles import StackSpec
from hetplan.plan import ScheduleName
from hetplan.report.records import ObjectiveRecord, PlanSpaceRecord
from hetplan.search.options import SearchOptions, SolverName
from hetplan.search.result import Limits

SPACE = "Plan space"
OBJECTIVES = get_args(ObjectiveRecord.model_fields["name"].annotation)
SPACES = get_args(PlanSpaceRecord.model_fields["name"].annotation)
SCHEDULE_NAMES = get_args(ScheduleName)
ALL = "all"
_OPTIONS, _LIMITS = SearchOptions(), Limits()
_STAGES = Whole(least=1, most=10_000)

SEARCH_FLAGS: Declared = {
    "objective": (Flag("--objective", Choice(OBJECTIVES), "what to optimise"), OBJECTIVES[0]),
    "top": (Flag("--top", Whole(least=1, most=1000), "plans to show"), _OPTIONS.top),
    "gap": (Flag("--gap", Number(below=1), "share by which a better plan may be missed"), _OPTIONS.gap),
    "time_limit_s": (
        Flag("--time-limit", Number(below=1e8, zero=False, metavar="S"), "seconds to search at most"),
        _OPTIONS.time_limit_s,
    ),
    "node_limit": (
        Flag("--node-limit", Whole(least=1, most=10**12), "nodes to search at most: a limit that reproduces"),
        _OPTIONS.node_limit,
    ),
    "solver": (Flag("--solver", Choice(get_args(SolverName)), "solver of the integer programs"), _OPTIONS.solver),
    "seed": (Flag("--seed", Whole(least=0, most=2**31 - 1), "seed of the solver"), _OPTIONS.seed),
    "space": (Flag("--space", Choice(SPACES), "kind of plans that are searched", SPACE), SPACES[0]),
    "schedules": (
        Flag(
            "--schedule",
            Choice((*SCHEDULE_NAMES, ALL)),
            "pipeline schedule; repeat it for several  [default: those the stack runs]",
            SPACE,
            many=True,
        ),
        None,
    ),
    "max_stages": (Flag("--max-stages", _STAGES, "most stages of a pipeline", SPACE), _LIMITS.max_stages),
    "max_stages_per_group": (
        Flag("--max-stages-per-group", _STAGES, "most stages on one group", SPACE),
        _LIMITS.max_stages_per_group,
    ),
    "max_tp": (
        Flag("--max-tp", Whole(least=1, most=1024), "largest tensor parallel degree", SPACE),
        _LIMITS.max_tp,
    ),
    "max_microbatch_size": (
        Flag("--max-microbatch-size", Whole(least=1, most=1024), "most sequences in a micro-batch", SPACE),
        _LIMITS.max_microbatch_size,
    ),
    "max_microbatches": (
        Flag("--max-microbatches", Whole(least=1, most=100_000), "most micro-batches in a step", SPACE),
        _LIMITS.max_microbatches,
    ),
    "max_virtual_stages": (
        Flag("--max-virtual-stages", Whole(least=1, most=64), "most chunks per stage", SPACE),
        _LIMITS.max_virtual_stages,
    ),
    "max_warmup": (
        Flag("--max-warmup", Whole(least=0, most=1000), "most further 1f1b warm-up per change of group", SPACE),
        _LIMITS.max_warmup,
    ),
}


def search_options(flags: dict[str, Any], stack: StackSpec) -> SearchOptions:
    """The search that was asked for: without schedules, those that the stack runs."""
    asked = flags["schedules"] or stack.schedules
    flags["schedules"] = tuple(name for name in SCHEDULE_NAMES if name in asked or ALL in asked)
    limits = Limits(**{field.name: flags[field.name] for field in fields(Limits)})
    own = {field.name: flags[field.name] for field in fields(SearchOptions) if field.name in flags}
    return SearchOptions(**own, limits=limits)
