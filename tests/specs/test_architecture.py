"""Exact parameter counts, and how far a model can be split."""

from math import prod

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetplan.specs.model import ArchitectureSpec, LayerKind, MlaSpec
from tests.specs.shapes import DEEPSEEK_V3, architectures

LLAMA_3_8B = ArchitectureSpec(
    layers=32, hidden_size=4096, ffn_hidden_size=14336, attention_heads=32, kv_heads=8, vocab_size=128256
)
LLAMA_33B = ArchitectureSpec(layers=60, hidden_size=6656, ffn_hidden_size=17920, attention_heads=52, vocab_size=32000)


@given(architectures())
@settings(max_examples=60, deadline=None)
def test_counts_grow_with_layers(arch: ArchitectureSpec) -> None:
    """One layer more costs exactly that layer, and every part is positive."""
    kind: LayerKind = "moe" if arch.experts else "dense"
    longer = arch.model_copy(update={"layers": arch.layers + 1})
    assert longer.total_parameters - arch.total_parameters == arch.layer_parameters(kind).total > 0
    assert arch.active_matrix_parameters > 0
    assert 0 < arch.active_parameters_per_token <= arch.total_parameters


@given(architectures(), st.sampled_from([2, 4, 8]))
@settings(max_examples=60, deadline=None)
def test_ranks_hold_the_layer(arch: ArchitectureSpec, degree: int) -> None:
    """All ranks together hold a layer once, and more of it only where a part is on every rank."""
    for kind in set(arch.layer_kinds()):
        whole, part = arch.layer_parameters(kind), arch.layer_parameters(kind, tp=degree, ep=degree)
        assert part.total <= whole.total <= degree * part.total
        assert part.experts * degree == whole.experts
        assert arch.attention_parameters(degree) * degree - arch.attention_parameters() == (degree - 1) * replicated(
            arch
        )


def replicated(arch: ArchitectureSpec) -> int:
    """Attention weights that every rank holds: the down-projections of latent attention."""
    if arch.mla is None:
        return 0
    return arch.hidden_size * ((arch.mla.q_lora_rank or 0) + arch.mla.kv_lora_rank + arch.mla.qk_rope_head_dim)


def test_parts_of_a_layer() -> None:
    """The parts of a Llama-3-8B block, written out."""
    parts = LLAMA_3_8B.layer_parameters("dense")
    assert parts.attention == 4096 * 4096 + 2 * 4096 * 1024 + 4096 * 4096
    assert parts.dense_mlp == 3 * 4096 * 14336
    assert parts.norm == 2 * 4096
    assert (parts.router, parts.experts, parts.shared_expert) == (0, 0, 0)
    assert parts.total == parts.attention + parts.dense_mlp + parts.norm


def test_parts_of_an_expert_layer() -> None:
    """The parts of a DeepSeek-V3 block with experts: no dense MLP, 256 experts and a shared one, a router."""
    parts = DEEPSEEK_V3.layer_parameters("moe")
    assert parts.dense_mlp == 0
    assert parts.experts == 256 * 3 * 7168 * 2048
    assert parts.shared_expert == 3 * 7168 * 2048
    assert parts.router == 256 * 7168
    assert DEEPSEEK_V3.layer_parameters("dense").dense_mlp == 3 * 7168 * 18432
    assert DEEPSEEK_V3.total_parameters == 671_026_404_352


def test_biases_norms_and_sinks() -> None:
    """Learned vectors of attention: biases on q, k and v alone or on all four, norms on queries and keys, sinks."""
    plain = ArchitectureSpec(layers=1, hidden_size=64, ffn_hidden_size=96, attention_heads=8, kv_heads=2, vocab_size=9)

    def vectors(tp: int = 1, **changes: object) -> int:
        return plain.model_copy(update=changes).attention_vector_parameters(tp)

    assert vectors() == 0
    assert vectors(attention_bias="qkv") == 64 + 2 * 16
    assert vectors(attention_bias=True) == 64 + 2 * 16 + 64
    assert vectors(qk_norm=True) == 2 * 8
    assert vectors(qk_norm=True, norm="layer") == 4 * 8
    assert vectors(tp=4, attention_sinks=True) == 2
    # The output's bias is added once, after the sum over ranks: every rank holds it.
    assert vectors(tp=2, attention_bias=True) == (64 + 2 * 16) // 2 + 64


def test_defaults_follow_other_shapes() -> None:
    """Key-value heads, head width, expert width and embedding width default to what they usually are."""
    arch = ArchitectureSpec(layers=1, hidden_size=64, ffn_hidden_size=96, attention_heads=8, vocab_size=9)
    assert (arch.kv_heads_or_default, arch.head_width, arch.value_width) == (8, 8, 8)
    assert (arch.expert_width, arch.embedding_width) == (96, 64)
    assert (DEEPSEEK_V3.head_width, DEEPSEEK_V3.value_width) == (192, 128)


@pytest.mark.parametrize(
    ("dense_layers", "every", "expected"),
    [(0, 1, "mmmmmm"), (2, 1, "ddmmmm"), (0, 2, "dmdmdm"), (0, 3, "ddmddm"), (3, 2, "dddmdm"), (5, 1, "dddddm")],
)
def test_layers_with_experts(dense_layers: int, every: int, expected: str) -> None:
    """Experts stand behind the leading dense layers, in every so many-th layer counted from the model's first."""
    arch = DEEPSEEK_V3.model_copy(update={"layers": 6, "dense_layers": dense_layers, "moe_every": every})
    assert "".join(kind[0] for kind in arch.layer_kinds()) == expected


