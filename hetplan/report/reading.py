"""Records read back: what `search` and `predict` wrote, and plans written by hand."""

import json
from dataclasses import dataclass
from typing import Any, Literal, NoReturn, TypeVar

from pydantic import ValidationError

from hetplan.cost.profiles import StackSpec
from hetplan.errors import Mistake, SpecError
from hetplan.plan import Plan
from hetplan.prediction import SingleType
from hetplan.report.records import SCHEMA_VERSION, InputsRecord, ResultRecord, SingleTypeRecord
from hetplan.specs.loader import Document, Problem, parse_document, problems_to_mistakes
from hetplan.specs.quantities import Spec
from hetplan.specs.validation import problems_of
from hetplan.specs.wording import KeyPath, key_text, quote

T = TypeVar("T", bound=Spec)

_MOST_MISTAKES = 20
_JSON_STARTS = ("{", "[")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanFile:
    """A plan, and what the record that held it was made from; a plan written by itself has neither."""

    plan: Plan
    inputs: InputsRecord | None = None
    stack: StackSpec | None = None
    single_types: tuple[SingleType, ...] = ()
    rank: int | None = None
    """Rank of the plan in its result; None where it is the only one."""


def read_record(text: str, file: str = "<stdin>") -> ResultRecord:
    """A result record, as `hetplan search --json` or `-o` wrote it. Raises SpecError with what is wrong, and where."""
    data = _object(text, file)
    if data.get("command") != "search" or "plans" not in data:
        raise _not_a_result(data, file)
    _check_version(data, file)
    return _validate(ResultRecord, data, (), text, file)


def read_plan_file(text: str, rank: int = 1, file: str = "<stdin>") -> PlanFile:
    """Like `read_plan`, with the inputs of the record."""
    plan = read_plan(text, rank, file)
    data = _object(text, file) if _is_json(text) else {}
    if "inputs" not in data:
        return PlanFile(plan=plan)
    inputs = _validate(InputsRecord, data["inputs"], ("inputs",), text, file)
    stack = _validate(StackSpec, inputs.stack, ("inputs", "stack"), text, file)
    entries = data.get("single_types", [])
    if not isinstance(entries, list):
        raise _mistake(file, "is not a list", key="single_types")
    records = [_validate(SingleTypeRecord, e, ("single_types", i), text, file) for i, e in enumerate(entries)]
    singles = tuple(SingleType(accelerator=r.accelerator, tokens_per_s=r.tokens_per_s) for r in records)
    place = rank if "plans" in data else None
    return PlanFile(plan=plan, inputs=inputs, stack=stack, single_types=singles, rank=place)


def _is_json(text: str) -> bool:
    return text.lstrip("\ufeff \t\r\n")[:1] in _JSON_STARTS


def read_plan(text: str, rank: int = 1, file: str = "<stdin>") -> Plan:
    """The plan of a result record (by rank) or of a predict record, or a plan written out in JSON or YAML."""
    if not _is_json(text):
        return _written_plan(text, file)
    data = _object(text, file)
    _check_version(data, file)
    if "plans" in data:
        entries = data["plans"]
        if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
            raise _mistake(file, "plans is not a list of plans", key="plans")
        index = _index_of_rank([entry.get("rank") for entry in entries], rank, data.get("status"), file)
        path: KeyPath = ("plans", index, "plan")
        if "plan" not in entries[index]:
            raise _mistake(file, "has no plan", key=key_text(path[:-1]))
        return _validate(Plan, entries[index]["plan"], path, text, file)
    if rank != 1:
        raise _mistake(file, f"there is no plan of rank {rank}: this holds one plan", "leave out --rank")
    if "plan" in data:
        return _validate(Plan, data["plan"], ("plan",), text, file)
    if "stages" in data:
        return _validate(Plan, data, (), text, file)
    raise _not_a_result(data, file)


def _index_of_rank(ranks: list[Any], rank: int, status: object, file: str) -> int:
    if not ranks:
        hint = "search for one with other inputs" if status == "infeasible" else "search again with a higher limit"
        raise _mistake(file, f"holds no plan: the search ended {quote(str(status))}", hint, key="plans")
    if rank not in ranks:
        known = sorted(r for r in ranks if isinstance(r, int))
        choice = f"{known[0]} to {known[-1]}" if len(known) > 1 else "1"
        raise _mistake(file, f"there is no plan of rank {rank}", f"--rank takes {choice} here", key="plans")
    return ranks.index(rank)


