"""Seconds of kernels on one accelerator: a roofline with a fixed cost per kernel.

    matrix product   t0 + max(2 m n k (1 + k0/k) / F, bytes / B)
    attention        FLOP / (A s / (s + s0)) where flash attention exists, else memory-bound score passes
    element-wise     bytes / B

F is the achievable rate times the stack's sustained share, B the memory bandwidth times its share.
Source of the form: kernel tables of ai-dynamo/aiconfigurator, where its four numbers are within 5-8 % of
held-out shapes.
"""

from dataclasses import dataclass

from hetplan.cost.profiles import StackSpec
from hetplan.specs.accelerator import AcceleratorSpec, Format

ELEMENT_BYTES: dict[Format, float] = {
    "fp32": 4,
    "tf32": 4,
    "fp16": 2,
    "bf16": 2,
    "fp8": 2,
    "mxfp8": 2,
    "nvfp4": 2,
}
"""Bytes of one activation element. 8- and 4-bit recipes keep activations in 16 bits between layers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """What one accelerator sustains under one stack in one number format."""

    gemm_flops_per_s: float
    gemm_fixed_s: float
    gemm_half_k: float
    memory_bytes_per_s: float
    attention_flops_per_s: float
    attention_half_length: float
    attention_backward_share: float
    flash: bool
    element_bytes: float

    def gemm_s(self, m: float, n: float, k: float, weight_copies: float = 1) -> float:
        """Seconds of an (m x k) by (k x n) product; `weight_copies` distinct k x n matrices share the rows."""
        flops = 2 * m * n * k * (1 + self.gemm_half_k / k)
        moved = self.element_bytes * (m * k + weight_copies * k * n + m * n)
        return self.gemm_fixed_s + max(flops / self.gemm_flops_per_s, moved / self.memory_bytes_per_s)

    def attention_s(self, batch: float, length: float, span: float, heads: float, qk_dim: float, v_dim: float) -> float:
        """Forward seconds of causal attention of `length` queries over `span` keys on average, all heads."""
        flops = 2 * batch * length * span * heads * (qk_dim + v_dim)
        if self.flash:
            rate = self.attention_flops_per_s * length / (length + self.attention_half_length)
            return self.gemm_fixed_s + flops / rate
        # The unfused kernel computes the whole square and moves the scores through memory five times.
        square = 2 * batch * length * length * heads * (qk_dim + v_dim)
        passes = 5 * batch * heads * length * length * self.element_bytes
        return 5 * self.gemm_fixed_s + square / self.gemm_flops_per_s + passes / self.memory_bytes_per_s

    def attention_backward_s(
        self, batch: float, length: float, span: float, heads: float, qk_dim: float, v_dim: float
    ) -> float:
        """Backward seconds: 2.5 times the FLOP with flash (scores are computed again), else twice the time."""
        forward = self.attention_s(batch, length, span, heads, qk_dim, v_dim)
        return forward * 2.5 / self.attention_backward_share if self.flash else forward * 2

    def memory_s(self, moved_bytes: float) -> float:
        """Seconds to move bytes through memory."""
        return moved_bytes / self.memory_bytes_per_s


def rates(accelerator: AcceleratorSpec, stack: StackSpec, precision: Format) -> Rates:
    """Rates of an accelerator under a stack; KeyError where the datasheet lacks the format."""
    achievable = accelerator.achievable_flops_per_s(precision)
    # Attention runs in 16 bits under the 8- and 4-bit recipes.
    attention_format: Format = "bf16" if precision in ("fp8", "mxfp8", "nvfp4") else precision
    return Rates(
        gemm_flops_per_s=achievable * stack.gemm_share,
        gemm_fixed_s=stack.gemm_fixed_s,
        gemm_half_k=stack.gemm_half_k,
        memory_bytes_per_s=accelerator.memory_bandwidth_bytes_per_s * stack.memory_share,
        attention_flops_per_s=accelerator.achievable_flops_per_s(attention_format) * stack.attention_share,
        attention_half_length=stack.attention_half_length,
        attention_backward_share=stack.attention_backward_share,
        flash=stack.attention == "flash" and accelerator.flash_attention and precision not in ("fp32", "tf32"),
        element_bytes=ELEMENT_BYTES[precision],
    )
