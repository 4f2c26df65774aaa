"""Numbers as they are printed."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetplan.report import numbers

TIMES = st.floats(1e-8, 999.0)
UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9, "min": 60.0, "h": 3600.0, "d": 86400.0}


def read_back(text: str) -> float:
    """Seconds of a printed time."""
    return sum(float(n.replace(",", "")) * UNITS[u] for n, u in re.findall(r"([\d,.]+) (\w+)", text))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (31.78, "31.8 s"),
        (0.574, "574 ms"),
        (2e-5, "20.0 us"),
        (5e-10, "0.500 ns"),
        (0.0, "0 s"),
        (0.99951, "1.00 s"),
        (0.9994, "999 ms"),
        (999.4, "999 s"),
        (999.6, "16 min 40 s"),
        (3599.7, "1 h 0 min"),
        (3 * 86400 + 4 * 3600 + 5, "3 d 4 h"),
        (86400 * 12345, "12,345 d 0 h"),
    ],
)
def test_seconds(value: float, text: str) -> None:
    """Three digits in the unit that keeps the value from 1 to 1,000; two units from 1,000 s on."""
    assert numbers.seconds(value) == text


def test_seconds_with_more_digits() -> None:
    """Ranked plans may need more digits, long ones too."""
    assert numbers.seconds(31.7849, 4) == "31.78 s"
    assert numbers.seconds(1234.56, 5) == "1,234.6 s"


@given(TIMES)
def test_seconds_round_trip(value: float) -> None:
    """A printed time is the time, to three digits."""
    assert read_back(numbers.seconds(value)) == pytest.approx(value, rel=0.00501, abs=5.1e-13)


@given(st.floats(1000, 1e9))
def test_long_times_round_trip(value: float) -> None:
    """A long time is right to half of its smaller unit."""
    text = numbers.seconds(value)
    assert abs(read_back(text) - value) <= UNITS[text.split()[-1]] / 2 + 1e-6


@given(st.floats(1e-8, 1e7))
def test_a_bound_is_never_overstated(value: float) -> None:
    """The printed bound is at most the bound, and within its last digit."""
    shown = read_back(numbers.seconds_at_least(value))
    assert shown <= value * (1 + 1e-12)
    assert shown >= value * 0.989 - 1e-12 or value > 1000


def test_a_bound_equal_to_the_time_prints_equal() -> None:
    """Rounding down leaves a value alone that needs no rounding."""
    assert numbers.seconds_at_least(31.8) == "31.8 s"
    assert numbers.seconds_at_least(0.29) == "290 ms"
    assert numbers.seconds_at_least(31.89) == "31.8 s"
    assert numbers.seconds_at_least(0) == "0 s"


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [
        (30.19, 33.37, "30.2–33.4 s"),
        (0.0301, 0.0334, "30.1–33.4 ms"),
        (0.98, 1.024, "0.98–1.02 s"),
        (31.8, 31.8, "31.8 s"),
        (990, 1100, "990 s–18 min 20 s"),
        (0.0, 0.0, "0 s"),
    ],
)
def test_ranges(low: float, high: float, text: str) -> None:
    """A range has its unit once and the same decimals at both ends."""
    assert numbers.seconds_range(low, high) == text


@pytest.mark.parametrize(
    ("values", "digits"),
    [
        ([31.8, 32.3], 3),
        ([31.8, 31.8], 3),
        ([31.81, 31.84], 4),
        ([31.849, 31.851], 5),
        ([1.0, 1.0 + 1e-12], 3),
        ([], 3),
    ],
)
def test_digits_that_tell_apart(values: list[float], digits: int) -> None:
    """Values that differ print apart, and not only because they fall to two sides of a rounding."""
    assert numbers.digits_apart(values) == digits


@given(st.lists(st.floats(0.001, 900), min_size=2, max_size=5))
def test_ranked_times_never_print_equal(values: list[float]) -> None:
    """Two times that differ by a ten-thousandth look different."""
    digits = numbers.digits_apart(values)
    apart = [b for a, b in zip(sorted(values), sorted(values)[1:], strict=False) if b - a > 1.1e-4 * b]
    shown = {numbers.seconds(v, digits) for v in values}
    assert len(shown) >= len(apart) + 1


@pytest.mark.parametrize(
    ("value", "text"),
    [(198_000, "198 k"), (1_980_000, "1.98 M"), (999_600, "1.00 M"), (512, "512"), (5.25, "5.25"), (3e15, "3,000 T")],
)
def test_rates(value: float, text: str) -> None:
    """Three digits and k, M, G or T."""
    assert numbers.rate(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (137_429_000_192, "137 B"),
        (7_248_023_552, "7.25 B"),
        (124_439_808, "124 M"),
        (1_000_000_000_000, "1.00 T"),
        (81, "81"),
    ],
)
def test_parameters(value: int, text: str) -> None:
    """Three digits and M, B or T."""
    assert numbers.parameters(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(0.0, "0%"), (1e-12, "0%"), (1e-6, "<0.1%"), (0.00049, "<0.1%"), (0.0311, "3.1%")]
)
def test_gaps(value: float, text: str) -> None:
    """0% means proved."""
    assert numbers.gap(value) == text


@pytest.mark.parametrize(("value", "text"), [(0.0004, "0.04%"), (0.00041, "0.05%"), (1e-8, "0.01%"), (0.001, "0.1%")])
def test_at_most(value: float, text: str) -> None:
    """An upper bound is rounded up."""
    assert numbers.percent_at_most(value) == text


@given(st.floats(1e-9, 0.5))
def test_at_most_is_never_understated(share: float) -> None:
    """What is printed is at least the share, by less than a hundredth of a percent."""
    shown = float(numbers.percent_at_most(share).rstrip("%")) / 100
    assert share <= shown * (1 + 1e-12)
    assert shown <= share + 1.01e-4


@pytest.mark.parametrize(
    ("before", "after", "text"),
    [
        (100, 101.6, "+1.6%"),
        (100, 96, "−4.0%"),
        (100, 100, "0.0%"),
        (100, 100.02, "+0.02%"),
        (100, 99.997, "−0.003%"),
        (0, 5, "-"),
        (1, 21, "+2,000.0%"),
    ],
)
def test_changes(before: float, after: float, text: str) -> None:
    """A change has its sign, and more decimals before it looks like none."""
    assert numbers.change(before, after) == text


def test_points() -> None:
    """Differences of shares are points, not percent."""
    assert numbers.points(0.453, 0.435) == "−1.8 pt"
    assert numbers.points(0.4, 0.4) == "0.0 pt"


@pytest.mark.parametrize(
    ("value", "text"), [(1.974, "1.97"), (0.0042, "0.0042"), (0.05, "0.050"), (1234.5, "1,234.50")]
)
def test_money(value: float, text: str) -> None:
    """Two decimals, and at least two significant digits."""
    assert numbers.money(value) == text


def test_small_shares() -> None:
    """Slack is whole percent, and never printed as none."""
    assert numbers.slack(0.021) == "2%"
    assert numbers.slack(0.001) == "<1%"
    assert numbers.slack(0.0) == "0%"


@given(st.lists(st.floats(0, 1000), min_size=1, max_size=8), st.integers(0, 2))
def test_parts_add_up_as_printed(values: list[float], decimals: int) -> None:
    """Printed parts sum to the rounded total, none of them off by a whole step."""
    parts = numbers.apportion(values, decimals)
    printed = sum(float(f"{part:.{decimals}f}") for part in parts)
    assert abs(printed - sum(values)) <= 10.0**-decimals * 0.50001
    assert all(abs(a - b) < 10.0**-decimals * (1 + 1e-9) for a, b in zip(parts, values, strict=True))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (numbers.bandwidth(12.5e9, bits=True), "100 Gbit/s"),
        (numbers.bandwidth(240e9, bits=False), "240 GB/s"),
        (numbers.bandwidth(400e9, bits=True), "3,200 Gbit/s"),
        (numbers.bandwidth(1.25e6, bits=True), "10 Mbit/s"),
        (numbers.size(77 * 2**30), "77 GiB"),
        (numbers.size(80e9), "80 GB"),
        (numbers.size(2.0**40), "1,024 GiB"),
        (numbers.duration(2e-5), "20 us"),
        (numbers.duration(0.0), "0 s"),
        (numbers.duration(30000 * 3600.0), "30,000 h"),
        (numbers.flops(312e12), "312 TFLOP/s"),
        (numbers.gib(38.9 * 2**30), "38.9 GiB"),
        (numbers.count(375126), "375,126"),
        (numbers.percent(0.4531), "45.3%"),
        (numbers.percent(0.8594, 0), "86%"),
    ],
)
def test_quantities(text: str, expected: str) -> None:
    """Quantities print as users write them."""
    assert text == expected
