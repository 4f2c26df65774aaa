"""Numbers as they are printed: the report room rounds here and nowhere else.

The texts use – for ranges and − for minus; `hetplan.report.style.Symbols.text` turns them into ASCII where needed.
"""

import math
from collections.abc import Callable, Sequence
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from itertools import pairwise

MISSING = "-"
NO_GAP = 1e-9
"""A relative gap below this is rounding error of the proof, and counts as none."""

_SECOND_UNITS = (("s", 1.0), ("ms", 1e-3), ("us", 1e-6), ("ns", 1e-9))
_LONG_UNITS = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))
_PREFIXES = ("", "k", "M", "G", "T")
_MOST_DIGITS = 6


def count(value: float) -> str:
    """A whole number, with commas for thousands: 375,126."""
    return f"{value:,.0f}"


def _exponent(value: float, digits: int) -> int:
    """Power of ten of the first digit, after rounding to `digits` significant digits."""
    return int(f"{abs(value):.{digits - 1}e}".partition("e")[2])


def _decimals(value: float, digits: int) -> int:
    """Decimals that show `digits` significant digits of `value`; a whole number keeps all of its digits."""
    return 0 if value == 0 else max(0, digits - 1 - _exponent(value, digits))


def significant(value: float, digits: int = 3) -> str:
    """`value` with so many significant digits: 31.8, 0.0420, 1,234."""
    return f"{value:,.{_decimals(value, digits)}f}"


def _second_unit(value: float, digits: int) -> tuple[str, float]:
    """The largest unit in which the rounded value is at least 1."""
    for unit, scale in _SECOND_UNITS:
        if float(f"{abs(value) / scale:.{digits - 1}e}") >= 1:
            return unit, scale
    return _SECOND_UNITS[-1]


def seconds(value: float, digits: int = 3) -> str:
    """A time: 31.8 s, 574 ms, 20.0 us; from 1,000 s on in two units, such as 3 d 4 h."""
    if value == 0:
        return "0 s"
    if float(f"{value:.{digits - 1}e}") >= 1000:
        return _long(value) if digits <= 3 else f"{significant(value, digits)} s"
    unit, scale = _second_unit(value, digits)
    return f"{significant(value / scale, digits)} {unit}"


