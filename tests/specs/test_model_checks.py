"""Shapes of a model file that do not belong together."""

from typing import Any

import pytest

from hetplan.specs.model_checks import architecture_problems, model_problems

GOOD: dict[str, Any] = {
    "layers": 4,
    "hidden_size": 512,
    "ffn_hidden_size": 2048,
    "attention_heads": 8,
    "kv_heads": 2,
    "vocab_size": 1000,
}
MLA: dict[str, Any] = {"kv_lora_rank": 8, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 8}


@pytest.mark.parametrize(
    ("change", "key", "message", "hint"),
    [
        ({"hidden_size": 500}, "hidden_size", "500 is not a multiple of attention_heads (8)", "write 496 or 504, or"),
        ({"kv_heads": 3}, "kv_heads", "attention_heads (8) is not a multiple of 3", "write 2 or 4"),
        ({"kv_heads": 16}, "kv_heads", "attention_heads (8) is not a multiple of 16", "write 8"),
        ({"experts": 4}, "experts", "experts without experts_per_token", "add experts_per_token"),
        ({"experts": 4, "experts_per_token": 5}, "experts_per_token", "5 of 4 experts", "write at most 4"),
        ({"experts_per_token": 2}, "experts_per_token", "experts_per_token without experts", "add experts"),
        ({"dense_layers": 1}, "dense_layers", "dense_layers without experts", "add experts"),
        ({"router_bias": True}, "router_bias", "router_bias without experts", "add experts"),
        (
            {"experts": 4, "experts_per_token": 2, "dense_layers": 4},
            "dense_layers",
            "4 of 4 layers: none is left for experts",
            "write at most 3",
        ),
        (
            {"experts": 4, "experts_per_token": 2, "moe_every": 5},
            "moe_every",
            "every 5th of 4 layers: none has experts",
            "write at most 4",
        ),
        (
            {"experts": 4, "experts_per_token": 2, "shared_expert_gate": True},
            "shared_expert_gate",
            "a gate without a shared expert",
            "add shared_expert_ffn_hidden_size",
        ),
        ({"mla": MLA}, "kv_heads", "kv_heads together with mla", "remove one of the two"),
        (
            {"full_attention_every": 2},
            "full_attention_every",
            "full_attention_every without sliding_window",
            "add sliding_window",
        ),
        (
            {"layers": 100_000, "ffn_hidden_size": 100_000_000},
            "hidden_size",
            "a model of more than 10^15 parameters",
            "check layers",
        ),
    ],
)
def test_shapes_that_contradict_each_other(change: dict[str, Any], key: str, message: str, hint: str) -> None:
    """Each contradiction is one problem at the key that is likeliest wrong, with what would be right."""
    (problem,) = architecture_problems(GOOD | change, ("architecture",))
    assert problem.path == ("architecture", key)
    assert problem.message == message
    assert problem.hint.startswith(hint)


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"head_dim": 96, "hidden_size": 500},
        {"mla": MLA, "kv_heads": None, "hidden_size": 500},
        {"kv_heads": None},
        {"experts": 0, "experts_per_token": 0, "dense_layers": 0, "router_bias": False},
        {"experts": 4, "experts_per_token": 4, "dense_layers": 3},
        {"sliding_window": 128, "full_attention_every": 2},
    ],
)
def test_shapes_that_belong_together(change: dict[str, Any]) -> None:
    """What is legal is left alone."""
    assert architecture_problems(GOOD | change) == []


@pytest.mark.parametrize("value", [None, "64", -1, 0, 1.5, float("nan"), True, [], {}, 10**40])
@pytest.mark.parametrize("key", [*GOOD, "experts", "experts_per_token", "dense_layers", "moe_every", "mla", "head_dim"])
def test_wrong_types_are_left_to_validation(key: str, value: object) -> None:
    """Checks pass over whatever has a wrong type; each problem they find is about another key or a number."""
    problems = architecture_problems(GOOD | {key: value})
    assert all(problem.message and problem.path[0] in {*GOOD, key, "experts_per_token"} for problem in problems)


def test_contradictions_are_all_found() -> None:
    """One pass finds every contradiction of a file."""
    bad = GOOD | {"hidden_size": 500, "kv_heads": 3, "experts": 4, "full_attention_every": 2}
    keys = [problem.path[-1] for problem in architecture_problems(bad)]
    assert keys == ["hidden_size", "kv_heads", "experts", "full_attention_every"]


def test_one_source_of_shapes() -> None:
    """A model file has shapes or the path of a config.json: not both, and not neither."""
    (both,) = model_problems({"name": "m", "architecture": GOOD, "huggingface": "config.json"})
    assert both.path == ("huggingface",)
    (neither,) = model_problems({"name": "m"})
    assert neither.path == ()
    assert "huggingface" in neither.hint
    assert model_problems({"name": "m", "huggingface": "config.json"}) == []
    # A misspelt key is reported by validation, which knows what was meant.
    assert model_problems({"name": "m", "architectur": GOOD}) == []
    assert model_problems("text") == []


def test_learned_positions_end() -> None:
    """A sequence cannot be longer than a learned table of positions; rotary positions have no end."""
    short = GOOD | {"max_positions": 1024, "position": "learned"}
    training = {"sequence_length": 4096}
    (problem,) = model_problems({"name": "m", "architecture": short, "training": training})
    assert problem.path == ("training", "sequence_length")
    assert problem.hint == "write at most 1,024"
    rotary = short | {"position": "rope"}
    assert model_problems({"name": "m", "architecture": rotary, "training": training}) == []
