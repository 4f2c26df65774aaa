"""Stage tables against a loop over every mix of recomputation."""

from itertools import pairwise

import numpy as np
import pytest

from hetplan.cost.profiles import load_stack
from hetplan.cost.stages import Degrees, StageCosts
from hetplan.search.tables import FULL, Place, run_of, stage_table
from hetplan.specs.architecture import ArchitectureSpec
from tests.cost.builders import stage_costs

DENSE = ArchitectureSpec(layers=6, hidden_size=512, ffn_hidden_size=1536, attention_heads=8, vocab_size=4000)
MOE = DENSE.model_copy(update={"experts": 8, "experts_per_token": 2, "expert_ffn_hidden_size": 384})
SHAPES = {
    "dense": DENSE,
    "dense blocks first": MOE.model_copy(update={"dense_layers": 2}),
    "every second block": MOE.model_copy(update={"moe_every": 2}),
    "both": MOE.model_copy(update={"moe_every": 2, "dense_layers": 1, "layers": 7}),
    "one dense block more": MOE.model_copy(update={"moe_every": 2, "dense_layers": 1}),
    "prediction layer": DENSE.model_copy(update={"mtp_layers": 1, "tied_embeddings": True}),
}
PLACES: tuple[Place, ...] = ("first", "middle", "last", "only")
DEPTHS = 4
MICROBATCHES = 3


def costs_of(shape: str, attention: str, zero: int = 1) -> StageCosts:
    """Stage costs of one shape with either attention kernel."""
    stack = load_stack().model_copy(update={"attention": attention, "workspace_bytes": 2.0**20})
    degrees = Degrees(tp=2, dp=2, microbatch_size=2, zero=zero)
    return stage_costs(SHAPES[shape], degrees, stack=stack, num_microbatches=MICROBATCHES)


def need(costs: StageCosts, place: Place, depth: int, n: int, selective: int, full: int) -> float:
    """Bytes of a stage with one mix."""
    run, flying = run_of(costs, place), min(depth, MICROBATCHES)
    return costs.memory(int(run.start[n]), int(run.stop[n]), selective, full, run.ends, flying).total_bytes


def edges(costs: StageCosts, place: Place) -> list[float]:
    """Memories from too little for anything to enough for everything."""
    layers = costs.architecture.layers
    most = need(costs, place, DEPTHS, layers, 0, 0)
    run = run_of(costs, place)
    least = need(costs, place, 1, int(np.argmax(run.allowed)), 0, 0)
    return [0.8 * least, *np.linspace(least, most, 9), 1.1 * most]


@pytest.mark.parametrize("attention", ["flash", "unfused"])
@pytest.mark.parametrize("shape", SHAPES)
def test_best_mix_of_every_stage(shape: str, attention: str) -> None:
    """Each entry is the least backward time over all mixes that fit; where none fits or n is not allowed, infinite."""
    costs = costs_of(shape, attention)
    seen: set[str] = set()
    for place in PLACES:
        run = run_of(costs, place)
        for usable in edges(costs, place):
            table = stage_table(costs, place, usable, DEPTHS)
            assert table.backward_s.shape == (DEPTHS, costs.architecture.layers + 1)
            for n in range(costs.architecture.layers + 1):
                start, stop = int(run.start[n]), int(run.stop[n])
                plain = float(costs.backward_s(start, stop, run.ends))
                mixes = [(s, f) for f in range(n + 1) for s in range(n + 1 - f)] if run.allowed[n] else []
                for depth in range(1, DEPTHS + 1):
                    fitting = {
                        (s, f): plain + float(costs.recompute_s(stop, s, f))
                        for s, f in mixes
                        if need(costs, place, depth, n, s, f) <= usable * FULL
                    }
                    best = min(fitting.values(), default=np.inf)
                    assert table.backward_s[depth - 1, n] == pytest.approx(best, rel=1e-12), (place, usable, n, depth)
                    if fitting:
                        mix = int(table.selective[depth - 1, n]), int(table.full[depth - 1, n])
                        assert fitting[mix] == pytest.approx(best, rel=1e-12), "the counts are not those of the time"
                        seen |= {name for name, used in zip(("selective", "full"), mix, strict=True) if used}
                        seen |= {"both"} if min(mix) else {"none"} if not any(mix) else set()
                    else:
                        seen.add("impossible")
    assert {"none", "selective", "full", "impossible"} <= seen
    if attention == "unfused":
        assert "both" in seen


def test_forward_and_after_are_those_of_the_cost_room() -> None:
    """Forward seconds, gradient synchronisation and optimizer of every entry come from the stage's own blocks."""
    costs = costs_of("both", "flash")
    for place in PLACES:
        run, table = run_of(costs, place), stage_table(costs, place, 1e15, 1)
        for n in np.flatnonzero(run.allowed):
            start, stop = int(run.start[n]), int(run.stop[n])
            held = costs.parameters(start, stop, run.ends)
            after = float(costs.gradient_sync_s(*held)) + float(costs.optimizer_s(*held))
            forward = float(costs.forward_s(start, stop, run.ends))
            assert table.forward_s[n] == pytest.approx(forward, rel=1e-12)
            assert table.after_s[n] == pytest.approx(after, rel=1e-12)
            assert table.time_s[0, n] == pytest.approx(
                forward + float(costs.backward_s(start, stop, run.ends)), rel=1e-12
            )


@pytest.mark.parametrize("shape", SHAPES)
def test_any_middle_stage_costs_what_the_table_says(shape: str) -> None:
    """Wherever a middle stage begins, it holds the same kinds of blocks as the run that the table takes."""
    arch, costs = SHAPES[shape], costs_of(shape, "flash")
    unit, dense = (arch.moe_every, arch.dense_layers) if arch.experts else (1, 0)
    run, checked = run_of(costs, "middle"), 0
    kinds = arch.layer_kinds()
    for n in np.flatnonzero(run.allowed):
        told = sorted(kinds[run.start[n] : run.stop[n]])
        for start in range(max(1, dense), arch.layers - int(n)):
            if (start - dense) % unit == 0:
                assert sorted(kinds[start : start + int(n)]) == told
                checked += 1
    assert checked


def test_room_in_depth_pays_in_time() -> None:
    """Deeper stages hold more micro-batches, so their entries are never faster; beyond m they are the same."""
    costs = costs_of("dense", "unfused")
    usable = 0.6 * need(costs, "middle", DEPTHS, 5, 0, 0)
    rows = stage_table(costs, "middle", usable, DEPTHS).backward_s
    for shallow, deep in pairwise(rows):
        assert (deep >= shallow).all()
    assert (rows[1] > rows[0]).any()
    assert (rows[MICROBATCHES - 1] == rows[MICROBATCHES]).all()
