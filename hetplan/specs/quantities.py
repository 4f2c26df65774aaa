"""Field types of the files that users write: a number with its unit, kept as an SI number.

A field is named after its base unit (`bandwidth_bytes_per_s`); its alias is the written key (`bandwidth`).
YAML files are read by alias with units; records are read by name with plain numbers. Which of the two is
being read is told by the validation context: `{"written": True}`.
"""

import math
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationInfo, WithJsonSchema
from pydantic_core import PydanticCustomError

from hetplan.units import EXAMPLES, UNITS, Dimension, UnitError, parse

LARGEST = 1e30
SMALLEST = {Dimension.SECONDS: 0.0}
"""Least quantities, 1 where none is given: a byte, a byte per second, a FLOP per second, a watt."""


class Spec(BaseModel):
    """Base of everything users write or read back: frozen, unknown keys refused, no silent conversion."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, validate_by_alias=True, validate_by_name=True
    )


def quantity_error(message: str, hint: str) -> PydanticCustomError:
    """A validation error that carries a hint for the reader of the file."""
    return PydanticCustomError("quantity", "{message}", {"message": message, "hint": hint})


def _reader(dimension: Dimension, *, zero: bool) -> Any:
    def read(value: object, info: ValidationInfo) -> float:
        written = bool((info.context or {}).get("written"))
        if written:
            try:
                number = parse(value, dimension)
            except UnitError as error:
                raise quantity_error(error.message, error.hint) from None
        elif isinstance(value, bool) or not isinstance(value, int | float):
            raise quantity_error("is not a number", f"a plain number in {dimension.value}")
        else:
            number = float(value)
        if not math.isfinite(number) or number > LARGEST:
            raise quantity_error("is too large", f"write for example {EXAMPLES[dimension]}")
        if 0 < number < SMALLEST.get(dimension, 1.0):
            raise quantity_error("is too small", f"write for example {EXAMPLES[dimension]}")
        if number < 0 or (number == 0 and not zero):
            least = "must be at least 0" if zero else "must be above 0"
            raise quantity_error(least, f"for example {EXAMPLES[dimension]}")
        return number

    return BeforeValidator(read)


def _schema(dimension: Dimension) -> WithJsonSchema:
    units = "|".join(sorted((u.replace("/", "\\/") for u in UNITS[dimension]), key=lambda u: (-len(u), u)))
    return WithJsonSchema(
        {
            "type": "string",
            "pattern": f"^\\s*[0-9.,_]+([eE][+-]?[0-9]+)?\\s*({units})\\s*$",
            "description": f"number and unit, for example {EXAMPLES[dimension]}",
        },
        mode="validation",
    )


Bytes = Annotated[float, _reader(Dimension.BYTES, zero=False), _schema(Dimension.BYTES)]
BytesPerSecond = Annotated[float, _reader(Dimension.BYTES_PER_S, zero=False), _schema(Dimension.BYTES_PER_S)]
FlopsPerSecond = Annotated[float, _reader(Dimension.FLOPS_PER_S, zero=False), _schema(Dimension.FLOPS_PER_S)]
Seconds = Annotated[float, _reader(Dimension.SECONDS, zero=True), _schema(Dimension.SECONDS)]
Watts = Annotated[float, _reader(Dimension.WATTS, zero=False), _schema(Dimension.WATTS)]
