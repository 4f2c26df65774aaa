"""Checks data against a model, and says what is wrong in the words of the file."""

import re
from collections.abc import Iterator, Mapping
from types import UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from hetplan.specs.document import MAX_PROBLEMS, Problem
from hetplan.specs.wording import KeyPath, did_you_mean, either, found, key_text, nearest, number_text, quote

T = TypeVar("T", bound=BaseModel)
LONGEST_MESSAGE = 160
MOST_KEYS = 15

_RANGE = {"ge", "gt", "le", "lt"}
_RANGE_ERRORS = {"greater_than_equal", "greater_than", "less_than_equal", "less_than", "finite_number"}
_LENGTH_ERRORS = {"too_long", "too_short", "string_too_long", "string_too_short"}
_TYPES = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "string": "text",
    "tuple": "a list",
    "list": "a list",
    "model": "a mapping of keys",
    "dict": "a mapping of keys",
}
_NOTE = re.compile(r"(.+): ([^\":]+\?)")


def validate(model: type[T], data: object) -> tuple[T | None, list[Problem]]:
    """The model of data as written in files, or None and every problem with it."""
    try:
        value = model.model_validate(data, context={"written": True}, by_alias=True, by_name=False)
    except ValidationError as error:
        return None, problems_of(error, model, data)
    return value, []


def problems_of(error: ValidationError, model: type[BaseModel], data: object) -> list[Problem]:
    """One problem for each wrong value. A choice between types fails once for each type; those become one."""
    by_path: dict[KeyPath, list[Any]] = {}
    for detail in error.errors(include_url=False)[:MAX_PROBLEMS]:
        by_path.setdefault(_path_in(data, detail["loc"], detail["type"]), []).append(detail)
    problems = [p for path, details in by_path.items() if (p := _problem(model, data, path, details)) is not None]
    # A misspelt key is one mistake, not an unknown key and a missing one.
    meant = {(p.path[:-1], _only_meant(model, data, p.path)) for p in problems if p.kind == "unknown-key"}
    return [p for p in problems if p.kind != "missing-key" or (p.path[:-1], p.path[-1]) not in meant]


def written_keys(model: type[BaseModel]) -> dict[str, FieldInfo]:
    """Fields by the key that files use for them."""
    return {info.alias or name: info for name, info in model.model_fields.items()}


def _path_in(data: object, loc: tuple[int | str, ...], kind: str) -> KeyPath:
    """The part of an error's location that names keys; what follows are names of the types that were tried."""
    path: list[str | int] = []
    for depth, part in enumerate(loc):
        last = depth == len(loc) - 1
        if isinstance(part, str) and isinstance(data, Mapping) and (part in data or (last and kind == "missing")):
            data = data.get(part)
        elif isinstance(part, int) and isinstance(data, tuple) and (part < len(data) or (last and kind == "missing")):
            data = data[part] if part < len(data) else None
        else:
            break
        path.append(part)
    return tuple(path)


def _at(data: object, path: KeyPath) -> object:
    for part in path:
        if isinstance(part, str) and isinstance(data, Mapping):
            data = data.get(part)
        elif isinstance(part, int) and isinstance(data, tuple) and part < len(data):
            data = data[part]
        else:
            return None
    return data


def _members(annotation: Any) -> Iterator[Any]:
    """The types that an annotation allows."""
    origin = get_origin(annotation)
    if origin is Annotated:
        yield from _members(get_args(annotation)[0])
    elif origin in (Union, UnionType):
        for member in get_args(annotation):
            yield from _members(member)
    else:
        yield annotation


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    for member in _members(annotation):
        if isinstance(member, type) and issubclass(member, BaseModel):
            yield member


def _field(model: type[BaseModel], path: KeyPath) -> FieldInfo | None:
    """The field that the last key of a path belongs to."""
    annotation: Any = model
    info: FieldInfo | None = None
    for part in path:
        if isinstance(part, int):
            items = [get_args(m) for m in _members(annotation) if get_origin(m) is tuple]
            annotation = items[0][0] if items else None
            continue
        info = next((keys[part] for m in _models(annotation) if part in (keys := written_keys(m))), None)
        if info is None:
            return None
        annotation = info.annotation
    return info


