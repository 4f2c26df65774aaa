"""What validation finds, in the words of the file."""

from typing import Any, Literal

import pytest
from pydantic import Field, field_validator

from hetplan.specs.document import Problem
from hetplan.specs.quantities import BytesPerSecond, Spec
from hetplan.specs.validation import validate, written_keys


class Inner(Spec):
    """A part with a quantity."""

    rate_bytes_per_s: BytesPerSecond = Field(alias="rate", description="per direction")
    note: str = Field("", max_length=5, description="a remark")


class Outer(Spec):
    """One field of each kind."""

    count: int = Field(ge=1, le=1000, description="how many")
    share: float = Field(0.5, gt=0, le=1, description="part of it")
    price: float | None = Field(None, gt=0, lt=1e6, description="USD")
    name: str = Field("x", min_length=1, description="what it is called")
    on: bool = Field(False, description="whether it runs")
    kind: Literal["red", "green"] = Field("red", description="which one")
    bias: bool | Literal["qkv"] = Field(False, description="where")
    inner: Inner | None = Field(None, description="more of it")
    parts: tuple[Inner, ...] = Field((), max_length=2, description="several")
    ends: tuple[str, str] = Field(("a", "b"), description="both ends")
    even: int | None = Field(None, description="an even number")

    @field_validator("even")
    @classmethod
    def _is_even(cls, value: int | None) -> int | None:
        if value is not None and value % 2:
            raise ValueError("must be even")
        return value


def problems(**data: Any) -> list[Problem]:
    """Problems of an Outer with these values."""
    return validate(Outer, {"count": 1, **data})[1]


def test_good_data_have_no_problems() -> None:
    """The model is built from written keys and units."""
    value, found = validate(Outer, {"count": 3, "inner": {"rate": "8 Gbit/s"}, "parts": ({"rate": "1 GB/s"},)})
    assert found == []
    assert value is not None
    assert value.inner is not None
    assert value.inner.rate_bytes_per_s == value.parts[0].rate_bytes_per_s == 1e9


@pytest.mark.parametrize(
    ("data", "path", "kind", "message", "hint"),
    [
        ({"count": 0}, ("count",), "range", "0 is out of range", "write a whole number from 1 to 1,000 (how many)"),
        ({"count": 10**30}, ("count",), "range", "1e+30 is out of range", "a whole number from 1 to 1,000"),
        ({"share": 0}, ("share",), "range", "0 is out of range", "write a number above 0 and at most 1 (part of it)"),
        ({"price": -1.5}, ("price",), "range", "-1.5 is out of range", "a number above 0 and below 1,000,000 (USD)"),
        ({"count": "8"}, ("count",), "type", 'must be a whole number, not text "8"', "write 8, without quotes"),
        ({"count": "1_000"}, ("count",), "type", 'must be a whole number, not text "1_000"', "write 1000"),
        ({"count": "1,000"}, ("count",), "type", 'must be a whole number, not text "1,000"', "write 1000"),
        ({"count": "010"}, ("count",), "type", 'must be a whole number, not text "010"', "write 10"),
        (
            {"count": "many"},
            ("count",),
            "type",
            'must be a whole number, not text "many"',
            "from 1 to 1,000 (how many)",
        ),
        ({"count": 8.0}, ("count",), "type", "must be a whole number, not 8 written as a decimal", "write 8"),
        ({"count": 8.5}, ("count",), "type", "must be a whole number, not 8.5", "a whole number from 1 to 1,000"),
        ({"count": True}, ("count",), "type", "must be a whole number, not true", "a whole number from 1 to 1,000"),
        ({"count": None}, ("count",), "type", "must be a whole number, not nothing", "a whole number from 1 to 1,000"),
        ({"count": {}}, ("count",), "type", "must be a whole number, not a mapping of keys", "a whole number"),
        ({"share": "0.5"}, ("share",), "type", 'must be a number, not text "0.5"', "write 0.5, without quotes"),
        ({"name": 5}, ("name",), "type", "must be text, not 5", 'write "5" in quotes'),
        ({"name": ("a",)}, ("name",), "type", "must be text, not a list", "write text (what it is called)"),
        ({"name": ""}, ("name",), "length", "is empty", "write at least 1 character"),
        ({"on": "yes"}, ("on",), "type", 'must be true or false, not text "yes"', "write true"),
        ({"on": "Off"}, ("on",), "type", 'must be true or false, not text "Off"', "write false"),
        ({"on": 1}, ("on",), "type", "must be true or false, not 1", "write true or false (whether it runs)"),
        (
            {"kind": "gren"},
            ("kind",),
            "choice",
            '"gren" is not one of the choices',
            "did you mean green?  Choices: red, green",
        ),
        ({"kind": "blue"}, ("kind",), "choice", '"blue" is not one of the choices', "choices: red, green"),
        ({"kind": 3}, ("kind",), "type", "must be one of red, green, not 3", "write one of red, green (which one)"),
        ({"bias": "qvk"}, ("bias",), "choice", '"qvk" is not one of the choices', "did you mean qkv?"),
        (
            {"bias": 3},
            ("bias",),
            "type",
            "must be true or false or one of qkv, not 3",
            "write true or false or one of qkv",
        ),
        ({"inner": 5}, ("inner",), "type", "must be a mapping of keys, not 5", "write a mapping of keys (more of it)"),
        ({"inner": {"rate": 5}}, ("inner", "rate"), "quantity", "needs a number and a unit", "Gbit/s"),
        ({"inner": {"rate": "0 GB/s"}}, ("inner", "rate"), "quantity", "must be above 0", "Gbit/s"),
        ({"inner": {"rate": "5 GiB"}}, ("inner", "rate"), "quantity", '"GiB" is a unit of another kind', "Gbit/s"),
        (
            {"inner": {}},
            ("inner", "rate"),
            "missing-key",
            "this key is missing",
            "add rate (per direction); keys here: none",
        ),
        (
            {"inner": {"rate": "1 B/s", "note": "too long"}},
            ("inner", "note"),
            "length",
            "8 characters",
            "at most 5 characters",
        ),
        ({"parts": {}}, ("parts",), "type", "must be a list, not a mapping of keys", "write a list (several)"),
        ({"parts": ({"rate": "1 B/s"},) * 3}, ("parts",), "length", "3 entries", "write at most 2 entries"),
        ({"parts": ({"rate": 5},)}, ("parts", 0, "rate"), "quantity", "needs a number and a unit", "Gbit/s"),
        ({"ends": ("a",)}, ("ends",), "length", "an entry is missing", "write 2 entries"),
        ({"ends": ("a", "b", "c")}, ("ends",), "length", "3 entries", "write at most 2 entries"),
        ({"ends": ("a", 2)}, ("ends", 1), "type", "must be text, not 2", 'write "2" in quotes'),
        ({"even": 3}, ("even",), "value", "must be even", "write another value (an even number)"),
        ({"cuont": 3}, ("cuont",), "unknown-key", "unknown key", "keys allowed here: count, share, price"),
        ({"shar": 3}, ("shar",), "unknown-key", "unknown key", "did you mean share?"),
        ({"inner": {"rate": "1 B/s", "nte": ""}}, ("inner", "nte"), "unknown-key", "unknown key", "did you mean note?"),
        ({"parts": ({"rate": "1 B/s", "x": 1},)}, ("parts", 0, "x"), "unknown-key", "unknown key", "here: rate, note"),
    ],
)
def test_each_mistake_is_one_problem(data: dict[str, Any], path: object, kind: str, message: str, hint: str) -> None:
    """Where, what is wrong, and what would be right."""
    (problem,) = problems(**data)
    assert (problem.path, problem.kind, problem.message) == (path, kind, message)
    assert hint in problem.hint


