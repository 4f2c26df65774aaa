"""The integer program: degrees, stage counts, blocks and recomputation of all groups together.

Given a root (d, b, z, m), a number of stages P and a range (C1, C2] of the bottleneck
C = max_j ((m - 1) t_j - w_j min(F_j, B_j)), it bounds C1 + sum_j t_j + 2 X + A_first from below over all plans
of the root with P stages whose bottleneck lies in the range. By the round-trip bound
(`hetplan.schedule.bounds`) that is a lower bound on their exact time.

For an option o and depth k the most blocks a stage may hold is cap_{o,k} = max {l : c_{o,k}(l) <= C2}. Depths
are cut into runs r = [a, b] of equal cap; a stage of run r costs at least t_{o,a}. Its lower convex hull over
l = 1 .. cap gives the segments (length, slope).

    n_{o,r} integer >= 0    middle stages of option o that stand at a depth in run r
    x_{o,r,q} >= 0          blocks beyond the first, on segment q;   x <= length_q n_{o,r}
    first_o, last_o         binary: the end stages at depth P and 1, with their own tables and segments
    y_o                     binary: option o is used

    min  sum t(1) n + sum slope x + hops
    s.t. sum of blocks = L;  one first, one last;  P stages in all;  sum_{o of g} y_o <= 1 per group
         sum of stages of o <= S_o y_o
         middle stages confined to depths [a, b] <= number of depths in it, for every start a and end b of a run
         objective >= W_ab - C1 where options a and b alone are used: the window bound across their hop

Stages with the same cap are interchangeable, so no order and no position is a variable. Groups may interleave:
a relaxation; exact times are taken by `hetplan.search.chain`. This is the capacity-and-deadline form, with
release depths because a stage far from the end may hide more forwards.
"""

import os
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import pairwise
from typing import Literal

import numpy as np
import numpy.typing as npt
from ortools.math_opt import model_pb2, sparse_containers_pb2
from ortools.math_opt.python import mathopt

from hetplan.search.options import SolverName

Floats = npt.NDArray[np.float64]
Answer = Literal["solved", "infeasible", "limit", "failed"]
SOLVERS = {"highs": mathopt.SolverType.HIGHS, "scip": mathopt.SolverType.GSCIP}
NODE_LIMIT = 20_000
"""Branch-and-bound nodes of one program: a limit that reproduces, unlike a clock."""
SAFETY = 1e-6
"""Relative amount by which a solver's bound is lowered: its own tolerances."""


Ties = dict[tuple[int, int], float]
"""Pairs of options: seconds that sum t + 2 X + A_first takes at least where these two alone are used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramOption:
    """Tables of one option: t and c over depth (row k - 1) and blocks; infinite where impossible."""

    group: int
    max_stages: int
    inner_hop_s: float
    """Least one-way hop between two of its stages."""
    middle_t: Floats
    """(K, L + 1): row k - 1 is depth k."""
    middle_c: Floats
    first_t: Floats
    """With what follows the first stage's last backward added."""
    first_c: Floats
    last_t: Floats
    """(L + 1,): the last stage has depth 1."""
    last_c: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A bound on sum t + 2 X + A_first in the box, and the stages per option of the best solution found."""

    answer: Answer
    bound_s: float
    stages: tuple[int, ...] | None


@dataclass(slots=True)
class _Rows:
    """A program under construction, as the arrays that MathOpt's model message holds."""

    lower: list[float] = field(default_factory=list)
    upper: list[float] = field(default_factory=list)
    integer: list[bool] = field(default_factory=list)
    cost: list[float] = field(default_factory=list)
    rows: list[tuple[dict[int, float], float, float]] = field(default_factory=list)

    def variable(self, upper: float, *, integer: bool, cost: float = 0.0) -> int:
        self.lower.append(0.0)
        self.upper.append(upper)
        self.integer.append(integer)
        self.cost.append(cost)
        return len(self.lower) - 1

    def row(self, terms: dict[int, float], low: float, high: float) -> None:
        self.rows.append((terms, low, high))

    @property
    def unit(self) -> float:
        """Seconds that stand for 1 in the model: solvers' tolerances are absolute, so times must not be small."""
        return max(self.cost, default=1.0) / 1000 or 1.0

    def message(self) -> model_pb2.ModelProto:
        """The MathOpt model, costs in `unit` seconds."""
        count, unit = len(self.lower), self.unit
        triples = [(i, v, c) for i, (terms, _, _) in enumerate(self.rows) for v, c in sorted(terms.items()) if c]
        return model_pb2.ModelProto(
            variables=model_pb2.VariablesProto(
                ids=range(count), lower_bounds=self.lower, upper_bounds=self.upper, integers=self.integer
            ),
            objective=model_pb2.ObjectiveProto(
                maximize=False,
                linear_coefficients=sparse_containers_pb2.SparseDoubleVectorProto(
                    ids=[v for v, c in enumerate(self.cost) if c], values=[c / unit for c in self.cost if c]
                ),
            ),
            linear_constraints=model_pb2.LinearConstraintsProto(
                ids=range(len(self.rows)),
                lower_bounds=[low for _, low, _ in self.rows],
                upper_bounds=[high for _, _, high in self.rows],
            ),
            linear_constraint_matrix=sparse_containers_pb2.SparseDoubleMatrixProto(
                row_ids=[i for i, _, _ in triples],
                column_ids=[v for _, v, _ in triples],
                coefficients=[c for _, _, c in triples],
            ),
        )