def _owner(model: type[BaseModel], path: KeyPath) -> type[BaseModel] | None:
    """The model that describes the mapping at a path."""
    if not path:
        return model
    info = _field(model, path)
    annotation: Any = None if info is None else info.annotation
    for part in reversed(path):
        if isinstance(part, str):
            break
        items = [get_args(m) for m in _members(annotation) if get_origin(m) is tuple]
        annotation = items[0][0] if items else None
    return next(_models(annotation), None)


def _problem(model: type[BaseModel], data: object, path: KeyPath, details: list[Any]) -> Problem | None:
    """Words for the errors at one path, or None where they only follow from others."""
    detail = details[0]
    kind, context = detail["type"], detail.get("ctx", {})
    value = _at(data, path)
    info = _field(model, path)
    if kind == "quantity":
        return _quantity(path, context)
    if kind == "missing":
        return _missing(data, path, info)
    if kind == "extra_forbidden":
        return _unknown(model, data, path)
    if kind in _LENGTH_ERRORS:
        return _length(path, context, value, kind)
    choices = [c for d in details if d["type"] == "literal_error" for c in _choices(d)]
    types = dict.fromkeys(t for d in details if (t := _type_wanted(d["type"])))
    if kind in _RANGE_ERRORS:
        wanted = with_range("a whole number" if _is_whole(info) else "a number", info)
        note = wanted.removeprefix("a whole number ").removeprefix("a number ")
        return Problem(path, f"{found(value)} is out of range", _write(wanted, info), "range", note)
    if choices and isinstance(value, str):
        near = did_you_mean(value, choices)
        hint = f"{near}  Choices: {', '.join(choices)}" if near else f"choices: {', '.join(choices)}"
        if "bool" in types:
            hint += ", true, false"
        return Problem(path, f"{quote(value)} is not one of the choices", hint, "choice", "not a choice")
    if choices or types:
        return _wrong_type(path, value, list(types), choices, info)
    message = str(context.get("error") or "is not a valid value")
    return Problem(path, message[:LONGEST_MESSAGE], _write("another value", info), "value")


def _quantity(path: KeyPath, context: Mapping[str, Any]) -> Problem:
    """A quantity's message comes with its hint; a question at its end moves beside the caret."""
    message, note = str(context["message"]), ""
    asked = _NOTE.fullmatch(message)
    if asked is not None:
        message, note = asked.groups()
    if len(message) > LONGEST_MESSAGE:
        message = f"{message[:40]}…{message[-40:]}"
    return Problem(path, message, str(context["hint"]), "quantity", note)


def _missing(data: object, path: KeyPath, info: FieldInfo | None) -> Problem:
    parent = _at(data, path[:-1])
    key = path[-1] if path else ""
    if isinstance(key, int):
        return Problem(path[:-1], "an entry is missing", f"write {key + 1} entries", "length", "too short")
    about = f" ({info.description})" if info is not None and info.description else ""
    there = [key_text((k,)) for k in parent] if isinstance(parent, Mapping) else []
    there = there if len(there) <= MOST_KEYS else [*there[:MOST_KEYS], "…"]
    hint = f"add {key}{about}; keys here: {', '.join(there) or 'none'}"
    return Problem(path, "this key is missing", hint, "missing-key", f"no {key} in here")


def _allowed(model: type[BaseModel], path: KeyPath) -> list[str]:
    """The keys of the mapping at a path."""
    owner = _owner(model, path)
    return [] if owner is None else list(written_keys(owner))


def _meant(model: type[BaseModel], data: object, path: KeyPath) -> tuple[str, ...]:
    """Keys that an unknown one may be meant for: those near it that are not there already."""
    taken = _at(data, path[:-1])
    there: Mapping[Any, Any] = taken if isinstance(taken, Mapping) else {}
    return nearest(str(path[-1]), (n for n in _allowed(model, path[:-1]) if n not in there))


def _only_meant(model: type[BaseModel], data: object, path: KeyPath) -> str:
    return next(iter(_meant(model, data, path)), "")


