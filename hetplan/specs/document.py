"""A file as it was read: plain values, and where each key and value stands."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import NamedTuple

from hetplan.errors import Mistake
from hetplan.specs.wording import KeyPath, key_text

MAX_PROBLEMS = 2000


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of one line; `line` and `column` count from 1, `width` in characters."""

    line: int
    column: int
    width: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A file's name, as messages show it, and its lines."""

    file: str
    lines: tuple[str, ...]

    def mistake(
        self,
        span: Span,
        message: str,
        hint: str = "",
        *,
        path: KeyPath = (),
        kind: str = "syntax",
        note: str = "",
        related: Mistake | None = None,
    ) -> Mistake:
        """A mistake at a stretch of the file."""
        text = self.lines[span.line - 1] if span.line <= len(self.lines) else ""
        return Mistake(
            kind=kind,
            message=message,
            hint=hint,
            file=self.file,
            line=span.line,
            column=span.column,
            key=key_text(path) or None,
            width=max(1, span.width),
            excerpt=((span.line, text),),
            note=note,
            related=related,
        )


class Problem(NamedTuple):
    """Something wrong with the value at a key path; a check may give a plain (path, message, hint) instead.

    `note` stands beside the caret. `at_key` underlines the key and not its value. `key` is the key path to print
    where it is not `path`. A path that is not in the file stands for its nearest parent.
    """

    path: KeyPath
    message: str
    hint: str = ""
    kind: str = "value"
    note: str = ""
    at_key: bool = False
    key: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """Plain data of a file, with the position of every key and value by key path.

    `data` holds dict, tuple, str, int, float, bool and None. `blocks` are the paths of lists and mappings that are
    not written on one line. `mistakes` are those found while reading that did not stop it; values at `broken` paths
    are stand-ins, about which nothing more is said.
    """

    data: object
    file: str
    lines: tuple[str, ...]
    keys: Mapping[KeyPath, Span] = field(default_factory=dict)
    values: Mapping[KeyPath, Span] = field(default_factory=dict)
    blocks: frozenset[KeyPath] = frozenset()
    broken: frozenset[KeyPath] = frozenset()
    mistakes: tuple[Mistake, ...] = ()

    def locate(self, path: KeyPath, *, at_key: bool = False) -> Span | None:
        """Where to put the caret for a key path: its value, or its key where the value fills several lines."""
        while path and path not in self.values:
            path, at_key = path[:-1], True
        if (at_key or path in self.blocks) and path in self.keys:
            return self.keys[path]
        return self.values.get(path)

    def excerpt(self, path: KeyPath, line: int) -> tuple[tuple[int, str], ...]:
        """The line, and the one before where the list item begins there, so that the reader sees which item it is."""
        numbers = [line]
        for end in range(len(path), 0, -1):
            if isinstance(path[end - 1], int):
                item = self.values.get(path[:end])
                if item is not None and item.line == line - 1:
                    numbers.insert(0, line - 1)
                break
        return tuple((n, self.lines[n - 1]) for n in numbers if n <= len(self.lines))

    def mistake_at(self, span: Span | None, path: KeyPath, problem: Problem) -> Mistake:
        """The problem as a mistake at this place."""
        mistake = Mistake(
            kind=problem.kind,
            message=problem.message,
            hint=problem.hint,
            file=self.file,
            key=(key_text(problem.path) if problem.key is None else problem.key) or None,
            note=problem.note,
        )
        if span is None:
            return mistake
        return replace(
            mistake, line=span.line, column=span.column, width=span.width, excerpt=self.excerpt(path, span.line)
        )


def is_broken(document: Document, path: KeyPath) -> bool:
    """Whether a mistake about this value, or one it stands in, was reported while reading."""
    return any(path[:end] in document.broken for end in range(len(path) + 1))


def problems_to_mistakes(
    document: Document, problems: Iterable[Problem | tuple[KeyPath, str, str]]
) -> tuple[Mistake, ...]:
    """Problems with their places in the file, in file order; what was reported while reading is not said again.

    Of more than MAX_PROBLEMS, as in a list of the wrong type, the rest is left out.
    """
    mistakes = []
    for problem in dict.fromkeys(Problem(*p) for p in islice(problems, MAX_PROBLEMS)):
        if not is_broken(document, problem.path):
            span = document.locate(problem.path, at_key=problem.at_key)
            mistakes.append(document.mistake_at(span, problem.path, problem))
    return in_file_order(mistakes)


def in_file_order(mistakes: Iterable[Mistake]) -> tuple[Mistake, ...]:
    """Mistakes of one file by line and column; those without a place first."""
    return tuple(sorted(mistakes, key=lambda m: (m.line or 0, m.column or 0)))
