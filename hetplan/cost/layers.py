"""Seconds and bytes of one transformer block, of the embedding and of the head, on one accelerator.

Per micro-batch of T = b s / c tokens per rank, tensor parallel degree t (predict and search call the same
functions). Products, forward, as (m, n, k); the backward pass runs each twice (input and weight gradient):

    attention   (T, (a d + 2 a_k d) / t, h)   (T, h, a d / t)      a heads, a_k key-value heads, d head width
    MLA         (T, q_r, h) (T, a (d_n + d_r) / t, q_r) (T, k_r + d_r, h) (T, a (d_n + d_v) / t, k_r) (T, h, a d_v / t)
    dense MLP   (T, g f / t, h)  (T, h, f / t)                      g = 2 gated, 1 not
    MoE         router (T, E, h); experts: T k rows over E / e weight copies, as the dense MLP; shared expert
    head        (T, V / t, h)                                       V padded to a multiple of 128 t

Attention and MLP each move the residual stream over tp twice forward and twice backward (all-gather and
reduce-scatter with sequence parallelism, the same bytes as an all-reduce without). Under expert parallelism the
MLP's exchange is an all-to-all of the T k / t rows of a rank and a gather over tp, there and back.
Source: NVIDIA/Megatron-LM. Parameters are exact: `ModelSpec.stage_parameters` counts the same.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from hetplan.cost.collectives import Fabric
from hetplan.cost.compute import Rates
from hetplan.cost.profiles import StackSpec
from hetplan.specs.architecture import share
from hetplan.specs.model import VOCAB_MULTIPLE, ArchitectureSpec, LayerKind
from hetplan.specs.training import TrainingSpec

Kind = LayerKind
BACKWARD_MEMORY_TRAFFIC = 1.6
"""Element-wise bytes of the backward pass over those of the forward pass (fitted on public A100 steps)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerCost:
    """One block on one accelerator, per micro-batch; parameters held and activation bytes kept."""

    forward_s: float
    backward_s: float
    weight_s: float
    """The part of the backward pass that works out weight gradients: one of the two products of each."""
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
    weight_s: float
    """As of a LayerCost."""
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
    def vocabulary(self) -> int:
        """Rows of the padded table on one rank."""
        return share(self.architecture.vocab_size, VOCAB_MULTIPLE * self.tp) * VOCAB_MULTIPLE

    @cached_property
    def _residual_bytes(self) -> float:
        """The residual stream of one micro-batch, not split over tp."""
        return self.tokens * self.architecture.hidden_size * self.rates.element_bytes

    @property
    def _shared(self) -> int:
        """Ranks that share norms and residuals."""
        return self.tp if self.sequence_parallel else 1

    def _traffic_s(self, kind: Kind) -> tuple[float, float]:
        """Seconds of exchanges over tp, cp and ep, forward and backward."""
        arch, fabric = self.architecture, self.fabric
        exchange = 2 * float(fabric.inside_s(self._residual_bytes, self.tp))
        if kind == "moe" and self.ep > 1:
            routed = self._residual_bytes * arch.experts_per_token
            mlp = 2 * float(fabric.all_to_all_s(routed / self.tp, self.tp, self.ep) + fabric.inside_s(routed, self.tp))
            mlp += exchange if arch.shared_expert_ffn_hidden_size else 0.0
        else:
            mlp = exchange
        keys = 0.0
        if self.cp > 1:
            heads = max(1.0, arch.kv_heads_or_default / self.tp)
            width = arch.head_width + arch.value_width
            keys = float(fabric.inside_s(self.tokens * self.cp * heads * width * self.rates.element_bytes, self.cp))
        # The backward pass gathers keys and values again and scatters their gradients.
        return exchange + mlp + keys, exchange + mlp + 2 * keys

    def _attention(self) -> tuple[float, float, float]:
        """Forward seconds of the projections, then of the core forward and backward."""
        arch, rates, tokens = self.architecture, self.rates, self.tokens
        h, a, t = arch.hidden_size, arch.attention_heads, self.tp
        qk, v, mla = arch.head_width, arch.value_width, arch.mla
        if mla is not None:
            if mla.q_lora_rank:
                time = rates.gemm_s(tokens, mla.q_lora_rank, h) + rates.gemm_s(tokens, a * qk / t, mla.q_lora_rank)
            else:
                time = rates.gemm_s(tokens, a * qk / t, h)
            time += rates.gemm_s(tokens, mla.kv_lora_rank + mla.qk_rope_head_dim, h)
            time += rates.gemm_s(tokens, a * (mla.qk_nope_head_dim + v) / t, mla.kv_lora_rank)
        else:
            time = rates.gemm_s(tokens, (a + 2 * arch.kv_heads_or_default) * qk / t, h)
        time += rates.gemm_s(tokens, h, a * v / t)
        length = self.training.sequence_length
        # Context parallelism splits the rows; each rank still meets the keys of the whole sequence.
        heads, batch, span = a / t, self.microbatch_size / self.cp, mean_span(arch, length)
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
        return time

    def _width(self, kind: Kind) -> float:
        """Feed-forward units that one token passes."""
        arch = self.architecture
        if kind == "dense":
            return arch.ffn_hidden_size
        return arch.experts_per_token * arch.expert_width + arch.shared_expert_ffn_hidden_size

    def _moved_bytes(self, kind: Kind) -> float:
        """Bytes that element-wise kernels of the forward pass move: norms and residuals, then the heads and the MLP."""
        arch, shared = self.architecture, self._shared
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
        parallelism), then q, k, v and the attention's output, then the feed-forward intermediates. Of the core,
        flash attention keeps one fp32 number per row and head, the unfused kernel the softmax before and after
        dropout. Source: Korthikanti et al. 2022, without the dropout masks.
        """
        arch, t, shared, e = self.architecture, self.tp, self._shared, self.rates.element_bytes
        tokens, h, a = self.tokens, arch.hidden_size, arch.attention_heads
        mla = arch.mla
        if mla is not None:
            latent = (mla.q_lora_rank or 0) + mla.kv_lora_rank + mla.qk_rope_head_dim
            heads = 2 * a * (arch.head_width + arch.value_width) / t + latent
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
        there, back = self._traffic_s(kind)
        forward = max(products + core + moved, host) + there
        backward = max(2 * products + core_backward + BACKWARD_MEMORY_TRAFFIC * moved, 2 * host) + back
        kept, selective, full = self._kept(kind)
        parts = arch.layer_parameters(kind, tp=self.tp, ep=self.ep, expert_tp=self.tp)
        return LayerCost(
            forward_s=forward,
            backward_s=backward,
            weight_s=max(products, host),
            selective_s=core,
            full_s=forward,
            parameters=parts.total - parts.experts,
            expert_parameters=parts.experts,
            kept_bytes=kept,
            selective_bytes=selective,
            full_bytes=full,
        )

    def _projection_s(self) -> float:
        """Forward seconds between a table of another width and the residual stream."""
        arch = self.architecture
        return self.rates.gemm_s(self.tokens, arch.hidden_size, arch.embedding_width) if arch.embedding_size else 0.0

    @cached_property
    def layers(self) -> dict[Kind, LayerCost]:
        """Cost of each kind of block that the model has."""
        return {kind: self.layer(kind) for kind in sorted(set(self.architecture.layer_kinds()))}

    @cached_property
    def embedding_cost(self) -> EndCost:
        """The embedding, on the first stage."""
        return self.embedding()

    @cached_property
    def head_cost(self) -> EndCost:
        """The head, on a last stage that is not the first."""
        return self.head(first=False)

    @cached_property
    def lone_head_cost(self) -> EndCost:
        """The head on the only stage."""
        return self.head(first=True)

    @cached_property
    def prefixes(self) -> dict[str, npt.NDArray[np.float64]]:
        """Sums of each LayerCost field over the first n blocks, each shape (layers + 1,)."""
        kinds = self.architecture.layer_kinds()
        moe = np.concatenate([[0.0], np.cumsum([kind == "moe" for kind in kinds])])
        dense = np.arange(len(kinds) + 1) - moe
        sums = {}
        for field in LayerCost.__dataclass_fields__:
            values = {kind: getattr(cost, field) for kind, cost in self.layers.items()}
            sums[field] = moe * values.get("moe", 0.0) + dense * values.get("dense", 0.0)
        return sums

    def embedding(self) -> EndCost:
        """The embedding on the first stage."""
        arch = self.architecture
        moved = self.rates.memory_s(2 * self._residual_bytes)
        exchange = float(self.fabric.inside_s(self._residual_bytes, self.tp))
        product = self._projection_s()
        table = self.vocabulary * arch.embedding_width
        return EndCost(
            forward_s=product + moved + exchange,
            backward_s=2 * product + BACKWARD_MEMORY_TRAFFIC * moved + exchange,
            weight_s=product + BACKWARD_MEMORY_TRAFFIC * moved,
            parameters=table + arch.position_parameters + arch.projection_parameters,
            expert_parameters=0.0,
            kept_bytes=0.0,
            transient_bytes=0.0,
        )

    def head(self, *, first: bool) -> EndCost:
        """The last norm, the head with its loss, and prediction layers; `first`: the embedding is on this stage too.

        A last stage that is not the first one holds a copy of the embedding where it needs it: for tied weights,
        or for prediction layers.
        """
        arch, rates = self.architecture, self.rates
        width, mtp = arch.embedding_width, arch.mtp_layers
        product = rates.gemm_s(self.tokens, self.vocabulary, width) + self._projection_s()
        logits = self.tokens * self.vocabulary * self.stack.logits_bytes
        loss = rates.memory_s(logits)
        exchange = float(self.fabric.inside_s(self._residual_bytes, self.tp))
        tables = (0 if arch.tied_embeddings else 1) + (0 if first or not (arch.tied_embeddings or mtp) else 1)
        parameters: float = tables * self.vocabulary * width + arch.projection_parameters + arch.final_norm_parameters
        parameters += self.vocabulary if arch.head_bias else 0
        forward, backward, weight = product + loss + exchange, 2 * product + loss + exchange, product
        experts = 0.0
        kept = 2 * self._residual_bytes / self._shared
        if mtp:
            block = self.layer(arch.layer_kinds()[-1])
            module = arch.mtp_module_parameters(tp=self.tp, ep=self.ep, expert_tp=self.tp)
            join = rates.gemm_s(self.tokens, arch.hidden_size / self.tp, 2 * arch.hidden_size)
            forward += mtp * (block.forward_s + join + product + loss)
            backward += mtp * (block.backward_s + 2 * join + 2 * product + loss)
            weight += mtp * (block.weight_s + join + product)
            parameters += mtp * module.dense
            experts += mtp * module.experts
            kept += mtp * block.kept_bytes
        return EndCost(
            forward_s=forward,
            backward_s=backward,
            weight_s=weight,
            parameters=parameters,
            expert_parameters=experts,
            kept_bytes=kept,
            transient_bytes=(1 + mtp) * logits,
        )


def mean_span(architecture: ArchitectureSpec, length: int) -> float:
    """Keys that a query of a causal sequence meets, on average over queries and layers."""
    full = architecture.full_attention_share
    window = min(architecture.sliding_window or length, length)
    return full * length / 2 + (1 - full) * (window - window * window / (2 * length))


def model_flops_per_token(architecture: ArchitectureSpec, sequence_length: int) -> float:
    """Training FLOP per token: 6 per active parameter (embedding lookup left out), and causal attention scores.

    No recomputation: the numerator of MFU. It reproduces the counts published with NVIDIA-NeMo/Megatron-Bridge
    (Llama-3-8B at 8,192 tokens: 51.5 GFLOP).
    """
    arch = architecture
    width = arch.head_width + arch.value_width
    scores = 2 * arch.layers * arch.attention_heads * width * mean_span(arch, sequence_length)
    return 3 * (2 * arch.active_matrix_parameters + scores)
