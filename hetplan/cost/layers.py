"""Seconds and bytes of one transformer block, of the embedding and of the head, on one accelerator.

Per micro-batch of T = b s / c tokens per rank, tensor parallel degree t (predict and search call the same
functions). Products, forward, as (m, n, k); the backward pass runs each twice (input and weight gradient):

    attention   (T, (a d + 2 a_k d) / t, h)   (T, h, a d / t)      a heads, a_k key-value heads, d head width
    MLA         (T, q_r, h) (T, a (d_n + d_r) / t, q_r) (T, k_r + d_r, h) (T, a (d_n + d_v) / t, k_r) (T, h, a d_v / t)
    dense MLP   (T, g f / t, h)  (T, h, f / t)                      g = 2 gated, 1 not
    MoE         router (T, E, h); experts: T k rows over E / e weight copies, as the dense MLP; shared expert

Each block moves its residual stream over tp twice forward and twice backward (all-gather and reduce-scatter
with sequence parallelism, the same bytes as an all-reduce without). Source: NVIDIA/Megatron-LM.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from hetplan.cost.collectives import Fabric
from hetplan.cost.compute import Rates
from hetplan.cost.profiles import StackSpec
from hetplan.specs.model import ArchitectureSpec
from hetplan.specs.training import TrainingSpec

Kind = Literal["dense", "moe"]
BACKWARD_MEMORY_TRAFFIC = 1.6
"""Element-wise bytes of the backward pass over those of the forward pass (fitted on public A100 steps)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerCost:
    """One block on one accelerator, per micro-batch; parameters held and activation bytes kept."""

    forward_s: float
    backward_s: float
    selective_s: float
    """Extra backward seconds when the attention core is recomputed."""
    full_s: float
    """Extra backward seconds when the whole block is recomputed."""
    parameters: float
    """Parameters held by the accelerator, routed experts left out."""
    expert_parameters: float
    kept_bytes: float
    selective_bytes: float
    full_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EndCost:
    """What the first stage (embedding) or the last stage (head) holds and does besides its blocks."""

    forward_s: float
    backward_s: float
    parameters: float
    expert_parameters: float
    kept_bytes: float
    """Per micro-batch in flight."""
    transient_bytes: float
    """Once, whatever is in flight."""


