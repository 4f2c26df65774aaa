"""The outcome of a search, as plain data: no solver is loaded to read it."""

from dataclasses import dataclass
from typing import Literal

from hetplan.plan import Plan
from hetplan.prediction import MemoryUse, Prediction, SingleType

Status = Literal["optimal", "feasible", "infeasible", "unknown"]
StoppedBy = Literal["gap", "time", "nodes", "interrupt"]
OPTIMAL_GAP = 0.001


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The plan space: bounds on what is searched. Stated in the record."""

    max_stages: int = 64
    max_stages_per_group: int = 32
    max_tp: int = 8
    max_microbatch_size: int = 8
    max_microbatches: int = 4096
    max_virtual_stages: int = 4
    max_warmup: int = 4
    """Most forwards of further warm-up per change of group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedPlan:
    """One plan with its prediction."""

    rank: int
    plan: Plan
    prediction: Prediction


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """Who proved the bound and how much work it took."""

    program: str
    """Solver of the integer programs, such as highs."""
    programs: int
    """Integer programs solved."""
    simulations: int
    """Plans timed by the exact recurrence."""
    dp_leaves: int
    """Layer splits solved by the dynamic program."""
    nodes: int
    """Boxes taken from the queue."""
    failures: int = 0
    """Programs that ended without a usable answer; each leaves its parent's bound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruned:
    """Configurations left out, by reason."""

    memory: int = 0
    divisibility: int = 0
    target: int = 0
    bound: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Fix:
    """One change that would make a plan fit, found by searching again."""

    change: str
    before: str
    after: str
    iteration_time_s: float
    plan: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Infeasible:
    """Why no plan fits: the budget that binds, by how much, and the nearest thing that would fit."""

    binding: Literal["memory", "divisibility", "accelerators"]
    message: str
    shortfall_bytes: float
    """Bytes per accelerator that the closest plan lacks."""
    group: str | None
    stage: int | None
    closest: Plan | None
    memory: MemoryUse | None
    usable_bytes: float | None
    nearest: str
    """In words: the smallest change that would fit."""
    fixes: tuple[Fix, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plain:
    """The best plan under plain 1F1B, without deeper warm-up, in the uniform space: what others are up against."""

    iteration_time_s: float
    gap: float
    """How far below its time no such plan can be; 0.001 and less: it is the best one."""
    plan: Plan
    why: str
    """What the best plan of all does better, in words; empty where it is this one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """Ranked plans, a bound no plan in the space can beat, and why the search stopped.

    `gap` = (best time - bound) / best time, both under the exact schedule simulation.
    """

    status: Status
    stopped_by: StoppedBy
    bound_s: float
    """Seconds per iteration that no plan in the space can beat; infinite when nothing fits."""
    gap: float
    limits: Limits
    candidates: int
    """Configurations (degrees and stage counts) in the space."""
    plans: tuple[RankedPlan, ...]
    certificate: Certificate
    pruned: Pruned
    infeasible: Infeasible | None
    warnings: tuple[str, ...]
    elapsed_s: float
    space: Literal["uniform", "per-group"] = "uniform"
    schedules: tuple[str, ...] = ("1f1b",)
    plain: Plain | None = None
    """None where plain 1F1B was not searched, or all that was."""
    single_types: tuple[SingleType, ...] = ()
    """The best plan on each accelerator type alone."""
