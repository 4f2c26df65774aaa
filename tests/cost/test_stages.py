"""Stages: exact parameters, memory and time of any run of blocks."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetplan.cost.stages import Degrees, Part, StageCosts
from hetplan.specs.architecture import ArchitectureSpec
from hetplan.specs.model import ModelSpec
from hetplan.specs.training import TrainingSpec
from tests.cost.builders import GPT3, example, group, stage_costs
from tests.specs.shapes import architectures


def parameters(costs: StageCosts, start: int, stop: int) -> tuple[float, float]:
    """Parameters of a run, with the ends that it touches."""
    layers = costs.architecture.layers
    dense, experts = costs.parameters(start, stop, costs.ends(first=start == 0, last=stop == layers))
    return float(dense), float(experts)


def test_llama_2_7b_on_two_stages() -> None:
    """Parameters per rank as Megatron-Core builds them: the last stage also holds the final norm."""
    costs = stage_costs(example("llama-2-7b").architecture, Degrees(tp=1, dp=1))
    assert parameters(costs, 0, 16) == (3_369_205_760, 0)
    assert parameters(costs, 16, 32) == (3_369_209_856, 0)


def test_mixtral_with_one_expert_per_rank() -> None:
    """One of eight experts on each rank: 7,242,780,672 parameters, as Megatron-Core builds them."""
    costs = stage_costs(example("mixtral-8x7b").architecture, Degrees(tp=1, dp=8, ep=8))
    assert sum(parameters(costs, 0, 32)) == 7_242_780_672


def test_vocabulary_is_padded() -> None:
    """GPT-2's 50,257 rows become 50,304 on one rank and 51,200 / 8 = 6,400 on each of eight."""
    for tp, rows in ((1, 50304), (8, 6400)):
        assert stage_costs(example("gpt2-small").architecture, Degrees(tp=tp, dp=1)).work.vocabulary == rows


@given(arch=architectures(), tp=st.sampled_from([1, 2, 4, 8]), ep=st.sampled_from([1, 2, 4]), data=st.data())
def test_parameters_are_exact(arch: ArchitectureSpec, tp: int, ep: int, data: st.DataObject) -> None:
    """Any run holds what `ModelSpec.stage_parameters` counts, for every kind of block and both ends."""
    start = data.draw(st.integers(0, arch.layers - 1))
    stop = data.draw(st.integers(start + 1, arch.layers))
    first, last = start == 0, stop == arch.layers
    counted = ModelSpec(name="any", architecture=arch).stage_parameters(
        start,
        stop - start,
        tp=tp,
        ep=ep,
        expert_tp=tp,
        with_embedding=first,
        with_head=last,
        with_mtp=last,
    )
    costs = stage_costs(arch, Degrees(tp=tp, dp=ep, ep=ep))
    assert parameters(costs, start, stop) == (counted.dense, counted.experts)


@given(arch=architectures())
def test_more_tensor_parallelism_never_holds_more(arch: ArchitectureSpec) -> None:
    """Parameters and activations of a rank fall, or stay, as tp doubles."""
    whole = [stage_costs(arch, Degrees(tp=tp, dp=1)) for tp in (1, 2, 4, 8)]
    held = [sum(parameters(costs, 0, arch.layers)) for costs in whole]
    kept = [float(costs.kept_bytes(0, arch.layers, 0, 0, ())) for costs in whole]
    assert held == sorted(held, reverse=True)
    assert kept == sorted(kept, reverse=True)


