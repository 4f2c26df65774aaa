"""What no renaming of keys can say about a model family: rules that read a config.json and return shapes.

Source: configuration and modelling files of huggingface/transformers 5.24.0.
"""

from collections.abc import Callable, Mapping

from hetplan.specs.config_reader import ConfigReader
from hetplan.specs.wording import quote

Rule = Callable[[ConfigReader], Mapping[str, object]]
"""Reads what it needs and returns keys of ArchitectureSpec."""
Layers = Callable[[ConfigReader], Callable[[int], bool]]
"""Which layers, as the family's code tells them."""


def ffn_default(ffn_key: str, hidden_key: str) -> Rule:
    """A feed-forward width that is four times the hidden size unless given."""

    def rule(config: ConfigReader) -> Mapping[str, object]:
        width, hidden = config.count(ffn_key), config.count(hidden_key)
        if width is not None or ffn_key in config.places or hidden is None:
            return {"ffn_hidden_size": width}
        return {"ffn_hidden_size": 4 * hidden}

    return rule


def _attention(config: ConfigReader, short: list[bool], window: int | None) -> Mapping[str, object]:
    """Windows by which layers have one: all, or all but every k-th; otherwise none is counted on."""
    if window is None or not any(short):
        return {}
    if all(short):
        return {"sliding_window": window}
    every = short.index(False) + 1
    if short == [bool((layer + 1) % every) for layer in range(len(short))]:
        return {"sliding_window": window, "full_attention_every": every}
    config.notes.append(f"{sum(short)} of {len(short)} layers have an attention window, unevenly spread: not counted")
    return {}


def windows(otherwise: Layers, key: str = "sliding_window") -> Rule:
    """Windows by the list layer_types, or by what the family does in files without one."""

    def rule(config: ConfigReader) -> Mapping[str, object]:
        window, layers = config.count(key), config.layers("num_hidden_layers")
        types = config.names("layer_types")
        if not types:
            windowed = otherwise(config)
            return _attention(config, [windowed(layer) for layer in range(layers)], window)
        strange = [t for t in types if t not in ("full_attention", "sliding_attention", "chunked_attention")]
        if strange:
            hint = "write the shapes in a model.yaml"
            config.problem("layer_types", f"{quote(strange[0])} layers are not supported", hint, "choice")
        elif layers and len(types) != layers:
            message = f"{len(types)} entries for {layers} layers"
            config.problem("layer_types", message, "write one entry per layer", "length")
        else:
            return _attention(config, [t != "full_attention" for t in types], window)
        return {}

    return rule


def every_layer(_: ConfigReader) -> Callable[[int], bool]:
    """All layers."""
    return lambda layer: True


def all_but_every(period: int, key: str = "") -> Layers:
    """All layers but every period-th; `key` may hold another period."""

    def pattern(config: ConfigReader) -> Callable[[int], bool]:
        every = (config.count(key) if key else None) or period
        return lambda layer: (layer + 1) % every != 0

    return pattern


def if_used(otherwise: Layers) -> Rule:
    """Windows that use_sliding_window switches on."""
    rule = windows(otherwise)
    return lambda config: rule(config) if config.flag("use_sliding_window") else {}


def from_layer(config: ConfigReader) -> Callable[[int], bool]:
    """Layers from max_window_layers on."""
    first = config.count("max_window_layers", least=0) or 0
    return lambda layer: layer >= first


def even_until_layer(config: ConfigReader) -> Callable[[int], bool]:
    """Every second layer before max_window_layers."""
    last = config.count("max_window_layers", least=0) or 0
    return lambda layer: layer % 2 == 0 and layer < last


def chunks(config: ConfigReader) -> Mapping[str, object]:
    """Attention within chunks, but for the layers without rotary position."""

    def otherwise(config: ConfigReader) -> Callable[[int], bool]:
        rotary = config.numbers("no_rope_layers")
        every = config.count("no_rope_layer_interval") or 1
        return lambda layer: bool(rotary[layer]) if rotary and layer < len(rotary) else (layer + 1) % every != 0

    result = windows(otherwise, "attention_chunk_size")(config)
    if "sliding_window" in result:
        config.notes.append("attention within chunks is counted as a sliding window of the size of a chunk")
    return result


