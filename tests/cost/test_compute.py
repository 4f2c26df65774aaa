"""Kernel times against hand-computed rooflines."""

from dataclasses import replace

import pytest

from hetplan.cost.compute import Rates, rates
from hetplan.cost.profiles import load_stack
from tests.cost.builders import group

STACK = load_stack()
PLAIN = Rates(
    gemm_flops_per_s=250e12,
    gemm_fixed_s=0.0,
    gemm_half_k=0.0,
    memory_bytes_per_s=1e12,
    attention_flops_per_s=150e12,
    attention_half_length=0.0,
    attention_backward_share=0.5,
    flash=True,
    element_bytes=2,
)
"""No fixed times, so that times are plain quotients."""


def test_large_product_is_compute_bound() -> None:
    """Two FLOP per multiply-add."""
    assert PLAIN.gemm_s(4096, 8192, 2048) == pytest.approx(2 * 4096 * 8192 * 2048 / 250e12)


def test_thin_product_is_memory_bound() -> None:
    """One row: the weights are read once per copy."""
    assert PLAIN.gemm_s(1, 8192, 8192, weight_copies=4) == pytest.approx(2 * (4 * 8192**2 + 2 * 8192) / 1e12)


def test_fixed_time_and_half_k_slow_small_products() -> None:
    """At k = k0 half the rate is lost, and every kernel pays its fixed time."""
    slow = replace(PLAIN, gemm_fixed_s=5e-6, gemm_half_k=512.0)
    assert slow.gemm_s(4096, 4096, 512) == pytest.approx(5e-6 + 2 * PLAIN.gemm_s(4096, 4096, 512))


def test_causal_flash_attention_counts_half_the_square() -> None:
    """2 b s^2 a d FLOP forward for s / 2 keys on average, 2.5 times as many at half the rate backward."""
    forward = PLAIN.attention_s(1, 4096, 2048, 32, 128, 128)
    assert forward == pytest.approx(2 * 4096**2 * 32 * 128 / 150e12)
    assert PLAIN.attention_backward_s(1, 4096, 2048, 32, 128, 128) == pytest.approx(5 * forward)


def test_unfused_attention_counts_the_whole_square() -> None:
    """4 b s^2 a d FLOP and five passes over the scores, twice that backward."""
    unfused = replace(PLAIN, flash=False)
    forward = unfused.attention_s(1, 2048, 1024, 16, 128, 128)
    assert forward == pytest.approx(4 * 2048**2 * 16 * 128 / 250e12 + 5 * 16 * 2048**2 * 2 / 1e12)
    assert unfused.attention_backward_s(1, 2048, 1024, 16, 128, 128) == pytest.approx(2 * forward)


@pytest.mark.parametrize(("accelerator", "published"), [("a100-sxm4-80gb", 143e12), ("h100-sxm5-80gb", 489e12)])
def test_flash_rate_at_8k(accelerator: str, published: float) -> None:
    """Forward flash attention at 8,192 tokens within 15 % of kernel tables (ai-dynamo/aiconfigurator)."""
    kernel = rates(group(accelerator).accelerator, STACK, "bf16")
    flops = 2 * 8192 * 4096 * 64 * 256
    assert flops / kernel.attention_s(1, 8192, 4096, 64, 128, 128) == pytest.approx(published, rel=0.15)


def test_rates_are_shares_of_the_achievable() -> None:
    """Products run at the stack's share of the measured rate, not of the datasheet's peak."""
    kernel = rates(group().accelerator, STACK, "bf16")
    assert kernel.gemm_flops_per_s == pytest.approx(271.2e12 * STACK.gemm_share)
    assert kernel.memory_bytes_per_s == pytest.approx(2039e9 * STACK.memory_share)


def test_flash_needs_a_kernel_and_a_short_format() -> None:
    """V100 has no flash kernel, and no accelerator has one in fp32."""
    assert not rates(group("v100-sxm2-16gb").accelerator, STACK, "fp16").flash
    assert not rates(group().accelerator, STACK, "fp32").flash
    assert rates(group().accelerator, STACK, "bf16").flash


def test_fp8_speeds_up_products_not_attention() -> None:
    """Attention stays in 16 bits under an fp8 recipe."""
    sheet = group("h100-sxm5-80gb").accelerator
    wide, narrow = rates(sheet, STACK, "bf16"), rates(sheet, STACK, "fp8")
    assert narrow.gemm_flops_per_s > 1.5 * wide.gemm_flops_per_s
    assert narrow.attention_flops_per_s == wide.attention_flops_per_s


def test_format_without_a_rate() -> None:
    """A format that the datasheet does not give is an error, never a guess."""
    with pytest.raises(KeyError):
        rates(group("v100-sxm2-16gb").accelerator, STACK, "fp8")
