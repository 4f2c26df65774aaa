"""Layouts and stage tables against every split and a loop over every mix of recomputation."""

from itertools import pairwise

import numpy as np
import pytest

from hetplan.cost.profiles import load_stack
from hetplan.cost.stages import Degrees, Holding, Part, StageCosts
from hetplan.plan import ScheduleName
from hetplan.schedule.schedules import schedule
from hetplan.search.tables import FULL, Layout, Place, StageTable, place_layout, stage_layout, stage_table
from hetplan.specs.architecture import ArchitectureSpec
from tests.cost.builders import stage_costs
from tests.search.brute_space import layout as every_split
from tests.search.spaces import compositions

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
DEEPER, DEEPEST = (
    {name: arch.model_copy(update={"layers": times * arch.layers}) for name, arch in SHAPES.items()} for times in (2, 3)
)
PLACES: tuple[Place, ...] = ("first", "middle", "last", "only")
DEPTHS = 4
IN_FLIGHT: tuple[tuple[Holding, ...], ...] = tuple(((flying, 0),) for flying in range(1, DEPTHS + 1))
ROWS: tuple[tuple[Holding, ...], ...] = (
    *IN_FLIGHT[:2],
    ((3, 0), (1, 2)),
    ((0, 2),),
    ((2, 1), (1, 1)),
    ((0, 4), (1, 3)),
)
"""Micro-batches before their backward, and those that wait for weight gradients alone, at one or two moments."""
Mix = tuple[int, int]


def costs_of(arch: ArchitectureSpec, attention: str, zero: int = 1) -> StageCosts:
    """Stage costs of a model with either attention kernel."""
    stack = load_stack().model_copy(update={"attention": attention, "workspace_bytes": 2.0**20})
    return stage_costs(arch, Degrees(tp=2, dp=2, microbatch_size=2, zero=zero), stack=stack)


def parts_of(plan: Layout, n: int, mix: Mix) -> tuple[Part, ...]:
    """The chunks of a stage with n blocks; with several of them any recomputation is that of all their blocks."""
    parts = []
    for run in plan.runs:
        start, stop = int(run.start[n]), int(run.stop[n])
        selective, full = mix if len(plan.runs) == 1 else [(stop - start) * (count > 0) for count in mix]
        parts.append(Part(start=start, stop=stop, selective=selective, full=full, ends=run.ends))
    return tuple(parts)


def blocks_of(plan: Layout, n: int) -> int:
    """Blocks of a stage in all its chunks."""
    return sum(int(run.stop[n] - run.start[n]) for run in plan.runs)


def mixes(plan: Layout, n: int) -> list[Mix]:
    """What a stage may recompute: any mix, or with several chunks nothing, all attention cores or all blocks."""
    blocks = blocks_of(plan, n)
    if len(plan.runs) > 1:
        return [(0, 0), (blocks, 0), (0, blocks)]
    return [(s, f) for f in range(blocks + 1) for s in range(blocks + 1 - f)]


def edges(costs: StageCosts, plan: Layout, rows: tuple[tuple[Holding, ...], ...], count: int) -> list[float]:
    """Memories from too little for anything to enough for everything."""
    allowed = np.flatnonzero(plan.allowed)
    needs = [costs.memory(parts_of(plan, int(n), (0, 0)), row).total_bytes for row in rows for n in allowed]
    return [0.8 * min(needs), *np.linspace(min(needs), max(needs), count), 1.1 * max(needs)]