def test_a_question_moves_beside_the_caret() -> None:
    """The unit that is none is named in the message; the question stands in the note."""
    (problem,) = problems(inner={"rate": "800 Gb/s"})
    assert (problem.message, problem.note) == ('"Gb/s" is not a unit', "bits or bytes?")
    assert "800 Gbit/s" in problem.hint


def test_keys_that_are_there_are_not_suggested() -> None:
    """A second spelling of a key that is given cannot be meant for it."""
    (problem,) = problems(counts=3)
    assert problem.hint.startswith("keys allowed here: count, share")


def test_a_misspelt_key_is_one_mistake() -> None:
    """The key that was meant is not called missing as well."""
    (problem,) = validate(Outer, {"cuont": 3})[1]
    assert (problem.path, problem.kind, problem.hint) == (("cuont",), "unknown-key", "did you mean count?")
    kinds = {p.kind for p in validate(Outer, {"completely": 3})[1]}
    assert kinds == {"unknown-key", "missing-key"}


def test_a_list_with_wrong_entries_is_not_called_short() -> None:
    """Entries that fail are mistakes themselves."""

    class Several(Spec):
        parts: tuple[Inner, ...] = Field(min_length=1)

    (problem,) = validate(Several, {"parts": ({"rate": 5},)})[1]
    assert problem.path == ("parts", 0, "rate")
    (problem,) = validate(Several, {"parts": ()})[1]
    assert (problem.message, problem.hint) == ("is empty", "write at least 1 entry")


@pytest.mark.parametrize("data", [None, 5, "text", (1, 2), ({"count": 1},)])
def test_a_file_that_holds_no_mapping_is_one_mistake(data: object) -> None:
    """A list or a text instead of keys is said at the top."""
    value, found = validate(Outer, data)
    assert value is None
    assert [(p.path, p.kind) for p in found] == [((), "type")]
    assert found[0].message.startswith("must be a mapping of keys, not ")


def test_field_names_are_not_written_keys() -> None:
    """A file gives `rate` with its unit; the name of the field in the program is an unknown key."""
    (problem,) = problems(inner={"rate": "1 B/s", "rate_bytes_per_s": 5})
    assert (problem.path, problem.kind) == (("inner", "rate_bytes_per_s"), "unknown-key")
    assert list(written_keys(Inner)) == ["rate", "note"]


def test_words_of_the_library_do_not_leak() -> None:
    """No message speaks of inputs, models or the library that found the mistake."""
    data = {"count": {}, "share": "x", "name": 5, "on": 3, "kind": 5, "bias": (), "inner": (), "ends": 3, "x": 1}
    words = " ".join(f"{p.message} {p.hint} {p.note}" for p in problems(**data)).lower()
    assert words
    for word in ("input", "pydantic", "valid ", "instance", "literal", "tuple", "dictionary", "string", "http"):
        assert word not in words


def test_thousands_of_mistakes_are_cut_off() -> None:
    """A list of the wrong type gives a bounded number of problems."""

    class Names(Spec):
        names: tuple[str, ...]

    assert 0 < len(validate(Names, {"names": tuple(range(50_000))})[1]) <= 2000
