"""The integer program against every plan of small roots."""

from dataclasses import replace
from importlib import import_module
from itertools import combinations, pairwise

import numpy as np
import pytest

from hetplan.plan import ScheduleName
from hetplan.search.crossings import Crossings
from hetplan.search.options import SolverName
from hetplan.search.planner import search
from hetplan.search.program import SAFETY, Outcome, ProgramOption, Ties, depth_runs, lower_hull, solve
from hetplan.search.roots import RootSpace
from tests.search.instances import random_instance
from tests.search.spaces import NAMES, Floats, options_of, some_spaces, structures, timed, under

SEEDS = range(100, 103)
ANY = 1e9
"""Above every bottleneck."""


def ties_of(space: RootSpace, stages: int, less_s: float) -> Ties:
    """The window bounds of all pairs of options on two groups, where the order of work ties stages."""
    crossings = Crossings(space)
    able = [(o, entry.group) for o, entry in enumerate(space.options) if np.isfinite(crossings.least[o]).all()]
    pairs = [(a, b) for (a, one), (b, other) in combinations(able, 2) if one != other]
    return {(a, b): crossings.least_s(a, b, stages) - less_s for a, b in pairs} if crossings.tied else {}


def run(
    space: RootSpace,
    stages: int,
    cap_s: float,
    solver: SolverName = "highs",
    scale: float = 1.0,
    ties: Ties | None = None,
) -> Outcome:
    """The program of a root, solved to the end; `scale` multiplies all times."""
    options = [
        replace(
            entry,
            inner_hop_s=entry.inner_hop_s * scale,
            middle_t=entry.middle_t * scale,
            middle_c=entry.middle_c * scale,
            first_t=entry.first_t * scale,
            first_c=entry.first_c * scale,
            last_t=entry.last_t * scale,
            last_c=entry.last_c * scale,
        )
        for entry in space.program_options
    ]
    return solve(
        options,
        layers=space.setting.model.architecture.layers,
        stages=stages,
        cap_c=cap_s * scale,
        cross_hop_s=space.least_cross_hop * scale,
        hop_weight=space.hop_weight,
        ties={pair: seconds * scale for pair, seconds in (ties or {}).items()},
        solver=solver,
        seed=0,
        time_limit_s=30.0,
        relative_gap=0.0,
    )


def finite(table: Floats) -> Floats:
    """The finite entries of a table, or one second where there are none."""
    values = table[np.isfinite(table)]
    return values if len(values) else np.ones(1)


def every_plan(space: RootSpace) -> dict[int, tuple[Floats, Floats, Floats]]:
    """By number of stages: of every split that fits, its bottleneck, its round-trip sum and its exact seconds."""
    parts: dict[int, list[tuple[Floats, Floats, Floats]]] = {}
    for structure in structures(space):
        chain = space.chain(structure)
        splits, time_s = timed(chain)
        stage = np.arange(chain.stages)
        bottleneck = chain.tied_s[stage, splits].max(axis=1)
        # The program leaves out what stages with the same weights exchange.
        ending = space.after_first(structure[0][0])[splits[:, 0]]
        value = chain.time_s[stage, splits].sum(axis=1) + space.hop_weight * chain.hop_s[:-1].sum() + ending
        parts.setdefault(chain.stages, []).append((bottleneck, value, time_s))
    return {
        stages: (
            np.concatenate([part[0] for part in found]),
            np.concatenate([part[1] for part in found]),
            np.concatenate([part[2] for part in found]),
        )
        for stages, found in parts.items()
    }


def check_bounds(space: RootSpace) -> list[float]:
    """In any range of the bottleneck the bound is at most every plan's sum, and with low and fixed its time.

    Returns how much of the least sum it is.
    """
    fixed, ratios = space.setting.stack.step_fixed_s, []
    for stages, (bottleneck, value, time_s) in every_plan(space).items():
        if not len(time_s):
            continue
        edges = np.quantile(bottleneck, [0.0, 0.2, 0.6, 1.0]) * (1 + 1e-9)
        for low, high in pairwise([0.0, *edges]):
            inside = (bottleneck > low) & (bottleneck <= high)
            bound = run(space, stages, high).bound_s
            if not inside.any():
                continue
            assert bound <= value[bottleneck <= high].min() * (1 + 1e-9)
            assert low + bound + fixed <= time_s[inside].min() * (1 + 1e-9)
            # Round trips through two stages may visit either alone: then nothing adds to the bottleneck.
            least = float(value[bottleneck <= high].min())
            ratios.append(bound / least if least else 1.0)
    return ratios