def _pattern(config: ConfigReader, key: str, has_experts: Callable[[int], bool]) -> Mapping[str, object]:
    """Which layers have experts, as leading dense layers and a period; `key` is named where that cannot say it."""
    layers = range(config.layers("num_hidden_layers"))
    moe = [layer for layer in layers if has_experts(layer)]
    if not layers:
        return {}
    if not moe:
        config.notes.append("no layer has experts: a dense model")
        return dict.fromkeys(("experts", "experts_per_token", "shared_expert_ffn_hidden_size"), 0) | {
            "expert_ffn_hidden_size": None,
            "shared_expert_gate": False,
        }
    first = moe[0]
    every = moe[1] - first if len(moe) > 1 else first + 1
    leading = 0 if first == every - 1 else first
    if moe != [layer for layer in layers if layer >= leading and (layer + 1) % every == 0]:
        message = "layers with experts are not every n-th after some leading dense ones"
        config.problem(key, message, "such a model cannot be planned yet", "choice")
        return {}
    return {"dense_layers": leading, "moe_every": every}


def qwen_experts(config: ConfigReader) -> Mapping[str, object]:
    """Experts in every decoder_sparse_step-th layer that mlp_only_layers does not list."""
    step = config.count("decoder_sparse_step") or 1
    dense = set(config.numbers("mlp_only_layers") or ())
    key = "mlp_only_layers" if dense else "decoder_sparse_step"
    return _pattern(config, key, lambda layer: layer not in dense and (layer + 1) % step == 0)


def llama4_experts(config: ConfigReader) -> Mapping[str, object]:
    """Experts in the layers listed, or by a period; the shared expert is as wide as a routed one."""
    step, listed = config.count("interleave_moe_layer_step") or 1, config.numbers("moe_layers")
    if listed is None:
        pattern = _pattern(config, "interleave_moe_layer_step", lambda layer: (layer + 1) % step == 0)
    else:
        layers = set(listed)
        pattern = _pattern(config, "moe_layers", lambda layer: layer in layers)
    return {"shared_expert_ffn_hidden_size": config.count("intermediate_size"), **pattern}


def deepseek_experts(config: ConfigReader) -> Mapping[str, object]:
    """Experts behind the first layers, and shared experts that act as one wide one."""
    leading = config.count("first_k_dense_replace", least=0) or 0
    every = config.count("moe_layer_freq") or 1
    shared, width = config.count("n_shared_experts", least=0), config.count("moe_intermediate_size")
    pattern = _pattern(config, "moe_layer_freq", lambda layer: layer >= leading and layer % every == 0)
    return {"shared_expert_ffn_hidden_size": (shared or 0) * (width or 0), **pattern}


def latent_attention(config: ConfigReader) -> Mapping[str, object]:
    """Latent attention: the widths of its projections."""
    widths = ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    values = {key: config.count(key) for key in widths}
    missing = any(values[key] is None for key in widths[1:])
    return {} if missing else {"mla": values}


def falcon(config: ConfigReader) -> Mapping[str, object]:
    """Three generations of one family: key-value heads, norms, biases and positions go by flags."""
    new, parallel, bias = (config.flag(key) for key in ("new_decoder_architecture", "parallel_attn", "bias"))
    norms = config.count("num_ln_in_parallel_attn") or (2 if new else 1)
    multi_query = not new and config.flag("multi_query")
    return {
        "kv_heads": 1 if multi_query else config.count("num_kv_heads") if new else None,
        "norms_per_layer": min(norms, 2) if parallel else 2,
        "attention_bias": bias,
        "mlp_bias": bias,
        "position": "alibi" if config.flag("alibi") else "rope",
    }


def opt(config: ConfigReader) -> Mapping[str, object]:
    """Norm placement and biases go by flags; the 350M model has a narrower embedding."""
    affine, bias = config.flag("layer_norm_elementwise_affine"), config.flag("enable_bias")
    kept = config.flag("do_layer_norm_before") and not config.flag("_remove_final_layer_norm")
    positions, width = config.count("max_position_embeddings"), config.count("word_embed_proj_dim")
    return {
        "max_positions": None if positions is None else positions + 2,  # the table starts with two unused rows
        "embedding_size": None if width == config.count("hidden_size") else width,
        "norms_per_layer": 2 if affine else 0,
        "final_norm": kept and affine,
        "attention_bias": bias,
        "mlp_bias": bias,
    }


def qkv_bias(key: str) -> Rule:
    """A flag for biases on queries, keys and values, never on the output."""
    return lambda config: {"attention_bias": "qkv" if config.flag(key) else False}


def all_windowed(config: ConfigReader) -> Mapping[str, object]:
    """A window in every layer, if any."""
    return {"sliding_window": config.count("sliding_window")}
