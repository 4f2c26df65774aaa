"""What the plan space leaves out, and why nothing is lost."""

from hypothesis import given
from hypothesis import strategies as st

from hetplan.cost.stages import Degrees
from hetplan.specs.architecture import ArchitectureSpec
from hetplan.specs.training import TrainingSpec
from tests.cost.builders import group, stage_costs
from tests.specs.shapes import architectures


@given(
    arch=architectures(),
    tp=st.sampled_from([1, 2, 8]),
    dp=st.integers(2, 16),
    precision=st.sampled_from(["bf16", "fp16", "fp32"]),
    optimizer=st.sampled_from(["adam", "sgd"]),
    network=st.floats(1e8, 1e12),
    gradient_bytes=st.sampled_from([2, 4]),
)
def test_zero_1_is_never_worse_than_zero_0(
    arch: ArchitectureSpec, tp: int, dp: int, precision: str, optimizer: str, network: float, gradient_bytes: int
) -> None:
    """With replicas, ZeRO-1 takes no more memory and no more time than ZeRO-0, for any stage of any model."""
    training = TrainingSpec.model_validate({"precision": precision, "optimizer": optimizer, "sequence_length": 64})
    on = group(nodes=16, network=network)
    plain, sharded = (
        stage_costs(
            arch,
            Degrees(tp=tp, dp=dp, zero=zero),
            training=training,
            on=on,
            stack=stage_costs(arch, Degrees(tp=1, dp=1)).stack.model_copy(update={"gradient_bytes": gradient_bytes}),
        )
        for zero in (0, 1)
    )
    for first, last in ((True, True), (True, False), (False, False), (False, True)):
        ends = plain.ends(first=first, last=last)
        held = plain.parameters(0, arch.layers, ends)
        assert held == sharded.parameters(0, arch.layers, ends)
        assert sharded.gradient_sync_s(*held) <= plain.gradient_sync_s(*held)
        assert sharded.optimizer_s(*held) <= plain.optimizer_s(*held)
        assert sharded.state_bytes(0, arch.layers, ends) <= plain.state_bytes(0, arch.layers, ends)
        assert sharded.fixed_bytes(ends) == plain.fixed_bytes(ends)
    assert sharded.layers == plain.layers
