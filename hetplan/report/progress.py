"""How far a search has come, on stderr: two lines redrawn in place, or plain lines where nothing can be redrawn."""

import time
from collections.abc import Callable
from types import TracebackType

from rich.text import Text

from hetplan.report import numbers
from hetplan.report.style import WATCH, Terminal

QUIET_S = 0.5
"""Nothing is shown of work that ends sooner."""
REDRAW_S = 0.125
LINE_S = 1.0
_CLEAR_LINE, _UP, _HIDE, _SHOW = "\x1b[2K", "\x1b[1A", "\x1b[?25l", "\x1b[?25h"


class Progress:
    """Shows each `update`, at most 8 times a second, and leaves nothing behind.

    The bar is the share of the first gap that is closed, so it never moves back. On a dumb terminal, and with
    `verbose` where stderr is no terminal, a line is written at each new best plan, at most one a second.
    Use as a context manager, so that an interrupted search leaves a clean line too.
    """

    def __init__(
        self,
        terminal: Terminal,
        *,
        quiet: bool = False,
        verbose: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._terminal = terminal
        self._clock = clock
        self._start = clock()
        redraw = terminal.animated
        self._redraws = redraw and not quiet
        self._lines = not redraw and not quiet and (terminal.is_terminal or verbose)
        self._drawn = 0
        self._frame = 0
        self._last = float("-inf")
        self._first_gap: float | None = None
        self._closed = 0.0
        self._reported: tuple[float | None] | None = None
        self._wait_s = 0.0 if verbose else QUIET_S
        self._final: tuple[float | None, int] | None = None

    def update(self, best_s: float | None, bound_s: float, nodes: int, open: int) -> None:  # noqa: A002
        """A new state: seconds per iteration of the best plan (none yet) and of the bound, nodes done and open."""
        now = self._clock()
        gap = None
        if best_s is not None and best_s > 0:
            gap = max(0.0, (best_s - bound_s) / best_s)
            if self._first_gap is None:
                self._first_gap = gap
            self._closed = max(self._closed, 1 - gap / self._first_gap if self._first_gap else 1.0)
        self._final = (best_s, nodes)
        elapsed_s = now - self._start
        if self._redraws and elapsed_s >= QUIET_S and now - self._last >= REDRAW_S:
            self._last = now
            self._redraw(self._picture(elapsed_s, best_s, bound_s, gap, nodes, open))
        elif self._lines and elapsed_s >= self._wait_s and self._reported != (best_s,) and now - self._last >= LINE_S:
            self._last = now
            self._reported = (best_s,)
            self._write_line(elapsed_s, best_s, bound_s, gap, nodes)

    def done(self, outcome: str = "done") -> None:
        """Erase what was drawn; in lines, say how it ended."""
        self._erase()
        if self._lines and self._final is not None and self._last > float("-inf"):
            best_s, nodes = self._final
            best = "none" if best_s is None else numbers.seconds(best_s)
            elapsed = numbers.seconds(self._clock() - self._start, 2)
            self._print(f"search: {elapsed}, {nodes:,} nodes, best {best}, {outcome}")
        self._redraws = self._lines = False

    def __enter__(self) -> "Progress":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._redraws or self._lines:
            self.done("interrupted" if kind is not None else "done")

    def _picture(
        self, elapsed_s: float, best_s: float | None, bound_s: float, gap: float | None, nodes: int, open_: int
    ) -> list[Text]:
        terminal = self._terminal
        spinner = terminal.symbols.spinner
        self._frame = (self._frame + 1) % len(spinner)
        bar = terminal.bar(
            self._closed if gap is not None else 0.0, min(18, terminal.width - 38) if terminal.narrow else 30
        )
        gap_text = numbers.MISSING if gap is None else numbers.gap(gap)
        first = terminal.join(f"{spinner[self._frame]} searching  ", bar, "  gap ", (gap_text, WATCH))
        first.append_text(terminal.text(f"  {numbers.seconds(elapsed_s, 2)}"))
        if not terminal.narrow:
            first.append_text(terminal.text("  Ctrl-C keeps the best so far"))
        best = "none yet" if best_s is None else numbers.seconds(best_s)
        parts = [f"best {best}", f"bound {numbers.seconds_at_least(bound_s)}", f"{nodes:,} nodes, {open_:,} open"]
        second = " " * 13 + parts[0]
        for part in parts[1:]:
            if len(second) + len(part) + 3 < terminal.width:
                second += f" · {part}"
        return [first, terminal.text(second)]

    def _redraw(self, lines: list[Text]) -> None:
        stream = self._terminal.console.file
        stream.write((_UP + _CLEAR_LINE) * self._drawn + "\r" + ("" if self._drawn else _HIDE))
        self._terminal.print(lines)
        self._drawn = len(lines)
        stream.flush()

    def _erase(self) -> None:
        if self._drawn:
            stream = self._terminal.console.file
            stream.write((_UP + _CLEAR_LINE) * self._drawn + "\r" + _SHOW)
            stream.flush()
            self._drawn = 0

    def _write_line(
        self, elapsed_s: float, best_s: float | None, bound_s: float, gap: float | None, nodes: int
    ) -> None:
        best = "none" if best_s is None else numbers.seconds(best_s)
        text = f"search: {numbers.seconds(elapsed_s, 2)}, {nodes:,} nodes, best {best}"
        text += f", bound {numbers.seconds_at_least(bound_s)}"
        self._print(text if gap is None else f"{text}, gap {numbers.gap(gap)}")

    def _print(self, text: str) -> None:
        self._terminal.print([self._terminal.text(text)])
        self._terminal.console.file.flush()
