"""Collectives and hops against hand-computed times and published curves."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetplan.cost.collectives import Bridge, Fabric, Side, bridge, fabric
from hetplan.cost.profiles import load_stack
from hetplan.specs.cluster import ClusterSpec, LinkRate, LinkSpec
from tests.cost.builders import group

GIB = 2.0**30
STACK = load_stack()
PLAIN = Fabric(
    domain=8,
    domains=4,
    inside_bytes_per_s=200e9,
    peer_bytes_per_s=200e9,
    inside_latency_s=0.0,
    root_s=0.0,
    network_bytes_per_s=100e9,
    network_latency_s=0.0,
)
"""Four nodes of eight without latencies, so that times are plain quotients."""


def all_reduce_s(links: Fabric, size: float, ranks: int) -> float:
    """A reduce-scatter and an all-gather."""
    return 2 * float(links.inside_s(size, ranks))


@pytest.mark.parametrize("mib", [16, 64, 256, 1024, 8192])
def test_all_reduce_follows_the_published_curve(mib: int) -> None:
    """Eight A100: 21 us + x / 240 GB/s + 9.5 us per square root of a MB (ai-dynamo/aiconfigurator curves)."""
    size = mib * 2.0**20
    moved = 2 * size * 7 / 8
    published = 21e-6 + moved / 240e9 + 9.5e-9 * math.sqrt(moved)
    assert all_reduce_s(fabric(group(), STACK), size, 8) == pytest.approx(published, rel=0.02)


def test_h100_ring_rate() -> None:
    """Eight H100 reach 335 to 366 GB/s of bus rate in an 8 GiB all-gather (stas00/ml-engineering, aiconfigurator)."""
    size = 8 * GIB
    rate = size * 7 / 8 / float(fabric(group("h100-sxm5-80gb"), STACK).inside_s(size, 8))
    assert 335e9 < rate < 366e9


def test_one_rank_moves_nothing() -> None:
    """No peers, no time."""
    assert PLAIN.inside_s(1e9, 1) == PLAIN.replicas_s(1e9, 8, 1) == PLAIN.all_to_all_s(1e9, 8, 1) == 0


def test_replicas_inside_a_domain() -> None:
    """Four replicas of two in one node: 3/4 of the bytes over NVLink."""
    assert PLAIN.replicas_s(8e9, 2, 4) == pytest.approx(8e9 * 3 / 4 / 200e9)


def test_replicas_over_domains_are_hierarchical() -> None:
    """Four replicas of two per node on four nodes: inside, then 2 x 3/4 of the bytes over each node's network."""
    assert PLAIN.replicas_s(8e9, 2, 16) == pytest.approx(8e9 * 3 / 4 / 200e9 + 2 * 8e9 * 3 / 4 / 100e9)


def test_whole_node_replicas_share_its_network() -> None:
    """One replica of eight per node: all eight rings leave over one network."""
    assert PLAIN.replicas_s(1e9, 8, 4) == pytest.approx(8 * 1e9 * 3 / 4 / 100e9)


def test_network_latency_grows_with_the_logarithm() -> None:
    """Each half of a tree all-reduce over four nodes takes two steps."""
    slow = replace(PLAIN, network_latency_s=1e-3)
    assert slow.replicas_s(1e9, 8, 4) - PLAIN.replicas_s(1e9, 8, 4) == pytest.approx(2e-3)


def test_all_to_all_over_domains() -> None:
    """Two nodes, eight ranks each hold 1 GB: half of it stays inside, all eight send the other half out."""
    assert PLAIN.all_to_all_s(1e9, 1, 16) == pytest.approx(0.5e9 * 7 / 8 / 200e9 + 8 * 0.5e9 / 100e9)


def test_replicas_are_packed_into_domains() -> None:
    """Whole domains where they divide, one domain more where a stage may begin in the middle of one."""
    assert PLAIN.spread(2, 4) == (4, 1)
    assert PLAIN.spread(2, 3) == (3, 2)
    assert PLAIN.spread(2, 16) == (4, 4)
    assert PLAIN.spread(8, 3) == (1, 3)
    assert PLAIN.slots(8, 32) == 4
    assert PLAIN.slots(3, 20) == 5


def test_hop_inside_and_across() -> None:
    """Inside, each rank sends its share to its peer; across, the replicas of a node share its network."""
    assert PLAIN.hop_s(1e9, 4, 2, crosses=False) == pytest.approx(1e9 / (4 * 200e9))
    assert PLAIN.hop_s(1e9, 4, 2, crosses=True) == pytest.approx(2 * 1e9 / 100e9)
    assert PLAIN.hop_s(1e9, 4, 16, crosses=True) == pytest.approx(2 * 1e9 / 100e9)


def test_hops_that_leave_a_domain() -> None:
    """Two stages of one replica of four fill a node: every second hop leaves it."""
    assert [PLAIN.crosses(4, 1, stage) for stage in range(4)] == [False, True, False, True]
    assert all(PLAIN.crosses(8, 1, stage) for stage in range(3))
    assert not replace(PLAIN, domains=1).crosses(8, 1, 0)