def lower_hull(values: Floats) -> tuple[int, float, list[tuple[int, float]]]:
    """Lower convex hull of a table over its finite entries: first index, its value, segments (length, slope)."""
    finite = np.flatnonzero(np.isfinite(values))
    hull: list[int] = []
    for index in finite:
        while len(hull) >= 2:
            a, b = hull[-2], hull[-1]
            if (values[b] - values[a]) * (index - b) < (values[index] - values[b]) * (b - a):
                break
            hull.pop()
        hull.append(int(index))
    segments = [(b - a, float((values[b] - values[a]) / (b - a))) for a, b in pairwise(hull)]
    return hull[0], float(values[hull[0]]), segments


def depth_runs(table_t: Floats, table_c: Floats, cap_c: float, deepest: int) -> list[tuple[int, int, Floats]]:
    """Runs of depths 2 .. deepest with the same cap and about the same cost at it: (first, last, t under the cap)."""
    runs: list[tuple[int, int, Floats]] = []
    previous: tuple[int, float] | None = None
    for k in range(2, deepest + 1):
        allowed = table_c[k - 1] <= cap_c
        if not allowed.any():
            previous = None
            continue
        cap = int(np.flatnonzero(allowed)[-1])
        cost = float(table_t[k - 1, cap])
        if previous is not None and previous[0] == cap and cost <= previous[1] * 1.001:
            runs[-1] = (runs[-1][0], k, runs[-1][2])
            continue
        runs.append((k, k, np.where(allowed, table_t[k - 1], np.inf)))
        previous = (cap, cost)
    return runs


def _build(
    options: list[ProgramOption],
    layers: int,
    stages: int,
    cap_c: float,
    cross_hop_s: float,
    hop_weight: float,
    ties: Ties,
) -> tuple[_Rows, list[dict[int, float]]] | None:
    """The program of a box and the stage variables of each option, or None where no end stage fits.

    Rows as in the module's docstring.
    """
    program = _Rows()
    blocks: dict[int, float] = {}
    firsts: list[int] = []
    lasts: list[int] = []
    stages_of: list[dict[int, float]] = [{} for _ in options]
    spans: list[tuple[int, int, int]] = []  # (first depth, last depth, variable) of middle stages

    def stage(option: int, table: Floats, most: int) -> int:
        begin, value, segments = lower_hull(table)
        # Each stage pays one inner hop both ways; the last of a group is paid back below.
        count = program.variable(most, integer=True, cost=value + hop_weight * options[option].inner_hop_s)
        blocks[count] = float(begin)
        stages_of[option][count] = 1.0
        for length, slope in segments:
            x = program.variable(float(length * most), integer=False, cost=slope)
            blocks[x] = 1.0
            program.row({x: 1.0, count: -float(length)}, -np.inf, 0.0)
        return count

    for o, option in enumerate(options):
        for a, b, table in depth_runs(option.middle_t, option.middle_c, cap_c, stages - 1):
            spans.append((a, b, stage(o, table, min(option.max_stages, b - a + 1))))
        first = np.where(option.first_c[stages - 1] <= cap_c, option.first_t[stages - 1], np.inf)
        if np.isfinite(first).any():
            firsts.append(stage(o, first, 1))
        last = np.where(option.last_c <= cap_c, option.last_t, np.inf)
        if np.isfinite(last).any():
            lasts.append(stage(o, last, 1))
    if not firsts or not lasts:
        return None

    program.row(blocks, layers, layers)
    program.row(dict.fromkeys(firsts, 1.0), 1, 1)
    program.row(dict.fromkeys(lasts, 1.0), 1, 1)
    everything: dict[int, float] = {}
    by_group: dict[int, list[int]] = defaultdict(list)
    used: dict[int, int] = {}
    for o, option in enumerate(options):
        if not stages_of[o]:
            continue
        # A group in use has one hop fewer inside than stages, and one to another group (one fewer over all groups).
        y = program.variable(1, integer=True, cost=hop_weight * (cross_hop_s - option.inner_hop_s))
        by_group[option.group].append(y)
        used[o] = y
        program.row({**stages_of[o], y: -float(option.max_stages)}, -np.inf, 0.0)
        program.row({**dict.fromkeys(stages_of[o], -1.0), y: 1.0}, -np.inf, 0.0)
        everything |= stages_of[o]
    for members in by_group.values():
        program.row(dict.fromkeys(members, 1.0), 0, 1)
    program.row(everything, stages, stages)
    starts, ends = sorted({a for a, _, _ in spans}), sorted({b for _, b, _ in spans})
    for a in starts:
        for b in ends:
            inside = {v: 1.0 for c, d, v in spans if a <= c and d <= b}
            if len(inside) > 1:
                program.row(inside, -np.inf, b - a + 1)
    _tie(program, used, ties, hop_weight * cross_hop_s)
    return program, stages_of