def test_bound_holds_for_every_plan() -> None:
    """Under 1F1B with fast links, where the bound is mostly near."""
    ratios = [ratio for _, space in some_spaces(SEEDS) for ratio in check_bounds(space)]
    assert len(ratios) > 30
    assert np.median(ratios) > 0.97, "a bound that says nothing would pass the rest"


@pytest.mark.parametrize("name", NAMES)
def test_bound_holds_under_every_schedule(name: ScheduleName) -> None:
    """With slow links, further warm-up and degrees of each group's own."""
    ratios: list[float] = []
    for _, space in some_spaces(range(100, 130), 1, under(name)):
        if len(structures(space)) < 60 and len(ratios) < 6:
            ratios += check_bounds(space)
    assert len(ratios) >= 6
    assert np.median(ratios) > 0.7


def test_windows_across_slow_hops_raise_the_bound() -> None:
    """With the window bounds of pairs of options the bound still holds, and it is never lower."""
    checked = raised = 0
    for _, space in some_spaces(range(3, 6), 50, under("1f1b")):
        if space.root.num_microbatches < 6 or len(structures(space)) > 60:
            continue
        fixed = space.setting.stack.step_fixed_s
        for stages, (bottleneck, _, time_s) in every_plan(space).items():
            low = float(bottleneck.min(initial=np.inf))
            if not np.isfinite(low):
                continue
            ties = ties_of(space, stages, low + fixed)
            plain, tied = (run(space, stages, ANY, ties=ties) for ties in (None, ties))
            assert tied.answer == plain.answer == "solved"
            assert tied.bound_s >= plain.bound_s * (1 - 1e-5)
            assert low + tied.bound_s + fixed <= time_s.min() * (1 + 1e-9)
            raised += tied.bound_s > plain.bound_s * (1 + 1e-3)
            checked += 1
    assert checked > 5
    assert raised > 0


def test_both_solvers_agree() -> None:
    """HiGHS and SCIP give the same answer and, to 1e-5, the same bound."""
    checked = 0
    for _, space in some_spaces(SEEDS):
        for stages in range(space.min_stages, space.max_stages + 1):
            for cap_s in (ANY, float(np.quantile(finite(space.program_options[0].last_c), 0.3))):
                highs, scip = run(space, stages, cap_s), run(space, stages, cap_s, "scip")
                assert highs.answer == scip.answer
                assert highs.bound_s == pytest.approx(scip.bound_s, rel=1e-5)
                checked += highs.answer == "solved"
    assert checked > 8


@pytest.mark.parametrize("solver", ["highs", "scip"])
def test_bound_scales_with_the_times(solver: SolverName) -> None:
    """Tables in other units give the same bound: solver tolerances are absolute, times of small models are tiny."""
    for _, space in some_spaces(range(100, 103)):
        for stages in range(2, space.max_stages + 1):
            plain = run(space, stages, ANY, solver)
            for scale in (1e-3, 1e3):
                scaled = run(space, stages, ANY, solver, scale)
                assert scaled.answer == plain.answer
                assert scaled.bound_s / scale == pytest.approx(plain.bound_s, rel=1e-5)


@pytest.mark.parametrize("solver", ["highs", "scip"])
def test_window_bounds_scale_with_the_times(solver: SolverName) -> None:
    """So do the window bounds of pairs of options."""
    raised = 0
    for _, space in some_spaces(range(4, 5), 3, under("1f1b")):
        for stages, (bottleneck, _, _) in every_plan(space).items():
            ties = ties_of(space, stages, float(bottleneck.min(initial=0.0)) + space.setting.stack.step_fixed_s)
            plain = run(space, stages, ANY, solver, ties=ties)
            raised += plain.bound_s > run(space, stages, ANY, solver).bound_s * (1 + 1e-6)
            for scale in (1e-3, 1e3):
                scaled = run(space, stages, ANY, solver, scale, ties)
                assert scaled.answer == plain.answer
                assert scaled.bound_s / scale == pytest.approx(plain.bound_s, rel=1e-5)
    assert raised


def test_infeasible_means_no_plan() -> None:
    """Where the program is proved empty no plan lies in the range; with the cap at a plan's bottleneck it is not."""
    empty = 0
    for _, space in some_spaces(SEEDS):
        plans = every_plan(space)
        for stages in range(2, space.max_stages + 1):
            bottleneck = plans.get(stages, (np.zeros(0),))[0]
            least = float(bottleneck.min(initial=np.inf))
            caps = (least / 2, least * (1 - 1e-6), least * (1 + 1e-9)) if np.isfinite(least) else ()
            for cap_s in (0.0, *caps, ANY):
                outcome = run(space, stages, cap_s)
                assert outcome.answer in ("solved", "infeasible")
                if outcome.answer == "infeasible":
                    empty += 1
                    assert outcome.bound_s == np.inf
                    assert outcome.stages is None
                    assert not (bottleneck <= cap_s).any()
                else:
                    assert outcome.stages is not None
                    assert sum(outcome.stages) == stages
    assert empty > 10


