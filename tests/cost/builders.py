"""Clusters, stage costs and plans that the tests of costs and predictions share."""

from pathlib import Path

from hetplan.cost.collectives import fabric
from hetplan.cost.profiles import StackSpec, load_stack
from hetplan.cost.stages import Degrees, StageCosts
from hetplan.plan import Plan, Recompute, Stage
from hetplan.specs import catalog
from hetplan.specs.architecture import ArchitectureSpec
from hetplan.specs.cluster import ClusterSpec, GroupSpec, LinkRate
from hetplan.specs.files import load_model
from hetplan.specs.model import ModelSpec
from hetplan.specs.training import TrainingSpec

MODELS = Path(__file__).parents[2] / "models"
GPT3 = ArchitectureSpec(
    layers=96, hidden_size=12288, ffn_hidden_size=49152, attention_heads=96, vocab_size=51200, gated_mlp=False
)


def example(name: str) -> ModelSpec:
    """An example model."""
    return load_model(MODELS / f"{name}.yaml").model


def group(accelerator: str = "a100-sxm4-80gb", nodes: int = 1, per_node: int = 8, network: float = 100e9) -> GroupSpec:
    """Nodes of a catalogue accelerator on a network of `network` bytes/s per node."""
    sheet = catalog.accelerator(accelerator)
    assert sheet is not None
    return GroupSpec(
        name=accelerator,
        accelerator=sheet,
        nodes=nodes,
        accelerators_per_node=per_node,
        inter_node=LinkRate(bandwidth_bytes_per_s=network, latency_s=5e-6) if nodes > 1 else None,
    )


def one_group(accelerator: str = "a100-sxm4-80gb", nodes: int = 1, per_node: int = 8) -> ClusterSpec:
    """A cluster of one group."""
    return ClusterSpec(name="cluster", groups=(group(accelerator, nodes, per_node),))


def stage_costs(
    architecture: ArchitectureSpec,
    degrees: Degrees,
    *,
    training: TrainingSpec | None = None,
    on: GroupSpec | None = None,
    stack: StackSpec | None = None,
    sequence_parallel: bool = True,
    passes: int = 8,
) -> StageCosts:
    """Stage costs on eight A100 unless said otherwise."""
    on, stack = on or group(), stack or load_stack()
    return StageCosts(
        architecture=architecture,
        training=training or TrainingSpec(sequence_length=2048),
        stack=stack,
        accelerator=on.accelerator,
        fabric=fabric(on, stack),
        degrees=degrees,
        sequence_parallel=sequence_parallel,
        passes=passes,
    )


def even_plan(
    model: ModelSpec, on: tuple[str, ...], training: TrainingSpec, degrees: Degrees, recompute: str = "none"
) -> Plan:
    """A plan with one stage on each of the named groups and layers spread evenly."""
    layers, first, stages = model.architecture.layers, 0, []
    for i, name in enumerate(on):
        count = layers * (i + 1) // len(on) - first
        stages.append(
            Stage(
                group=name,
                first_layer=first,
                layers=count,
                tp=degrees.tp,
                dp=degrees.dp,
                cp=degrees.cp,
                ep=degrees.ep,
                microbatch_size=degrees.microbatch_size,
                recompute=Recompute.model_validate({recompute: count}),
                zero=degrees.zero,  # type: ignore[arg-type]
            )
        )
        first += count
    return Plan(
        global_batch_size=training.global_batch_size,
        num_microbatches=training.global_batch_size // (degrees.dp * degrees.microbatch_size),
        stages=tuple(stages),
    )
