"""Written quantities ("400 Gbit/s", "80 GiB") to SI base numbers.

Gbit/s and GB/s are different words: a bit rate is divided by 8. GB is 10^9 bytes, GiB is 2^30.
A number without a unit is never accepted where a dimension is meant.
"""

import re
from enum import Enum


class Dimension(Enum):
    """What a quantity measures; the value names the base unit that numbers are stored in."""

    BYTES = "bytes"
    BYTES_PER_S = "bytes_per_s"
    FLOPS_PER_S = "flops_per_s"
    SECONDS = "s"
    WATTS = "watts"


_DECIMAL = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50}


def _table() -> dict[Dimension, dict[str, float]]:
    size = {f"{p}B": f for p, f in (*_DECIMAL.items(), *_BINARY.items())}
    rate = {f"{unit}/s": factor for unit, factor in size.items()}
    rate |= {f"{p}bit/s": f / 8 for p, f in (*_DECIMAL.items(), *_BINARY.items())}
    flops = {f"{p}FLOP/s": f for p, f in (*_DECIMAL.items(), ("E", 1e18))}
    seconds = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
    watts = {"W": 1.0, "kW": 1e3, "MW": 1e6}
    return {
        Dimension.BYTES: size,
        Dimension.BYTES_PER_S: rate,
        Dimension.FLOPS_PER_S: flops,
        Dimension.SECONDS: seconds,
        Dimension.WATTS: watts,
    }


UNITS = _table()
EXAMPLES = {
    Dimension.BYTES: "80 GiB",
    Dimension.BYTES_PER_S: "400 Gbit/s or 50 GB/s",
    Dimension.FLOPS_PER_S: "312 TFLOP/s",
    Dimension.SECONDS: "5 us",
    Dimension.WATTS: "400 W",
}
_QUANTITY = re.compile(r"\s*([+-]?(?:\d[\d,_]*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*([^\s\d].*?)?\s*")


LONGEST = 100
"""Characters of a written quantity at most."""


class UnitError(ValueError):
    """A quantity that cannot be read; `hint` says what to write instead."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


def parse(text: object, dimension: Dimension) -> float:
    """Read a written quantity as a number in the dimension's base unit.

    Raises UnitError for a bare number, an unknown unit, or a unit of another dimension.
    """
    units = UNITS[dimension]
    example = EXAMPLES[dimension]
    if not isinstance(text, str):
        raise UnitError("needs a number and a unit", f"write for example {example}")
    match = _QUANTITY.fullmatch(text) if len(text) <= LONGEST else None
    if match is None:
        raise UnitError(f'"{text}" is not a number and a unit', f"write for example {example}")
    number, unit = match.group(1), match.group(2)
    value = float(number.replace(",", "").replace("_", ""))
    if unit is None:
        raise UnitError(f'"{text}" has no unit', f"write for example {example}")
    factor = units.get(unit)
    if factor is not None:
        return value * factor
    raise UnitError(*_explain(number, unit, dimension))


def _explain(number: str, unit: str, dimension: Dimension) -> tuple[str, str]:
    """Say why `unit` is not one of `dimension`, and what to write."""
    bits = re.fullmatch(r"([kmgtp]?)(?:b/s|bps|bits?|bits/s)", unit, re.IGNORECASE)
    if dimension is Dimension.BYTES_PER_S and bits is not None:
        p = bits.group(1).upper().replace("K", "k")
        value = float(number.replace(",", "").replace("_", ""))
        question = f'"{unit}" is not a unit: bits or bytes?'
        return question, f"write {number} {p}bit/s (= {value / 8:g} {p}B/s) or {number} {p}B/s"
    for units in UNITS.values():
        if unit in units:
            return f'"{unit}" is a unit of another kind', f"write for example {EXAMPLES[dimension]}"
    lower = {u.lower(): u for u in UNITS[dimension]}
    near = lower.get(unit.lower())
    if near is not None:
        return f'"{unit}" is not a unit', f"did you mean {number} {near}?"
    return f'"{unit}" is not a unit', f"write for example {EXAMPLES[dimension]}"
