"""The example clusters: each loads, and has the accelerators its name and comments promise."""

from itertools import combinations
from pathlib import Path

import pytest

from hetplan.specs.cluster import ClusterSpec
from hetplan.specs.files import load_cluster

FOLDER = Path(__file__).parents[2] / "clusters"

# file name: accelerators by catalogue name
EXPECTED: dict[str, dict[str, int]] = {
    "4090-3090": {"rtx4090": 16, "rtx3090": 16},
    "a100-v100": {"a100-sxm4-80gb": 32, "v100-sxm2-32gb": 64},
    "ascend-nvidia": {"ascend910b-64gb": 128, "a800-sxm4-80gb": 64},
    "gb200-h100": {"gb200-186gb": 144, "h100-sxm5-80gb": 128},
    "h100-a100": {"h100-sxm5-80gb": 32, "a100-sxm4-80gb": 64},
    "hethub-768": {"mi300x-192gb": 128, "a100-sxm4-80gb": 640},
    "mi300x-h100": {"mi300x-192gb": 64, "h100-sxm5-80gb": 128},
    "mix-1000": {"h100-sxm5-80gb": 512, "a100-sxm4-80gb": 320, "mi300x-192gb": 192},
    "mix-10000": {"h100-sxm5-80gb": 5120, "a100-sxm4-80gb": 3072, "mi300x-192gb": 2048},
    "mix-100000": {"h100-sxm5-80gb": 51200, "b200-sxm-180gb": 20480, "mi300x-192gb": 16384, "a100-sxm4-80gb": 12288},
    "one-node": {"h100-sxm5-80gb": 8},
    "slow-link": {"h100-sxm5-80gb": 32, "a100-sxm4-80gb": 32},
    "tiny-16": {"h100-sxm5-80gb": 8, "a100-sxm4-80gb": 8},
    "two-islands": {"a100-sxm4-80gb": 320},
}


def _counts(cluster: ClusterSpec) -> dict[str, int]:
    counts: dict[str, int] = {}
    for group in cluster.groups:
        counts[group.accelerator.name] = counts.get(group.accelerator.name, 0) + group.accelerators
    return counts


def test_every_example_is_listed_here() -> None:
    """Adding an example means saying here what it holds."""
    assert {path.stem for path in FOLDER.glob("*.yaml")} == set(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_example_holds_what_it_says(name: str) -> None:
    """The file loads, is named after itself, and has these accelerators."""
    cluster = load_cluster(FOLDER / f"{name}.yaml")
    assert cluster.name == name
    assert _counts(cluster) == EXPECTED[name]
    assert cluster.accelerators == sum(EXPECTED[name].values())


@pytest.mark.parametrize("name", EXPECTED)
def test_every_pair_of_groups_is_linked_once(name: str) -> None:
    """One link for each pair, no faster per node than either node's own network."""
    cluster = load_cluster(FOLDER / f"{name}.yaml")
    pairs = {frozenset((a.name, b.name)) for a, b in combinations(cluster.groups, 2)}
    assert sorted(map(sorted, (link.between for link in cluster.links))) == sorted(map(sorted, pairs))
    for link in cluster.links:
        for group in map(cluster.group, link.between):
            if group.inter_node is not None:
                assert link.bandwidth_bytes_per_s <= group.inter_node.bandwidth_bytes_per_s


@pytest.mark.parametrize("name", EXPECTED)
def test_example_explains_itself(name: str) -> None:
    """The first line names the schema for editors; a comment says what is assumed."""
    first, *rest = (FOLDER / f"{name}.yaml").read_text(encoding="utf-8").splitlines()
    assert first == "# yaml-language-server: $schema=../docs/schemas/cluster.json"
    comments = " ".join(line for line in rest if line.startswith("#"))
    assert "assumed" in comments.lower()


def test_sizes_are_those_in_the_names() -> None:
    """The mixes hold 1,000, 10,000 and 100,000 accelerators to 3 %, of 3, 3 and 4 types; hethub-768 exactly 768."""
    for name, size, types in (("mix-1000", 1_000, 3), ("mix-10000", 10_000, 3), ("mix-100000", 100_000, 4)):
        assert size <= sum(EXPECTED[name].values()) <= 1.03 * size
        assert len(EXPECTED[name]) == types
    assert sum(EXPECTED["hethub-768"].values()) == 768
    assert sum(EXPECTED["tiny-16"].values()) == 16


def test_racks_and_pipes() -> None:
    """The GB200 racks are NVLink domains of 72, and the islands share one Ethernet pipe."""
    assert load_cluster(FOLDER / "gb200-h100.yaml").group("gb200").domain == 72
    pipe = load_cluster(FOLDER / "two-islands.yaml").links[0]
    assert pipe.path == "tcp-host"
    assert pipe.total_bandwidth_bytes_per_s == 400e9 / 8
