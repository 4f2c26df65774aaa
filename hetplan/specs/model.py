"""The model: its shapes by name, what one rank of a stage holds of it, and the file that describes it."""

from pydantic import ConfigDict, Field

from hetplan.specs.architecture import ArchitectureSpec, LayerKind, LayerParameters, MlaSpec, RankParameters, share
from hetplan.specs.quantities import Spec
from hetplan.specs.training import TrainingSpec

__all__ = [
    "ArchitectureSpec",
    "LayerKind",
    "LayerParameters",
    "MlaSpec",
    "ModelFile",
    "ModelSpec",
    "RankParameters",
]

VOCAB_MULTIPLE = 128
"""Megatron pads the vocabulary to this multiple on each tensor-parallel rank (--make-vocab-size-divisible-by)."""


class ModelSpec(Spec):
    """A model by name, whatever it is trained on and how."""

    name: str = Field(description="name of the model", min_length=1, max_length=100)
    architecture: ArchitectureSpec = Field(description="shapes")

    @property
    def parameters(self) -> int:
        """All parameters, without multi-token prediction modules."""
        return self.architecture.total_parameters

    def padded_vocab(self, tp: int, multiple: int = VOCAB_MULTIPLE) -> int:
        """Vocabulary rounded up to a multiple of `multiple * tp`, as Megatron trains it; 1 for no padding but tp's."""
        step = multiple * tp
        return share(self.architecture.vocab_size, step) * step

    def stage_parameters(
        self,
        first_layer: int,
        layers: int,
        *,
        tp: int = 1,
        ep: int = 1,
        expert_tp: int = 1,
        with_embedding: bool = False,
        with_head: bool = False,
        with_mtp: bool = False,
        vocab_multiple: int = VOCAB_MULTIPLE,
    ) -> RankParameters:
        """Parameters that one rank holds of `layers` blocks from `first_layer`, with the vocabulary padded.

        The head brings the final norm. A tied table is held once if embedding and head share the stage, and by each
        of the two stages otherwise. Multi-token prediction modules stand on the stage of the head; where the
        embedding is elsewhere, they need a copy of the table.
        """
        arch = self.architecture
        kinds = arch.layer_kinds()[first_layer : first_layer + layers]
        rows = self.padded_vocab(tp, vocab_multiple) // tp
        dense = experts = 0
        for kind in set(kinds):
            block = arch.layer_parameters(kind, tp=tp, ep=ep, expert_tp=expert_tp)
            dense += kinds.count(kind) * (block.total - block.experts)
            experts += kinds.count(kind) * block.experts
        tables = int(with_embedding)
        if with_embedding:
            dense += arch.position_parameters + arch.projection_parameters
        if with_head:
            dense += arch.final_norm_parameters + arch.projection_parameters + (rows if arch.head_bias else 0)
            tables = max(tables, 1) if arch.tied_embeddings else tables + 1
        if with_mtp and arch.mtp_layers:
            module = arch.mtp_module_parameters(tp=tp, ep=ep, expert_tp=expert_tp)
            dense += arch.mtp_layers * module.dense
            experts += arch.mtp_layers * module.experts
            tables = tables if with_embedding or arch.tied_embeddings else tables + 1
        return RankParameters(dense=dense + tables * rows * arch.embedding_width, experts=experts)


class ModelFile(Spec):
    """What model.yaml holds: a name, shapes or where to find them, and how to train."""

    model_config = ConfigDict(
        json_schema_extra={"oneOf": [{"required": ["architecture"]}, {"required": ["huggingface"]}]}
    )

    name: str = Field(description="name of the model", min_length=1, max_length=100)
    architecture: ArchitectureSpec | None = Field(None, description="shapes, written out")
    huggingface: str | None = Field(
        None, min_length=1, max_length=4096, description="path of a Hugging Face config.json, from this file's folder"
    )
    training: TrainingSpec = Field(default_factory=TrainingSpec, description="how the model is trained")