@given(arch=architectures(), tp=st.sampled_from([1, 4]))
def test_runs_are_vectorised(arch: ArchitectureSpec, tp: int) -> None:
    """Arrays of boundaries give the same numbers as one run at a time, and runs add up."""
    costs = stage_costs(arch, Degrees(tp=tp, dp=2, zero=1))
    stop = np.arange(arch.layers + 1)
    start = stop // 2
    held = costs.parameters(start, stop, ())
    many = [
        costs.forward_s(start, stop, ()),
        costs.backward_s(start, stop, ()),
        costs.weight_s(start, stop, ()),
        costs.state_bytes(start, stop, ()),
        costs.kept_bytes(start, stop, 0, stop - start, ()),
        costs.recompute_s(stop, stop - start, 0),
        costs.gradient_sync_s(*held),
        costs.optimizer_s(*held),
    ]
    for i, (a, b) in enumerate(zip(start.tolist(), stop.tolist(), strict=True)):
        held_one = costs.parameters(a, b, ())
        one = [
            costs.forward_s(a, b, ()),
            costs.backward_s(a, b, ()),
            costs.weight_s(a, b, ()),
            costs.state_bytes(a, b, ()),
            costs.kept_bytes(a, b, 0, b - a, ()),
            costs.recompute_s(b, b - a, 0),
            costs.gradient_sync_s(*held_one),
            costs.optimizer_s(*held_one),
        ]
        assert [column[i] for column in many] == one
    half, whole = arch.layers // 2, arch.layers
    parts = float(costs.forward_s(0, half, ())) + float(costs.forward_s(half, whole, ()))
    assert parts == pytest.approx(float(costs.forward_s(0, whole, ())))


@given(arch=architectures(), flying=st.integers(1, 16), unfused=st.booleans(), data=st.data())
def test_recomputation_saves_memory_and_costs_time(
    arch: ArchitectureSpec, flying: int, unfused: bool, data: st.DataObject
) -> None:
    """Every block moved from none to selective or full keeps no more, but for the one block at work; time grows."""
    on = group("v100-sxm2-32gb" if unfused else "a100-sxm4-80gb")
    training = TrainingSpec(sequence_length=2048, precision="fp16")
    costs = stage_costs(arch, Degrees(tp=2, dp=1), on=on, training=training)
    full = data.draw(st.integers(0, arch.layers))
    selective = data.draw(st.integers(0, arch.layers - full))
    ends = costs.ends(first=True, last=True)
    kept = Part(start=0, stop=arch.layers, ends=ends)
    holdings = ((flying, 0),)
    none = costs.memory((kept,), holdings)
    mixed = costs.memory((replace(kept, selective=selective, full=full),), holdings)
    assert mixed.activations_bytes <= none.activations_bytes * (1 + 1e-12) + costs.block_bytes
    assert mixed.weights_bytes == none.weights_bytes
    time_s = float(costs.recompute_s(arch.layers, selective, full))
    assert time_s >= 0
    assert float(costs.recompute_s(arch.layers, 0, full)) <= time_s
    assert float(costs.recompute_s(arch.layers, 0, arch.layers)) >= time_s * (1 - 1e-12)


@given(arch=architectures(), zero=st.integers(0, 3), dp=st.integers(1, 16), flying=st.integers(1, 9))
def test_memory_terms_sum(arch: ArchitectureSpec, zero: int, dp: int, flying: int) -> None:
    """Weights, gradients and optimizer make the state; activations grow with micro-batches in flight."""
    costs = stage_costs(arch, Degrees(tp=1, dp=dp, zero=zero), on=group(nodes=2))
    ends = costs.ends(first=True, last=True)
    use = costs.memory((Part(start=0, stop=arch.layers, ends=ends),), ((flying, 0),))
    state = use.weights_bytes + use.gradients_bytes + use.optimizer_bytes
    kept = flying * float(costs.kept_bytes(0, arch.layers, 0, 0, ends))
    assert state == pytest.approx(float(costs.state_bytes(0, arch.layers, ends)), rel=1e-12)
    assert use.activations_bytes == pytest.approx(kept, rel=1e-12)
    assert use.total_bytes == pytest.approx(state + kept + costs.fixed_bytes(ends), rel=1e-12)


def test_memory_of_chunks_by_hand() -> None:
    """The worst moment counts, over all chunks; what waits for weight gradients alone is held without recomputation."""
    costs = stage_costs(GPT3, Degrees(tp=8, dp=1))
    block = costs.layers["dense"]
    head = costs.ends(first=False, last=True)
    parts = (Part(start=0, stop=3, selective=1), Part(start=50, stop=52, full=2), Part(start=90, stop=96, ends=head))
    first, second = 2 * block.kept_bytes + block.selective_bytes, 2 * block.full_bytes
    third = 6 * block.kept_bytes + head[0].kept_bytes
    holdings = ((4, 1, 0, 0, 0, 0), (1, 1, 2, 1, 3, 1), (0, 0, 3, 0, 0, 2))
    moments = (
        4 * first + second,
        # Three blocks of the first chunk wait whole, two of the second.
        first + second + 2 * third + 3 * block.kept_bytes + 3 * 2 * block.kept_bytes + third,
        3 * third + 2 * third,
    )
    for chosen in ((0,), (1,), (2,), (0, 1), (0, 1, 2), (2, 0)):
        use = costs.memory(parts, tuple(holdings[i] for i in chosen))
        worst = max(moments[i] for i in chosen)
        assert use.activations_bytes == pytest.approx(worst + costs.block_bytes, rel=1e-12)
    whole = costs.memory((Part(start=0, stop=11, ends=head),), ((0, 0),))
    for term in ("weights_bytes", "gradients_bytes", "optimizer_bytes", "other_bytes"):
        assert getattr(use, term) == pytest.approx(getattr(whole, term), rel=1e-12)


