"""Blocks, embedding and head against published formulas and counts."""

import pytest

from hetplan.cost.layers import mean_span, model_flops_per_token
from hetplan.cost.profiles import load_stack
from hetplan.cost.stages import Degrees
from hetplan.specs.architecture import ArchitectureSpec
from hetplan.specs.training import TrainingSpec
from tests.cost.builders import GPT3, example, group, stage_costs

STACK = load_stack()
UNFUSED = STACK.model_copy(update={"attention": "unfused"})
SBH = 2048 * 12288


@pytest.mark.parametrize(
    ("name", "gflop"), [("llama-3-8b", 51.5), ("llama-3-70b", 449), ("llama-3-405b", 2524), ("qwen3-30b-a3b", 23.0)]
)
def test_flops_per_token_as_published(name: str, gflop: float) -> None:
    """Model FLOP per token at sequence length 8,192 or 4,096 as NVIDIA-NeMo/Megatron-Bridge publishes them."""
    length = 4096 if name.startswith("qwen") else 8192
    assert model_flops_per_token(example(name).architecture, length) == pytest.approx(gflop * 1e9, rel=0.01)


def test_flops_per_token_by_hand() -> None:
    """6 FLOP per weight of blocks and head, and 6 s h per layer for causal attention (GPT-3 at 2,048 tokens)."""
    by_hand = 6 * (96 * 12 * 12288**2 + 51200 * 12288) + 6 * 96 * 2048 * 12288
    assert model_flops_per_token(GPT3, 2048) == pytest.approx(by_hand)


def test_mean_span_of_windows() -> None:
    """The mean of min(i, window) over the queries, layers with full attention counted in."""
    windowed = ArchitectureSpec(
        layers=6,
        hidden_size=64,
        ffn_hidden_size=64,
        attention_heads=4,
        vocab_size=128,
        sliding_window=100,
        full_attention_every=3,
    )
    short = sum(min(i + 0.5, 100) for i in range(1000)) / 1000
    assert mean_span(windowed, 1000) == pytest.approx((2 * 500 + 4 * short) / 6)
    assert mean_span(windowed, 80) == 40


@pytest.mark.parametrize(
    ("sequence_parallel", "formula"), [(True, 32 / 8), (False, 8 + 24 / 8)], ids=["sequence-parallel", "without"]
)
def test_activations_follow_korthikanti(sequence_parallel: bool, formula: float) -> None:
    """Kept bytes are s b h 34 / t, or s b h (10 + 24 / t) without sequence parallelism, less the dropout masks."""
    costs = stage_costs(GPT3, Degrees(tp=8, dp=1), sequence_parallel=sequence_parallel)
    layer = costs.layers["dense"]
    assert layer.selective_bytes == SBH * formula
    assert layer.kept_bytes == pytest.approx(SBH * formula, rel=0.01)
    assert layer.full_bytes == 2 * SBH / (8 if sequence_parallel else 1)


def test_selective_recompute_saves_the_scores() -> None:
    """Without flash the core takes 5 a s / h less the mask: two thirds of a GPT-3 block (Megatron-LM issue 464)."""
    layer = stage_costs(GPT3, Degrees(tp=8, dp=1), stack=UNFUSED).layers["dense"]
    saved = layer.kept_bytes - layer.selective_bytes
    assert saved == pytest.approx(SBH * 4 * 96 * 2048 / 12288 / 8, rel=0.01)
    assert saved / layer.kept_bytes == pytest.approx(0.67, abs=0.01)


def test_selective_recompute_saves_nothing_with_flash() -> None:
    """Flash attention keeps no scores, so recomputing the core saves under 5 % (Megatron-LM issues 464, 1225)."""
    layer = stage_costs(example("llama-2-7b").architecture, Degrees(tp=1, dp=1)).layers["dense"]
    assert 0 < layer.kept_bytes - layer.selective_bytes < 0.05 * layer.kept_bytes