def check_table(
    costs: StageCosts, plan: Layout, table: StageTable, usable: float, rows: tuple[tuple[Holding, ...], ...]
) -> set[str]:
    """Each entry is the least recomputation over all mixes that fit, chunk by chunk; returns what was seen."""
    seen: set[str] = set()
    splits = table.weight_s is not None
    for n in range(costs.architecture.layers + 1):
        if not plan.allowed[n]:
            assert not table.possible[:, n].any()
            continue
        for r, row in enumerate(rows):
            fitting: dict[Mix, list[float]] = {}
            for mix in mixes(plan, n):
                parts = parts_of(plan, n, mix)
                if costs.memory(parts, row).total_bytes <= usable * FULL:
                    fitting[mix] = [float(costs.recompute_s(p.stop, p.selective, p.full)) for p in parts]
            assert table.possible[r, n] == bool(fitting), (usable, n, row)
            if not fitting:
                seen.add("impossible")
                continue
            mix = int(table.selective[r, n]), int(table.full[r, n])
            least = min(sum(extra) for extra in fitting.values())
            assert sum(fitting[mix]) == pytest.approx(least, rel=1e-12), (usable, n, row)
            for c, part in enumerate(parts_of(plan, n, mix)):
                whole = float(costs.backward_s(part.start, part.stop, part.ends))
                weight = float(costs.weight_s(part.start, part.stop, part.ends)) if splits else 0.0
                assert table.backward_s[r, c, n] == pytest.approx(whole - weight + fitting[mix][c], rel=1e-12)
                if table.weight_s is not None:
                    assert table.weight_s[c, n] == pytest.approx(weight, rel=1e-12)
            seen |= {name for name, used in zip(("selective", "full"), mix, strict=True) if used}
            seen |= {"both"} if min(mix) else {"none"} if not any(mix) else set()
    return seen


@pytest.mark.parametrize("attention", ["flash", "unfused"])
@pytest.mark.parametrize("shape", SHAPES)
def test_best_mix_of_every_stage(shape: str, attention: str) -> None:
    """With one chunk: the fastest of all mixes that fit at every moment of the row, or impossible where none fits."""
    costs = costs_of(SHAPES[shape], attention)
    seen: set[str] = set()
    for place in PLACES:
        plan = place_layout(costs, place)
        for usable in edges(costs, plan, ROWS, 9):
            table = stage_table(costs, plan, usable, ROWS, splits=place == "middle")
            assert table.backward_s.shape == (len(ROWS), 1, costs.architecture.layers + 1)
            seen |= check_table(costs, plan, table, usable, ROWS)
    assert {"none", "selective", "full", "impossible"} <= seen
    if attention == "unfused":
        assert "both" in seen


@pytest.mark.parametrize("attention", ["flash", "unfused"])
@pytest.mark.parametrize("shape", SHAPES)
def test_recomputation_of_several_chunks(shape: str, attention: str) -> None:
    """With several chunks: the first that fits of nothing, the attention cores and everything, in all chunks alike."""
    costs, rng = costs_of(DEEPER[shape], attention), np.random.default_rng(len(shape))
    seen: set[str] = set()
    # A middle stage of a loop with two and three chunks, the ends of a V, a stage that both directions enter.
    for chunks, embedding, head, stages in ((2, None, None, 0), (3, None, 2, 0), (2, 0, 1, 0), (2, 0, 1, 3)):
        plan = stage_layout(costs, chunks, embedding, head, stages)
        if not plan.allowed.any():
            continue
        rows = tuple(
            tuple(tuple(int(n) for n in rng.integers(0, 4, 2 * chunks)) for _ in range(moments))
            for moments in (1, 2, 3)
        )
        for usable in edges(costs, plan, rows, 5):
            table = stage_table(costs, plan, usable, rows, splits=True)
            seen |= check_table(costs, plan, table, usable, rows)
    assert {"none", "selective", "full", "impossible"} <= seen


def test_what_waits_for_weight_gradients_is_held_whole() -> None:
    """Recomputation makes a micro-batch smaller before its backward, not after it."""
    costs = costs_of(DENSE, "unfused")
    plan = place_layout(costs, "middle")
    rows: tuple[tuple[Holding, ...], ...] = (((3, 0),), ((0, 3),))
    usable = 0.7 * costs.memory(parts_of(plan, 4, (0, 0)), rows[0]).total_bytes
    table = stage_table(costs, plan, usable, rows, splits=True)
    assert table.possible[:, 4].tolist() == [True, False]
    assert table.selective[0, 4] + table.full[0, 4] > 0