def _written_plan(text: str, file: str) -> Plan:
    """A plan in YAML, read with positions."""
    document = parse_document(text, file)
    if document.mistakes:
        raise SpecError(*document.mistakes)
    if not isinstance(document.data, dict) or "stages" not in document.data:
        raise _mistake(file, "is neither a result nor a plan", "a plan has the key stages: see hetplan schema plan")
    try:
        return Plan.model_validate(document.data)
    except ValidationError as error:
        raise SpecError(*problems_to_mistakes(document, problems_of(error, Plan, document.data))) from None


def _object(text: str, file: str) -> dict[str, Any]:
    """The JSON object in a text, its duplicate keys and odd numbers refused."""
    duplicates: list[str] = []

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(items)
        if len(found) < len(items):
            names = [name for name, _ in items]
            duplicates.extend(name for name in found if names.count(name) > 1)
        return found

    def constant(name: str) -> NoReturn:
        raise ValueError(f"{name} is not a number in JSON")

    text = text.removeprefix("\ufeff")
    if not text.strip():
        raise _mistake(file, "is empty", "write one with: hetplan search CLUSTER MODEL -o r.json")
    try:
        data = json.loads(text, object_pairs_hook=pairs, parse_constant=constant)
    except json.JSONDecodeError as error:
        raise SpecError(
            Mistake(
                kind="syntax",
                message=f"is not JSON: {error.msg[:1].lower()}{error.msg[1:]}",
                hint="results are JSON as hetplan search --json writes it",
                file=file,
                line=error.lineno,
                column=error.colno,
            )
        ) from None
    except RecursionError:
        raise _mistake(file, "is nested too deeply", "is this the right file?") from None
    except ValueError as error:
        # Besides `constant`: a whole number of more digits than Python reads.
        message = str(error) if "JSON" in str(error) else "holds a number that is too long"
        raise _mistake(file, message, "numbers in records are finite") from None
    if not isinstance(data, dict):
        raise _mistake(file, "is not a JSON object", "write one with: hetplan search CLUSTER MODEL -o r.json")
    if duplicates:
        raise _mistake(file, "given twice", "remove one of the two; neither is taken silently", key=duplicates[0])
    return data


def _check_version(data: dict[str, Any], file: str) -> None:
    version = data.get("schema_version", SCHEMA_VERSION)
    if type(version) is not int or version != SCHEMA_VERSION:
        message = f"schema_version {quote(str(version))} is not known here"
        raise _mistake(file, message, f"this hetplan reads version {SCHEMA_VERSION}", key="schema_version")


def _not_a_result(data: dict[str, Any], file: str) -> SpecError:
    errors = data.get("errors")
    if isinstance(errors, list) and errors and isinstance(errors[0], dict):
        message = f"holds an error, not a result: {errors[0].get('message', 'unknown')}"
        return _mistake(file, message, "run that command again once it is mended")
    command = data.get("command")
    if isinstance(command, str):
        message = f"is what hetplan {command} printed, not the result of a search"
    else:
        message = "is not the result of a search"
    return _mistake(file, message, "write one with: hetplan search CLUSTER MODEL -o r.json")


def _validate(model: type[T], data: object, path: KeyPath, text: str, file: str) -> T:
    """The model of JSON data; a SpecError names the key path and, where the text can be located, line and column."""
    try:
        return model.model_validate_json(json.dumps(data), by_alias=False, by_name=True)
    except ValidationError as error:
        problems = problems_of(error, model, _frozen(data))
    mistakes = _located(problems, path, text, file)
    left_out = len(mistakes) - _MOST_MISTAKES
    if left_out > 0:
        more = Mistake(kind="value", message=f"and {left_out} more like these", file=file)
        mistakes = (*mistakes[:_MOST_MISTAKES], more)
    raise SpecError(*mistakes)


def _located(problems: list[Problem], path: KeyPath, text: str, file: str) -> tuple[Mistake, ...]:
    problems = [problem._replace(path=(*path, *problem.path)) for problem in problems]
    try:
        document = parse_document(text, file)
    except SpecError:
        # Too long for positions; key paths remain.
        document = Document(data=None, file=file, lines=())
    return tuple(problems_to_mistakes(document, problems))


def _frozen(data: object) -> object:
    """JSON data as the spec loader holds it: lists as tuples."""
    if isinstance(data, dict):
        return {key: _frozen(value) for key, value in data.items()}
    if isinstance(data, list):
        return tuple(_frozen(value) for value in data)
    return data


def _mistake(
    file: str, message: str, hint: str = "", *, kind: Literal["record"] = "record", key: str | None = None
) -> SpecError:
    return SpecError(Mistake(kind=kind, message=message, hint=hint, file=file, key=key))
