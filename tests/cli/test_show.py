"""`hetplan show`: the lists, one entry in full, names that do not exist."""

import pytest

from hetplan.cost.profiles import stack_names
from hetplan.report.show import FORMATS, SORT_KEYS
from hetplan.schedule.schedules import SCHEDULES
from hetplan.specs.catalog import names
from tests.cli.runner import Run


def test_accelerators(run: Run) -> None:
    """All of the catalogue, in a table and as one object."""
    done = run("show", "accelerators")
    assert (done.code, done.err) == (0, "")
    assert all(name in done.out for name in names())
    record = run("show", "accelerators", "--json").record
    assert (record["command"], record["topic"]) == ("show", "accelerators")
    assert sorted(sheet["name"] for sheet in record["accelerators"]) == list(names())


@pytest.mark.parametrize("number_format", FORMATS)
def test_accelerators_of_a_format(run: Run, number_format: str) -> None:
    """--supports keeps those that train in the format."""
    record = run("show", "accelerators", "--supports", number_format, "--json").record
    assert all(number_format in sheet["formats"] for sheet in record["accelerators"])


@pytest.mark.parametrize("key", SORT_KEYS)
def test_order(run: Run, key: str) -> None:
    """Every sort key is taken, and none loses an entry."""
    record = run("show", "accelerators", "--sort", key, "--json").record
    assert len(record["accelerators"]) == len(names())


def test_one_accelerator(run: Run) -> None:
    """A catalogue name or a driver's name gives one datasheet with its sources."""
    done = run("show", "accelerators", "NVIDIA A100-SXM4-80GB")
    assert done.code == 0
    assert done.out.startswith("a100-sxm4-80gb")
    record = run("show", "accelerators", "a100-sxm4-80gb", "--json").record
    assert [sheet["name"] for sheet in record["accelerators"]] == ["a100-sxm4-80gb"]


@pytest.mark.parametrize(
    ("name", "hint"),
    [("A100", "a100-sxm4-80gb"), ("a100-sxm4-80g", "a100-sxm4-80gb"), ("abacus", "hetplan show accelerators lists")],
)
def test_unknown_accelerator(run: Run, name: str, hint: str) -> None:
    """A name that fits none or several: exit 2 with those that may be meant."""
    done = run("show", "accelerators", name, "--json")
    assert (done.code, done.error["key"]) == (2, "NAME")
    assert hint in done.error["hint"]


def test_options_of_the_list(run: Run) -> None:
    """What orders a list has no meaning for one entry."""
    done = run("show", "accelerators", "a100-sxm4-80gb", "--sort", "name", "--json")
    assert (done.code, done.error["key"]) == (2, "--sort")
    done = run("show", "accelerators", "--supports", "fp7", "--sort", "size", "--json")
    assert [error["key"] for error in done.record["errors"]] == ["--supports", "--sort"]


def test_stacks(run: Run) -> None:
    """All profiles, or one with every figure and its source."""
    done = run("show", "stacks")
    assert (done.code, done.err) == (0, "")
    assert all(name in done.out for name in stack_names())
    for name in stack_names():
        record = run("show", "stacks", name, "--json").record
        assert record["topic"] == "stacks"
        (stack,) = record["stacks"]
        text = run("show", "stacks", name).out
        plain = " ".join(text.split())
        assert all(key in text for key in stack["sources"])
        assert all(" ".join(source.split()[:3]) in plain for source in stack["sources"].values())


def test_unknown_stack(run: Run) -> None:
    """A profile that does not exist: exit 2, and those that do."""
    done = run("show", "stacks", "megatron", "--json")
    assert (done.code, done.error["key"]) == (2, "NAME")
    assert "megatron-core" in done.error["hint"]


def test_schedules(run: Run) -> None:
    """All schedules with what they do."""
    done = run("show", "schedules")
    assert (done.code, done.err) == (0, "")
    record = run("show", "schedules", "--json").record
    assert [entry["name"] for entry in record["schedules"]] == [entry.name for entry in SCHEDULES]
    assert all(entry.name in done.out for entry in SCHEDULES)
