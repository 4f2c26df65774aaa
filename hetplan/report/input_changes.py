"""How the inputs of two results differ: written key paths, values with their units."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import BaseModel

from hetplan.report import numbers
from hetplan.report.records import ChangeRecord, InputsRecord
from hetplan.specs.accelerator import AcceleratorSpec

_IN_NODE = ("intra_node", "accelerator")
"""Under these keys bandwidths are written in bytes per second, elsewhere in bits."""


def input_changes(before: InputsRecord, after: InputsRecord) -> tuple[ChangeRecord, ...]:
    """Everything that differs, in the order of the files. Groups are matched by name and links by their two ends."""
    found: list[ChangeRecord] = []
    if before.cluster.name != after.cluster.name:
        found.append(ChangeRecord(key="cluster", before=before.cluster.name, after=after.cluster.name))
    renamed = before.cluster.model_copy(update={"name": after.cluster.name})
    before = before.model_copy(update={"cluster": renamed})
    for name in ("cluster", "model", "training", "stack", "options"):
        # Keys of cluster.yaml stand for themselves; others say where they belong.
        path = "" if name == "cluster" else name
        found += _changes(path, name, getattr(before, name), getattr(after, name))
    return tuple(found)


def _changes(path: str, field: str, a: Any, b: Any) -> Iterator[ChangeRecord]:
    if a == b:
        return
    if isinstance(a, AcceleratorSpec) and isinstance(b, AcceleratorSpec) and a.name != b.name:
        yield ChangeRecord(key=path, before=a.name, after=b.name)
    elif isinstance(a, BaseModel) and type(a) is type(b):
        for name, info in type(a).model_fields.items():
            yield from _changes(_join(path, info.alias or name), name, getattr(a, name), getattr(b, name))
    elif isinstance(a, Mapping) and isinstance(b, Mapping):
        yield from _mapping_changes(path, a, b)
    elif _is_list(a) and _is_list(b):
        yield from _list_changes(path, field, a, b)
    else:
        yield ChangeRecord(key=path, before=_written(path, field, a), after=_written(path, field, b))


def _mapping_changes(path: str, a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[ChangeRecord]:
    names = (a.get("name"), b.get("name"))
    if path == "stack" and names[0] != names[1]:
        yield ChangeRecord(key=path, before=_text(names[0]), after=_text(names[1]))
        return
    for key in dict.fromkeys((*a, *b)):
        inner = _join(path, key)
        if key not in a or key not in b:
            yield ChangeRecord(
                key=inner,
                before=_written(inner, key, a[key]) if key in a else None,
                after=_written(inner, key, b[key]) if key in b else None,
            )
        else:
            yield from _changes(inner, key, a[key], b[key])


def _list_changes(path: str, field: str, a: Sequence[Any], b: Sequence[Any]) -> Iterator[ChangeRecord]:
    if not all(isinstance(item, BaseModel) for item in (*a, *b)):
        yield ChangeRecord(key=path, before=_written(path, field, a), after=_written(path, field, b))
        return
    old = {_identity(item): (index, item) for index, item in enumerate(a)}
    new = {_identity(item): (index, item) for index, item in enumerate(b)}
    for key, (index, item) in old.items():
        if key in new:
            yield from _changes(f"{path}[{index}]", field, item, new[key][1])
        else:
            yield ChangeRecord(key=f"{path}[{index}]", before=_summary(item), after=None)
    for key, (index, item) in new.items():
        if key not in old:
            yield ChangeRecord(key=f"{path}[{index}]", before=None, after=_summary(item))
    if list(old) != list(new) and set(old) == set(new):
        yield ChangeRecord(key=path, before=", ".join(map(_order_text, old)), after=", ".join(map(_order_text, new)))


def _identity(item: BaseModel) -> object:
    ends = getattr(item, "between", None)
    return frozenset(ends) if ends is not None else getattr(item, "name", None)


def _order_text(key: object) -> str:
    return "–".join(sorted(key)) if isinstance(key, frozenset) else str(key)


def _summary(item: BaseModel) -> str:
    accelerator = getattr(item, "accelerator", None)
    if isinstance(accelerator, AcceleratorSpec):
        total = getattr(item, "accelerators", 0)
        return f"{getattr(item, 'name', '')}: {numbers.count(total)} {accelerator.name}"
    ends = getattr(item, "between", None)
    return "–".join(ends) if ends is not None else str(getattr(item, "name", ""))


def _is_list(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _written(path: str, field: str, value: Any) -> str | None:
    """The value as a user would write it; the end of the field's name tells the dimension. None where not given."""
    match value:
        case None:
            return None
        case bool():
            return "true" if value else "false"
        case int() | float():
            return _number(path, field, value)
        case str():
            return value
        case BaseModel():
            parts = (
                (info.alias or name, name, getattr(value, name)) for name, info in type(value).model_fields.items()
            )
            inner = [(key, _written(f"{path}.{key}", name, item)) for key, name, item in parts]
            return "{" + ", ".join(f"{key}: {text}" for key, text in inner if text is not None) + "}"
        case Mapping():
            return "{" + ", ".join(f"{key}: {_written(path, str(key), item)}" for key, item in value.items()) + "}"
        case _:
            return "[" + ", ".join(str(_written(path, field, item)) for item in value) + "]"


def _number(path: str, field: str, value: float) -> str:
    if field.endswith("_bytes_per_s"):
        return numbers.bandwidth(value, bits=not any(part in path for part in _IN_NODE))
    if field.endswith("_flops_per_s"):
        return numbers.flops(value)
    if field.endswith("_bytes"):
        return numbers.size(value)
    if field.endswith("_s"):
        return numbers.duration(value)
    if field.endswith("_watts"):
        return f"{numbers.trimmed(value)} W"
    return numbers.count(value) if isinstance(value, int) else numbers.trimmed(value, 12)
