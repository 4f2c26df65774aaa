"""Where the result of a command goes, and how a command ends when something is wrong.

stdout holds the result, stderr everything else. With --json stdout holds exactly one object, whatever happens.
"""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hetplan.errors import ExitCode, Mistake, SolverError, SpecError

if TYPE_CHECKING:
    from rich.text import Text

    from hetplan.report.style import Terminal

Screen = Callable[["Terminal"], Sequence["Text"]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """How a command was asked to answer."""

    command: str
    json: bool = False
    path: str | None = None
    """File for the record."""
    quiet: bool = False
    verbose: bool = False

    def show(self, record: str, screen: Screen) -> None:
        """Write the record to its file and to stdout, or the screen where stdout is for people.

        A file that cannot be written is reported after the result, which may have taken long to find.
        """
        from hetplan.report.files import write_text_atomically
        from hetplan.report.style import terminal

        failure: SpecError | None = None
        if self.path is not None:
            try:
                write_text_atomically(self.path, record)
            except SpecError as error:
                failure = error
        with _reader():
            if self.json:
                sys.stdout.write(record)
            else:
                out = terminal(sys.stdout)
                out.print(screen(out))
            sys.stdout.flush()
        if failure is not None:
            self.tell(lambda err: _error_lines(self.command, failure.mistakes, err))
            raise ShownError(ExitCode.BAD_INPUT)

    @property
    def hints(self) -> bool:
        """Whether next steps are of use: a person reads stderr."""
        return not self.quiet and sys.stderr.isatty()

    def tell(self, screen: Screen) -> None:
        """Write to stderr, where warnings, hints and errors go."""
        from hetplan.report.style import terminal

        err = terminal(sys.stderr)
        with suppress(OSError, SystemExit):
            err.print(screen(err))
            sys.stderr.flush()

    def check(self) -> None:
        """Refuse a file that cannot be written before any work is done."""
        from hetplan.report.files import check_writable

        if self.path is not None:
            check_writable(self.path)

    def fail(self, code: ExitCode, mistakes: Sequence[Mistake]) -> ExitCode:
        """Say what is wrong, as JSON on stdout or in words on stderr."""
        if not self.json:
            self.tell(lambda err: _error_lines(self.command, mistakes, err))
            return code
        from hetplan.report.build import error_record, to_json

        try:
            with _reader():
                sys.stdout.write(to_json(error_record(self.command, *mistakes)))
                sys.stdout.flush()
        except SpecError as error:
            said = tuple(dict.fromkeys((*mistakes, *error.mistakes)))
            self.tell(lambda err: _error_lines(self.command, said, err))
        return code


class ShownError(Exception):
    """A command ends with this code; what is wrong has been said."""

    def __init__(self, code: ExitCode) -> None:
        self.code = code


def failed(error: BaseException, out: Output) -> ExitCode:
    """Report an exception that ended a command, and say with which code to exit."""
    match error:
        case ShownError():
            return error.code
        case SpecError():
            return out.fail(ExitCode.BAD_INPUT, error.mistakes)
        case SolverError():
            hint = "try the other --solver"
            return out.fail(ExitCode.STOPPED, (Mistake(kind="solver", message=str(error), hint=hint),))
        case KeyboardInterrupt():
            return out.fail(ExitCode.INTERRUPTED, (Mistake(kind="interrupt", message="interrupted"),))
        case _:
            return _bug(error, out)


def _bug(error: BaseException, out: Output) -> ExitCode:
    """An exception that should not be: its traceback helps only whoever mends it."""
    if out.verbose:
        import traceback

        with suppress(OSError):
            traceback.print_exception(error, file=sys.stderr)
    said = " ".join(str(error).split())
    message = f"unexpected {type(error).__name__}" + (f": {said}" if said else "")
    hint = "this is a bug in hetplan: please report it with the command and its files"
    more = "" if out.verbose else "; -v shows where it happened"
    return out.fail(ExitCode.BUG, (Mistake(kind="bug", message=message, hint=hint + more),))


def _error_lines(command: str, mistakes: Sequence[Mistake], err: "Terminal") -> Sequence["Text"]:
    from hetplan.report.errors import error_lines

    return error_lines(command, mistakes, err)


@contextmanager
def _reader() -> Iterator[None]:
    """Write to stdout. A reader that has seen enough (`| head`) is no error: the command ends with its own code."""
    try:
        yield
    except (BrokenPipeError, SystemExit):  # rich exits where a pipe is broken
        with suppress(OSError, ValueError), open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), sys.stdout.fileno())
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise SpecError(Mistake(kind="file", message=f"cannot be written: {reason}", file="<stdout>")) from None
