"""Seconds of communication: three-term collectives inside a fast domain, shared network links beyond it.

    inside a domain   a + x / b + g sqrt(x),   x = S (n-1)/n for all-gather, reduce-scatter and all-to-all
    beyond it         hierarchical: reduce-scatter inside, ring over the domains' networks, all-gather inside

A domain is a node, or several nodes joined by NVLink (an NVL72 rack). Its network is the sum of its nodes'
networks, shared by all flows of this plan that leave it. The square-root term is what optimally chunked
pipelining predicts; it halves the error on 80 measured curves (ai-dynamo/aiconfigurator).
All functions take numpy arrays of bytes as well as numbers.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from hetplan.cost.profiles import StackSpec
from hetplan.specs.cluster import ClusterSpec, GroupSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Fabric:
    """The links of one group as this plan's collectives see them."""

    domain: int
    """Accelerators that reach each other at full speed."""
    domains: int
    """Domains in the group, a last partial one counted."""
    inside_bytes_per_s: float
    """Per accelerator and direction, over all peers of the domain."""
    peer_bytes_per_s: float
    """Per accelerator and direction, to one peer."""
    inside_latency_s: float
    root_s: float
    network_bytes_per_s: float
    """Per domain and direction; 0 where the group is one domain."""
    network_latency_s: float

    def slots(self, width: int, accelerators: int) -> int:
        """Replicas of `width` accelerators that fit into whole domains."""
        return (accelerators // self.domain) * (self.domain // width) + (accelerators % self.domain) // width

    def replicas_per_domain(self, width: int) -> int:
        """Replicas of `width` accelerators side by side in one domain, at least 1."""
        return max(1, self.domain // width)

    def inside_s(self, size: Any, ranks: int) -> Any:
        """All-gather or reduce-scatter of `size` bytes (the whole) over `ranks` of one domain."""
        if ranks <= 1:
            return size * 0.0
        moved = size * ((ranks - 1) / ranks)
        rate = min(self.inside_bytes_per_s, self.peer_bytes_per_s * (ranks - 1))
        return self.inside_latency_s + moved / rate + self.root_s * np.sqrt(moved)

    def spread(self, width: int, replicas: int) -> tuple[int, int]:
        """Replicas per domain and domains per stage: replicas fill a domain before the next one.

        A stage that does not start on a domain border may touch one domain more.
        """
        per_domain = self.replicas_per_domain(width)
        if self.domains == 1 or (replicas <= per_domain and per_domain % replicas == 0):
            return replicas, 1
        if replicas % per_domain == 0:
            return per_domain, replicas // per_domain
        return min(replicas, per_domain), min(self.domains, (replicas - 1) // per_domain + 2)

    def replicas_s(self, size: Any, width: int, replicas: int) -> Any:
        """All-gather or reduce-scatter of `size` bytes per rank over the replicas of a stage, all ranks at once."""
        if replicas <= 1:
            return size * 0.0
        inside, domains = self.spread(width, replicas)
        time = self.inside_s(size, inside)
        if domains > 1:
            # The rings of all ranks of a replica leave the domain over one network.
            flow = size * (width * (domains - 1) / domains) / self.network_bytes_per_s
            time = time + flow + np.log2(domains) * self.network_latency_s
        return time

    def all_to_all_s(self, size: Any, width: int, ranks: int) -> Any:
        """All-to-all of `size` bytes held by each of `ranks`, for `width` such groups side by side."""
        if ranks <= 1:
            return size * 0.0
        inside, domains = self.spread(width, ranks)
        time = self.inside_s(size / domains, inside)
        if domains > 1:
            flow = size * (width * inside * (domains - 1) / domains) / self.network_bytes_per_s
            time = time + flow + self.network_latency_s
        return time

    def crosses(self, width: int, replicas: int, stage: int) -> bool:
        """Whether the hop from stage `stage` of this group (counted from 0) to its next one leaves a domain."""
        if self.domains == 1:
            return False
        per_domain = self.replicas_per_domain(width)
        return (stage * replicas) // per_domain != ((stage + 2) * replicas - 1) // per_domain

    def hop_s(self, size: float, width: int, replicas: int, *, crosses: bool) -> float:
        """One-way transfer of `size` bytes per replica to the next stage of the same group.

        Each rank of a replica sends its share. Replicas of a domain share its network.
        """
        if not crosses:
            return self.inside_latency_s + size / (self.peer_bytes_per_s * width)
        flows = min(replicas, self.replicas_per_domain(width))
        return self.network_latency_s + size * flows / self.network_bytes_per_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One end of a hop between groups: replicas of `width` accelerators, `size` bytes per replica."""

    fabric: Fabric
    width: int
    replicas: int
    size: float

    @property
    def domain_bytes(self) -> float:
        """Bytes that one domain sends or receives."""
        return min(self.replicas, self.fabric.replicas_per_domain(self.width)) * self.size


def fabric(group: GroupSpec, stack: StackSpec) -> Fabric:
    """The links of a group: the cluster file's where it gives them, else the datasheet's less the stack's share."""
    sheet = group.accelerator
    if group.intra_node is not None:
        inside = peer = group.intra_node.bandwidth_bytes_per_s
        latency = group.intra_node.latency_s
    else:
        kind = sheet.link_kind
        pcie = stack.pcie_host_share if kind.endswith("nop2p") else stack.pcie_share
        share = pcie if kind.startswith("pcie") else stack.link_share
        inside = sheet.link_bytes_per_s * share
        peer = (sheet.link_per_peer_bytes_per_s or sheet.link_bytes_per_s) * share
        latency = stack.collective_latency_s
    domain = min(group.domain, group.accelerators)
    network = group.inter_node
    return Fabric(
        domain=domain,
        domains=-(-group.accelerators // domain),
        inside_bytes_per_s=inside,
        peer_bytes_per_s=peer,
        inside_latency_s=latency,
        root_s=stack.collective_root_s,
        network_bytes_per_s=0.0
        if network is None
        else network.bandwidth_bytes_per_s * stack.network_share * domain / group.accelerators_per_node,
        network_latency_s=0.0 if network is None else network.latency_s,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Bridge:
    """The link between two groups."""

    a_bytes_per_s: float
    """What one domain of the first group can send or receive."""
    b_bytes_per_s: float
    total_bytes_per_s: float
    """What all nodes together can send; infinite where nothing limits it."""
    latency_s: float
    staging_bytes_per_s: float
    """Rate of copies through host memory per domain; infinite on a direct path."""

    def hop_s(self, a: Side, b: Side) -> float:
        """One-way transfer of a micro-batch's activations from a stage on side a to one on side b.

        The replicas of a domain share its network, all share the whole link. Where the ranks per replica
        differ, the activations are gathered inside the domain on the side with more ranks.
        """
        wire = max(
            a.domain_bytes / self.a_bytes_per_s,
            b.domain_bytes / self.b_bytes_per_s,
            max(a.replicas * a.size, b.replicas * b.size) / self.total_bytes_per_s,
        )
        staged = 2 * max(a.domain_bytes, b.domain_bytes) / self.staging_bytes_per_s
        reshard = 0.0
        if a.width != b.width:
            wider = a if a.width > b.width else b
            reshard = float(wider.fabric.inside_s(wider.size, wider.width))
        return self.latency_s + wire + staged + reshard

    def mirrored(self) -> "Bridge":
        """The same link seen from the other group."""
        return Bridge(
            a_bytes_per_s=self.b_bytes_per_s,
            b_bytes_per_s=self.a_bytes_per_s,
            total_bytes_per_s=self.total_bytes_per_s,
            latency_s=self.latency_s,
            staging_bytes_per_s=self.staging_bytes_per_s,
        )


def bridge(cluster: ClusterSpec, a: GroupSpec, b: GroupSpec, stack: StackSpec) -> Bridge:
    """The link between two groups of a cluster; KeyError where there is none."""
    link = cluster.link(a.name, b.name)

    def of_domain(group: GroupSpec) -> float:
        per_node = link.bandwidth_bytes_per_s
        nodes = max(1.0, min(group.domain, group.accelerators) / group.accelerators_per_node)
        return per_node * stack.network_share * nodes

    direct = link.path == "rdma-direct"
    return Bridge(
        a_bytes_per_s=of_domain(a),
        b_bytes_per_s=of_domain(b),
        total_bytes_per_s=(link.total_bandwidth_bytes_per_s or float("inf")) * stack.network_share,
        latency_s=link.latency_s + (0.0 if direct else stack.host_latency_s),
        staging_bytes_per_s=float("inf") if direct else stack.host_staging_bytes_per_s,
    )