def test_other_seconds_are_those_of_the_cost_room() -> None:
    """Forward, gradient synchronisation and optimizer of every entry come from the stage's own blocks."""
    costs = costs_of(DEEPER["both"], "flash")
    plans = [place_layout(costs, place) for place in PLACES] + [
        stage_layout(costs, 2, 0, 1, 0),
        stage_layout(costs, 3, None, 2, 0),
    ]
    for plan in plans:
        rows = (((0,) * 2 * len(plan.runs),),)
        table = stage_table(costs, plan, 1e15, rows, splits=False)
        for n in np.flatnonzero(plan.allowed):
            optimizer, units = 0.0, []
            for c, part in enumerate(parts_of(plan, int(n), (0, 0))):
                held = costs.parameters(part.start, part.stop, part.ends)
                forward = float(costs.forward_s(part.start, part.stop, part.ends))
                assert table.forward_s[c, n] == pytest.approx(forward, rel=1e-12)
                assert table.after_s[c, n] == pytest.approx(float(costs.gradient_sync_s(*held)), rel=1e-12)
                optimizer += float(costs.optimizer_s(*held))
                units.append(forward)
            assert table.optimizer_s[n] == pytest.approx(optimizer, rel=1e-12)
            units += [
                float(costs.backward_s(part.start, part.stop, part.ends)) for part in parts_of(plan, int(n), (0, 0))
            ]
            assert table.work_s(0)[n] == pytest.approx(units, rel=1e-12)


def test_units_with_split_backward() -> None:
    """Units are forwards, gradients of inputs, weight gradients, chunk by chunk; they add up to the whole pass."""
    costs = costs_of(DEEPER["dense"], "flash")
    plan = stage_layout(costs, 2, None, None, 0)
    whole, apart = (stage_table(costs, plan, 1e15, (((1, 1, 0, 0),),), splits=splits) for splits in (False, True))
    work = apart.work_s(0)
    assert work.shape == (costs.architecture.layers + 1, 6)
    assert work[:, :2] == pytest.approx(apart.forward_s.T)
    assert work[:, 4:] == pytest.approx(apart.weight_s.T)  # type: ignore[union-attr]
    assert work[:, 2:4] + work[:, 4:] == pytest.approx(whole.work_s(0)[:, 2:], rel=1e-12)


def test_room_in_depth_pays_in_time() -> None:
    """Deeper stages hold more micro-batches, so their entries are never faster."""
    costs = costs_of(DENSE, "unfused")
    plan = place_layout(costs, "middle")
    usable = 1.01 * costs.memory(parts_of(plan, 5, (0, 0)), IN_FLIGHT[0]).total_bytes
    table = stage_table(costs, plan, usable, IN_FLIGHT, splits=False)
    rows = np.where(table.possible, table.backward_s[:, 0], np.inf)
    for shallow, deep in pairwise(rows):
        assert (deep >= shallow).all()
    assert (rows[1] > rows[0]).any()


@pytest.mark.parametrize("shape", SHAPES)
def test_any_middle_stage_costs_what_the_table_says(shape: str) -> None:
    """Wherever a middle stage begins, it holds the same kinds of blocks as the run that the table takes."""
    arch, costs = SHAPES[shape], costs_of(SHAPES[shape], "flash")
    unit, dense = (arch.moe_every, arch.dense_layers) if arch.experts else (1, 0)
    plan, checked = place_layout(costs, "middle"), 0
    kinds, (run,) = arch.layer_kinds(), plan.runs
    for n in np.flatnonzero(plan.allowed):
        told = sorted(kinds[run.start[n] : run.stop[n]])
        for start in range(max(1, dense), arch.layers - int(n)):
            if (start - dense) % unit == 0:
                assert sorted(kinds[start : start + int(n)]) == told
                checked += 1
    assert checked


def layouts(costs: StageCosts, name: ScheduleName, chunks: int, stages: int) -> list[Layout]:
    """The layout of every stage of a pipeline."""
    found = []
    for j in range(stages):
        first, last = j == 0, j == stages - 1
        embedding, head = 0 if first else None, chunks - 1 if last else None
        if schedule(name).shape == "v":
            head = 1 if first else None
        if schedule(name).shape == "both":
            embedding, head = {first: 0, last: 1}.get(True), {first: 1, last: 0}.get(True)
        parts = stages if schedule(name).shape == "both" else 0
        found.append(stage_layout(costs, chunks, embedding, head, parts))
    return found


PIPELINES: tuple[tuple[ScheduleName, int], ...] = (
    ("1f1b", 1),
    ("interleaved-1f1b", 2),
    ("breadth-first", 4),
    ("zb-v", 2),
    ("dualpipe", 2),
)