def _unknown(model: type[BaseModel], data: object, path: KeyPath) -> Problem:
    near = _meant(model, data, path)
    names = ", ".join(_allowed(model, path[:-1]))
    hint = f"did you mean {either(near)}?" if near else f"keys allowed here: {names}"
    where = key_text(path[:-1]) or "this file"
    return Problem(path, "unknown key", hint, "unknown-key", f"not a key of {where}", at_key=True)


def _length(path: KeyPath, context: Mapping[str, Any], value: object, kind: str) -> Problem | None:
    """Too long or too short. A list that is long enough but for its wrong entries is not called short."""
    size = len(value) if isinstance(value, str | tuple) else 0
    one, more = ("character", "characters") if isinstance(value, str) else ("entry", "entries")
    least, most = context.get("min_length"), context.get("max_length")
    if (least is None or size >= least) and (most is None or size <= most):
        return None
    limit = least if most is None else most
    bound = f"at {'least' if most is None else 'most'} {limit:,} {one if limit == 1 else more}"
    message = "is empty" if size == 0 else f"{size:,} {one if size == 1 else more}"
    return Problem(path, message, f"write {bound}", "length", bound if size else "")


def _wrong_type(path: KeyPath, value: object, types: list[str], choices: list[str], info: FieldInfo | None) -> Problem:
    wanted = either([_TYPES[t] for t in types] + ([f"one of {', '.join(choices)}"] if choices else []))
    numeric = "int" in types or "float" in types
    hint = _write(with_range(wanted, info) if numeric else wanted, info)
    if isinstance(value, str):
        plain = value.strip().replace(",", "").replace("_", "")
        if "int" in types and re.fullmatch(r"-?[0-9]{1,30}", plain):
            hint = f"write {int(plain)}" + (", without quotes" if plain == value and value == str(int(plain)) else "")
        elif "float" in types and re.fullmatch(r"-?[0-9]{1,30}(\.[0-9]{1,30})?", plain):
            hint = f"write {plain}" + (", without quotes" if plain == value else "")
        elif "bool" in types and value.lower() in ("yes", "on", "true", "y", "no", "off", "false", "n"):
            hint = f"write {'true' if value.lower() in ('yes', 'on', 'true', 'y') else 'false'}"
    elif isinstance(value, float) and value.is_integer() and "int" in types and abs(value) < 1e15:
        hint = f"write {int(value)}"
    elif isinstance(value, int | float) and "string" in types:
        hint = f'write "{value}" in quotes' if abs(value) < 1e15 else "write it in quotes"
    return Problem(path, f"must be {wanted}, not {found(value)}", hint, "type")


def _is_whole(info: FieldInfo | None) -> bool:
    return info is not None and int in _members(info.annotation)


def _type_wanted(kind: str) -> str | None:
    """The written type that a pydantic error asks for: int_type, int_from_float, model_attributes_type, ..."""
    if kind == "is_instance_of":
        return None
    head = kind.partition("_")[0]
    return head if head in _TYPES else None


def _choices(detail: Mapping[str, Any]) -> list[str]:
    return re.findall(r"'([^']*)'", str(detail.get("ctx", {}).get("expected", "")))


def with_range(wanted: str, info: FieldInfo | None) -> str:
    """Like "a whole number from 1 to 1,024", as the field says."""
    bounds: dict[str, Any] = {}
    for rule in info.metadata if info is not None else ():
        bounds |= {name: getattr(rule, name) for name in _RANGE if getattr(rule, name, None) is not None}
    low = (
        f"from {number_text(bounds['ge'])}"
        if "ge" in bounds
        else f"above {number_text(bounds['gt'])}"
        if "gt" in bounds
        else ""
    )
    if "le" in bounds:
        high = f"to {number_text(bounds['le'])}" if "ge" in bounds else f"at most {number_text(bounds['le'])}"
    else:
        high = f"below {number_text(bounds['lt'])}" if "lt" in bounds else ""
    joined = f"{low} {high}" if high.startswith("to") else " and ".join(filter(None, (low, high)))
    return f"{wanted} {joined}".rstrip()


def _write(wanted: str, info: FieldInfo | None) -> str:
    about = f" ({info.description})" if info is not None and info.description else ""
    return f"write {wanted}{about}"
