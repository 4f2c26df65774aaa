"""The plan as plain data: what every other room talks about."""

from typing import Annotated, Literal

from pydantic import Field

from hetplan.specs.quantities import Spec

ScheduleName = Literal["1f1b", "gpipe", "interleaved-1f1b", "breadth-first", "zb-h1", "zb-v", "dualpipe"]


class Recompute(Spec):
    """How many of a stage's layers run with each kind of activation recomputation."""

    none: int = Field(0, ge=0, description="keep everything")
    selective: int = Field(0, ge=0, description="recompute the attention core")
    full: int = Field(0, ge=0, description="keep the layer's input alone")

    @property
    def layers(self) -> int:
        """Layers counted."""
        return self.none + self.selective + self.full


class Chunk(Spec):
    """One virtual stage: consecutive layers, one of several runs that a stage holds."""

    first_layer: int = Field(ge=0, description="index of its first transformer block")
    layers: int = Field(ge=1, description="transformer blocks")
    recompute: Recompute = Field(description="layers by recomputation; sums to layers")


class Stage(Spec):
    """One pipeline stage: layers on accelerators of one group, consecutive unless they lie in chunks."""

    group: str = Field(description="group of cluster.yaml")
    first_layer: int = Field(ge=0, description="index of its first transformer block")
    layers: int = Field(ge=1, description="transformer blocks, of all chunks together")
    tp: int = Field(1, ge=1, description="tensor parallel degree")
    dp: int = Field(1, ge=1, description="data parallel degree (replicas)")
    cp: int = Field(1, ge=1, description="context parallel degree")
    ep: int = Field(1, ge=1, description="expert parallel degree, inside tp x dp x cp")
    microbatch_size: int = Field(1, ge=1, description="sequences per micro-batch and replica")
    recompute: Recompute = Field(description="layers by recomputation; sums to layers")
    zero: Literal[0, 1, 2, 3] = Field(0, description="ZeRO stage over dp")
    chunks: tuple[Chunk, ...] | None = Field(
        None, description="where the schedule has virtual stages, the layers of each; null elsewhere"
    )

    @property
    def parts(self) -> tuple[Chunk, ...]:
        """The chunks, or the stage's own layers as its only one."""
        return self.chunks or (Chunk(first_layer=self.first_layer, layers=self.layers, recompute=self.recompute),)

    @property
    def accelerators(self) -> int:
        """Accelerators that the stage occupies."""
        return self.tp * self.dp * self.cp


class Schedule(Spec):
    """Order of work in the pipeline."""

    name: ScheduleName = Field("1f1b", description="pipeline schedule")
    virtual_stages: int = Field(1, ge=1, le=64, description="chunks per stage")
    warmup: tuple[Annotated[int, Field(ge=0, le=1_000_000)], ...] | None = Field(
        None, description="forwards of each stage ahead of its first backward beyond those of plain 1F1B; null: none"
    )


class Plan(Spec):
    """Which layers run where, how they are split, and in which order."""

    schedule: Schedule = Field(default_factory=Schedule, description="pipeline schedule")
    global_batch_size: int = Field(ge=1, description="sequences per step")
    num_microbatches: int = Field(ge=1, description="micro-batches per replica and step")
    sequence_parallel: bool = Field(True, description="shard norms and residuals over tp")
    stages: tuple[Stage, ...] = Field(min_length=1, description="from the embedding to the head")

    @property
    def accelerators(self) -> int:
        """Accelerators in use."""
        return sum(stage.accelerators for stage in self.stages)