def _long(value: float, whole: Callable[[float], int] = round) -> str:
    """The two largest units; `whole` rounds to the smaller one."""
    for (large, large_s), (small, small_s) in pairwise(_LONG_UNITS):
        steps = whole(value / small_s)
        if steps * small_s >= large_s:
            number, rest = divmod(steps, large_s // small_s)
            return f"{number:,} {large} {rest} {small}"
    return f"{whole(value)} s"


def seconds_at_least(value: float) -> str:
    """A lower bound on a time, rounded down so that the printed claim holds too."""
    if value <= 0:
        return "0 s"
    if value >= 1000:
        return _long(value, math.floor)
    _, scale = _second_unit(value, 3)
    scaled = Decimal(repr(value)) / Decimal(repr(scale))
    step = Decimal(1).scaleb(-_decimals(float(scaled), 3))
    return seconds(float(scaled.quantize(step, rounding=ROUND_FLOOR)) * scale)


def seconds_range(low: float, high: float) -> str:
    """A range of times with the unit once: 30.2–33.4 s."""
    if high >= 999.5 or high <= 0:
        first, last = seconds(low), seconds(high)
        return first if first == last else f"{first}–{last}"
    unit, scale = _second_unit(high, 3)
    places = _decimals(high / scale, 3)
    first, last = f"{low / scale:.{places}f}", f"{high / scale:.{places}f}"
    return f"{last} {unit}" if first == last else f"{first}–{last} {unit}"


def digits_apart(values: Sequence[float], digits: int = 3) -> int:
    """Significant digits that tell apart all values that differ, by more than their last digit; 6 at most."""
    ordered = sorted(set(values))
    pairs = [(a, b) for a, b in pairwise(ordered) if b - a > 1e-9 * abs(b)]
    while digits < _MOST_DIGITS and any(b - a <= 10.0 ** (_exponent(b, digits) - digits + 1) for a, b in pairs):
        digits += 1
    return digits


def rate(value: float, digits: int = 3) -> str:
    """A rate without its unit: 198 k, 1.98 M, 512."""
    index, scaled = 0, value
    while float(f"{scaled:.{digits - 1}e}") >= 1000 and index < len(_PREFIXES) - 1:
        index, scaled = index + 1, scaled / 1000
    return f"{significant(scaled, digits)} {_PREFIXES[index]}".rstrip()


def parameters(value: int) -> str:
    """Number of parameters: 140 B, 7.25 B, 124 M."""
    for prefix, scale in (("T", 1e12), ("B", 1e9), ("M", 1e6)):
        if float(f"{value / scale:.2e}") >= 1:
            return f"{significant(value / scale)} {prefix}"
    return count(value)


def percent(share: float, decimals: int = 1) -> str:
    """A share: 45.3%, or 86% without decimals."""
    return f"{share * 100:.{decimals}f}%"


def slack(share: float) -> str:
    """A small share in whole percent that is never printed as none: 2%, <1%."""
    return "<1%" if 0 < share < 0.005 else percent(share, 0)


def gap(value: float) -> str:
    """A proof's gap: 0% only when it is closed, otherwise <0.1% or more."""
    if value <= NO_GAP:
        return "0%"
    return "<0.1%" if value < 0.0005 else percent(value)


def percent_at_most(share: float) -> str:
    """An upper bound on a share, rounded up to hundredths so that the printed claim holds too: 0.04%."""
    rounded = (Decimal(repr(share)) * 100).quantize(Decimal("0.01"), rounding=ROUND_CEILING)
    return f"{rounded.normalize():f}%"


def _signed(value: float, decimals: int) -> str:
    """The value with its sign, with more decimals where it would look like zero; 0.0 where it is."""
    if abs(value) < 1e-7:
        return f"{0:.{decimals}f}"
    while decimals < 3 and round(abs(value), decimals) == 0:
        decimals += 1
    return f"{'+' if value > 0 else '−'}{abs(value):,.{decimals}f}"


def change(before: float, after: float) -> str:
    """Relative change: +1.6%, −4.0%, 0.0%."""
    if before == 0:
        return MISSING
    return f"{_signed((after / before - 1) * 100, 1)}%"


def points(before: float, after: float) -> str:
    """Difference of two shares in percentage points: −1.8 pt."""
    return f"{_signed((after - before) * 100, 1)} pt"


def money(value: float) -> str:
    """An amount without its currency: two decimals, and at least two significant digits: 1.97, 0.0042."""
    return f"{value:,.{max(2, _decimals(value, 2))}f}"


def gib(value: float, decimals: int = 1) -> str:
    """Bytes in GiB: 38.9 GiB."""
    return f"{value / 2**30:,.{decimals}f} GiB"


def apportion(values: Sequence[float], decimals: int) -> tuple[float, ...]:
    """Values rounded so that they add up, as printed, to their rounded sum (largest remainders go up)."""
    scale = 10**decimals
    steps = [math.floor(value * scale) for value in values]
    missing = round(math.fsum(values) * scale) - sum(steps)
    by_remainder = sorted(range(len(steps)), key=lambda i: (steps[i] - values[i] * scale, i))
    for index in by_remainder[: max(0, missing)]:
        steps[index] += 1
    return tuple(step / scale for step in steps)


def trimmed(value: float, digits: int = 6) -> str:
    """A number as a user would write it, without trailing zeros: 100, 2.5, 1,600."""
    text = significant(value, digits)
    return text.rstrip("0").rstrip(".") if "." in text else text


def bandwidth(bytes_per_s: float, *, bits: bool) -> str:
    """A bandwidth as networks (bits) or devices (bytes) are described: 100 Gbit/s, 240 GB/s."""
    value, unit = (bytes_per_s * 8, "bit/s") if bits else (bytes_per_s, "B/s")
    prefix, scale = ("G", 1e9) if value >= 1e9 else ("M", 1e6) if value >= 1e6 else ("k", 1e3)
    return f"{trimmed(value / scale)} {prefix}{unit}"


def size(value: float) -> str:
    """A memory size as a user would write it: GiB where it comes out short, otherwise GB."""
    if value < 1e6:
        return f"{trimmed(value)} B"
    binary, decimal = trimmed(value / 2**30), trimmed(value / 1e9)
    return f"{binary} GiB" if len(binary) <= len(decimal) else f"{decimal} GB"


def duration(value: float) -> str:
    """A time as a user would write it: 20 us, 1.5 s, 30,000 h."""
    if value >= 3600:
        return f"{trimmed(value / 3600)} h"
    unit, scale = _second_unit(value, 6) if value else ("s", 1.0)
    return f"{trimmed(value / scale)} {unit}"


def flops(value: float) -> str:
    """A matrix rate: 312 TFLOP/s."""
    return f"{trimmed(value / 1e12)} TFLOP/s"
