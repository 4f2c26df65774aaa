"""Seconds and bytes of plans of every schedule: layers, memory by what is held, the clock, transfers, ZeRO."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetplan.cost.stages import Degrees, StageCosts
from hetplan.plan import Plan, Recompute
from hetplan.predict import Setting, predict_in, stage_memory
from hetplan.predict.timing import segments, timing
from hetplan.schedule.schedules import schedule
from hetplan.schedule.simulator import Shape, Transfers
from hetplan.specs.architecture import ArchitectureSpec
from tests.cost.builders import stage_costs
from tests.predict.builders import (
    A100,
    DENSE,
    H100,
    LAYERS,
    MOE,
    NAMES,
    Split,
    plan_of,
    plans,
    segments_of,
    setting_of,
    simple_plan,
)
from tests.schedule.events import Run, agendas_of

SEMANTICS: tuple[Transfers, ...] = ("overlapped", "eager", "rendezvous")
BOTH = (H100, A100)


def shape_of(plan: Plan, transfers: Transfers = "overlapped") -> Shape:
    """The pipeline of a plan."""
    entry = plan.schedule
    return Shape(
        schedule=entry.name,
        stages=len(plan.stages),
        num_microbatches=plan.num_microbatches,
        virtual_stages=entry.virtual_stages,
        warmup=entry.warmup or (),
        transfers=transfers,
    )


def costs_of(setting: Setting, plan: Plan, index: int) -> StageCosts:
    """Costs of a stage by themselves."""
    stage = plan.stages[index]
    size, zero = stage.microbatch_size, stage.zero
    return stage_costs(
        setting.model.architecture,
        Degrees(tp=stage.tp, dp=stage.dp, microbatch_size=size, zero=zero),
        training=setting.training,
        on=setting.cluster.group(stage.group),
        stack=setting.stack,
        passes=1 if plan.schedule.name in ("gpipe", "breadth-first") else plan.num_microbatches,
    )


@given(plan=plans())
@settings(max_examples=40)
def test_every_layer_is_held(plan: Plan) -> None:
    """Each block lies in one chunk, or in one of each direction; so do the embedding and the head."""
    timed = timing(setting_of(plan), plan)
    name, stages, chunks = plan.schedule.name, len(plan.stages), plan.schedule.virtual_stages
    assert segments(plan) == segments_of(name, stages, chunks)
    copies = schedule(name).copies
    held = np.zeros(LAYERS, dtype=int)
    for stage in timed.stages:
        for part in stage.parts:
            held[part.start : part.stop] += 1
    assert held.tolist() == [copies] * LAYERS
    parts = {(j, c): part for j, stage in enumerate(timed.stages) for c, part in enumerate(stage.parts)}
    for route in segments(plan):
        assert parts[route[0]].start == 0
        assert parts[route[-1]].stop == LAYERS
    with_ends = {key: len(part.ends) for key, part in parts.items() if part.ends}
    ends = [key for route in segments(plan) for key in (route[0], route[-1])]
    assert with_ends == {key: ends.count(key) for key in ends}


@pytest.mark.parametrize("architecture", [DENSE, MOE], ids=["tied", "untied"])
@pytest.mark.parametrize("name", NAMES)
def test_parameters_of_the_whole_model(name: str, architecture: ArchitectureSpec) -> None:
    """All stages hold the model's parameters, twice for two copies; a tied table once more where its ends lie apart."""
    plan = simple_plan(name)
    setting = setting_of(plan, architecture)
    timed = timing(setting, plan)
    held = sum(sum(part.held) for stage in timed.stages for part in stage.times)
    whole = setting.model.stage_parameters(
        0, LAYERS, tp=1, ep=1, expert_tp=1, with_embedding=True, with_head=True, with_mtp=True
    )
    table = 50304 * 1024 if architecture.tied_embeddings else 0
    # The ends of a V, and of two opposite directions, lie on one stage.
    apart = 0 if name in ("zb-v", "dualpipe") else table
    copies = 2 if name == "dualpipe" else 1
    assert held == pytest.approx(copies * (whole.dense + whole.experts) + apart, rel=1e-12)


