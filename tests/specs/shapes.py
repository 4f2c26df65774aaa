"""Example models and random shapes that several tests use."""

from pathlib import Path

from hypothesis import strategies as st

from hetplan.specs.model import ArchitectureSpec, MlaSpec

MODELS = Path(__file__).parents[2] / "models"
COUNTS = {
    "deepseek-v3": 671_026_404_352,
    "falcon-7b": 6_921_720_704,
    "gemma-2-9b": 9_241_705_984,
    "gpt-neox-20b": 20_554_567_680,
    "gpt-oss-120b": 116_829_156_672,
    "gpt2-small": 124_439_808,
    "llama-140b": 137_429_000_192,
    "llama-2-13b": 13_015_864_320,
    "llama-2-70b": 68_976_648_192,
    "llama-2-7b": 6_738_415_616,
    "llama-3-405b": 405_853_388_800,
    "llama-3-70b": 70_553_706_496,
    "llama-3-8b": 8_030_261_248,
    "mixtral-8x7b": 46_702_792_704,
    "opt-350m": 331_196_416,
    "phi-3-mini": 3_821_079_552,
    "qwen2.5-72b": 72_706_203_648,
    "qwen3-30b-a3b": 30_532_122_624,
}
"""Parameters as the models' own code in huggingface/transformers builds them, multi-token prediction left out."""
DEEPSEEK_V3 = ArchitectureSpec(
    layers=61,
    hidden_size=7168,
    ffn_hidden_size=18432,
    attention_heads=128,
    vocab_size=129280,
    experts=256,
    experts_per_token=8,
    expert_ffn_hidden_size=2048,
    shared_expert_ffn_hidden_size=2048,
    dense_layers=3,
    mla=MlaSpec(q_lora_rank=1536, kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128),
    mtp_layers=1,
)


@st.composite
def architectures(draw: st.DrawFn) -> ArchitectureSpec:
    """Small architectures with every kind of block; widths are multiples of 8, so that tp up to 8 divides them."""
    moe = draw(st.booleans())
    layers, kv = draw(st.integers(2, 9)), draw(st.sampled_from([1, 2, 8]))
    latent = MlaSpec(
        q_lora_rank=draw(st.sampled_from([None, 12])),
        kv_lora_rank=10,
        qk_nope_head_dim=8,
        qk_rope_head_dim=4,
        v_head_dim=6,
    )
    mla = latent if draw(st.booleans()) else None
    return ArchitectureSpec(
        layers=layers,
        hidden_size=64,
        ffn_hidden_size=draw(st.sampled_from([96, 160])),
        attention_heads=8,
        kv_heads=kv if mla is None else None,
        head_dim=draw(st.sampled_from([None, 24])) if mla is None else None,
        vocab_size=draw(st.integers(1, 500)),
        gated_mlp=draw(st.booleans()),
        tied_embeddings=draw(st.booleans()),
        norm=draw(st.sampled_from(["rms", "layer"])),
        attention_bias=draw(st.sampled_from([False, True, "qkv"])),
        mlp_bias=draw(st.booleans()),
        head_bias=draw(st.booleans()),
        position=draw(st.sampled_from(["rope", "learned"])),
        max_positions=32,
        embedding_size=draw(st.sampled_from([None, 16])),
        experts=8 if moe else 0,
        experts_per_token=2 if moe else 0,
        expert_bias=draw(st.booleans()) and moe,
        shared_expert_ffn_hidden_size=draw(st.sampled_from([0, 40])) if moe else 0,
        dense_layers=draw(st.integers(0, layers - 1)) if moe else 0,
        mla=mla,
        mtp_layers=draw(st.integers(0, 2)),
    )