def test_best_of_one_group_is_exact() -> None:
    """With one option, convex tables and no depth effect the bound is the least sum, worked out by hand."""
    blocks = np.arange(11.0)
    line = np.where(blocks >= 1, 2.0 * blocks, np.inf)
    option = ProgramOption(
        group=0,
        max_stages=3,
        inner_hop_s=0.25,
        middle_t=np.tile(line, (3, 1)),
        middle_c=np.tile(line, (3, 1)),
        first_t=np.tile(line + 1, (3, 1)),
        first_c=np.tile(line, (3, 1)),
        last_t=line + 3,
        last_c=line,
    )
    common = {"layers": 10, "cross_hop_s": 9.0, "seed": 0, "time_limit_s": 10.0, "relative_gap": 0.0}
    # Twenty seconds of blocks, the ends' own 1 and 3, two hops there and back.
    found = solve([option], stages=3, cap_c=8.0, solver="highs", **common)  # type: ignore[arg-type]
    assert found.answer == "solved"
    assert found.stages == (3,)
    assert found.bound_s == pytest.approx(20 + 4 + 4 * 0.25, rel=2 * SAFETY)
    # Three stages of three blocks hold nine.
    none = solve([option], stages=3, cap_c=7.9, solver="highs", **common)  # type: ignore[arg-type]
    assert none.answer == "infeasible"


def test_lower_hull_and_runs() -> None:
    """The hull is convex and never above its table; depths of one run share the cap and cost at least its first."""
    rng = np.random.default_rng(5)
    for _ in range(200):
        table = np.cumsum(rng.exponential(1.0, 9))
        table[rng.random(9) < 0.3] = np.inf
        if not np.isfinite(table).any():
            continue
        begin, value, segments = lower_hull(table)
        slopes = [slope for _, slope in segments]
        assert slopes == sorted(slopes)
        at, height = begin, value
        heights = {at: height}
        for length, slope in segments:
            for _ in range(length):
                at, height = at + 1, height + slope
                heights[at] = height
        entries = np.flatnonzero(np.isfinite(table))
        assert (begin, at) == (entries[0], entries[-1])
        assert all(heights[int(i)] <= table[i] * (1 + 1e-12) for i in entries)
    for _, space in some_spaces(SEEDS):
        for option in space.program_options:
            cap_s = float(np.median(finite(option.middle_c)))
            covered = set()
            for a, b, table in depth_runs(option.middle_t, option.middle_c, cap_s, space.max_stages):
                for k in range(a, b + 1):
                    allowed = option.middle_c[k - 1] <= cap_s
                    assert np.flatnonzero(allowed)[-1] == np.flatnonzero(np.isfinite(table))[-1]
                    assert (table[allowed] <= option.middle_t[k - 1][allowed] * (1 + 1e-12)).all()
                    covered.add(k)
            holding = {k for k in range(2, space.max_stages + 1) if (option.middle_c[k - 1] <= cap_s).any()}
            assert covered == holding


def test_failing_solver_loses_no_plan(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """Where the solver raises, the answer is "failed", the search still finds the best plan, and a warning says so."""
    instance = random_instance(102)
    options = options_of(instance)
    inputs = instance.cluster, instance.model, instance.training, instance.stack
    monkeypatch.setattr(import_module("hetplan.search.best_first"), "FEW_SPLITS", 0)
    plain = search(*inputs, options)
    assert not any("solver" in warning for warning in plain.warnings)

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(import_module("hetplan.search.program").mathopt, "solve", broken)
    _, space = next(iter(some_spaces(SEEDS)))
    outcome = run(space, 2, ANY)
    assert (outcome.answer, outcome.bound_s, outcome.stages) == ("failed", 0.0, None)
    result = search(*inputs, options)
    assert result.certificate.failures == result.certificate.programs > 0
    assert result.status == "optimal"
    assert result.plans[0].prediction.iteration_time_s == plain.plans[0].prediction.iteration_time_s
    assert [warning for warning in result.warnings if "failed in the solver" in warning] == [result.warnings[0]]
    assert capfd.readouterr().out == ""


@pytest.mark.parametrize("solver", ["highs", "scip"])
def test_nothing_is_printed(solver: SolverName, capfd: pytest.CaptureFixture[str]) -> None:
    """Neither solver writes a word to stdout, which belongs to the result."""
    for _, space in some_spaces(range(100, 103)):
        run(space, 2, ANY, solver)
    assert capfd.readouterr().out == ""
