"""Model families of Hugging Face transformers: which key of config.json means what, one entry per family.

A family says which keys carry shapes over (`keys`), what its code fixes (`fixed`), what the library takes for absent
keys (`defaults`), and names rules for what no renaming can say. Source: configuration and modelling files of
huggingface/transformers 5.24.0.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from hetplan.specs.family_rules import (
    Rule,
    all_but_every,
    all_windowed,
    chunks,
    deepseek_experts,
    even_until_layer,
    every_layer,
    falcon,
    ffn_default,
    from_layer,
    if_used,
    latent_attention,
    llama4_experts,
    opt,
    qkv_bias,
    qwen_experts,
    windows,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """How the config.json of a family describes an architecture."""

    model_types: tuple[str, ...]
    keys: Mapping[str, str]
    """Key of ArchitectureSpec to key of config.json."""
    fixed: Mapping[str, object] = field(default_factory=dict)
    """Keys of ArchitectureSpec that the family's code decides."""
    defaults: Mapping[str, object] = field(default_factory=dict)
    """Key of config.json to the library's default; None where absent means no value."""
    plain_defaults: Mapping[str, object] = field(default_factory=dict)
    """The same where a file that is not nested means something else."""
    aliases: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Key of config.json to its other names: the library's attribute_map, and older files."""
    rules: tuple[Rule, ...] = ()


_ENDS = {"vocab_size": "vocab_size", "tied_embeddings": "tie_word_embeddings"}
_PLAIN = _ENDS | {
    "layers": "num_hidden_layers",
    "hidden_size": "hidden_size",
    "attention_heads": "num_attention_heads",
    "max_positions": "max_position_embeddings",
}
_LLAMA = _PLAIN | {
    "ffn_hidden_size": "intermediate_size",
    "kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
}
_BIASED = _LLAMA | {"attention_bias": "attention_bias"}
_MLA = _PLAIN | {"ffn_hidden_size": "intermediate_size", "attention_bias": "attention_bias"}
_ROUTED = {"experts": "num_experts", "experts_per_token": "num_experts_per_tok"}
_NARROW = _ROUTED | {"expert_ffn_hidden_size": "moe_intermediate_size"}
_DEEPSEEK = _NARROW | {"experts": "n_routed_experts"}
_MTP = {"mtp_layers": "num_nextn_predict_layers"}


def _sizes(layers: int, hidden: int, ffn: int, heads: int, vocab: int, positions: int) -> dict[str, object]:
    """The library's defaults for the keys that nearly all families have."""
    return {
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "intermediate_size": ffn,
        "num_attention_heads": heads,
        "num_key_value_heads": None,
        "head_dim": None,
        "vocab_size": vocab,
        "max_position_embeddings": positions,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "sliding_window": None,
        "layer_types": None,
    }


_LAYER_NORM = {"norm": "layer", "gated_mlp": False}
_QWEN_WINDOW = {"use_sliding_window": False, "sliding_window": 4096, "max_window_layers": 28}
_MLA_SIZES = {
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "moe_layer_freq": None,
}
_EXPERT_ALIASES = {"num_experts": ("num_local_experts",), "num_experts_per_tok": ("experts_per_token",)}
_ROUTED_ALIASES = {
    "n_routed_experts": ("num_local_experts", "num_experts"),
    "num_nextn_predict_layers": ("num_mtp_layers",),
}
_BEFORE_GQA: dict[str, object] = {"num_key_value_heads": None}
"""A plain file without key-value heads is as old as attention without grouped queries: one per query head."""

