"""Names, links, networks and memory of a cluster file."""

from typing import Any

import pytest

from hetplan.specs import catalog
from hetplan.specs.cluster_checks import cluster_problems, unknown_accelerator
from hetplan.specs.document import Problem

V100 = catalog.accelerator("v100-sxm2-32gb")
NET = {"bandwidth": "100 Gbit/s"}
LINK = {"bandwidth": "10 Gbit/s", "latency": "20 us"}


def group(name: str = "fast", **changes: Any) -> dict[str, Any]:
    """A group as read."""
    return {"name": name, "accelerator": V100, "nodes": 2, "accelerators_per_node": 8, "inter_node": NET, **changes}


def link(*between: str, **changes: Any) -> dict[str, Any]:
    """A link as read."""
    return {"between": between, **LINK, **changes}


def cluster(*groups: dict[str, Any], links: Any = (), **changes: Any) -> dict[str, Any]:
    """A cluster as read."""
    return {"name": "c", "groups": groups, "links": links, **changes}


def only(raw: object) -> Problem:
    """The one problem of a cluster."""
    (problem,) = cluster_problems(raw)
    return problem


@pytest.mark.parametrize(
    "raw",
    [
        cluster(group()),
        cluster(group(nodes=1, inter_node=None)),
        cluster(group(), group("old"), links=(link("old", "fast"),)),
        cluster(group(accelerators_per_node=4, nodes=36, nvlink_domain=72)),
        cluster(group(nvlink_domain=2)),
        cluster(group(nvlink_domain=8)),
        cluster(group(hosts=("a", "b"))),
        cluster(group(usable_memory="31 GiB")),
    ],
)
def test_good_clusters_have_no_problems(raw: object) -> None:
    """What may be written is not complained about."""
    assert cluster_problems(raw) == []


@pytest.mark.parametrize(
    ("change", "key", "message", "hint"),
    [
        ({"inter_node": None}, "inter_node", "missing, and the group has 2 nodes", "add inter_node: {bandwidth: …"),
        ({"nvlink_domain": 3}, "nvlink_domain", "3 does not fit 8 accelerators per node", "multiple or a divisor of 8"),
        ({"nvlink_domain": 12}, "nvlink_domain", "12 does not fit 8 accelerators", "multiple or a divisor of 8"),
        ({"hosts": ("a",)}, "hosts", "1 host name for 2 nodes", "name each node once"),
        ({"hosts": ("a", "b", "c")}, "hosts", "3 host names for 2 nodes", "name each node once"),
        ({"usable_memory": "33 GiB"}, "usable_memory", "more than v100-sxm2-32gb has", "write at most 31.7 GiB"),
        ({"name": "a\x1b[31m"}, "name", "holds the unprintable character U+001B", "letters"),
        ({"name": "a\u202eb"}, "name", "holds the unprintable character U+202E", "letters"),
        ({"name": " a"}, "name", "blanks around the name", "write a"),
    ],
)
def test_mistakes_in_a_group(change: dict[str, Any], key: str, message: str, hint: str) -> None:
    """Each at the key that is wrong, with what would be right."""
    problem = only(cluster(group(**change)))
    assert problem.path == ("groups", 0, key)
    assert problem.message.startswith(message)
    assert hint in problem.hint


def test_host_names_are_given_once() -> None:
    """A name that is there already is pointed at, and says where it was first."""
    problem = only(cluster(group(hosts=("a", "a"))))
    assert (problem.path, problem.note) == (("groups", 0, "hosts", 1), "also hosts[0]")
    assert problem.message == 'host "a" is given twice'


def test_a_written_datasheet_is_checked_too() -> None:
    """Its memory bounds what may be used, and has to be more than the reserve."""
    sheet = {"name": "x", "memory_size": "16 GB"}
    problem = only(cluster(group(accelerator=sheet, usable_memory="15 GiB")))
    assert (problem.path[-1], problem.message) == ("usable_memory", "more than x has")
    problem = only(cluster(group(accelerator={**sheet, "memory_size": "2 GB"})))
    assert (problem.path[-1], problem.message) == ("accelerator", "no memory is left after the 2 GiB reserve")
    assert cluster_problems(cluster(group(accelerator={**sheet, "memory_size": "2 GB"}, usable_memory="1 GB"))) == []


def test_a_pair_without_a_link_is_named() -> None:
    """The mistake stands at the second group and says what to write."""
    problem = only(cluster(group(), group("old")))
    assert (problem.path, problem.key) == (("groups", 1, "name"), "links")
    assert problem.message == 'no link between "fast" and "old"'
    assert problem.note == 'nothing connects this group to "fast"'
    assert problem.hint == "add links: [{between: [fast, old], bandwidth: …, latency: …}]"


