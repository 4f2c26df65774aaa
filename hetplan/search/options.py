"""How a search is asked for and how it reports on its way, as plain data: no solver is loaded to read it."""

from dataclasses import dataclass, field
from typing import Literal

from hetplan.plan import ScheduleName
from hetplan.search.result import OPTIMAL_GAP, Limits

SolverName = Literal["highs", "scip"]
SpaceName = Literal["uniform", "per-group"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchOptions:
    """How long and how hard to search."""

    top: int = 5
    gap: float = OPTIMAL_GAP
    time_limit_s: float = 60.0
    node_limit: int | None = None
    solver: SolverName = "highs"
    seed: int = 0
    space: SpaceName = "uniform"
    schedules: tuple[ScheduleName, ...] = ("1f1b",)
    """Orders of work to choose among."""
    limits: Limits = field(default_factory=Limits)


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Where a running search stands."""

    best_s: float | None
    bound_s: float
    nodes: int
    open_nodes: int
    elapsed_s: float
