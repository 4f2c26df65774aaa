"""Bytes per parameter by ZeRO stage."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetplan.cost.memory import state_bytes
from hetplan.cost.profiles import load_stack
from hetplan.specs.training import TrainingSpec

STACK = load_stack()
BF16 = TrainingSpec()


def test_eighteen_bytes_per_parameter() -> None:
    """2 weight + 4 gradient + 4 master weight + 8 moments (NVIDIA/Megatron-LM issue 654)."""
    state = state_bytes(BF16, STACK, 0, 8)
    assert (state.weights, state.gradients, state.optimizer, state.total) == (2, 4, 12, 18)


@given(shards=st.integers(1, 4096))
def test_zero_shards_the_last_terms_first(shards: int) -> None:
    """6 + 12 / d, then 2 + 16 / d, then 18 / d (NVIDIA/Megatron-LM theoretical_memory_usage.py; ZeRO)."""
    assert state_bytes(BF16, STACK, 1, shards).total == pytest.approx(6 + 12 / shards)
    assert state_bytes(BF16, STACK, 2, shards).total == pytest.approx(2 + 16 / shards)
    assert state_bytes(BF16, STACK, 3, shards).total == pytest.approx(18 / shards)


@pytest.mark.parametrize(
    ("precision", "optimizer", "total"), [("fp32", "adam", 16), ("bf16", "sgd", 14), ("fp32", "sgd", 12)]
)
def test_other_recipes(precision: str, optimizer: str, total: float) -> None:
    """fp32 keeps no master copy; SGD with momentum keeps one moment."""
    training = TrainingSpec.model_validate({"precision": precision, "optimizer": optimizer})
    assert state_bytes(training, STACK, 0, 1).total == total


def test_sixteen_bit_gradients() -> None:
    """With bf16 gradients a parameter takes 16 bytes."""
    assert state_bytes(BF16, STACK.model_copy(update={"gradient_bytes": 2}), 0, 1).total == 16