Moments = list[tuple[int, ...]]
HELD: dict[str, tuple[int, Moments, Moments]] = {
    # Chunks per stage; of 8 micro-batches those that the first and the second of two stages hold at their fullest:
    # of each chunk before their backward, then of each chunk those that wait for weight gradients alone.
    "1f1b": (1, [(2, 0)], [(1, 0)]),
    "gpipe": (1, [(8, 0)], [(8, 0)]),
    # Four forwards ahead of the first pair on the first stage (0 1 of either chunk), two on the second.
    "interleaved-1f1b": (2, [(3, 2, 0, 0), (4, 1, 0, 0)], [(2, 1, 0, 0), (3, 0, 0, 0)]),
    "breadth-first": (2, [(8, 8, 0, 0)], [(8, 8, 0, 0)]),
    # The last stage has done two backwards before it works out the weights of the first.
    "zb-h1": (1, [(2, 0), (1, 1)], [(1, 1), (0, 2)]),
    # Three forwards of the first chunk before the second chunk's first one comes up from below.
    "zb-v": (2, [(4, 0, 0, 0), (3, 1, 0, 0), (3, 0, 0, 1)], [(3, 1, 0, 0), (2, 2, 0, 0)]),
}


@pytest.mark.parametrize("name", HELD)
def test_memory_by_hand(name: str) -> None:
    """Activations of a chunk, times the micro-batches held of it at the worst moment, over all chunks together."""
    chunks, *moments = HELD[name]
    runs = 2 * chunks
    layers = [5, 7] if chunks == 1 else [1, 5, 2, 4]
    full = [(0, 0)] * runs
    full[-1] = (1, 2)
    plan = plan_of(name, layers, on=BOTH, num_microbatches=8, recompute=full)
    setting = setting_of(plan)
    memory = stage_memory(setting, plan)
    route = segments_of(name, 2, chunks)[0]
    for j in range(2):
        costs = costs_of(setting, plan, j)
        block = costs.layers["dense"]
        head = costs.ends(first=False, last=True)[0].kept_bytes
        kept, whole = [0.0] * chunks, [0.0] * chunks
        recomputes = False
        for place, (stage, chunk) in enumerate(route):
            if stage != j:
                continue
            last = place == runs - 1
            count = layers[place]
            whole[chunk] = count * block.kept_bytes + (head if last else 0)
            kept[chunk] = whole[chunk]
            if last:
                recomputes = True
                kept[chunk] -= block.kept_bytes - block.selective_bytes + 2 * (block.kept_bytes - block.full_bytes)
        worst = max(float(np.dot(moment, kept + whole)) for moment in moments[j])
        expected = worst + (block.kept_bytes if recomputes else 0)
        assert memory[j].activations_bytes == pytest.approx(expected, rel=1e-12)


@given(plan=plans(), moe=st.booleans())
@settings(max_examples=40)
def test_memory_is_that_of_the_worst_moment(plan: Plan, moe: bool) -> None:
    """Through a stage's work, one operation after the other: what it holds at most, and state for all its chunks."""
    setting = setting_of(plan, MOE if moe else DENSE)
    memory = stage_memory(setting, plan)
    predicted = predict_in(setting, plan).stages
    with_embedding = {route[0][0] for route in segments(plan)}
    splits = schedule(plan.schedule.name).splits_backward
    for j, agenda in enumerate(agendas_of(shape_of(plan))):
        costs, stage = costs_of(setting, plan, j), plan.stages[j]
        kept, whole, state = [], [], 0.0
        for chunk in stage.parts:
            start, stop = chunk.first_layer, chunk.first_layer + chunk.layers
            ends = costs.ends(first=start == 0, last=stop == LAYERS, together=j in with_embedding)
            mix = chunk.recompute
            kept.append(float(costs.kept_bytes(start, stop, mix.selective, mix.full, ends)))
            whole.append(float(costs.kept_bytes(start, stop, 0, 0, ends)))
            state += float(costs.state_bytes(start, stop, ends))
        held, most = 0.0, 0.0
        for operation in agenda:
            c = operation.chunk
            if operation.kind == "F":
                held += kept[c]
            elif operation.kind == "B":
                held += (whole[c] if splits else 0) - kept[c]
            else:
                held -= whole[c]
            most = max(most, held)
        recomputed = costs.block_bytes if stage.recompute.full else 0.0
        use = memory[j]
        assert use == predicted[j].memory
        assert use.activations_bytes == pytest.approx(most + recomputed, rel=1e-9)
        assert use.weights_bytes + use.gradients_bytes + use.optimizer_bytes == pytest.approx(state, rel=1e-12)