@pytest.mark.parametrize(("name", "chunks"), PIPELINES)
@pytest.mark.parametrize("shape", SHAPES)
def test_layouts_make_exactly_the_splits_that_there_are(shape: str, name: ScheduleName, chunks: int) -> None:
    """Splits whose stages are all allowed are those of the definition, with chunks of its sizes and kinds of block."""
    checked = 0
    for arch in (SHAPES[shape], DEEPER[shape], DEEPEST[shape]):
        costs, kinds = costs_of(arch, "flash"), arch.layer_kinds()
        for stages in (2, 3, 4):
            where = every_split(arch, name, stages, chunks)
            plans = layouts(costs, name, chunks, stages)
            ways = compositions(arch.layers, stages)
            allowed = [way for way in ways.tolist() if all(p.allowed[n] for p, n in zip(plans, way, strict=True))]
            told = {
                tuple(n // schedule(name).copies for n in split): row for row, split in enumerate(where.splits.tolist())
            }
            assert {tuple(way) for way in allowed} == set(told)
            for split, row in told.items():
                for j, (plan, n) in enumerate(zip(plans, split, strict=True)):
                    assert len(plan.runs) == chunks
                    for c, run in enumerate(plan.runs):
                        start, size = where.start[row, j, c], where.size[row, j, c]
                        assert run.stop[n] - run.start[n] == size >= 1
                        assert sorted(kinds[run.start[n] : run.stop[n]]) == sorted(kinds[start : start + size])
                        checked += 1
    # Parts of whole periods have no room for a dense block more.
    assert checked > 10 or (name == "dualpipe" and SHAPES[shape].dense_layers % SHAPES[shape].moe_every)


def test_chunks_cover_the_stage() -> None:
    """Chunks hold the stage's blocks, each at least one, inside the model; the first ones take what is over."""
    for name, arch in DEEPER.items():
        costs = costs_of(arch, "flash")
        for chunks in (1, 2, 3, 4):
            for embedding, head in ((0, None), (None, None), (None, chunks - 1)):
                plan = stage_layout(costs, chunks, embedding, head, 0)
                for n in np.flatnonzero(plan.allowed):
                    assert blocks_of(plan, int(n)) == n, (name, chunks, embedding, head)
                    sizes = [int(run.stop[n] - run.start[n]) for run in plan.runs]
                    assert min(sizes) >= 1
                    assert all(run.start[n] >= 0 and run.stop[n] <= arch.layers for run in plan.runs)
                    if embedding is None and head is None:
                        assert sizes == sorted(sizes, reverse=True)
                        assert sizes[0] - sizes[-1] in (0, arch.moe_every if arch.experts else 1)
                # Some block is left for other stages, and room for leading dense blocks.
                assert not plan.allowed[[0, arch.layers]].any()


def test_parts_of_a_pipeline_with_two_copies() -> None:
    """Both chunks hold the model's blocks over the stages; where that breaks a period, nothing is allowed."""
    every_second = SHAPES["every second block"]
    for layers, stages, fine in ((12, 3, True), (12, 6, True), (12, 4, False), (12, 5, False)):
        costs = costs_of(every_second.model_copy(update={"layers": layers}), "flash")
        plan = stage_layout(costs, 2, 0, 1, stages)
        assert np.flatnonzero(plan.allowed).tolist() == ([layers // stages] if fine else [])
    costs = costs_of(MOE.model_copy(update={"dense_layers": 2, "layers": 12}), "flash")
    # The two leading dense blocks need room in the first part.
    assert stage_layout(costs, 2, 0, 1, 6).allowed[2]
    assert not stage_layout(costs, 2, 0, 1, 12).allowed.any()


def test_ends_lie_in_their_chunks() -> None:
    """Embedding and head lie in the chunk that is named, and cost what they do in the cost room."""
    costs = costs_of(DENSE, "flash")
    (both,) = place_layout(costs, "only").runs
    assert both.ends == costs.ends(first=True, last=True)
    down, up = stage_layout(costs, 2, 0, 1, 0).runs
    assert (down.ends, up.ends) == (
        costs.ends(first=True, last=False),
        costs.ends(first=False, last=True, together=True),
    )
    head, embedding = stage_layout(costs, 2, 1, 0, 3).runs
    assert (embedding.ends, head.ends) == (down.ends, up.ends)
    inner = stage_layout(costs, 3, None, 2, 0)
    assert [len(run.ends) for run in inner.runs] == [0, 0, 1]
    assert inner.ends == costs.ends(first=False, last=True)
