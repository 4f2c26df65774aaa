"""Padding, what one rank of a stage holds, and the example models."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetplan.specs.files import load_model
from hetplan.specs.model import ArchitectureSpec, ModelFile, ModelSpec
from tests.specs.shapes import COUNTS, DEEPSEEK_V3, MODELS, architectures

PUBLISHED = {
    "deepseek-v2": ("236B", "21B"),
    "deepseek-v3": ("671B", "37B"),
    "gpt-oss-120b": ("117B", "5B"),
    "gpt3-175b": ("175B", "175B"),
    "kimi-k2": ("1.0T", "32B"),
    "mixtral-8x7b": ("47B", "13B"),
    "qwen3-30b-a3b": ("31B", "3B"),
    "qwen3-235b-a22b": ("235B", "22B"),
}
"""Parameters in all and those that work on one token, as their makers round them."""
LLAMA_70B = ArchitectureSpec(
    layers=80, hidden_size=8192, ffn_hidden_size=28672, attention_heads=64, kv_heads=8, vocab_size=128256
)
MIXTRAL = ArchitectureSpec(
    layers=32,
    hidden_size=4096,
    ffn_hidden_size=14336,
    attention_heads=32,
    kv_heads=8,
    vocab_size=32000,
    experts=8,
    experts_per_token=2,
)


def named(architecture: ArchitectureSpec) -> ModelSpec:
    """A model of this shape."""
    return ModelSpec(name="model", architecture=architecture)


@pytest.mark.parametrize(("name", "parameters"), COUNTS.items())
def test_exact_counts_of_examples(name: str, parameters: int) -> None:
    """Example models have exactly the parameters of the real ones."""
    assert load_model(MODELS / f"{name}.yaml").model.parameters == parameters


@pytest.mark.parametrize(("name", "published"), PUBLISHED.items())
def test_rounded_counts_of_examples(name: str, published: tuple[str, str]) -> None:
    """Sparse and unverified example models have the published size, in all and per token."""
    arch = load_model(MODELS / f"{name}.yaml").model.architecture
    assert (rounded(arch.total_parameters), rounded(arch.active_matrix_parameters)) == published


def rounded(count: int) -> str:
    """A count as model makers write it."""
    return f"{count / 1e12:.1f}T" if count >= 1e12 else f"{count / 1e9:.0f}B"


@pytest.mark.parametrize("path", sorted(MODELS.glob("*.yaml")), ids=lambda path: path.stem)
def test_examples_are_well_formed(path: Path) -> None:
    """Each example names itself, says where its shapes come from, states its training, and names the schema."""
    lines = path.read_text("utf-8").splitlines()
    loaded = load_model(path)
    assert lines[0] == "# yaml-language-server: $schema=../docs/schemas/model.json"
    assert lines[1].startswith(("# Shapes: ", "# Assumed: "))
    assert loaded.model.name == path.stem
    assert loaded.training.model_fields_set == set(type(loaded.training).model_fields)
    assert loaded.training.sequence_length <= loaded.model.architecture.max_positions


def test_c26_vocabulary_is_padded() -> None:
    """NVIDIA-NeMo/Megatron-Bridge issue 1331: what vocabulary does Qwen3-Reranker-4B (151,669) have at TP4?"""
    model = named(LLAMA_70B.model_copy(update={"vocab_size": 151_669}))
    assert model.padded_vocab(4) == 152_064
    assert model.padded_vocab(4, multiple=1) == 151_672
    assert model.padded_vocab(1) == 151_680


@pytest.mark.parametrize(
    ("tp", "first", "layers", "ends", "parameters"),
    [
        (8, 0, 20, "first", 2_271_543_296),
        (8, 20, 20, "", 2_139_422_720),
        (8, 60, 20, "last", 2_271_551_488),
        (8, 0, 26, "first", 2_913_370_112),
        (8, 26, 28, "", 2_995_191_808),
        (8, 54, 26, "last", 2_913_378_304),
        (4, 0, 40, "first", 8_820_228_096),
        (4, 40, 40, "last", 8_820_236_288),
        (16, 0, 4, "first last", 346_103_808),
    ],
)
def test_llama_stages_as_megatron_builds_them(tp: int, first: int, layers: int, ends: str, parameters: int) -> None:
    """Parameters per rank of Llama-3-70B stages equal those of the model that NVIDIA/Megatron-LM builds."""
    held = named(LLAMA_70B).stage_parameters(
        first, layers, tp=tp, with_embedding="first" in ends, with_head="last" in ends
    )
    assert held.total == held.dense == parameters


def test_key_value_weights_are_split_below_a_head() -> None:
    """2 key-value heads at TP4: Megatron-LM splits their weights all the same, half a head per rank."""
    model = named(LLAMA_70B.model_copy(update={"kv_heads": 2}))
    assert model.stage_parameters(0, 4, tp=4, with_embedding=True, with_head=True).total == 1_369_513_984


@pytest.mark.parametrize(
    ("tp", "ep", "first", "layers", "ends", "parameters"),
    [
        (1, 8, 0, 32, "first last", 7_242_780_672),
        (2, 4, 0, 16, "first", 6_038_880_256),
        (2, 4, 16, 16, "last", 6_038_884_352),
    ],
)
def test_mixtral_stages_as_megatron_builds_them(
    tp: int, ep: int, first: int, layers: int, ends: str, parameters: int
) -> None:
    """Parameters per rank of Mixtral-8x7B stages under expert parallelism equal those of NVIDIA/Megatron-LM."""
    held = named(MIXTRAL).stage_parameters(
        first, layers, tp=tp, ep=ep, with_embedding="first" in ends, with_head="last" in ends
    )
    assert held.total == parameters
    assert held.experts == layers * 8 // ep * 3 * 4096 * 14336


def test_llama_2_7b_halves() -> None:
    """Llama-2-7B on two stages without tensor parallelism, to the last parameter."""
    model = load_model(MODELS / "llama-2-7b.yaml").model
    assert model.stage_parameters(0, 16, with_embedding=True).total == 3_369_205_760
    assert model.stage_parameters(16, 16, with_head=True).total == 3_369_209_856


@given(architectures(), st.integers(1, 8))
@settings(max_examples=60, deadline=None)
def test_stages_add_up(arch: ArchitectureSpec, cut: int) -> None:
    """Two stages hold the model once; a tied table twice, since both ends need it."""
    model, cut = named(arch), min(cut, arch.layers - 1)
    first = model.stage_parameters(0, cut, with_embedding=True, vocab_multiple=1)
    last = model.stage_parameters(cut, arch.layers - cut, with_head=True, vocab_multiple=1)
    alone = model.stage_parameters(0, arch.layers, with_embedding=True, with_head=True, vocab_multiple=1)
    copy = arch.vocab_size * arch.embedding_width if arch.tied_embeddings else 0
    assert alone.total == arch.total_parameters
    assert first.total + last.total == alone.total + copy


def test_prediction_modules_stand_on_the_last_stage() -> None:
    """DeepSeek-V3's extra module brings its block, and the embedding table where the first stage is elsewhere."""
    model = named(DEEPSEEK_V3)
    table = model.padded_vocab(1) * 7168
    without = model.stage_parameters(30, 31, with_head=True).total
    assert model.stage_parameters(30, 31, with_head=True, with_mtp=True).total - without == (
        DEEPSEEK_V3.mtp_parameters + table
    )
    whole = model.stage_parameters(0, 61, with_embedding=True, with_head=True)
    with_module = model.stage_parameters(0, 61, with_embedding=True, with_head=True, with_mtp=True)
    assert with_module.total - whole.total == DEEPSEEK_V3.mtp_parameters


def test_schema_asks_for_one_source_of_shapes() -> None:
    """Editors are told that a model file has either shapes or the path of a config.json."""
    schema = ModelFile.model_json_schema()
    assert schema["oneOf"] == [{"required": ["architecture"]}, {"required": ["huggingface"]}]
    assert all(field.get("description") for field in schema["$defs"]["ArchitectureSpec"]["properties"].values())