@given(plan=plans(), moe=st.booleans())
@settings(max_examples=40)
def test_weight_gradients_are_part_of_the_backward_pass(plan: Plan, moe: bool) -> None:
    """Of every chunk; the parts of a split backward pass make the whole one, recomputation with the first part."""
    timed = timing(setting_of(plan, MOE if moe else DENSE), plan)
    for row, stage in zip(timed.work_s, timed.stages, strict=True):
        assert (row > 0).all()
        v = len(stage.parts)
        for c, part in enumerate(stage.times):
            assert 0 < part.weight_s < part.backward_s
            assert row[c] == part.forward_s
            assert row[v + c :: v].sum() == pytest.approx(part.backward_s + part.recompute_s, rel=1e-12)
            if schedule(plan.schedule.name).splits_backward:
                assert row[2 * v + c] == part.weight_s


@given(plan=plans(), transfers=st.sampled_from(SEMANTICS), moe=st.booleans())
@settings(max_examples=40)
def test_the_clock_is_that_of_an_event_simulation(plan: Plan, transfers: Transfers, moe: bool) -> None:
    """Seconds of chunks, hops and reductions put together by hand and played through event by event."""
    setting = setting_of(plan, MOE if moe else DENSE, transfers=transfers)
    routes = segments(plan)
    p, name = len(plan.stages), plan.schedule.name
    costs = [costs_of(setting, plan, j) for j in range(p)]
    names = [stage.group for stage in plan.stages]
    work, sync, optimizer, bytes_ = [], [], [], {}
    for j, stage in enumerate(plan.stages):
        forward, backward, weight, reduced, spent = [], [], [], [], 0.0
        for c, chunk in enumerate(stage.parts):
            start, stop = chunk.first_layer, chunk.first_layer + chunk.layers
            beside = j in {route[0][0] for route in routes}
            ends = costs[j].ends(first=start == 0, last=stop == LAYERS, together=beside)
            again = float(costs[j].recompute_s(stop, chunk.recompute.selective, chunk.recompute.full))
            forward.append(float(costs[j].forward_s(start, stop, ends)))
            backward.append(float(costs[j].backward_s(start, stop, ends)) + again)
            weight.append(float(costs[j].weight_s(start, stop, ends)))
            parameters = costs[j].parameters(start, stop, ends)
            reduced.append(float(costs[j].gradient_sync_s(*parameters)))
            spent += float(costs[j].optimizer_s(*parameters))
            bytes_[j, c] = costs[j].gradient_bytes(*map(float, parameters))
        if name in ("zb-h1", "zb-v", "dualpipe"):
            backward = [b - w for b, w in zip(backward, weight, strict=True)]
            work.append(forward + backward + weight)
        else:
            work.append(forward + backward)
        sync.append(reduced)
        optimizer.append(spent)
    (j, c), (k, d) = routes[0][0], routes[0][-1]
    if name == "dualpipe":
        for j in range(p):
            for c in (0, 1):
                other = p - 1 - j
                pair = (costs[j], names[j], bytes_[j, c], costs[other], names[other], bytes_[other, 1 - c])
                sync[j][c] += setting.exchange_s(*pair)
    elif j != k:
        tied = setting.tied_sync_s(costs[j], names[j], costs[k], names[k])
        sync[j][c] += tied
        sync[k][d] += tied
    hops, inside = [], 0
    for j in range(p - 1):
        hops.append(setting.hop_s(costs[j], names[j], costs[j + 1], names[j + 1], inside))
        inside = inside + 1 if names[j] == names[j + 1] else 0
    around = 0.0
    if name in ("interleaved-1f1b", "breadth-first"):
        alone = len(set(names)) == 1
        around = costs[0].wrap_hop_s(p) if alone else setting.hop_s(costs[-1], names[-1], costs[0], names[0], 0)
    run = Run(shape_of(plan, transfers), np.array(work), np.array([*hops, around]), np.array(sync))
    ends_s = [finish + spent for finish, spent in zip(run.finish_s, optimizer, strict=True)]
    total = max(ends_s) + setting.stack.step_fixed_s
    assert predict_in(setting, plan).iteration_time_s == pytest.approx(total, rel=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_busier_transfers_never_shorten(name: str) -> None:
    """Over a slow link eager is no faster than overlapped, and rendezvous slower still."""
    plan = simple_plan(name, stages=4, chunks=3 if name in ("interleaved-1f1b", "breadth-first") else 2)
    times = [predict_in(setting_of(plan, transfers=t, network_share=0.02), plan).iteration_time_s for t in SEMANTICS]
    assert times[0] <= times[1] <= times[2]
    assert times[2] > 1.01 * times[0]


def test_eager_sends_wait_for_each_other() -> None:
    """Where hops are longer than the work between them, one outgoing queue lengthens the step."""
    plan = simple_plan("gpipe", num_microbatches=12)
    overlapped, eager = (
        predict_in(setting_of(plan, MOE, transfers=t, network_share=0.01), plan).iteration_time_s for t in SEMANTICS[:2]
    )
    hop_s = timing(setting_of(plan, MOE, network_share=0.01), plan).hop_s[0]
    # All activations leave the first stage by one queue, all gradients the second, and neither can start before.
    assert eager > 2 * 12 * hop_s > 1.5 * overlapped


@pytest.mark.parametrize("transfers", SEMANTICS)
def test_deeper_warm_up_hides_a_slow_hop(transfers: Transfers) -> None:
    """Two unlike groups over a hop of about one forward: deeper warm-up is faster, but not where transfers block."""
    plans_ = [simple_plan("1f1b", num_microbatches=32, warmup=warmup) for warmup in (None, (0, 0), (2, 0))]
    setting = setting_of(plans_[0], MOE, transfers=transfers, network_share=0.02)
    plain, none, deep = (predict_in(setting, plan) for plan in plans_)
    assert plain == none
    assert deep.stages[0].memory.activations_bytes == pytest.approx(2 * plain.stages[0].memory.activations_bytes)
    assert deep.stages[1].memory == plain.stages[1].memory
    if transfers == "rendezvous":
        assert deep.iteration_time_s >= plain.iteration_time_s
    else:
        assert deep.iteration_time_s < 0.9 * plain.iteration_time_s


def test_zero_3_moves_weights_once_per_chunk() -> None:
    """Under breadth-first and GPipe ZeRO-3's traffic does not grow with micro-batches; without a pipeline it does."""
    zero = {name: Split(dp=2, zero=3) for name in BOTH}

    def sync_s(plan: Plan) -> list[float]:
        """Reduction and gathering of each chunk."""
        return [part.sync_s for stage in timing(setting_of(plan, MOE), plan).stages for part in stage.times]

    for name in ("gpipe", "breadth-first"):
        few, many = (sync_s(simple_plan(name, num_microbatches=m, splits=zero)) for m in (4, 16))
        assert few == many
        plan = simple_plan(name, num_microbatches=4, splits=zero)
        setting = setting_of(plan, MOE)
        for stage in timing(setting, plan).stages:
            for part in stage.times:
                unit = sum(
                    float(stage.costs.fabric.replicas_s(count * size, 1, 2))
                    for count in part.held
                    for size in (setting.stack.gradient_bytes, 2, 2)
                )
                assert part.sync_s == pytest.approx(unit * setting.stack.weight_gather_exposed)
    alone = [plan_of("1f1b", [12], on=[A100], num_microbatches=m, splits=zero) for m in (4, 16)]
    (few_s,), (many_s,) = (sync_s(plan) for plan in alone)
    assert many_s == pytest.approx(4 * few_s)


def test_costs_are_kept_apart_by_passes() -> None:
    """One setting that times GPipe and plain plans with ZeRO-3 mixes up neither."""
    zero = {A100: Split(dp=2, zero=3)}
    plans_ = [plan_of(name, [12], on=[A100], num_microbatches=8, splits=zero) for name in ("1f1b", "gpipe", "1f1b")]
    setting = setting_of(plans_[0])
    shared = [predict_in(setting, plan).iteration_time_s for plan in plans_]
    fresh = [predict_in(setting_of(plan), plan).iteration_time_s for plan in plans_]
    assert shared == fresh
    assert shared[1] < shared[0]


def hops_of(name: str, on: list[str], tp: int = 1) -> list[float]:
    """Hops of a plan whose stages stand on these groups."""
    runs = 4 if name in ("1f1b", "gpipe") else 8
    layers = [3] * 4 if runs == 4 else [1, 2] * 4
    plan = plan_of(name, layers, on=on, num_microbatches=8, splits={g: Split(tp=tp) for g in BOTH})
    hops: list[float] = timing(setting_of(plan), plan).hop_s.tolist()
    return hops


@pytest.mark.parametrize("name", ["interleaved-1f1b", "breadth-first"])
def test_micro_batches_go_round(name: str) -> None:
    """The last stage's way back to the first crosses what lies between them; other schedules have none."""
    two = [H100, H100, A100, A100]
    down, link, up, around = hops_of(name, two)
    assert around == link > max(down, up)
    inside = hops_of(name, [H100] * 4)
    assert inside == [inside[0]] * 4
    # Two stages fill a node, or one does.
    first, border, third, around = hops_of(name, [H100] * 4, tp=4)
    assert first == third < border == around
    across = hops_of(name, [H100] * 4, tp=8)
    assert across == [across[0]] * 4
    assert hops_of("gpipe", two) == [down, link, up, 0]


def test_hops_by_position() -> None:
    """A hop inside a group crosses nodes where the group's stages do, counted from the group's first stage."""
    near, far, again, _ = hops_of("1f1b", [A100] * 4, tp=4)
    assert near == again < far
    for ahead in (1, 2):
        on = [H100] * ahead + [A100] * (4 - ahead)
        inside = hops_of("1f1b", on, tp=4)[ahead:3]
        assert inside == [near, far][: 3 - ahead]


def test_the_shared_table_is_exchanged_by_its_chunks() -> None:
    """The chunks with embedding and head add up its gradient; on one stage there is nothing to exchange."""
    for name, chunk in (("1f1b", 0), ("interleaved-1f1b", 1)):
        plan = simple_plan(name)
        tied = timing(setting_of(plan), plan).sync_s
        apart = tied - timing(setting_of(plan, DENSE.model_copy(update={"tied_embeddings": False})), plan).sync_s
        expected = np.zeros_like(apart)
        expected[0, 0] = expected[1, chunk] = apart[0, 0]
        assert apart[0, 0] > 0
        assert apart == pytest.approx(expected)
    plan = simple_plan("zb-v")
    assert timing(setting_of(plan), plan).sync_s.max() == 0


def test_two_copies_exchange_gradients() -> None:
    """DualPipe: each chunk's gradients go to the stage that holds the other copy, in gradient bytes over the link."""
    plan = simple_plan("dualpipe")
    setting = setting_of(plan, MOE)
    timed = timing(setting, plan)
    stack = setting.stack
    for j in (0, 1):
        for c in (0, 1):
            size = 4 * sum(timed.stages[j].times[c].held)
            assert timed.stages[1 - j].times[1 - c].held == timed.stages[j].times[c].held
            seconds = 1e-5 + stack.host_latency_s + size / (25e9 * stack.network_share)
            seconds += 2 * size / stack.host_staging_bytes_per_s
            assert timed.sync_s[j, c] == pytest.approx(seconds)
    inside = plan_of("dualpipe", [6, 6], on=[A100, A100], num_microbatches=8)
    near = timing(setting_of(inside, MOE), inside)
    assert 0 < near.sync_s.max() < timed.sync_s.min()


def test_groups_of_their_own_degrees() -> None:
    """Each group with its own tp, dp and micro-batch: hops move the samples of both sides, and the time is of both."""
    unlike = {H100: Split(tp=1, dp=4, microbatch_size=1, zero=1), A100: Split(tp=2, dp=1, microbatch_size=4)}
    alike = {name: Split(tp=1, dp=4, microbatch_size=1, zero=1) for name in BOTH}
    for name in NAMES:
        for splits in (unlike, alike):
            plan = simple_plan(name, splits=splits)
            predicted = predict_in(setting_of(plan), plan)
            assert predicted.fits
            assert [stage.accelerators for stage in predicted.stages] == [
                splits[group_name].tp * splits[group_name].dp for group_name in BOTH
            ]
            assert predicted.tokens_per_s * predicted.iteration_time_s == pytest.approx(32 * 1024)
    first, second = (timing(setting_of(p), p) for p in (simple_plan("1f1b", splits=s) for s in (unlike, alike)))
    assert first.stages[0].times == second.stages[0].times
    assert first.stages[1].times != second.stages[1].times


def test_recomputation_stands_with_the_input_gradients() -> None:
    """Where the backward pass is split, recomputing lengthens its first half alone."""
    plan = simple_plan("zb-h1")
    stage = plan.stages[1].model_copy(update={"recompute": Recompute(full=6)})
    again = plan.model_copy(update={"stages": (plan.stages[0], stage)})
    setting = setting_of(plan)
    kept, redone = timing(setting, plan), timing(setting, again)
    more = redone.work_s - kept.work_s
    assert more[1] == pytest.approx([0, redone.stages[1].times[0].recompute_s, 0], abs=1e-15)
    assert more[1][1] > 0
    assert not more[0].any()


def test_stack_says_whom_transfers_keep_busy() -> None:
    """The simulated shape is the plan's, with the transfers of the stack; warm-up of zeros is none."""
    plan = simple_plan("1f1b", warmup=(0, 0))
    for transfers in SEMANTICS:
        shape = timing(setting_of(plan, transfers=transfers), plan).shape
        assert shape == replace(shape_of(plan, transfers), warmup=())