def test_holdings_are_those_of_the_parts() -> None:
    """A holding that counts another number of parts is a bug, not a guess."""
    costs = stage_costs(GPT3, Degrees(tp=8, dp=1))
    with pytest.raises(ValueError, match="zip"):
        costs.memory((Part(start=0, stop=1),), ((1, 1, 0, 0),))


@given(arch=architectures(), tp=st.sampled_from([1, 4]), data=st.data())
def test_weight_gradients_are_part_of_the_backward_pass(arch: ArchitectureSpec, tp: int, data: st.DataObject) -> None:
    """Of any run of blocks, and of both ends: what splits off leaves time for the input gradients."""
    costs = stage_costs(arch, Degrees(tp=tp, dp=1))
    start = data.draw(st.integers(0, arch.layers - 1))
    stop = data.draw(st.integers(start + 1, arch.layers))
    for ends in ((), costs.ends(first=True, last=True), costs.ends(first=False, last=True)):
        weight, backward = (float(f(start, stop, ends)) for f in (costs.weight_s, costs.backward_s))
        assert 0 < weight < backward


@pytest.mark.parametrize("tied", [True, False])
def test_head_beside_the_embedding(tied: bool) -> None:
    """Where another chunk of the stage holds the embedding, a tied head brings no second table."""
    arch = example("gpt2-small").architecture.model_copy(update={"tied_embeddings": tied})
    costs = stage_costs(arch, Degrees(tp=1, dp=1))
    table = 50304 * 768
    apart, beside = (costs.ends(first=False, last=True, together=both)[0].parameters for both in (False, True))
    assert apart - beside == (table if tied else 0)
    embedding = costs.ends(first=True, last=False)
    both = embedding[0].parameters + beside
    assert both == sum(end.parameters for end in costs.ends(first=True, last=True))
    assert costs.ends(first=False, last=False, together=True) == ()


def test_gathered_weights_under_zero_3() -> None:
    """Two blocks at a time are whole again, or one block and a larger table."""
    costs = stage_costs(GPT3, Degrees(tp=1, dp=8, zero=3))
    plain = stage_costs(GPT3, Degrees(tp=1, dp=8, zero=1))
    block = costs.layers["dense"].parameters
    assert costs.fixed_bytes(()) - plain.fixed_bytes(()) == pytest.approx(2 * 2 * block)
    small = example("gpt2-small").architecture
    whole = stage_costs(small, Degrees(tp=1, dp=8, zero=3))
    ends = whole.ends(first=True, last=False)
    gathered = whole.fixed_bytes(ends) - whole.fixed_bytes(()) + 2 * 2 * whole.layers["dense"].parameters
    assert gathered == 2 * (whole.layers["dense"].parameters + whole.work.embedding_cost.parameters)


def test_gradient_exchange_by_zero_stage() -> None:
    """Bytes by hand inside a node: 4 + 4, then 4 + 2, then per micro-batch 4 and with ZeRO-3 twice 2 as well."""
    free = {"collective_latency_s": 0.0, "collective_root_s": 0.0}
    stack = stage_costs(GPT3, Degrees(tp=1, dp=8)).stack.model_copy(update=free)
    unit = 1e9 * 7 / 8 / (300e9 * stack.link_share)
    during = stack.weight_gather_exposed
    expected = {0: 8, 1: 6, 2: 8 * 4 * during + 2, 3: 8 * 8 * during}
    for zero, count in expected.items():
        costs = stage_costs(GPT3, Degrees(tp=1, dp=8, zero=zero), stack=stack)
        assert float(costs.gradient_sync_s(1e9, 0.0)) == pytest.approx(count * unit)


