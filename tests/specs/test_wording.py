"""Words and names in messages."""

import pytest

from hetplan.specs.wording import did_you_mean, distance, either, found, key_text, nearest, number_text, quote, shorten


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ((), ""),
        (("groups", 0, "inter_node", "bandwidth"), "groups[0].inter_node.bandwidth"),
        ((1, "a"), "[1].a"),
        (("a b", "c.d"), '"a b"."c.d"'),
    ],
)
def test_key_paths_read_like_code(path: tuple[str | int, ...], text: str) -> None:
    """Keys are joined with dots, positions stand in brackets, odd keys in quotes."""
    assert key_text(path) == text


@pytest.mark.parametrize(
    ("a", "b", "edits"),
    [("", "", 0), ("abc", "abc", 0), ("abc", "", 3), ("abc", "abd", 1), ("smx4", "sxm4", 1), ("ca", "abc", 3)],
)
def test_distance_counts_edits(a: str, b: str, edits: int) -> None:
    """Two swapped neighbours are one edit, and the distance is the same both ways."""
    assert distance(a, b) == distance(b, a) == edits


def test_nearest_names_come_first_and_far_ones_not_at_all() -> None:
    """At most three names, nearest first, in the given order where equally near."""
    names = ("bandwidth", "latency", "total_bandwidth", "path")
    assert nearest("bandwith", names) == ("bandwidth",)
    assert nearest("pth", names) == ("path",)
    assert nearest("speed", names) == ()
    assert nearest("node1", ("node2", "node3", "node4", "node11", "node")) == ("node2", "node3", "node4")
    assert nearest("x" * 1000, ("x" * 999,)) == ()


def test_suggestions_are_a_question() -> None:
    """Names are joined with commas and "or"; no names give no question."""
    assert did_you_mean("ab1", ("ab2", "ab3", "ab4")) == "did you mean ab2, ab3 or ab4?"
    assert did_you_mean("ab1", ("completely", "else")) == ""
    assert (either(()), either(("a",)), either(("a", "b"))) == ("", "a", "a or b")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "nothing"),
        (True, "true"),
        (12345, "12,345"),
        (2.5, "2.5"),
        (3.0, "3 written as a decimal"),
        (10**30, "1e+30"),
        (10**290, "1e+290"),
        (10**400, "a huge number"),
        (1e-9, "1e-09"),
        ("eight", 'text "eight"'),
        ("", "empty text"),
        ({}, "a mapping of keys"),
        ((), "a list"),
    ],
)
def test_found_values_are_named(value: object, text: str) -> None:
    """What stands in the file is shown briefly."""
    assert found(value) == text


def test_number_text_keeps_the_sign() -> None:
    """Negative numbers stay negative."""
    assert (number_text(-3), number_text(-1234567)) == ("-3", "-1,234,567")


def test_long_texts_lose_their_middle() -> None:
    """Both ends of a long text stay, and it has the length asked for."""
    text = shorten("a" * 100 + "z" * 100, 20)
    assert (len(text), text[0], text[-1], text.count("…")) == (20, "a", "z", 1)
    assert shorten("short") == "short"
    assert shorten("a\udcff") == "a\\udcff"
    assert quote("x" * 500).startswith('"xxx')
    assert len(quote("x" * 500)) == 50
