"""Written quantities."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetplan.units import UNITS, Dimension, UnitError, parse


@pytest.mark.parametrize(
    ("text", "dimension", "value"),
    [
        ("400 Gbit/s", Dimension.BYTES_PER_S, 50e9),
        ("50 GB/s", Dimension.BYTES_PER_S, 50e9),
        ("80 GB", Dimension.BYTES, 80e9),
        ("80GiB", Dimension.BYTES, 80 * 2**30),
        ("1,024 MiB", Dimension.BYTES, 2**30),
        ("312 TFLOP/s", Dimension.FLOPS_PER_S, 312e12),
        ("5 us", Dimension.SECONDS, 5e-6),
        ("1.5e3 h", Dimension.SECONDS, 1.5e3 * 3600),
        ("400 W", Dimension.WATTS, 400),
    ],
)
def test_quantities(text: str, dimension: Dimension, value: float) -> None:
    """Numbers with units become numbers in base units; bits are eighths of bytes."""
    assert parse(text, dimension) == pytest.approx(value, rel=1e-15)


@pytest.mark.parametrize("unit", ["Gb/s", "gb/s", "Gbps", "gbps", "GBps", "Gbit", "Gbits/s"])
def test_bits_or_bytes_is_asked(unit: str) -> None:
    """A rate that could be bits or bytes is never guessed: a factor of 8 hangs on it."""
    with pytest.raises(UnitError, match="bits or bytes") as error:
        parse(f"800 {unit}", Dimension.BYTES_PER_S)
    assert error.value.hint == "write 800 Gbit/s (= 100 GB/s) or 800 GB/s"


@pytest.mark.parametrize("text", ["400", 400, None, "", "GB/s", "fast", "400 GB", "4 00 GB/s", "nan GB/s", "9" * 10**6])
def test_not_a_rate(text: object) -> None:
    """A bare number, another dimension or no number at all is refused with a hint."""
    with pytest.raises(UnitError) as error:
        parse(text, Dimension.BYTES_PER_S)
    assert "write for example" in error.value.hint


@given(
    number=st.floats(1e-3, 1e6),
    dimension=st.sampled_from(list(Dimension)),
    pick=st.integers(0, 10**6),
)
def test_every_unit_reads_back(number: float, dimension: Dimension, pick: int) -> None:
    """Any number with any unit of the dimension reads as number times the unit."""
    units = list(UNITS[dimension].items())
    unit, factor = units[pick % len(units)]
    assert parse(f"{number!r} {unit}", dimension) == number * factor
