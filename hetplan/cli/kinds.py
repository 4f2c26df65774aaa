"""What the value of an option may be, and what is said when it is something else."""

import math
import re
from dataclasses import dataclass
from typing import Any, Protocol

from hetplan.errors import Mistake, SpecError
from hetplan.specs.wording import COMMAND_LINE, did_you_mean, either, quote


class Kind(Protocol):
    """A kind of value."""

    @property
    def metavar(self) -> str:
        """How the help calls a value."""
        ...

    @property
    def wanted(self) -> str:
        """What to write, in words."""
        ...

    def read(self, text: str) -> object:
        """The value, or None where the text is none of this kind."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    """A whole number within limits."""

    least: int
    most: int
    metavar: str = "N"

    @property
    def wanted(self) -> str:
        """What to write, in words."""
        return f"a whole number from {self.least:,} to {self.most:,}"

    def read(self, text: str) -> int | None:
        """The number, or None."""
        if re.fullmatch(r"\+?[0-9]{1,18}", text) is None:
            return None
        return int(text) if self.least <= int(text) <= self.most else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Number:
    """A number from 0, or above it, to below a limit."""

    below: float
    zero: bool = True
    metavar: str = "X"

    @property
    def wanted(self) -> str:
        """What to write, in words."""
        return f"a number {'from 0 to' if self.zero else 'above 0 and'} below {self.below:,.0f}"

    def read(self, text: str) -> float | None:
        """The number, or None."""
        try:
            number = float(text)
        except ValueError:
            return None
        # Comparisons with NaN are false, so that it is refused here too.
        inside = math.isfinite(number) and 0 <= number < self.below and (self.zero or number > 0)
        return number if inside else None


@dataclass(frozen=True, slots=True)
class Choice:
    """One of some words."""

    choices: tuple[str, ...]

    @property
    def metavar(self) -> str:
        """How the help calls a value."""
        return "|".join(self.choices)

    @property
    def wanted(self) -> str:
        """What to write, in words."""
        return either(self.choices)

    def read(self, text: str) -> str | None:
        """The word, or None."""
        return text if text in self.choices else None


@dataclass(frozen=True, slots=True)
class Text:
    """Anything: the name of a file, or of something that is looked up later."""

    metavar: str
    wanted: str = "a name"

    def read(self, text: str) -> str | None:
        """The text; None where it is empty."""
        return text or None


def option_mistake(flag: str | None, message: str, hint: str = "", *, kind: str = "option") -> Mistake:
    """A mistake on the command line."""
    return Mistake(kind=kind, message=message, hint=hint, file=COMMAND_LINE, key=flag)


def option_error(flag: str | None, message: str, hint: str = "", *, kind: str = "option") -> SpecError:
    """The same as an exception of its own."""
    return SpecError(option_mistake(flag, message, hint, kind=kind))


def read_value(flag: str, kind: Kind, text: str) -> Any:
    """The value of an option. Raises SpecError where the text is not one."""
    value = kind.read(text)
    if value is not None:
        return value
    near = did_you_mean(text, kind.choices) if isinstance(kind, Choice) else ""
    what = f"{quote(text)} is not known" if isinstance(kind, Choice) else f"{quote(text)} is not {kind.wanted}"
    raise option_error(flag, "needs a value" if not text else what, near or f"write {kind.wanted}")
