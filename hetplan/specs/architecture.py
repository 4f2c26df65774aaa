"""Shapes of a decoder-only transformer, its exact parameter counts, and how far its matrices can be split.

Counts are whole numbers, equal to those of the models' own code (weights and learned vectors; buffers, such as the
load-balancing bias of DeepSeek-V3's router, are not parameters). With h hidden_size, a attention_heads, k kv_heads,
d head width, g matrices per feed-forward block (3 if gated, else 2):

    attention     h a d + 2 h k d + a d h
    latent (MLA)  queries q (h + a (nope + rope)), or h a (nope + rope) without q_lora_rank;
                  keys and values h (r + rope) + r a (nope + v); output a v h; norms on both latents
    feed-forward  g h f; experts E of them, router h E
    embedding     V e, and e h when embedding_size e is not h; the head likewise, if not tied

Sources: NVIDIA/Megatron-LM megatron/training/theoretical_memory_usage.py; for everything that varies by family
(biases, norms, sinks) the modelling files of huggingface/transformers.
"""

from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from hetplan.specs.quantities import Spec

LayerKind = Literal["dense", "moe"]


def share(size: int, degree: int) -> int:
    """What the fullest of `degree` ranks holds of `size` rows; exact division when the degree is legal."""
    return -(-size // degree)


class MlaSpec(Spec):
    """Multi-head latent attention (DeepSeek-V2)."""

    q_lora_rank: int | None = Field(None, ge=1, le=1_000_000, description="rank of the query projection; none: full")
    kv_lora_rank: int = Field(ge=1, le=1_000_000, description="rank of the shared key-value latent")
    qk_nope_head_dim: int = Field(ge=1, le=100_000, description="query-key width per head without position")
    qk_rope_head_dim: int = Field(ge=1, le=100_000, description="query-key width per head with rotary position")
    v_head_dim: int = Field(ge=1, le=100_000, description="value width per head")


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerParameters:
    """Parameters of one transformer block by part, biases and learned vectors included."""

    attention: int
    norm: int
    dense_mlp: int
    router: int
    experts: int
    """Routed experts."""
    shared_expert: int

    @property
    def total(self) -> int:
        """All parts."""
        return self.attention + self.norm + self.dense_mlp + self.router + self.experts + self.shared_expert


@dataclass(frozen=True, slots=True, kw_only=True)
class RankParameters:
    """Parameters that one rank of a stage holds; the two parts are averaged over different groups of ranks."""

    dense: int
    """Everything but routed experts: embedding, attention, norms, router, head."""
    experts: int
    """Routed experts."""

    @property
    def total(self) -> int:
        """Both parts."""
        return self.dense + self.experts


class ArchitectureSpec(Spec):
    """Shapes of a decoder-only transformer."""

    layers: int = Field(ge=1, le=1_000, description="transformer blocks")
    hidden_size: int = Field(ge=1, le=10_000_000, description="width of the residual stream")
    ffn_hidden_size: int = Field(ge=1, le=100_000_000, description="width of the dense feed-forward block")
    attention_heads: int = Field(ge=1, le=100_000, description="query heads")
    kv_heads: int | None = Field(None, ge=1, le=100_000, description="key-value heads; default attention_heads")
    head_dim: int | None = Field(None, ge=1, le=100_000, description="default hidden_size / attention_heads")
    vocab_size: int = Field(ge=1, le=100_000_000, description="rows of the embedding table")
    gated_mlp: bool = Field(True, description="three matrices (SwiGLU) instead of two")
    tied_embeddings: bool = Field(False, description="head and embedding share one table")
    norm: Literal["rms", "layer"] = Field("rms", description="rms has one vector, layer two")
    norms_per_layer: int = Field(2, ge=0, le=8, description="norms in a block; 1 if attention and MLP run in parallel")
    final_norm: bool = Field(True, description="norm after the last block")
    qk_norm: bool = Field(False, description="learned norms on queries and keys, as wide as a head")
    attention_bias: bool | Literal["qkv"] = Field(False, description="biases on all four projections, or on q, k, v")
    attention_sinks: bool = Field(False, description="one learned logit per head")
    mlp_bias: bool = Field(False, description="biases in the feed-forward block and the shared expert")
    head_bias: bool = Field(False, description="bias on the output head")
    position: Literal["rope", "learned", "alibi", "none"] = Field("rope", description="position encoding")
    max_positions: int = Field(131072, ge=1, le=100_000_000, description="longest sequence; table size if learned")
    embedding_size: int | None = Field(None, ge=1, le=10_000_000, description="where it differs from hidden_size")
    sliding_window: int | None = Field(None, ge=1, le=100_000_000, description="tokens that attention looks back")
    full_attention_every: int | None = Field(
        None, ge=1, le=10_000, description="one layer in so many attends in full; default none when a window is given"
    )
    experts: int = Field(0, ge=0, le=100_000, description="routed experts per MoE layer; 0: dense")
    experts_per_token: int = Field(0, ge=0, le=100_000, description="routed experts that one token visits")
    expert_ffn_hidden_size: int | None = Field(None, ge=1, le=100_000_000, description="default ffn_hidden_size")
    expert_bias: bool = Field(False, description="biases in the routed experts")
    router_bias: bool = Field(False, description="bias on the router")
    shared_expert_ffn_hidden_size: int = Field(0, ge=0, le=100_000_000, description="width of the shared expert")
    shared_expert_gate: bool = Field(False, description="learned gate on the shared expert")
    dense_layers: int = Field(0, ge=0, le=100_000, description="leading layers without experts")
    moe_every: int = Field(1, ge=1, le=10_000, description="every so many-th layer has experts")
    mla: MlaSpec | None = Field(None, description="multi-head latent attention")
    mtp_layers: int = Field(0, ge=0, le=100, description="multi-token prediction layers after the last")

    @property
    def kv_heads_or_default(self) -> int:
        """Key-value heads."""
        return self.kv_heads or self.attention_heads

    @property
    def head_width(self) -> int:
        """Width of one query or key head."""
        if self.mla is not None:
            return self.mla.qk_nope_head_dim + self.mla.qk_rope_head_dim
        return self.head_dim or self.hidden_size // self.attention_heads

    @property
    def value_width(self) -> int:
        """Width of one value head."""
        return self.mla.v_head_dim if self.mla is not None else self.head_width

    @property
    def embedding_width(self) -> int:
        """Width of a row of the embedding table."""
        return self.embedding_size or self.hidden_size

    @property
    def expert_width(self) -> int:
        """Feed-forward width of one routed expert."""
        return self.expert_ffn_hidden_size or self.ffn_hidden_size

    @property
    def mlp_matrices(self) -> int:
        """Matrices of one feed-forward block."""
        return 3 if self.gated_mlp else 2

    @property
    def norm_parameters(self) -> int:
        """One norm over the residual stream."""
        return self.hidden_size * self._norm_vectors

    @property
    def _norm_vectors(self) -> int:
        return 1 if self.norm == "rms" else 2

    def attention_parameters(self, tp: int = 1) -> int:
        """Weight matrices of one attention block on one of `tp` ranks.

        Heads are split over ranks, keys and values too where there are fewer heads than ranks (half a head each).
        The down-projections of latent attention are on every rank, since all heads read the same latent.
        """
        h, a = self.hidden_size, self.attention_heads
        if self.mla is None:
            q = share(a * self.head_width, tp)
            kv = share(self.kv_heads_or_default * self.head_width, tp)
            return h * q + 2 * h * kv + q * h
        mla, heads = self.mla, share(a, tp)
        queries = heads * self.head_width
        q = h * queries if mla.q_lora_rank is None else mla.q_lora_rank * (h + queries)
        kv = h * (mla.kv_lora_rank + mla.qk_rope_head_dim)
        kv += mla.kv_lora_rank * heads * (mla.qk_nope_head_dim + mla.v_head_dim)
        return q + kv + heads * mla.v_head_dim * h

    def attention_vector_parameters(self, tp: int = 1) -> int:
        """Biases, norms and sinks of one attention block on one of `tp` ranks."""
        count = share(self.attention_heads, tp) if self.attention_sinks else 0
        if self.attention_bias is True:
            count += self.hidden_size
        if self.mla is not None:
            latents = self.mla.kv_lora_rank + (self.mla.q_lora_rank or 0)
            bias = latents + self.mla.qk_rope_head_dim if self.attention_bias else 0
            return count + latents + bias
        if self.attention_bias:
            width = self.head_width
            count += share(self.attention_heads * width, tp) + 2 * share(self.kv_heads_or_default * width, tp)
        return count + (2 * self.head_width * self._norm_vectors if self.qk_norm else 0)

    def _mlp(self, width: int, tp: int, *, bias: bool) -> int:
        inner = share(width, tp)
        biases = (self.mlp_matrices - 1) * inner + self.hidden_size if bias else 0
        return self.mlp_matrices * self.hidden_size * inner + biases

    def layer_parameters(self, kind: LayerKind, *, tp: int = 1, ep: int = 1, expert_tp: int = 1) -> LayerParameters:
        """Parameters of one block, or what one rank holds of it.

        Args:
            kind: with experts or without.
            tp: ranks that share attention, dense MLP and shared expert; norms and router are on each.
            ep: ranks that share the experts, whole experts each.
            expert_tp: ranks that share each expert.
        """
        moe = kind == "moe"
        expert = self._mlp(self.expert_width, expert_tp, bias=self.expert_bias)
        shared = self._mlp(self.shared_expert_ffn_hidden_size, tp, bias=self.mlp_bias)
        gate = self.hidden_size if self.shared_expert_gate else 0
        return LayerParameters(
            attention=self.attention_parameters(tp) + self.attention_vector_parameters(tp),
            norm=self.norms_per_layer * self.norm_parameters,
            dense_mlp=0 if moe else self._mlp(self.ffn_hidden_size, tp, bias=self.mlp_bias),
            router=self.experts * (self.hidden_size + int(self.router_bias)) if moe else 0,
            experts=share(self.experts, ep) * expert if moe else 0,
            shared_expert=shared + gate if moe and self.shared_expert_ffn_hidden_size else 0,
        )

    def has_experts(self, layer: int) -> bool:
        """Whether this layer is an MoE layer: past the leading dense ones, and every `moe_every`-th.

        Counted from the first layer of the model, as the code of Llama 4 and Qwen-MoE does.
        """
        return self.experts > 0 and layer >= self.dense_layers and (layer + 1) % self.moe_every == 0

    def layer_kinds(self) -> tuple[LayerKind, ...]:
        """Kind of each layer, first to last."""
        return tuple("moe" if self.has_experts(layer) else "dense" for layer in range(self.layers))

    def windows(self) -> tuple[int | None, ...]:
        """How many tokens each layer looks back; none: all."""
        every = self.full_attention_every
        return tuple(
            None if every is not None and (layer + 1) % every == 0 else self.sliding_window
            for layer in range(self.layers)
        )

    @property
    def full_attention_share(self) -> float:
        """Share of layers that attend to the whole sequence."""
        return sum(window is None for window in self.windows()) / self.layers

    @property
    def position_parameters(self) -> int:
        """Position table, if learned."""
        return self.max_positions * self.hidden_size if self.position == "learned" else 0

    @property
    def projection_parameters(self) -> int:
        """Projection between an embedding table of another width and the residual stream."""
        return 0 if self.embedding_width == self.hidden_size else self.embedding_width * self.hidden_size

    @property
    def embedding_parameters(self) -> int:
        """Token table with its projection, and position table."""
        return self.vocab_size * self.embedding_width + self.position_parameters + self.projection_parameters

    @property
    def head_parameters(self) -> int:
        """Output head: no table if tied; its projection and bias all the same."""
        table = 0 if self.tied_embeddings else self.vocab_size * self.embedding_width
        return table + self.projection_parameters + (self.vocab_size if self.head_bias else 0)

    @property
    def final_norm_parameters(self) -> int:
        """Norm before the head."""
        return self.norm_parameters if self.final_norm else 0

    def mtp_module_parameters(self, *, tp: int = 1, ep: int = 1, expert_tp: int = 1) -> RankParameters:
        """One multi-token prediction module: a block like the last, a 2h-to-h projection and three norms.

        Embedding and head are those of the model. Source: DeepSeek-V3 technical report, section 2.2, and the norm
        before the shared head in its published weights.
        """
        block = self.layer_parameters(self.layer_kinds()[-1], tp=tp, ep=ep, expert_tp=expert_tp)
        extra = 2 * self.hidden_size * share(self.hidden_size, tp) + 3 * self.norm_parameters
        return RankParameters(dense=block.total - block.experts + extra, experts=block.experts)

    @property
    def mtp_parameters(self) -> int:
        """All multi-token prediction modules."""
        return self.mtp_layers * self.mtp_module_parameters().total if self.mtp_layers else 0

    @property
    def total_parameters(self) -> int:
        """All parameters, without multi-token prediction modules."""
        kinds = self.layer_kinds()
        blocks = sum(kinds.count(kind) * self.layer_parameters(kind).total for kind in set(kinds))
        return self.embedding_parameters + blocks + self.final_norm_parameters + self.head_parameters

    @property
    def active_parameters_per_token(self) -> int:
        """All parameters less those of the experts that a token does not visit."""
        moe_layers = self.layer_kinds().count("moe")
        if not moe_layers:
            return self.total_parameters
        unvisited = (self.experts - self.experts_per_token) * (self.layer_parameters("moe").experts // self.experts)
        return self.total_parameters - moe_layers * unvisited

    @property
    def active_matrix_parameters(self) -> int:
        """Weights that one token is multiplied with, 2 FLOP each; looked-up tables and vectors do not count."""
        mlp = self.mlp_matrices * self.hidden_size
        visited = self.experts_per_token * self.expert_width + self.shared_expert_ffn_hidden_size
        moe_layers = self.layer_kinds().count("moe")
        dense = (self.layers - moe_layers) * mlp * self.ffn_hidden_size
        moe = moe_layers * (mlp * visited + self.experts * self.hidden_size)
        ends = self.vocab_size * self.embedding_width + 2 * self.projection_parameters
        return self.layers * self.attention_parameters() + dense + moe + ends

    def tp_obstacle(self, tp: int) -> str | None:
        """Why attention or MLP cannot be split over `tp` ranks; none where they can."""
        return self.head_obstacle(tp) or self.ffn_obstacle(tp)

    def head_obstacle(self, tp: int) -> str | None:
        """Why the heads cannot be split. Fewer key-value heads than ranks are fine where ranks share them evenly."""
        if self.attention_heads % tp:
            return f"{self.attention_heads} attention heads cannot be split over tp {tp}"
        kv = self.kv_heads_or_default
        if self.mla is None and kv % tp and tp % kv:
            return f"{kv} key-value heads cannot be split over or shared by tp {tp}"
        return None

    def ffn_obstacle(self, tp: int) -> str | None:
        """Why a feed-forward width cannot be split; only widths that some layer has count."""
        kinds = set(self.layer_kinds())
        widths = {"ffn_hidden_size": self.ffn_hidden_size} if "dense" in kinds else {}
        if "moe" in kinds:
            widths["expert_ffn_hidden_size"] = self.expert_width
            widths["shared_expert_ffn_hidden_size"] = self.shared_expert_ffn_hidden_size
        for name, width in widths.items():
            if width % tp:
                return f"{name} {width} cannot be split over tp {tp}"
        return None

    def valid_tp(self, limit: int) -> tuple[int, ...]:
        """Tensor-parallel degrees up to `limit` without an obstacle, ascending."""
        return tuple(tp for tp in range(1, limit + 1) if self.tp_obstacle(tp) is None)
