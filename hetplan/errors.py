"""Everything hetplan raises on purpose.

    HetplanError
    +-- SpecError      bad input: a file, an option, a value; carries every mistake found
    +-- SolverError    the solver gave no usable answer

"No plan fits" is an expected outcome, not an exception: see `hetplan.search.result`.
"""

from dataclasses import dataclass
from enum import IntEnum


class ExitCode(IntEnum):
    """Exit status of every command, as documented in docs/json.md."""

    OK = 0
    BUG = 1
    BAD_INPUT = 2
    INFEASIBLE = 3
    STOPPED = 4
    REGRESSION = 5
    INTERRUPTED = 130


@dataclass(frozen=True, slots=True, kw_only=True)
class Mistake:
    """One thing wrong with the input, and where.

    `line` and `column` count from 1; `excerpt` holds (line number, text) pairs around the mistake and
    `width` the number of columns to underline. `related` is an earlier place that belongs to it.
    """

    kind: str
    message: str
    hint: str = ""
    file: str | None = None
    line: int | None = None
    column: int | None = None
    key: str | None = None
    width: int = 1
    excerpt: tuple[tuple[int, str], ...] = ()
    note: str = ""
    related: "Mistake | None" = None

    def __str__(self) -> str:
        place = ":".join(str(p) for p in (self.file, self.line, self.column) if p is not None)
        parts = [p for p in (place, self.key, self.message) if p]
        return ": ".join(parts) + (f"; {self.hint}" if self.hint else "")


class HetplanError(Exception):
    """Base of all errors that hetplan raises on purpose."""


class SpecError(HetplanError):
    """The input is wrong. `mistakes` lists all that were found, in file order."""

    def __init__(self, *mistakes: Mistake) -> None:
        self.mistakes = mistakes
        super().__init__("\n".join(str(m) for m in mistakes))


class SolverError(HetplanError):
    """The solver failed in a way that is not an answer."""
