"""What a cluster file must fulfil beyond the types of its fields: names, links, networks, memory.

The checks run on data as read, so that all mistakes of a file are reported together; whatever has a wrong type is
left to validation.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import combinations

from hetplan.specs.accelerator import AcceleratorSpec
from hetplan.specs.cluster import RUNTIME_RESERVE_BYTES
from hetplan.specs.document import Problem
from hetplan.specs.wording import KeyPath, either, found, nearest, quote
from hetplan.units import Dimension, UnitError, parse

MAX_GROUPS = 12
MAX_LINKS = 200
"""Beyond these, links are not looked at one by one: their number is the mistake then."""

_PLAIN_NAME = re.compile(r"[A-Za-z_][\w.-]*")
_HOST = re.compile(r"[A-Za-z0-9][\w.-]*")
_LINK = "bandwidth: …, latency: …"


def cluster_problems(raw: object) -> list[Problem]:
    """Everything wrong with the data of a cluster file, its accelerators resolved to datasheets where they can be."""
    if not isinstance(raw, Mapping):
        return []
    groups = [(i, g) for i, g in enumerate(_items(raw.get("groups"))) if isinstance(g, Mapping)]
    problems = [*name_problems(raw.get("name"), ("name",)), *_group_names(groups)]
    for index, group in groups:
        problems += group_problems(group, ("groups", index))
    return [*problems, *_links(raw, groups)]


def name_problems(name: object, path: KeyPath) -> Iterator[Problem]:
    """A name is printed in tables and written into scripts: no control characters, no blanks around it."""
    if not isinstance(name, str) or not name:
        return
    if not name.isprintable():
        bad = next(c for c in name if not c.isprintable())
        yield Problem(path, f"holds the unprintable character U+{ord(bad):04X}", "use letters, digits, - and _")
    elif name != name.strip():
        yield Problem(path, "blanks around the name", f"write {name.strip() or 'a name'}")


def group_problems(group: Mapping[str, object], path: KeyPath) -> Iterator[Problem]:
    """One group by itself."""
    nodes, per_node = _count(group.get("nodes")), _count(group.get("accelerators_per_node"))
    yield from name_problems(group.get("name"), (*path, "name"))
    if nodes > 1 and group.get("inter_node") is None:
        yield Problem(
            (*path, "inter_node"),
            f"missing, and the group has {nodes:,} nodes",
            f"add inter_node: {{{_LINK}}}",
            "missing-key",
            "how are the nodes connected?",
        )
    domain = _count(group.get("nvlink_domain"))
    if domain and per_node and domain % per_node and per_node % domain:
        yield Problem(
            (*path, "nvlink_domain"),
            f"{domain} does not fit {per_node} accelerators per node",
            f"write a multiple or a divisor of {per_node}",
        )
    yield from _hosts(group, path, nodes)
    yield from _memory(group, path)
    sheet = group.get("accelerator")
    if isinstance(sheet, Mapping):
        yield from name_problems(sheet.get("name"), (*path, "accelerator", "name"))


def _hosts(group: Mapping[str, object], path: KeyPath, nodes: int) -> Iterator[Problem]:
    hosts = _items(group.get("hosts"))
    if hosts and nodes and len(hosts) != nodes:
        names = "host name" if len(hosts) == 1 else "host names"
        message = f"{len(hosts):,} {names} for {nodes:,} node{'s' if nodes > 1 else ''}"
        yield Problem((*path, "hosts"), message, "name each node once, or leave hosts out")
    seen: dict[str, int] = {}
    for index, host in enumerate(hosts):
        if isinstance(host, str):
            where = (*path, "hosts", index)
            yield from name_problems(host, where)
            if host and not _HOST.fullmatch(host):
                yield Problem(where, f"{quote(host)} is not a host name", "letters, digits, dots, - and _ only")
            if host in seen:
                note = f"also hosts[{seen[host]}]"
                yield Problem(where, f"host {quote(host)} is given twice", "name each node once", note=note)
            seen.setdefault(host, index)


def _memory(group: Mapping[str, object], path: KeyPath) -> Iterator[Problem]:
    """Usable memory lies within what the accelerator has, and something is left after the reserve."""
    sheet = group.get("accelerator")
    if isinstance(sheet, AcceleratorSpec):
        size, reported, name = sheet.memory_size_bytes, sheet.memory_reported_bytes or 0.0, sheet.name
    elif isinstance(sheet, Mapping):
        size, reported = _bytes(sheet.get("memory_size")), _bytes(sheet.get("memory_reported"))
        name = str(sheet.get("name", "the accelerator"))
    else:
        return
    total = max(size, reported)
    usable = _bytes(group.get("usable_memory"))
    if usable > total > 0:
        hint = f"write at most {total / 2**30:.1f} GiB, or leave it out"
        yield Problem(
            (*path, "usable_memory"), f"more than {name} has", hint, "range", f"it has {total / 2**30:.1f} GiB"
        )
    if group.get("usable_memory") is None and 0 < (reported or size) <= RUNTIME_RESERVE_BYTES:
        hint = "add usable_memory, or correct the memory of the datasheet"
        message = f"no memory is left after the {RUNTIME_RESERVE_BYTES / 2**30:.0f} GiB reserve"
        yield Problem((*path, "accelerator"), message, hint, "range")


def _group_names(groups: Iterable[tuple[int, Mapping[str, object]]]) -> Iterator[Problem]:
    seen: dict[str, int] = {}
    for index, group in groups:
        name = group.get("name")
        if isinstance(name, str):
            if name in seen:
                path = ("groups", index, "name")
                note = f"also groups[{seen[name]}]"
                yield Problem(path, f"{quote(name)} names two groups", "give each group its own name", note=note)
            seen.setdefault(name, index)


def _links(raw: Mapping[str, object], groups: list[tuple[int, Mapping[str, object]]]) -> Iterator[Problem]:
    """Every pair of groups has one link, and every link has two groups."""
    places: dict[str, int] = {}
    for index, group in groups:
        name = group.get("name")
        if isinstance(name, str):
            places.setdefault(name, index)
    links = _items(raw.get("links"))
    if len(links) > MAX_LINKS:
        yield Problem(("links",), f"{len(links):,} links", "write one link for each pair of groups", "length")
        return
    if len(places) > MAX_GROUPS:
        return
    linked: dict[frozenset[str], int] = {}
    for index, link in enumerate(links):
        between = link.get("between") if isinstance(link, Mapping) else None
        ends = [end for end in _items(between) if isinstance(end, str)]
        if len(ends) != 2:
            continue
        path = ("links", index, "between")
        yield from _unknown_ends(ends, places, path)
        # A misspelt end still connects the group it is meant for: that is one mistake, not two.
        pair = frozenset(next(iter(nearest(end, places)), end) if end not in places else end for end in ends)
        if len(pair) == 1 and ends[0] == ends[1]:
            hint = "name two groups; inside a group the network is inter_node"
            yield Problem(path, f"links {quote(ends[0])} to itself", hint)
        elif pair in linked:
            message = f"a second link between {quote(ends[0])} and {quote(ends[1])}"
            yield Problem(path, message, "remove one of the two", note=f"also links[{linked[pair]}]")
        linked.setdefault(pair, index)
    if raw.get("links") is None or isinstance(raw.get("links"), tuple):
        yield from _missing_links(places, linked, has_links=bool(links))


def _unknown_ends(ends: list[str], places: Mapping[str, int], path: KeyPath) -> Iterator[Problem]:
    for position, end in enumerate(ends):
        if end not in places:
            near = nearest(end, places)
            hint = f"did you mean {' or '.join(near)}?" if near else f"groups: {', '.join(places) or 'none'}"
            yield Problem((*path, position), f"no group {quote(end)}", hint, "reference", "not a group of this cluster")


def _missing_links(
    places: Mapping[str, int], linked: Mapping[frozenset[str], int], *, has_links: bool
) -> Iterator[Problem]:
    for first, second in combinations(places, 2):
        if frozenset((first, second)) in linked:
            continue
        entry = f"{{between: [{_yaml_name(first)}, {_yaml_name(second)}], {_LINK}}}"
        yield Problem(
            ("groups", places[second], "name"),
            f"no link between {quote(first)} and {quote(second)}",
            f"add to links: - {entry}" if has_links else f"add links: [{entry}]",
            "link",
            f"nothing connects this group to {quote(first)}",
            key="links",
        )


def unknown_accelerator(value: object, path: KeyPath, near: Iterable[str], total: int) -> Problem:
    """An accelerator that is no name of the catalogue, nor anything else that describes one."""
    everything = f"All {total} names: hetplan show accelerators"
    if not isinstance(value, str):
        hint = f"write a name or a datasheet.  {everything}"
        return Problem(path, f"must be a name or a datasheet, not {found(value)}", hint, "type")
    names = either(near)
    hint = f"did you mean {names}?  {everything}" if names else everything[0].lower() + everything[1:]
    return Problem(path, f"unknown accelerator {quote(value)}", hint, "reference", "not in the catalogue")


def _items(value: object) -> tuple[object, ...]:
    return value if isinstance(value, tuple) else ()


def _count(value: object) -> int:
    """A positive whole number, or 0 where the value is something else."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= 10**9 else 0


def _bytes(value: object) -> float:
    """A written size, or 0 where it cannot be read: validation says so."""
    try:
        return max(0.0, parse(value, Dimension.BYTES))
    except UnitError:
        return 0.0


def _yaml_name(name: str) -> str:
    plain = _PLAIN_NAME.fullmatch(name) and name not in ("true", "false", "null", "nan", "inf", "infinity")
    return name if plain else json.dumps(name, ensure_ascii=False)