def test_zero_moves_data_once_per_pass() -> None:
    """One pass of all micro-batches through a chunk: ZeRO-2 and ZeRO-3 move what they move once; the others as ever."""
    for zero, many in ((0, 1), (1, 1), (2, 8), (3, 8)):
        often, once = (stage_costs(GPT3, Degrees(tp=1, dp=8, zero=zero), passes=n) for n in (8, 1))
        during = [float(costs.gradient_sync_s(1e9, 0.0)) for costs in (often, once)]
        if zero == 2:
            after = float(once.fabric.replicas_s(2e9, 1, 8)) * once.stack.gradient_sync_exposed
            during = [seconds - after for seconds in during]
        assert during[0] == pytest.approx(many * during[1])


def test_experts_are_averaged_over_fewer_ranks() -> None:
    """With ep = dp each expert lives once: nothing to exchange, and no sharding of its optimizer state."""
    costs = stage_costs(example("mixtral-8x7b").architecture, Degrees(tp=1, dp=8, ep=8, zero=1))
    assert costs.gradient_sync_s(1e9, 1e9) == costs.gradient_sync_s(1e9, 0.0)
    assert costs.state.total == 6 + 12 / 8
    assert costs.expert_state.total == 18


def test_optimizer_moves_its_share() -> None:
    """36 bytes per parameter through memory, over the data-parallel ranks under ZeRO-1."""
    whole, split = (stage_costs(GPT3, Degrees(tp=1, dp=8, zero=z)) for z in (0, 1))
    assert float(whole.optimizer_s(1e9, 0.0)) == pytest.approx(36e9 / (2039e9 * whole.stack.memory_share))
    assert float(split.optimizer_s(1e9, 0.0)) == pytest.approx(float(whole.optimizer_s(1e9, 0.0)) / 8)


def test_hop_carries_the_activations() -> None:
    """2 b s h bytes per replica, each of tp ranks a share."""
    costs = stage_costs(GPT3, Degrees(tp=4, dp=1, microbatch_size=2))
    size = 2 * 2 * 2048 * 12288
    assert costs.side().size == size
    latency = costs.fabric.inside_latency_s
    assert costs.inner_hop_s(0) == pytest.approx(latency + size / 4 / costs.fabric.peer_bytes_per_s)


def test_way_back_to_the_first_stage() -> None:
    """The hop from last to first crosses nodes only where the stages fill more than one."""
    near = stage_costs(GPT3, Degrees(tp=2, dp=2), on=group(nodes=4))
    inside, across = near.inner_hop_s(0), near.inner_hop_s(1)
    assert inside < across
    # Two replicas of two accelerators: two stages fill a node of eight.
    assert [near.wrap_hop_s(stages) for stages in (2, 3, 4, 8)] == [inside, across, across, across]
    alone = stage_costs(GPT3, Degrees(tp=2, dp=2))
    assert alone.wrap_hop_s(2) == alone.inner_hop_s(0)


def test_gradients_of_two_copies() -> None:
    """A replica's gradients in the stack's width, each of dp replicas a share; 4 bytes where training is in fp32."""
    costs = stage_costs(GPT3, Degrees(tp=4, dp=2))
    assert costs.gradient_bytes(1e9, 1e8) == 1.1e9 * 4 * 4 / 2
    narrow = stage_costs(GPT3, Degrees(tp=4, dp=2), stack=costs.stack.model_copy(update={"gradient_bytes": 2}))
    assert narrow.gradient_bytes(1e9, 1e8) == 1.1e9 * 2 * 4 / 2
    single = TrainingSpec(sequence_length=2048, precision="fp32")
    wide = stage_costs(GPT3, Degrees(tp=4, dp=2), stack=narrow.stack, training=single)
    assert wide.gradient_bytes(1e9, 1e8) == costs.gradient_bytes(1e9, 1e8)


def test_tied_table_is_exchanged_whole() -> None:
    """The padded table in gradient bytes, where embedding and head are tied."""
    assert stage_costs(GPT3, Degrees(tp=1, dp=1)).tied_bytes() == 0
    costs = stage_costs(example("gpt2-small").architecture, Degrees(tp=1, dp=1))
    assert costs.tied_bytes() == 50304 * 768 * 4