def test_every_pair_without_a_link_is_named() -> None:
    """Where other links are, the hint is one more entry; odd names are quoted in it."""
    raw = cluster(group("a"), group("b"), group("[red]"), links=(link("a", "b"),))
    first, second = cluster_problems(raw)
    assert first.hint == 'add to links: - {between: [a, "[red]"], bandwidth: …, latency: …}'
    assert second.message == 'no link between "b" and "[red]"'


def test_a_misspelt_end_is_one_mistake() -> None:
    """The link counts for the group that was meant."""
    problem = only(cluster(group(), group("old"), links=(link("fsat", "old"),)))
    assert (problem.path, problem.message) == (("links", 0, "between", 0), 'no group "fsat"')
    assert problem.hint == "did you mean fast?"


def test_an_end_like_no_group_lists_the_groups() -> None:
    """The pair is still without a link then."""
    unknown, missing = cluster_problems(cluster(group(), group("old"), links=(link("edge", "old"),)))
    assert (unknown.message, unknown.hint) == ('no group "edge"', "groups: fast, old")
    assert missing.message == 'no link between "fast" and "old"'


def test_a_pair_is_linked_once() -> None:
    """In either order."""
    problem = only(cluster(group(), group("old"), links=(link("fast", "old"), link("old", "fast"))))
    assert (problem.path, problem.note) == (("links", 1, "between"), "also links[0]")
    assert problem.message == 'a second link between "old" and "fast"'


def test_a_group_has_no_link_to_itself() -> None:
    """Its own network is inter_node."""
    problem = only(cluster(group(), links=(link("fast", "fast"),)))
    assert (problem.path, problem.message) == (("links", 0, "between"), 'links "fast" to itself')
    assert "inter_node" in problem.hint


def test_group_names_are_given_once() -> None:
    """Two groups of one name are one mistake, not a missing link as well."""
    problem = only(cluster(group(), group()))
    assert (problem.path, problem.note) == (("groups", 1, "name"), "also groups[0]")


def test_absurd_numbers_of_groups_and_links_end_soon() -> None:
    """Their number is the mistake, said once or by validation."""
    many = cluster(*(group(f"g{i}") for i in range(2000)))
    assert cluster_problems(many) == []
    problem = only(cluster(group(), group("old"), links=(link("x", "y"),) * 100_000))
    assert (problem.path, problem.message) == (("links",), "100,000 links")


@pytest.mark.parametrize("odd", [None, 5, -1, 0, True, "x", "", (), (1, None), {}, {"a": 1}, 10**30, 1.5])
@pytest.mark.parametrize(
    "key",
    ["name", "accelerator", "nodes", "accelerators_per_node", "usable_memory", "inter_node", "nvlink_domain", "hosts"],
)
def test_wrong_types_are_left_to_validation(key: str, odd: object) -> None:
    """Whatever stands in a group, the checks give problems and no exception."""
    changes: dict[str, Any] = {key: odd}
    for problem in cluster_problems(cluster(group(**changes))):
        assert problem.path[:2] == ("groups", 0)


@pytest.mark.parametrize("odd", [None, 5, "x", (), (1,), ({},), ({"between": 3},), ({"between": (1, 2)},), {}])
def test_odd_documents_are_left_to_validation(odd: object) -> None:
    """So it is for lists that are none."""
    assert cluster_problems(odd) == []
    assert all(p.kind == "link" for p in cluster_problems(cluster(group(), group("old"), links=odd)))
    assert cluster_problems({"name": odd, "groups": odd}) == []


def test_unknown_accelerators_lead_to_the_catalogue() -> None:
    """Near names are offered; what is no name says so."""
    path = ("groups", 0, "accelerator")
    near = unknown_accelerator("a100-smx4-80gb", path, ("a100-sxm4-80gb",), 41)
    assert near.message == 'unknown accelerator "a100-smx4-80gb"'
    assert near.hint == "did you mean a100-sxm4-80gb?  All 41 names: hetplan show accelerators"
    far = unknown_accelerator("abacus", path, (), 41)
    assert (far.note, far.hint) == ("not in the catalogue", "all 41 names: hetplan show accelerators")
    assert unknown_accelerator(5, path, (), 41).message == "must be a name or a datasheet, not 5"


def test_host_names_are_plain() -> None:
    """A host name goes into launch scripts: anything but letters, digits, dots, - and _ is a mistake."""
    group = {"name": "g", "nodes": 2, "accelerators_per_node": 1, "hosts": ("a01.rack-3", "b; rm -rf")}
    found = [problem for problem in cluster_problems({"groups": (group,)}) if "host name" in problem.message]
    assert [problem.path for problem in found] == [("groups", 0, "hosts", 1)]