def test_grouped_queries_keep_less() -> None:
    """Eight key-value heads of 64: keys and values shrink to an eighth, the rest of the block stays."""
    few = example("llama-3-70b").architecture
    many = few.model_copy(update={"kv_heads": 64})
    small, large = (stage_costs(a, Degrees(tp=4, dp=1)).layers["dense"] for a in (few, many))
    assert large.kept_bytes - small.kept_bytes == pytest.approx(2 * 2048 * 2 * 56 * 128 / 4)


def test_context_parallel_splits_activations() -> None:
    """Each rank of cp keeps its share of the tokens."""
    arch = example("llama-3-8b").architecture
    one, four = (stage_costs(arch, Degrees(tp=1, dp=1, cp=c)).layers["dense"] for c in (1, 4))
    assert four.kept_bytes == pytest.approx(one.kept_bytes / 4)
    assert four.forward_s < one.forward_s


def test_logits_of_the_last_stage() -> None:
    """8,192 tokens x 128,256 rows / 8 x 10 bytes = 1.3 GB; 10.5 GB without tensor parallelism."""
    arch = example("llama-3-70b").architecture
    training = TrainingSpec(sequence_length=8192)
    sharded, whole = (stage_costs(arch, Degrees(tp=t, dp=1), training=training).work.head_cost for t in (8, 1))
    assert sharded.transient_bytes == 8192 * 129024 // 8 * 10
    assert sharded.transient_bytes == pytest.approx(1.3e9, rel=0.02)
    assert whole.transient_bytes == pytest.approx(10.5e9, rel=0.01)


def test_forward_time_by_hand() -> None:
    """A GPT-3 block without fixed times: 24 T h^2 FLOP of products, attention, and (22 + 6 + 16) T h bytes moved."""
    ideal = {
        "gemm_fixed_s": 0.0,
        "gemm_half_k": 0.0,
        "attention_half_length": 0.0,
        "host_per_layer_s": 0.0,
    }
    stack = STACK.model_copy(update=ideal)
    layer = stage_costs(GPT3, Degrees(tp=1, dp=1), stack=stack).layers["dense"]
    products = 24 * 2048 * 12288**2 / (271.2e12 * stack.gemm_share)
    core = 2 * 2048**2 * 12288 / (271.2e12 * stack.attention_share)
    moved = SBH * (22 + 6 + 16) / (2039e9 * stack.memory_share)
    assert layer.forward_s == pytest.approx(products + core + moved)
    core_back = 2.5 * core / stack.attention_backward_share
    assert layer.backward_s == pytest.approx(2 * products + core_back + 1.6 * moved)
    assert layer.weight_s == pytest.approx(products)
    assert layer.selective_s == pytest.approx(core)
    assert layer.full_s == layer.forward_s


def test_tensor_parallel_exchanges_by_hand() -> None:
    """Tensor parallelism moves the residual stream four times a pass: with free compute that is all a block takes."""
    free = STACK.model_copy(update={"collective_root_s": 0.0, "collective_latency_s": 0.0})
    costs = stage_costs(GPT3, Degrees(tp=8, dp=1), stack=free)
    slow = stage_costs(GPT3, Degrees(tp=8, dp=1), stack=free.model_copy(update={"link_share": free.link_share / 2}))
    exchange = 4 * 2 * SBH * 7 / 8 / (300e9 * free.link_share)
    for field in ("forward_s", "backward_s"):
        fast, slower = (getattr(c.layers["dense"], field) for c in (costs, slow))
        assert slower - fast == pytest.approx(exchange)


def test_context_parallel_exchanges_by_hand() -> None:
    """Keys and values of the whole sequence once forward, twice backward (with their gradients)."""
    free = STACK.model_copy(update={"collective_root_s": 0.0, "collective_latency_s": 0.0})
    half = free.model_copy(update={"link_share": free.link_share / 2})
    arch = example("llama-3-8b").architecture
    fast, slow = (stage_costs(arch, Degrees(tp=1, dp=1, cp=8), stack=s).layers["dense"] for s in (free, half))
    keys = 2 * 2048 * 2 * 8 * 128 * 7 / 8 / (300e9 * free.link_share)
    assert slow.forward_s - fast.forward_s == pytest.approx(keys)
    assert slow.backward_s - fast.backward_s == pytest.approx(2 * keys)


