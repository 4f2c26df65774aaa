"""The progress display."""

import io
import re

import pytest

from hetplan.report.progress import Progress
from hetplan.report.style import Terminal, terminal


class Clock:
    """Time that a test moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        """The time."""
        return self.now


class Screen(io.StringIO):
    """A terminal or a pipe; knows what a terminal would show."""

    def __init__(self, *, tty: bool) -> None:
        super().__init__()
        self.tty = tty

    def isatty(self) -> bool:
        """Whether it is a terminal."""
        return self.tty

    def shown(self) -> str:
        """What is left on the screen: cursor moves and erased lines carried out."""
        lines, row = [""], 0
        for token in re.findall(r"\x1b\[[0-9;?]*[A-Za-z]|\n|\r|[^\x1b\n\r]+", self.getvalue()):
            if token == "\n":
                row += 1
                lines += [""] * (row + 1 - len(lines))
            elif token.endswith("A"):
                row -= 1
            elif token.endswith("K"):
                lines[row] = ""
            elif token != "\r" and not token.startswith("\x1b"):
                lines[row] += token
        return "\n".join(lines).rstrip("\n")


def on(screen: Screen, width: int = 80, term: str = "xterm") -> Terminal:
    """The stream as the program sees it."""
    return terminal(screen, environment={"TERM": term}, width=width)


def test_nothing_before_half_a_second() -> None:
    """Short work shows nothing at all."""
    screen, clock = Screen(tty=True), Clock()
    with Progress(on(screen), clock=clock) as progress:
        clock.now += 0.4
        progress.update(None, 26.0, 12, 9)
    assert screen.getvalue() == ""


@pytest.mark.parametrize("width", [40, 80, 100, 140])
def test_two_lines_that_are_erased(width: int) -> None:
    """Bar, gap and time above; best, bound and nodes below; nothing is left at the end, the cursor included."""
    screen, clock = Screen(tty=True), Clock()
    progress = Progress(on(screen, width), clock=clock)
    clock.now += 1.1
    progress.update(None, 26.0, 12, 9)
    first = screen.shown()
    assert "gap -" in first
    assert "best none yet" in first
    clock.now += 1
    progress.update(32.3, 30.9, 148, 31)
    lines = screen.shown().splitlines()
    assert len(lines) == 2
    assert all(len(line) < width for line in lines)
    assert "gap 4.3%" in lines[0]
    assert "best 32.3 s" in lines[1]
    assert ("Ctrl-C" in lines[0]) == (width >= 90)
    if width >= 80:
        assert "bound 30.9 s · 148 nodes, 31 open" in lines[1]
    progress.done()
    assert screen.shown() == ""
    assert screen.getvalue().count("\x1b[?25l") == screen.getvalue().count("\x1b[?25h") == 1


def test_at_most_eight_redraws_a_second() -> None:
    """A thousand updates in a second draw eight times."""
    screen, clock = Screen(tty=True), Clock()
    progress = Progress(on(screen), clock=clock)
    clock.now += 1
    for number in range(1000):
        progress.update(30.0, 20.0, number, 1)
        clock.now += 0.001
    assert screen.getvalue().count("searching") in (8, 9)


def test_the_bar_never_moves_back() -> None:
    """It is the closed share of the first gap, whatever happens to the gap."""
    screen, clock = Screen(tty=True), Clock()
    progress = Progress(on(screen), clock=clock)
    filled = []
    for best_s, bound_s in ((40.0, 20.0), (40.0, 30.0), (35.0, 30.0), (35.0, 25.0), (35.0, 35.0)):
        clock.now += 1
        progress.update(best_s, bound_s, 1, 1)
        line = screen.shown().splitlines()[0]
        filled.append(line.count("━") * 2 + line.count("╸"))
    assert filled == sorted(filled)
    assert filled[0] == 0
    assert filled[-1] == 36


def test_an_interrupted_search_leaves_nothing() -> None:
    """An exception erases the display and passes on."""
    screen, clock = Screen(tty=True), Clock()

    def search() -> None:
        with Progress(on(screen), clock=clock) as progress:
            clock.now += 1
            progress.update(None, 1.0, 1, 1)
            assert screen.shown() != ""
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        search()
    assert screen.shown() == ""


@pytest.mark.parametrize(("tty", "verbose"), [(True, False), (False, True)])
def test_plain_lines(tty: bool, verbose: bool) -> None:
    """A dumb terminal, and a pipe with --verbose, get a line at each new best, at most one a second."""
    screen, clock = Screen(tty=tty), Clock()
    progress = Progress(on(screen, term="dumb"), verbose=verbose, clock=clock)
    states = (
        (0.6, None, 26.0, 12),
        (0.3, 34.0, 29.2, 57),
        (0.9, 34.0, 29.2, 90),
        (0.2, 34.0, 29.3, 99),
        (1.2, 32.3, 30.9, 148),
    )
    for step, best_s, bound_s, nodes in states:
        clock.now += step
        progress.update(best_s, bound_s, nodes, 5)
    clock.now += 0.1
    progress.done("optimal")
    assert screen.getvalue().splitlines() == [
        "search: 600 ms, 12 nodes, best none, bound 26.0 s",
        "search: 1.8 s, 90 nodes, best 34.0 s, bound 29.2 s, gap 14.1%",
        "search: 3.2 s, 148 nodes, best 32.3 s, bound 30.9 s, gap 4.3%",
        "search: 3.3 s, 148 nodes, best 32.3 s, optimal",
    ]


@pytest.mark.parametrize(("tty", "quiet", "verbose"), [(False, False, False), (True, True, False), (False, True, True)])
def test_silence(tty: bool, quiet: bool, verbose: bool) -> None:
    """A pipe without --verbose, and --quiet anywhere, get nothing."""
    screen, clock = Screen(tty=tty), Clock()
    with Progress(on(screen), quiet=quiet, verbose=verbose, clock=clock) as progress:
        clock.now += 5
        progress.update(30.0, 20.0, 1, 1)
    assert screen.getvalue() == ""