def side(width: int, replicas: int, size: float = 1e9) -> Side:
    """One end of a hop."""
    return Side(fabric=PLAIN, width=width, replicas=replicas, size=size)


def test_bridge_is_as_slow_as_its_narrowest_part() -> None:
    """Each node sends two replicas' bytes, the whole link carries all eight, and the slowest part decides."""
    link = Bridge(
        a_bytes_per_s=50e9,
        b_bytes_per_s=25e9,
        total_bytes_per_s=math.inf,
        latency_s=1e-3,
        staging_bytes_per_s=math.inf,
    )
    assert link.hop_s(side(4, 8), side(4, 8)) == pytest.approx(1e-3 + 2e9 / 25e9)
    assert replace(link, total_bytes_per_s=10e9).hop_s(side(4, 8), side(4, 8)) == pytest.approx(1e-3 + 8e9 / 10e9)


def test_bridge_through_the_host_and_between_widths() -> None:
    """Host copies are paid on both ends; unlike widths are gathered on the side with more ranks."""
    link = Bridge(
        a_bytes_per_s=50e9,
        b_bytes_per_s=50e9,
        total_bytes_per_s=math.inf,
        latency_s=0.0,
        staging_bytes_per_s=20e9,
    )
    assert link.hop_s(side(8, 1), side(8, 1)) == pytest.approx(1e9 / 50e9 + 2 * 1e9 / 20e9)
    direct = replace(link, staging_bytes_per_s=math.inf)
    assert direct.hop_s(side(8, 1), side(4, 1)) == pytest.approx(1e9 / 50e9 + 1e9 * 7 / 8 / 200e9)


def test_bridge_looks_the_same_from_both_ends() -> None:
    """A hop takes as long there as back."""
    a, b = group("h100-sxm5-80gb", 2, network=400e9), group("a100-sxm4-80gb", 2, network=200e9)
    rate = LinkSpec(between=(a.name, b.name), bandwidth_bytes_per_s=50e9, latency_s=1e-5, path="tcp-host")
    cluster = ClusterSpec(name="two", groups=(a, b), links=(rate,))
    there, back = bridge(cluster, a, b, STACK), bridge(cluster, b, a, STACK)
    one, two = side(8, 2), side(4, 2)
    assert there.hop_s(one, two) == back.hop_s(two, one) == there.mirrored().hop_s(two, one)
    assert there.a_bytes_per_s == pytest.approx(50e9 * STACK.network_share)
    assert there.staging_bytes_per_s == STACK.host_staging_bytes_per_s


def test_measured_link_wins_over_the_datasheet() -> None:
    """An intra-node rate of the cluster file is taken as it stands; without peer-to-peer PCIe gets a smaller share."""
    plain = group()
    measured = plain.model_copy(update={"intra_node": LinkRate(bandwidth_bytes_per_s=111e9, latency_s=3e-6)})
    assert fabric(measured, STACK).inside_bytes_per_s == 111e9
    assert fabric(measured, STACK).inside_latency_s == 3e-6
    assert fabric(plain, STACK).inside_bytes_per_s == pytest.approx(300e9 * STACK.link_share)
    for name in ("rtx4090", "l40s"):
        sheet = group(name).accelerator
        share = STACK.pcie_host_share if sheet.link_kind.endswith("nop2p") else STACK.pcie_share
        assert fabric(group(name), STACK).inside_bytes_per_s == pytest.approx(sheet.link_bytes_per_s * share)


def test_a_rack_is_one_domain_with_all_its_networks() -> None:
    """An NVLink domain of several nodes sends over the networks of all of them."""
    rack = group("gb200-186gb", 18, 4, network=200e9).model_copy(update={"nvlink_domain": 72})
    two = rack.model_copy(update={"nodes": 36})
    assert fabric(rack, STACK).domains == 1
    assert fabric(two, STACK).domains == 2
    assert fabric(two, STACK).network_bytes_per_s == pytest.approx(18 * 200e9 * STACK.network_share)


@given(
    width=st.sampled_from([1, 2, 4, 8]),
    replicas=st.integers(1, 32),
    size=st.floats(1e3, 1e11),
    field=st.sampled_from(["inside_bytes_per_s", "peer_bytes_per_s", "network_bytes_per_s"]),
    factor=st.floats(1, 10),
)
def test_more_bandwidth_is_never_slower(width: int, replicas: int, size: float, field: str, factor: float) -> None:
    """Faster links shorten every exchange or leave it as it is."""
    faster = replace(PLAIN, **{field: getattr(PLAIN, field) * factor})
    assert faster.replicas_s(size, width, replicas) <= PLAIN.replicas_s(size, width, replicas)
    assert faster.all_to_all_s(size, width, replicas) <= PLAIN.all_to_all_s(size, width, replicas)
    for crosses in (False, True):
        before = PLAIN.hop_s(size, width, replicas, crosses=crosses)
        assert faster.hop_s(size, width, replicas, crosses=crosses) <= before
