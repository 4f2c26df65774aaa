"""The cluster: groups of like nodes, and the links between them."""

from typing import Literal

from pydantic import Field

from hetplan.specs.accelerator import AcceleratorSpec
from hetplan.specs.quantities import Bytes, BytesPerSecond, Seconds, Spec

RUNTIME_RESERVE_BYTES = 2 * 2**30
"""Driver context and communication buffers, taken off what the driver reports."""

Path = Literal["rdma-direct", "rdma-host-staged", "tcp-host"]


class LinkRate(Spec):
    """A link's bandwidth and latency, per direction."""

    bandwidth_bytes_per_s: BytesPerSecond = Field(alias="bandwidth", description="per direction")
    latency_s: Seconds = Field(
        5e-6, alias="latency", description="one way, small message", json_schema_extra={"default": "5 us"}
    )


class GroupSpec(Spec):
    """Nodes of one kind: the same accelerator, the same number per node, the same network."""

    name: str = Field(description="name of the group, unique in the cluster", min_length=1, max_length=60)
    accelerator: AcceleratorSpec = Field(description="catalogue name, driver name, or a datasheet written out")
    nodes: int = Field(ge=1, le=1_000_000, description="number of nodes")
    accelerators_per_node: int = Field(ge=1, le=1024, description="accelerators in each node")
    usable_memory_bytes: Bytes | None = Field(
        None, alias="usable_memory", description="memory per accelerator that a plan may use"
    )
    intra_node: LinkRate | None = Field(None, description="per accelerator; default from the datasheet")
    inter_node: LinkRate | None = Field(None, description="per node; required when nodes > 1")
    nvlink_domain: int | None = Field(
        None, ge=1, le=1024, description="accelerators that reach each other at intra-node speed (72 on an NVL72 rack)"
    )
    hosts: tuple[str, ...] = Field((), description="host names, one per node")
    host_memory_bytes: Bytes | None = Field(None, alias="host_memory", description="host memory per node")
    price_per_hour: float | None = Field(None, gt=0, lt=1e6, description="USD per accelerator and hour")
    mtbf_s: Seconds | None = Field(None, alias="mtbf", description="reserved")

    @property
    def accelerators(self) -> int:
        """Number of accelerators in the group."""
        return self.nodes * self.accelerators_per_node

    @property
    def usable_bytes(self) -> float:
        """Bytes per accelerator that a plan may fill."""
        if self.usable_memory_bytes is not None:
            return self.usable_memory_bytes
        sheet = self.accelerator
        total = sheet.memory_reported_bytes if sheet.memory_reported_bytes is not None else sheet.memory_size_bytes
        return total - RUNTIME_RESERVE_BYTES

    @property
    def domain(self) -> int:
        """Accelerators that reach each other at intra-node speed."""
        return self.nvlink_domain or self.accelerators_per_node


class LinkSpec(Spec):
    """The link between two unlike groups."""

    between: tuple[str, str] = Field(description="names of the two groups")
    bandwidth_bytes_per_s: BytesPerSecond = Field(
        alias="bandwidth", description="what one node can send over it, per direction"
    )
    total_bandwidth_bytes_per_s: BytesPerSecond | None = Field(
        None, alias="total_bandwidth", description="the whole link, shared by all nodes"
    )
    latency_s: Seconds = Field(alias="latency", description="one way, small message")
    path: Path = Field("rdma-direct", description="how bytes leave an accelerator")


class ClusterSpec(Spec):
    """A cluster of one or more groups. Every pair of groups has a link."""

    name: str = Field(description="name of the cluster", min_length=1, max_length=100)
    groups: tuple[GroupSpec, ...] = Field(min_length=1, max_length=12, description="one entry per kind of node")
    links: tuple[LinkSpec, ...] = Field((), description="one entry per pair of groups")

    @property
    def accelerators(self) -> int:
        """Number of accelerators in the cluster."""
        return sum(group.accelerators for group in self.groups)

    def group(self, name: str) -> GroupSpec:
        """The group of this name; KeyError where there is none."""
        for group in self.groups:
            if group.name == name:
                return group
        raise KeyError(name)

    def link(self, a: str, b: str) -> LinkSpec:
        """The link between two groups; KeyError where there is none."""
        for link in self.links:
            if set(link.between) == {a, b}:
                return link
        raise KeyError(f"{a} - {b}")
