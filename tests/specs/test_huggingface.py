"""config.json of every family, as shapes."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetplan.specs.families import known_types
from hetplan.specs.files import load_model
from hetplan.specs.huggingface import ConfigError, from_config
from tests.specs.shapes import COUNTS, MODELS

DATA = Path(__file__).parents[1] / "data"
CONFIGS = {path.stem: json.loads(path.read_text("utf-8")) for path in sorted((DATA / "huggingface").glob("*.json"))}
VARIANTS = json.loads((DATA / "huggingface_variants.json").read_text("utf-8"))
"""Small configurations of every family with its flags set this way and that, and the parameters of the models that
transformers 5.24.0 builds from them."""
MORE_COUNTS = {
    "gemma-3-4b": 3_880_263_168,
    "glm-4.5-air": 106_852_245_504,
    "llama-4-scout": 107_769_861_120,
    "phi-2": 2_779_683_840,
}
YAML_NAMES = {"gpt2": "gpt2-small"}


def problems_of(config: object) -> dict[str, tuple[str, str]]:
    """Message and hint by dotted key path of a config that cannot be read."""
    with pytest.raises(ConfigError) as caught:
        from_config(config)
    return {".".join(map(str, p.path)): (p.message, p.hint) for p in caught.value.problems}


def changed(name: str, **changes: Any) -> dict[str, Any]:
    """An example with some keys changed; a value of ... takes the key out."""
    config = CONFIGS[name] | changes
    return {key: value for key, value in config.items() if value is not ...}


@pytest.mark.parametrize("name", CONFIGS)
def test_exact_counts(name: str) -> None:
    """Published configurations give exactly the parameters of the real models."""
    expected = (COUNTS | MORE_COUNTS)[YAML_NAMES.get(name, name)]
    assert from_config(CONFIGS[name]).architecture.total_parameters == expected


@pytest.mark.parametrize("index", range(len(VARIANTS)))
def test_exact_counts_of_variants(index: int) -> None:
    """Every flag of every family counts as in the library's own code."""
    variant = VARIANTS[index]
    assert from_config(variant["config"]).architecture.total_parameters == variant["parameters"]


@pytest.mark.parametrize("name", [n for n in CONFIGS if (MODELS / f"{YAML_NAMES.get(n, n)}.yaml").exists()])
def test_config_and_yaml_agree(name: str) -> None:
    """A config.json and the example YAML of the same model give the same shapes."""
    written = load_model(MODELS / f"{YAML_NAMES.get(name, name)}.yaml").model.architecture
    read = from_config(CONFIGS[name]).architecture
    # Files of one model differ in the longest sequence; kv_heads may be written out where it is the default.
    same = {"max_positions": written.max_positions, "kv_heads": written.kv_heads, "head_dim": written.head_dim}
    assert read.model_copy(update=same | {"expert_ffn_hidden_size": written.expert_ffn_hidden_size}) == written
    assert read.kv_heads_or_default == written.kv_heads_or_default
    assert (read.head_width, read.expert_width) == (written.head_width, written.expert_width)


def test_families() -> None:
    """The families that can be read; adding one is deliberate."""
    assert sorted(known_types()) == [
        "deepseek_v2",
        "deepseek_v3",
        "falcon",
        "gemma",
        "gemma2",
        "gemma3_text",
        "glm4_moe",
        "gpt2",
        "gpt_neox",
        "gpt_oss",
        "kimi_k2",
        "llama",
        "llama4_text",
        "mistral",
        "mixtral",
        "opt",
        "phi",
        "phi3",
        "qwen2",
        "qwen2_moe",
        "qwen3",
        "qwen3_moe",
    ]
    assert {v["config"]["model_type"] for v in VARIANTS} >= set(known_types()) - {"kimi_k2"}


@pytest.mark.parametrize(
    ("name", "window", "every"),
    [
        ("llama-3-70b", None, None),
        ("mixtral-8x7b", None, None),
        ("qwen2.5-72b", None, None),
        ("phi-3-mini", 2047, None),
        ("gemma-2-9b", 4096, 2),
        ("gemma-3-4b", 1024, 6),
        ("gpt-oss-120b", 128, 2),
        ("llama-4-scout", 8192, 4),
    ],
)
def test_windows(name: str, window: int | None, every: int | None) -> None:
    """Sliding windows and the layers without one are read from each family's own keys."""
    arch = from_config(CONFIGS[name]).architecture
    assert (arch.sliding_window, arch.full_attention_every) == (window, every)


def test_windows_of_qwen() -> None:
    """Qwen's window counts when switched on; from layer 0 it is in all layers, from a later one it is not counted."""
    on = {"use_sliding_window": True, "sliding_window": 4096}
    assert from_config(changed("qwen2.5-72b", **on, max_window_layers=0)).architecture.sliding_window == 4096
    uneven = from_config(changed("qwen2.5-72b", **on, max_window_layers=70))
    assert uneven.architecture.sliding_window is None
    assert "10 of 80 layers have an attention window, unevenly spread: not counted" in uneven.notes