def test_windows() -> None:
    """Without a window all layers attend in full; with one, none do but every so many-th."""
    arch = LLAMA_3_8B.model_copy(update={"layers": 6})
    assert arch.windows() == (None,) * 6
    assert arch.full_attention_share == 1
    assert arch.model_copy(update={"sliding_window": 128}).windows() == (128,) * 6
    third = arch.model_copy(update={"sliding_window": 128, "full_attention_every": 3})
    assert third.windows() == (128, 128, None, 128, 128, None)
    assert third.full_attention_share == pytest.approx(1 / 3)


def test_matrices_that_a_token_meets() -> None:
    """Everything but norms and the embedding table of a dense, untied model."""
    expected = LLAMA_3_8B.total_parameters - 128256 * 4096 - (2 * 32 + 1) * 4096
    assert LLAMA_3_8B.active_matrix_parameters == expected


def test_multi_token_prediction() -> None:
    """DeepSeek-V3's module: a block with experts, a projection of twice the width, three norms."""
    block = DEEPSEEK_V3.layer_parameters("moe").total
    assert DEEPSEEK_V3.mtp_parameters == block + 2 * 7168 * 7168 + 3 * 7168
    assert LLAMA_3_8B.mtp_parameters == 0
    # 14 billion as published with the weights, which repeat embedding and head.
    assert round((DEEPSEEK_V3.mtp_parameters + 2 * 129280 * 7168) / 1e9) in (13, 14)


def test_c17_52_heads_on_3_or_8_accelerators() -> None:
    """DeepSpeed issue 3634, vllm issues 414 and 2652: LLaMA-33B has 52 heads; which TP degrees can it have?"""
    degrees = range(1, 53)
    assert [tp for tp in degrees if LLAMA_33B.head_obstacle(tp) is None] == [1, 2, 4, 13, 26, 52]
    assert LLAMA_33B.tp_obstacle(3) == "52 attention heads cannot be split over tp 3"
    assert LLAMA_33B.tp_obstacle(8) == "52 attention heads cannot be split over tp 8"
    # The MLP is 17,920 wide, which leaves the powers of two.
    assert LLAMA_33B.tp_obstacle(13) == "ffn_hidden_size 17920 cannot be split over tp 13"
    assert LLAMA_33B.valid_tp(52) == (1, 2, 4)


def test_key_value_heads_are_split_or_shared() -> None:
    """8 key-value heads go over 2 to 8 ranks, and 16 or 32 ranks share them; 6 ranks could do neither."""
    arch = LLAMA_3_8B.model_copy(update={"attention_heads": 48, "head_dim": 128, "ffn_hidden_size": 48 * 256})
    assert arch.valid_tp(48) == (1, 2, 4, 8, 16, 24, 48)
    assert arch.tp_obstacle(6) == "8 key-value heads cannot be split over or shared by tp 6"
    assert arch.tp_obstacle(12) == "8 key-value heads cannot be split over or shared by tp 12"


def test_only_used_widths_count() -> None:
    """The dense width of a model without dense layers is no obstacle; widths of experts are."""
    arch = DEEPSEEK_V3.model_copy(update={"dense_layers": 0, "ffn_hidden_size": 7})
    assert arch.tp_obstacle(8) is None
    assert arch.model_copy(update={"dense_layers": 1}).tp_obstacle(8) == "ffn_hidden_size 7 cannot be split over tp 8"
    narrow = arch.model_copy(update={"expert_ffn_hidden_size": 12})
    assert narrow.tp_obstacle(8) == "expert_ffn_hidden_size 12 cannot be split over tp 8"


def test_c24_latent_is_on_every_rank() -> None:
    """deepseek-ai/DeepSeek-V3 issue 283: with MLA and TP8, is the latent of keys and values sharded?"""
    latent = 7168 * 1536 + 7168 * (512 + 64)
    by_head = 128 * (1536 * (128 + 64) + 512 * (128 + 128) + 128 * 7168)
    assert DEEPSEEK_V3.attention_parameters() == latent + by_head
    assert DEEPSEEK_V3.attention_parameters(8) == latent + by_head // 8
    assert DEEPSEEK_V3.attention_vector_parameters(8) == DEEPSEEK_V3.attention_vector_parameters() == 1536 + 512
    # No rule of key-value heads: any divisor of the 128 heads will do.
    assert [tp for tp in range(1, 129) if DEEPSEEK_V3.head_obstacle(tp) is None] == [2**n for n in range(8)]


def test_latent_attention_without_query_rank() -> None:
    """DeepSeek-V2-Lite projects queries in one step, which is split by heads."""
    mla = MlaSpec(kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128)
    arch = DEEPSEEK_V3.model_copy(update={"mla": mla, "hidden_size": 2048, "attention_heads": 16})
    shapes = [(2048, 16 * 192), (2048, 512 + 64), (512, 16 * 256), (16 * 128, 2048)]
    assert arch.attention_parameters() == sum(prod(shape) for shape in shapes)
    assert arch.attention_vector_parameters() == 512
