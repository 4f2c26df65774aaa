"""What options take: limits, odd numbers, messages."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetplan.cli.kinds import Choice, Kind, Number, Text, Whole, read_value
from hetplan.errors import SpecError

WHOLE = Whole(least=1, most=64)
SHARE = Number(below=1)
SECONDS = Number(below=1e8, zero=False)
SOLVER = Choice(("highs", "scip"))


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [(WHOLE, "1", 1), (WHOLE, "64", 64), (WHOLE, "+8", 8), (SHARE, "0", 0.0), (SHARE, "1e-3", 0.001),
     (SHARE, ".999", 0.999), (SECONDS, "0.5", 0.5), (SOLVER, "scip", "scip"), (Text("FILE"), "-", "-")],
)  # fmt: skip
def test_good_values(kind: Kind, text: str, value: object) -> None:
    """Values at and within the limits are read."""
    assert read_value("--flag", kind, text) == value


@pytest.mark.parametrize(
    ("kind", "text"),
    [(WHOLE, "0"), (WHOLE, "65"), (WHOLE, "-1"), (WHOLE, "1.0"), (WHOLE, "1e1"), (WHOLE, "1_0"), (WHOLE, "٣"),
     (WHOLE, "9" * 5000), (SHARE, "1"), (SHARE, "-1e-9"), (SHARE, "nan"), (SHARE, "inf"), (SHARE, "1%"),
     (SECONDS, "0"), (SECONDS, "1e8"), (SECONDS, "60 s"), (SOLVER, "HIGHS"), (SOLVER, ""), (Text("FILE"), "")],
)  # fmt: skip
def test_bad_values(kind: Kind, text: str) -> None:
    """Values outside are refused, with the option and what to write."""
    with pytest.raises(SpecError) as caught:
        read_value("--flag", kind, text)
    (mistake,) = caught.value.mistakes
    assert (mistake.key, mistake.file) == ("--flag", "command line")
    assert mistake.hint
    assert len(mistake.message) < 120


@given(st.text(max_size=12))
def test_any_text(text: str) -> None:
    """Whatever is written is read within the limits or refused."""
    for kind in (WHOLE, SHARE, SECONDS):
        try:
            value = read_value("--flag", kind, text)
        except SpecError:
            continue
        assert math.isfinite(value)
        assert value >= 0