FAMILIES = (
    Family(
        model_types=("llama",),
        keys=_BIASED | {"mlp_bias": "mlp_bias"},
        defaults=_sizes(32, 4096, 11008, 32, 32000, 2048) | {"mlp_bias": False},
    ),
    Family(
        model_types=("mistral",),
        keys=_LLAMA,
        defaults=_sizes(32, 4096, 14336, 32, 32000, 131072) | {"num_key_value_heads": 8, "sliding_window": 4096},
        plain_defaults=_BEFORE_GQA,
        rules=(all_windowed,),
    ),
    Family(
        model_types=("mixtral",),
        keys=_LLAMA | _ROUTED,
        defaults=_sizes(32, 4096, 14336, 32, 32000, 131072)
        | {"num_key_value_heads": 8, "num_experts": 8, "num_experts_per_tok": 2},
        aliases=_EXPERT_ALIASES,
        rules=(all_windowed,),
    ),
    Family(
        model_types=("qwen2",),
        keys=_LLAMA,
        fixed={"attention_bias": "qkv"},
        defaults=_sizes(32, 4096, 22016, 32, 151936, 32768) | _QWEN_WINDOW | {"num_key_value_heads": 32},
        plain_defaults=_BEFORE_GQA,
        rules=(if_used(from_layer),),
    ),
    Family(
        model_types=("qwen3",),
        keys=_BIASED,
        fixed={"qk_norm": True},
        defaults=_sizes(32, 4096, 22016, 32, 151936, 32768)
        | _QWEN_WINDOW
        | {"num_key_value_heads": 32, "head_dim": 128},
        plain_defaults=_BEFORE_GQA,
        rules=(if_used(from_layer),),
    ),
    Family(
        model_types=("qwen2_moe",),
        keys=_LLAMA | _NARROW | {"shared_expert_ffn_hidden_size": "shared_expert_intermediate_size"},
        fixed={"shared_expert_gate": True},
        defaults=_sizes(24, 2048, 5632, 16, 151936, 32768)
        | _QWEN_WINDOW
        | {
            "num_key_value_heads": 16,
            "qkv_bias": True,
            "num_experts": 60,
            "num_experts_per_tok": 4,
            "moe_intermediate_size": 1408,
            "shared_expert_intermediate_size": 5632,
            "decoder_sparse_step": 1,
            "mlp_only_layers": None,
        },
        aliases=_EXPERT_ALIASES,
        rules=(qkv_bias("qkv_bias"), qwen_experts, if_used(even_until_layer)),
    ),
    Family(
        model_types=("qwen3_moe",),
        keys=_BIASED | _NARROW,
        fixed={"qk_norm": True},
        defaults=_sizes(24, 2048, 6144, 32, 151936, 32768)
        | _QWEN_WINDOW
        | {
            "num_key_value_heads": 4,
            "num_experts": 128,
            "num_experts_per_tok": 8,
            "moe_intermediate_size": 768,
            "decoder_sparse_step": 1,
            "mlp_only_layers": None,
        },
        aliases=_EXPERT_ALIASES,
        rules=(qwen_experts, if_used(every_layer)),
    ),
    Family(
        model_types=("deepseek_v2",),
        keys=_MLA | _DEEPSEEK | {"mlp_bias": "mlp_bias"},
        defaults=_sizes(32, 4096, 11008, 32, 102400, 2048)
        | _MLA_SIZES
        | {
            "n_routed_experts": 64,
            "n_shared_experts": 2,
            "num_experts_per_tok": None,
            "moe_intermediate_size": 1407,
            "first_k_dense_replace": 0,
            "mlp_bias": False,
        },
        aliases=_ROUTED_ALIASES,
        rules=(latent_attention, deepseek_experts),
    ),
    Family(
        model_types=("deepseek_v3", "kimi_k2"),
        keys=_MLA | _DEEPSEEK | _MTP,
        defaults=_sizes(61, 7168, 18432, 128, 129280, 4096)
        | _MLA_SIZES
        | {
            "n_routed_experts": 256,
            "n_shared_experts": 1,
            "num_experts_per_tok": 8,
            "moe_intermediate_size": 2048,
            "first_k_dense_replace": 3,
            "num_nextn_predict_layers": 1,
        },
        aliases=_ROUTED_ALIASES,
        rules=(latent_attention, deepseek_experts),
    ),
    Family(
        model_types=("glm4_moe",),
        keys=_LLAMA | _DEEPSEEK | _MTP | {"qk_norm": "use_qk_norm"},
        defaults=_sizes(46, 4096, 10944, 96, 151552, 131072)
        | {
            "num_key_value_heads": 8,
            "use_qk_norm": False,
            "n_routed_experts": 128,
            "n_shared_experts": 1,
            "num_experts_per_tok": 8,
            "moe_intermediate_size": 1408,
            "first_k_dense_replace": 1,
            "moe_layer_freq": None,
            "num_nextn_predict_layers": 1,
        },
        aliases=_ROUTED_ALIASES,
        rules=(qkv_bias("attention_bias"), deepseek_experts),
    ),
    Family(
        model_types=("gpt_oss",),
        keys=_BIASED | _ROUTED,
        fixed={"attention_sinks": True, "router_bias": True, "expert_bias": True},
        defaults=_sizes(36, 2880, 2880, 64, 201088, 131072)
        | {
            "num_key_value_heads": 8,
            "head_dim": 64,
            "num_experts": 128,
            "num_experts_per_tok": 4,
            "sliding_window": 128,
            "attention_bias": True,
        },
        aliases=_EXPERT_ALIASES,
        rules=(windows(all_but_every(2)),),
    ),
    Family(
        model_types=("llama4_text",),
        keys=_BIASED
        | _ROUTED
        | {"ffn_hidden_size": "intermediate_size_mlp", "expert_ffn_hidden_size": "intermediate_size"},
        defaults=_sizes(48, 5120, 8192, 40, 202048, 131072)
        | {
            "num_key_value_heads": 8,
            "head_dim": 128,
            "intermediate_size_mlp": 16384,
            "num_experts": 16,
            "num_experts_per_tok": 1,
            "interleave_moe_layer_step": 1,
            "moe_layers": None,
            "no_rope_layers": None,
            "no_rope_layer_interval": 4,
            "attention_chunk_size": 8192,
        },
        aliases=_EXPERT_ALIASES,
        rules=(llama4_experts, chunks),
    ),
    Family(
        model_types=("gemma",),
        keys=_BIASED,
        defaults=_sizes(28, 3072, 24576, 16, 256000, 8192)
        | {"num_key_value_heads": 16, "head_dim": 256, "tie_word_embeddings": True},
    ),
    Family(
        model_types=("gemma2",),
        keys=_BIASED,
        fixed={"norms_per_layer": 4},
        defaults=_sizes(26, 2304, 9216, 8, 256000, 8192)
        | {"num_key_value_heads": 4, "head_dim": 256, "tie_word_embeddings": True, "sliding_window": 4096},
        rules=(windows(all_but_every(2)),),
    ),
    Family(
        model_types=("gemma3_text",),
        keys=_BIASED,
        fixed={"norms_per_layer": 4, "qk_norm": True},
        defaults=_sizes(26, 2304, 9216, 8, 262208, 131072)
        | {
            "num_key_value_heads": 4,
            "head_dim": 256,
            "tie_word_embeddings": True,
            "sliding_window": 4096,
            "sliding_window_pattern": 6,
        },
        aliases={"sliding_window_pattern": ("_sliding_window_pattern",)},
        rules=(windows(all_but_every(6, "sliding_window_pattern")),),
    ),
    Family(
        model_types=("gpt2",),
        keys=_ENDS
        | {"layers": "n_layer", "hidden_size": "n_embd", "attention_heads": "n_head", "max_positions": "n_positions"},
        fixed=_LAYER_NORM | {"position": "learned", "attention_bias": True, "mlp_bias": True},
        defaults={
            "n_layer": 12,
            "n_embd": 768,
            "n_head": 12,
            "n_inner": None,
            "n_positions": 1024,
            "vocab_size": 50257,
            "tie_word_embeddings": True,
        },
        aliases={
            "n_layer": ("num_hidden_layers",),
            "n_embd": ("hidden_size",),
            "n_head": ("num_attention_heads",),
            "n_positions": ("max_position_embeddings",),
        },
        rules=(ffn_default("n_inner", "n_embd"),),
    ),
    Family(
        model_types=("gpt_neox",),
        keys=_PLAIN | {"ffn_hidden_size": "intermediate_size", "attention_bias": "attention_bias"},
        fixed=_LAYER_NORM | {"mlp_bias": True},
        defaults=_sizes(44, 6144, 24576, 64, 50432, 2048) | {"attention_bias": True},
    ),
    Family(
        model_types=("opt",),
        keys=_PLAIN | {"ffn_hidden_size": "ffn_dim"},
        fixed=_LAYER_NORM | {"position": "learned"},
        defaults=_sizes(12, 768, 3072, 12, 50272, 2048)
        | {
            "ffn_dim": 3072,
            "tie_word_embeddings": True,
            "word_embed_proj_dim": None,
            "do_layer_norm_before": True,
            "_remove_final_layer_norm": False,
            "layer_norm_elementwise_affine": True,
            "enable_bias": True,
        },
        rules=(opt,),
    ),
    Family(
        model_types=("falcon",),
        keys=_PLAIN,
        fixed=_LAYER_NORM,
        defaults=_sizes(32, 4544, 18176, 71, 65024, 2048)
        | {
            "tie_word_embeddings": True,
            "ffn_hidden_size": None,
            "num_kv_heads": None,
            "num_ln_in_parallel_attn": None,
            "new_decoder_architecture": False,
            "multi_query": True,
            "parallel_attn": True,
            "bias": False,
            "alibi": False,
        },
        aliases={"hidden_size": ("n_embed",)},
        rules=(ffn_default("ffn_hidden_size", "hidden_size"), falcon),
    ),
    Family(
        model_types=("phi",),
        keys=_LLAMA | {"qk_norm": "qk_layernorm"},
        fixed=_LAYER_NORM | {"norms_per_layer": 1, "attention_bias": True, "mlp_bias": True, "head_bias": True},
        defaults=_sizes(24, 2048, 8192, 32, 51200, 2048) | {"qk_layernorm": False},
    ),
    Family(
        model_types=("phi3",),
        keys=_LLAMA,
        defaults=_sizes(32, 3072, 8192, 32, 32064, 4096),
        rules=(all_windowed,),
    ),
)

NESTED_TYPES = {"gemma3": "gemma3_text", "llama4": "llama4_text", "llava": "llama"}
"""Multimodal families to the decoder that their text_config holds unless it says otherwise."""


def known_types() -> dict[str, Family]:
    """Every model_type that can be read."""
    return {name: family for family in FAMILIES for name in family.model_types}