def test_embedding_and_head_by_hand() -> None:
    """The head is a product with the padded table and ten bytes moved per logit; both ends exchange over tp."""
    ideal = {"gemm_fixed_s": 0.0, "gemm_half_k": 0.0, "collective_root_s": 0.0, "collective_latency_s": 0.0}
    stack = STACK.model_copy(update=ideal)
    costs = stage_costs(GPT3, Degrees(tp=8, dp=1), stack=stack)
    product = 2 * 2048 * 12288 * 51200 / 8 / (271.2e12 * stack.gemm_share)
    loss = 2048 * 51200 / 8 * 10 / (2039e9 * stack.memory_share)
    exchange = 2 * SBH * 7 / 8 / (300e9 * stack.link_share)
    assert costs.work.head_cost.forward_s == pytest.approx(product + loss + exchange)
    assert costs.work.head_cost.backward_s == pytest.approx(2 * product + loss + exchange)
    assert costs.work.head_cost.weight_s == pytest.approx(product)
    assert costs.work.head_cost.kept_bytes == 2 * 2 * SBH / 8
    moved = 2 * 2 * SBH / (2039e9 * stack.memory_share)
    assert costs.work.embedding_cost.forward_s == pytest.approx(moved + exchange)


def test_expert_parallel_exchanges_cross_nodes() -> None:
    """Experts over four nodes pay the network for their all-to-all; inside a node they do not."""
    arch = example("mixtral-8x7b").architecture
    two = group(nodes=2)
    slow = group(nodes=2, network=10e9)
    inside = [stage_costs(arch, Degrees(tp=1, dp=16, ep=4), on=g).layers["moe"].forward_s for g in (two, slow)]
    across = [stage_costs(arch, Degrees(tp=4, dp=4, ep=4), on=g).layers["moe"].forward_s for g in (two, slow)]
    assert inside[0] == inside[1]
    assert across[0] < across[1]


def test_host_time_is_a_floor() -> None:
    """Small blocks take as long as the host needs to launch them."""
    layer = stage_costs(example("gpt2-small").architecture, Degrees(tp=1, dp=1)).layers["dense"]
    slow = STACK.model_copy(update={"host_per_layer_s": 1.0})
    floored = stage_costs(example("gpt2-small").architecture, Degrees(tp=1, dp=1), stack=slow).layers["dense"]
    assert layer.forward_s < 1e-2
    assert (floored.forward_s, floored.backward_s) == (1.0, 2.0)


def test_host_time_is_a_floor_of_both_halves() -> None:
    """Where launching takes longest, a faster accelerator lengthens neither half of a split backward pass."""
    small = example("gpt2-small").architecture
    before = None
    for rate in (1e-4, 1e-3, 1e-2, 1e-1, 1.0):
        stack = STACK.model_copy(update={"gemm_share": rate, "host_per_layer_s": 2e-3})
        layer = stage_costs(small, Degrees(tp=1, dp=1), stack=stack).layers["dense"]
        halves = (layer.weight_s, layer.backward_s - layer.weight_s)
        assert min(halves) >= 2e-3 * (1 - 1e-12)
        if before is not None:
            assert all(now <= then * (1 + 1e-12) for now, then in zip(halves, before, strict=True))
        before = halves


def test_prediction_layers_stand_with_the_head() -> None:
    """DeepSeek-V3's module brings a block, a head pass and the logits of its own loss."""
    arch = example("deepseek-v3").architecture
    degrees = Degrees(tp=8, dp=8, ep=8)
    with_mtp = stage_costs(arch, degrees).work.head_cost
    without = stage_costs(arch.model_copy(update={"mtp_layers": 0}), degrees)
    block = without.layers["moe"]
    assert with_mtp.forward_s > without.work.head_cost.forward_s + block.forward_s
    assert with_mtp.expert_parameters == block.expert_parameters
    assert with_mtp.transient_bytes == 2 * without.work.head_cost.transient_bytes