@dataclass(frozen=True, kw_only=True)
class Work:
    """Costs of blocks under one choice of degrees on one group."""

    architecture: ArchitectureSpec
    training: TrainingSpec
    stack: StackSpec
    rates: Rates
    fabric: Fabric
    tp: int
    cp: int
    ep: int
    microbatch_size: int
    sequence_parallel: bool

    @property
    def tokens(self) -> float:
        """Tokens of one micro-batch on one rank."""
        return self.microbatch_size * self.training.sequence_length / self.cp

    @cached_property
    def _traffic_s(self) -> float:
        """Seconds of the two exchanges of one pass over tp, and of the keys and values over cp."""
        arch = self.architecture
        residual = self.tokens * arch.hidden_size * self.rates.element_bytes
        time = 2 * 2 * float(self.fabric.inside_s(residual, self.tp))
        if self.cp > 1:
            width = arch.mla.v_head_dim + arch.mla.qk_rope_head_dim if arch.mla else 2 * arch.head_width
            heads = max(1.0, arch.kv_heads_or_default / self.tp)
            keys = self.tokens * self.cp * heads * width * self.rates.element_bytes
            time += float(self.fabric.inside_s(keys, self.cp))
        return time

    def _attention(self) -> tuple[float, float, float]:
        """Forward seconds of the projections, then of the core forward and backward."""
        arch, rates, tokens = self.architecture, self.rates, self.tokens
        h, a, t = arch.hidden_size, arch.attention_heads, self.tp
        mla = arch.mla
        if mla is not None:
            qk, v = mla.qk_nope_head_dim + mla.qk_rope_head_dim, mla.v_head_dim
            if mla.q_lora_rank:
                time = rates.gemm_s(tokens, mla.q_lora_rank, h) + rates.gemm_s(tokens, a * qk / t, mla.q_lora_rank)
            else:
                time = rates.gemm_s(tokens, a * qk / t, h)
            time += rates.gemm_s(tokens, mla.kv_lora_rank + mla.qk_rope_head_dim, h)
            time += rates.gemm_s(tokens, a * (mla.qk_nope_head_dim + v) / t, mla.kv_lora_rank)
        else:
            qk = v = arch.head_width
            time = rates.gemm_s(tokens, (a + 2 * arch.kv_heads_or_default) * qk / t, h)
        time += rates.gemm_s(tokens, h, a * v / t)
        length = self.training.sequence_length
        full = arch.full_attention_share
        span = full * length / 2
        if arch.sliding_window:
            window = min(arch.sliding_window, length)
            span += (1 - full) * (window - window * window / (2 * length))
        # Context parallelism splits the rows; each rank still meets the keys of the whole sequence.
        heads, batch = a / t, self.microbatch_size / self.cp
        forward = rates.attention_s(batch, length, span, heads, qk, v)
        return time, forward, rates.attention_backward_s(batch, length, span, heads, qk, v)

    def _mlp(self, kind: Kind) -> float:
        """Forward seconds of the feed-forward products."""
        arch, rates, tokens, t = self.architecture, self.rates, self.tokens, self.tp
        h, up = arch.hidden_size, 2 if arch.gated_mlp else 1

        def block(rows: float, width: float, copies: float = 1) -> float:
            return rates.gemm_s(rows, up * width / t, h, copies) + rates.gemm_s(rows, h, width / t, copies)

        if kind == "dense":
            return block(tokens, arch.ffn_hidden_size)
        time = rates.gemm_s(tokens, arch.experts, h)
        time += block(tokens * arch.experts_per_token, arch.expert_width, arch.experts / self.ep)
        if arch.shared_expert_ffn_hidden_size:
            time += block(tokens, arch.shared_expert_ffn_hidden_size)
        if self.ep > 1:
            sent = tokens * arch.experts_per_token * h * rates.element_bytes
            time += 2 * float(self.fabric.inside_s(sent, self.ep))
        return time

    def _width(self, kind: Kind) -> float:
        """Feed-forward units that one token passes."""
        arch = self.architecture
        if kind == "dense":
            return arch.ffn_hidden_size
        return arch.experts_per_token * arch.expert_width + arch.shared_expert_ffn_hidden_size

    def _moved_bytes(self, kind: Kind) -> float:
        """Bytes that element-wise kernels of the forward pass move: norms and residuals, then the heads and the MLP."""
        arch = self.architecture
        shared = self.tp if self.sequence_parallel else 1
        units = 3 if arch.gated_mlp else 2
        routed = 4 * arch.experts_per_token * arch.hidden_size if kind == "moe" else 0
        elements = (
            11 * arch.hidden_size / shared
            + 3 * arch.hidden_size / self.tp
            + units * self._width(kind) / self.tp
            + routed / shared
        )
        return self.tokens * elements * self.rates.element_bytes

    def _kept(self, kind: Kind) -> tuple[float, float, float]:
        """Activation bytes of one micro-batch kept by a block: nothing recomputed, attention core, everything.

        Term by term: inputs of the two norms and of the products that follow (spread over tp with sequence
        parallelism), then q, k, v and the attention's output, then the feed-forward intermediates. The
        unfused kernel also keeps scores and their softmax. Source: Korthikanti et al. 2022, without dropout.
        """
        arch, t = self.architecture, self.tp
        shared = t if self.sequence_parallel else 1
        e = self.rates.element_bytes
        tokens, h, a = self.tokens, arch.hidden_size, arch.attention_heads
        mla = arch.mla
        if mla is not None:
            qk, v = mla.qk_nope_head_dim + mla.qk_rope_head_dim, mla.v_head_dim
            latent = (mla.q_lora_rank or 0) + mla.kv_lora_rank + mla.qk_rope_head_dim
            heads = a * (2 * qk + 2 * v) / t + latent
        else:
            # Key-value heads are repeated where there are fewer than ranks.
            keys = max(arch.kv_heads_or_default / t, 1.0)
            heads = arch.head_width * (2 * a / t + 2 * keys)
        core = 4 * a / t * tokens
        if not self.rates.flash:
            core += tokens * a / t * self.training.sequence_length * 2 * e
        units = 3 if arch.gated_mlp else 2
        routed = 2 * arch.experts_per_token * h if kind == "moe" else 0
        kept = tokens * e * (4 * h / shared + heads + units * self._width(kind) / t + routed / shared) + core
        return kept, kept - core, tokens * e * h / shared

    def layer(self, kind: Kind) -> LayerCost:
        """Cost of one block."""
        arch, rates = self.architecture, self.rates
        projections, core, core_backward = self._attention()
        products = projections + self._mlp(kind)
        moved = rates.memory_s(self._moved_bytes(kind))
        host = self.stack.host_per_layer_s
        forward = max(products + core + moved, host) + self._traffic_s
        backward = max(2 * products + core_backward + BACKWARD_MEMORY_TRAFFIC * moved, 2 * host) + self._traffic_s
        kept, selective, full = self._kept(kind)
        parts = arch.layer_parameters(kind)
        sharded = parts.attention + parts.dense_mlp + parts.shared_expert
        return LayerCost(
            forward_s=forward,
            backward_s=backward,
            selective_s=core,
            full_s=forward,
            parameters=sharded / self.tp + parts.norm + parts.router,
            expert_parameters=parts.experts / (self.tp * self.ep),
            kept_bytes=kept,
            selective_bytes=selective,
            full_bytes=full,
        )

    def embedding(self) -> EndCost:
        """The embedding on the first stage."""
        arch, rates = self.architecture, self.rates
        moved = rates.memory_s(2 * self.tokens * arch.hidden_size * rates.element_bytes)
        exchange = float(self.fabric.inside_s(self.tokens * arch.hidden_size * rates.element_bytes, self.tp))
        return EndCost(
            forward_s=moved + exchange,
            backward_s=BACKWARD_MEMORY_TRAFFIC * moved + exchange,
            parameters=arch.embedding_parameters / self.tp,
            expert_parameters=0.0,
            kept_bytes=0.0,
            transient_bytes=0.0,
        )

    def head(self, *, first: bool) -> EndCost:
        """The last norm, the head with its loss, and prediction layers; `first`: the embedding is on this stage too.

        With tied embeddings a last stage that is not the first one holds a copy of the table.
        """
        arch, rates = self.architecture, self.rates
        vocabulary = arch.vocab_size / self.tp
        width = arch.embedding_size or arch.hidden_size
        product = rates.gemm_s(self.tokens, vocabulary, width)
        logits = self.tokens * vocabulary * self.stack.logits_bytes
        loss = rates.memory_s(logits)
        residual = self.tokens * arch.hidden_size * rates.element_bytes
        exchange = float(self.fabric.inside_s(residual, self.tp))
        table = arch.head_parameters
        if arch.tied_embeddings and not first:
            table = arch.vocab_size * width
        forward, backward = product + loss + exchange, 2 * product + loss + exchange
        parameters, experts, kept = table / self.tp + arch.final_norm_parameters, 0.0, residual
        if arch.mtp_layers:
            block = self.layer("moe" if arch.experts else "dense")
            forward += arch.mtp_layers * (block.forward_s + product + loss)
            backward += arch.mtp_layers * (block.backward_s + 2 * product + loss)
            parameters += arch.mtp_layers * block.parameters
            experts += arch.mtp_layers * block.expert_parameters
            kept += arch.mtp_layers * block.kept_bytes
        return EndCost(
            forward_s=forward,
            backward_s=backward,
            parameters=parameters,
            expert_parameters=experts,
            kept_bytes=kept,
            transient_bytes=logits,
        )


def model_flops_per_token(architecture: ArchitectureSpec, sequence_length: int) -> float:
    """Training FLOP per token: 6 per active parameter (embedding lookup left out), and causal attention scores.

    No recomputation: the numerator of MFU. It reproduces the counts published with NVIDIA-NeMo/Megatron-Bridge
    (Llama-3-8B at 8,192 tokens: 51.5 GFLOP).
    """
    arch = architecture
    if arch.mla is not None:
        width = arch.mla.qk_nope_head_dim + arch.mla.qk_rope_head_dim + arch.mla.v_head_dim
    else:
        width = 2 * arch.head_width
    full = arch.full_attention_share
    span = full * sequence_length / 2
    if arch.sliding_window:
        window = min(arch.sliding_window, sequence_length)
        span += (1 - full) * (window - window * window / (2 * sequence_length))
    scores = 2 * arch.layers * arch.attention_heads * width * span
    return 3 * (2 * arch.active_matrix_parameters + scores)