def test_listed_layer_types() -> None:
    """A list of layer types wins over the family's pattern, must fit the layers, and may name known types only."""
    full = from_config(changed("gpt-oss-120b", layer_types=["full_attention"] * 36)).architecture
    assert full.sliding_window is None
    short = problems_of(changed("gpt-oss-120b", layer_types=["full_attention"] * 35))
    assert short["layer_types"][0] == "35 entries for 36 layers"
    strange = problems_of(changed("gpt-oss-120b", layer_types=["linear_attention"] * 36))
    assert strange["layer_types"][0] == '"linear_attention" layers are not supported'


@pytest.mark.parametrize(
    ("changes", "kinds"),
    [
        ({"decoder_sparse_step": 2}, "dmdmdm"),
        ({"mlp_only_layers": [0, 1]}, "ddmmmm"),
        ({"mlp_only_layers": [1], "decoder_sparse_step": 2}, "dddmdm"),
        ({"mlp_only_layers": [0, 1, 2, 3, 4, 5]}, "dddddd"),
    ],
)
def test_layers_with_experts(changes: dict[str, Any], kinds: str) -> None:
    """Qwen's step and its list of dense layers give the pattern of layers."""
    arch = from_config(changed("qwen3-30b-a3b", num_hidden_layers=6, **changes)).architecture
    assert "".join(kind[0] for kind in arch.layer_kinds()) == kinds


def test_irregular_experts_are_refused() -> None:
    """Layers with experts in no pattern that can be planned are a problem, not a wrong count."""
    problems = problems_of(changed("qwen3-30b-a3b", num_hidden_layers=6, mlp_only_layers=[3]))
    assert "every n-th" in problems["mlp_only_layers"][0]


def test_listed_layers_of_llama_4() -> None:
    """Llama 4 may list its layers with experts and those with rotary position, which attend within chunks."""
    scout = CONFIGS["llama-4-scout"]
    text = scout["text_config"] | {"num_hidden_layers": 4, "moe_layers": [1, 3], "no_rope_layers": [1, 0, 1, 0]}
    arch = from_config(scout | {"text_config": text}).architecture
    assert arch.layer_kinds() == ("dense", "moe", "dense", "moe")
    assert arch.windows() == (8192, None, 8192, None)
    problems = problems_of(scout | {"text_config": text | {"moe_layers": [1, 2]}})
    assert "every n-th" in problems["text_config.moe_layers"][0]


def test_nested_decoder() -> None:
    """The decoder of a multimodal model is read from text_config, and the notes say that the rest is left out."""
    read = from_config(CONFIGS["llama-4-scout"])
    assert read.model_type == "llama4_text"
    assert read.sources["layers"] == ("text_config", "num_hidden_layers")
    assert any("only the decoder in text_config" in note for note in read.notes)


def test_nested_defaults() -> None:
    """Inside a multimodal file an absent key means the library's default, which the notes state."""
    read = from_config(CONFIGS["gemma-3-4b"])
    assert (read.architecture.attention_heads, read.architecture.kv_heads) == (8, 4)
    assert any("num_attention_heads 8" in note and "vocab_size 262208" in note for note in read.notes)


def test_nested_type_may_follow_from_the_outer_one() -> None:
    """text_config of a known multimodal family need not repeat its type; of an unknown one it must."""
    text = {key: value for key, value in CONFIGS["gemma-3-4b"]["text_config"].items() if key != "model_type"}
    assert from_config({"model_type": "gemma3", "text_config": text}).model_type == "gemma3_text"
    assert "text_config.model_type" in problems_of({"model_type": "other", "text_config": text})


def test_outer_tying_counts() -> None:
    """A multimodal file may say beside text_config whether the embeddings are tied."""
    untied = from_config(CONFIGS["gemma-3-4b"] | {"tie_word_embeddings": False})
    assert not untied.architecture.tied_embeddings
    assert untied.sources["tied_embeddings"] == ("tie_word_embeddings",)


@pytest.mark.parametrize("name", ["llama-3-70b", "deepseek-v3", "gpt2", "qwen3-30b-a3b"])
def test_shapes_must_be_stated(name: str) -> None:
    """Each shape that a plain file always has is asked for by name when it is missing."""
    shapes = {"num_hidden_layers", "hidden_size", "vocab_size", "n_layer", "n_embd", "moe_intermediate_size"}
    for key in shapes & set(CONFIGS[name]):
        assert problems_of(changed(name, **{key: ...}))[key][0] == "this key is missing"


def test_missing_heads_mean_one_per_query_head() -> None:
    """A plain file without num_key_value_heads is from before grouped queries; null says the same."""
    for value in (..., None):
        read = from_config(changed("llama-3-70b", num_key_value_heads=value))
        assert read.architecture.kv_heads_or_default == 64
        assert "no num_key_value_heads: one per attention head" in read.notes


