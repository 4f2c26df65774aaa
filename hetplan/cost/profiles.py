"""The software stack: how much of the hardware a training framework reaches, and what it keeps in memory.

One profile per stack; every figure applies to all accelerators alike. `--stack` names a profile of the
catalogue or a file of the same form.
"""

from functools import cache
from importlib import resources
from pathlib import Path
from typing import Literal

from pydantic import Field

from hetplan.errors import Mistake, SpecError
from hetplan.plan import ScheduleName
from hetplan.specs.loader import load_spec
from hetplan.specs.quantities import Bytes, BytesPerSecond, Seconds, Spec

DEFAULT_STACK = "megatron-core"


class StackSpec(Spec):
    """Kernel efficiency, exposed communication and bytes kept by one training stack."""

    name: str = Field(description="name of the stack", min_length=1, max_length=100)
    gemm_share: float = Field(gt=0, le=1, description="share of the achievable rate that a whole step sustains")
    gemm_fixed_s: Seconds = Field(alias="gemm_fixed", description="fixed time of one matrix product")
    gemm_half_k: float = Field(ge=0, le=10_000, description="inner dimension at which half the rate is lost")
    attention: Literal["flash", "unfused"] = Field(description="attention kernel where the accelerator has both")
    attention_share: float = Field(gt=0, le=1, description="attention rate at long sequences over the achievable rate")
    attention_half_length: float = Field(ge=0, le=1e6, description="sequence length at which half that rate is reached")
    attention_backward_share: float = Field(gt=0, le=1, description="backward attention rate over the forward one")
    memory_share: float = Field(gt=0, le=1, description="share of memory bandwidth that element-wise kernels reach")
    host_per_layer_s: Seconds = Field(alias="host_per_layer", description="host time to launch one layer's forward")
    link_share: float = Field(gt=0, le=1, description="share of a datasheet NVLink or xGMI rate that collectives reach")
    pcie_share: float = Field(gt=0, le=1, description="the same over PCIe with peer-to-peer")
    pcie_host_share: float = Field(gt=0, le=1, description="the same over PCIe without peer-to-peer")
    network_share: float = Field(gt=0, le=1, description="share of a network rate that collectives and sends reach")
    collective_latency_s: Seconds = Field(alias="collective_latency", description="fixed time of a collective")
    collective_root_s: float = Field(ge=0, le=1, description="seconds per square root of a byte, chunked pipelining")
    host_staging_bytes_per_s: BytesPerSecond = Field(alias="host_staging", description="device to host copy, per node")
    host_latency_s: Seconds = Field(alias="host_latency", description="extra latency of a path through the host")
    gradient_sync_exposed: float = Field(ge=0, le=1, description="share of gradient synchronisation not hidden")
    weight_gather_exposed: float = Field(
        ge=0, le=1, description="share of ZeRO-2 and ZeRO-3 traffic during the passes not hidden"
    )
    gradient_bytes: Literal[2, 4] = Field(description="bytes of one gradient element, in memory and on the wire")
    optimizer_traffic_bytes: float = Field(gt=0, le=1000, description="bytes the optimizer moves per parameter")
    logits_bytes: float = Field(gt=0, le=100, description="bytes per logit on the last stage")
    workspace_bytes: Bytes = Field(alias="workspace", description="kernels' scratch memory and fragmentation")
    transfers: Literal["overlapped", "eager", "rendezvous"] = Field(
        "overlapped", description="whom a transfer between stages keeps busy: nobody, the sender's queue, both stages"
    )
    schedules: tuple[ScheduleName, ...] = Field(
        ("1f1b",), min_length=1, description="pipeline schedules that the stack runs: those searched by default"
    )
    step_fixed_s: Seconds = Field(alias="step_fixed", description="time of a step outside the pipeline")
    band: float = Field(gt=0, lt=1, description="half-width of the 90 % band where accelerators are measured")
    band_estimated: float = Field(gt=0, lt=1, description="the same where a rate is estimated from the datasheet")
    sources: dict[str, str] = Field(default_factory=dict, description="where each figure comes from")


def stack_names() -> tuple[str, ...]:
    """Names of the catalogue's stack profiles."""
    folder = resources.files("hetplan") / "catalog" / "stacks"
    return tuple(sorted(p.name.removesuffix(".yaml") for p in folder.iterdir() if p.name.endswith(".yaml")))


@cache
def load_stack(name: str = DEFAULT_STACK) -> StackSpec:
    """A profile by catalogue name or by path; SpecError where there is none."""
    if name in stack_names():
        with resources.as_file(resources.files("hetplan") / "catalog" / "stacks" / f"{name}.yaml") as path:
            return load_spec(path, StackSpec)
    if not Path(name).exists():
        raise SpecError(
            Mistake(
                kind="stack",
                message=f'no stack profile called "{name}"',
                hint=f"known: {', '.join(stack_names())}; or the path of a profile file",
                file="command line",
                key="--stack",
            )
        )
    return load_spec(Path(name), StackSpec)