def _tie(program: _Rows, used: dict[int, int], ties: Ties, offset: float) -> None:
    """Rows e + V >= W_ab (y_a + y_b - 1 - sum of the other y) for pairs of options with a slow hop between them.

    Where no other option is used the two are neighbours, and W_ab is the least window bound less C1.
    """
    tied = {pair: seconds for pair, seconds in ties.items() if seconds > 0 and pair[0] in used and pair[1] in used}
    if not tied:
        return
    cost, most = dict(enumerate(program.cost)), max(tied.values())
    # Seconds are divided by the largest of them: solvers' tolerances are absolute.
    excess = program.variable(1.0, integer=False, cost=most)
    for (a, b), seconds in tied.items():
        terms = defaultdict(float, {v: c / most for v, c in cost.items() if c})
        terms[excess] += 1.0
        for o, y in used.items():
            terms[y] += (-seconds if o in (a, b) else seconds) / most
        program.row(dict(terms), (offset - seconds) / most, np.inf)


def solve(
    options: list[ProgramOption],
    *,
    layers: int,
    stages: int,
    cap_c: float,
    cross_hop_s: float,
    hop_weight: float = 2.0,
    ties: Ties | None = None,
    solver: SolverName,
    seed: int,
    time_limit_s: float,
    relative_gap: float,
) -> Outcome:
    """Solve the program of a box. `bound_s` is infinite where it is proved empty, 0 where nothing was learned."""
    built = _build(options, layers, stages, cap_c, cross_hop_s, hop_weight, ties or {})
    if built is None:
        return Outcome(answer="infeasible", bound_s=float("inf"), stages=None)
    program, stages_of = built
    offset = -hop_weight * cross_hop_s
    model = mathopt.Model.from_model_proto(program.message())
    parameters = mathopt.SolveParameters(
        time_limit=timedelta(seconds=time_limit_s),
        node_limit=NODE_LIMIT,
        relative_gap_tolerance=relative_gap,
        random_seed=seed,
    )
    try:
        with _quiet():
            result = mathopt.solve(model, SOLVERS[solver], params=parameters)
    except Exception:  # noqa: BLE001 - MathOpt raises whatever its solvers raise; all of it means "no answer"
        return Outcome(answer="failed", bound_s=0.0, stages=None)
    reason = result.termination.reason
    if reason == mathopt.TerminationReason.INFEASIBLE:
        return Outcome(answer="infeasible", bound_s=float("inf"), stages=None)
    solved = reason == mathopt.TerminationReason.OPTIMAL
    limited = reason in (mathopt.TerminationReason.FEASIBLE, mathopt.TerminationReason.NO_SOLUTION_FOUND)
    if not solved and not limited:
        return Outcome(answer="failed", bound_s=0.0, stages=None)
    bound = result.termination.objective_bounds.dual_bound * program.unit
    if not np.isfinite(bound):
        return Outcome(answer="failed" if solved else "limit", bound_s=0.0, stages=None)
    counts = None
    if result.has_primal_feasible_solution():
        values = result.variable_values()
        by_id = {variable.id: value for variable, value in values.items()}
        counts = tuple(round(sum(by_id[v] for v in variables)) for variables in stages_of)
    return Outcome(
        answer="solved" if solved else "limit",
        bound_s=max(0.0, bound + offset - SAFETY * abs(bound)),
        stages=counts,
    )


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep what a solver prints off stdout, which belongs to the result."""
    sys.stdout.flush()
    try:
        kept = os.dup(1)
    except OSError:
        yield
        return
    sink = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(sink, 1)
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
        os.close(sink)