def test_aliases() -> None:
    """Other names of a key are read; two names that disagree are a problem."""
    renamed = from_config(changed("mixtral-8x7b", num_local_experts=..., num_experts=8))
    assert renamed.architecture == from_config(CONFIGS["mixtral-8x7b"]).architecture
    gpt2 = changed("gpt2", n_embd=..., hidden_size=768, n_layer=..., num_hidden_layers=12)
    assert from_config(gpt2).architecture.total_parameters == 124_439_808
    clash = problems_of(changed("mixtral-8x7b", num_experts=16))
    assert clash["num_experts"][0] == "num_experts and num_local_experts are the same setting and disagree"


@pytest.mark.parametrize(
    ("dtype", "precision"),
    [("bfloat16", "bf16"), ("torch.float16", "fp16"), ("float32", None), ("float8_e4m3fn", None)],
)
def test_precision(dtype: str, precision: str | None) -> None:
    """16-bit weights hint at how to train; other formats are only how weights are stored, and the notes say so."""
    for key in ("torch_dtype", "dtype"):
        read = from_config(changed("llama-3-70b", torch_dtype=...) | {key: dtype})
        assert read.precision == precision
        assert any(dtype in note for note in read.notes) == (precision is None)


def test_quantization_is_ignored_aloud() -> None:
    """Quantised storage does not change what is trained; the notes say that it is ignored."""
    assert any("quantization_config is ignored" in note for note in from_config(CONFIGS["deepseek-v3"]).notes)
    assert not any("quantization" in note for note in from_config(CONFIGS["llama-3-70b"]).notes)


def test_all_bad_values_are_reported() -> None:
    """Text, fractions, NaN, negatives, booleans and numbers where flags stand: all in one go, each with its key."""
    bad = {
        "hidden_size": "8192",
        "num_hidden_layers": 80.0,
        "intermediate_size": float("nan"),
        "vocab_size": -1,
        "num_attention_heads": True,
        "tie_word_embeddings": 1,
        "torch_dtype": 16,
    }
    problems = problems_of(changed("llama-3-70b", **bad))
    assert set(problems) == set(bad)
    assert problems["hidden_size"] == ('must be a whole number, not text "8192"', "write 8192, without quotes")
    assert problems["num_hidden_layers"][1] == "write 80"
    assert problems["vocab_size"] == ("-1 is out of range", "write at least 1")


def test_contradictions_use_the_words_of_the_file() -> None:
    """Shapes that do not belong together are placed and worded by the keys of config.json."""
    heads = problems_of(changed("llama-3-70b", num_key_value_heads=7))
    assert heads["num_key_value_heads"][0] == "num_attention_heads (64) is not a multiple of 7"
    experts = problems_of(changed("mixtral-8x7b", num_experts_per_tok=9))
    assert experts["num_experts_per_tok"] == ("9 of 8 experts", "write at most 8")
    huge = problems_of(changed("llama-3-70b", num_hidden_layers=10**9))
    assert "out of range" in huge["num_hidden_layers"][0]


@pytest.mark.parametrize(
    ("model_type", "hint"),
    [("lama", "did you mean llama"), ("qwen3moe", "did you mean qwen3_moe"), ("t5", "known: llama, ")],
)
def test_unknown_families(model_type: str, hint: str) -> None:
    """An unknown family is refused with a near name and the list of known ones."""
    problems = problems_of(changed("llama-3-70b", model_type=model_type))
    message, said = problems["model_type"]
    assert message == f'unknown model family "{model_type}"'
    assert said.startswith(hint)
    assert "gpt_neox" in said


@pytest.mark.parametrize("config", [{}, {"model_type": None}, {"model_type": 3}, {"model_type": ["llama"]}])
def test_no_family(config: dict[str, Any]) -> None:
    """A file without a usable model_type is told the known ones."""
    assert "llama" in problems_of(config)["model_type"][1]


@pytest.mark.parametrize("config", [None, [], "llama", 7])
def test_not_an_object(config: object) -> None:
    """Anything but a JSON object is refused."""
    assert problems_of(config)[""][0] == "must be a JSON object with a model_type"


def test_kimi_is_read_as_deepseek() -> None:
    """Kimi K2 has DeepSeek-V3's keys and another model_type."""
    config = changed(
        "deepseek-v3",
        model_type="kimi_k2",
        n_routed_experts=384,
        num_attention_heads=64,
        first_k_dense_replace=1,
        vocab_size=163840,
        num_nextn_predict_layers=0,
        max_position_embeddings=131072,
    )
    assert from_config(config).architecture == load_model(MODELS / "kimi-k2.yaml").model.architecture


_VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 200),
    st.floats(),
    st.text(max_size=5),
    st.lists(st.integers(0, 3), max_size=3),
)


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_any_value_is_read_or_refused(data: st.DataObject) -> None:
    """Whatever stands at a key, the file is read or refused with problems that have messages; nothing else happens."""
    config = dict(data.draw(st.sampled_from(VARIANTS))["config"])
    for key in data.draw(st.lists(st.sampled_from(sorted(config)), min_size=1, max_size=3)):
        config[key] = data.draw(_VALUES)
    try:
        parameters = from_config(config).architecture.total_parameters
    except ConfigError as error:
        messages = [problem.message for problem in error.problems]
    else:
        messages = [str(parameters)]
        assert parameters > 0
    assert all(messages)
    assert messages
