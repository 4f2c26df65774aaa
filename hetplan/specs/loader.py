"""Reads YAML and JSON files as values with positions, and turns them into specs.

Files are read event by event, never by plain loading, which keeps the last of duplicate keys and turns `no` into
False without a word. Events come from the C parser where PyYAML has it, and nothing here recurses without a bound.
This is the only module that imports yaml.
"""

import re
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import yaml

from hetplan.errors import Mistake, SpecError
from hetplan.specs.document import Document, Problem, Source, Span, in_file_order, problems_to_mistakes
from hetplan.specs.nodes import MAX_DEPTH, Node, document_of, too_deep
from hetplan.specs.quantities import Spec
from hetplan.specs.syntax import Complaint, explain, tab_in_indentation
from hetplan.specs.validation import validate
from hetplan.specs.wording import KeyPath, did_you_mean, quote, sendable

__all__ = [
    "Document",
    "Problem",
    "load_spec",
    "parse_document",
    "problems_to_mistakes",
    "read_document",
    "scan_document",
]

T = TypeVar("T", bound=Spec)
Checks = Callable[[Any], Iterable[Problem | tuple[KeyPath, str, str]]]

MAX_FILE_BYTES = 4 * 2**20
MAX_VALUES = 250_000
STDIN = "<stdin>"

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

_LINE_BREAK = re.compile("\r\n|[\r\n\x85\u2028\u2029]")
_UNPRINTABLE = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]")
_QUOTED_OR_TAB = re.compile(r""""(?:\\.?|[^"\\])*(?:"|$)|'[^']*(?:'|$)|\t""")
_HALF = re.compile(r"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")
_SURROGATES = re.compile(r"\\u([dD][89abAB][0-9a-fA-F]{2})\\u([dD][c-fC-F][0-9a-fA-F]{2})")


def load_spec(path: str | Path, model: type[T], *, checks: Checks | None = None) -> T:
    """Read a file as `model`. Raises SpecError with every mistake of the file, those that `checks` finds included."""
    document = scan_document(path)
    value, problems = validate(model, document.data)
    found = [] if checks is None else [Problem(*p) for p in checks(document.data)]
    mistakes = in_file_order((*document.mistakes, *problems_to_mistakes(document, [*problems, *found])))
    if mistakes or value is None:
        raise SpecError(*mistakes)
    return value


def read_document(path: str | Path) -> Document:
    """Read a file, or stdin for "-". Raises SpecError with every mistake of reading."""
    document = scan_document(path)
    if document.mistakes:
        raise SpecError(*document.mistakes)
    return document


def scan_document(path: str | Path) -> Document:
    """Read a file; raises SpecError only for what makes it unreadable as a whole, the rest stands in `mistakes`."""
    if str(path) == "-":
        stream = getattr(sys.stdin, "buffer", sys.stdin)
        return parse_document(stream.read(MAX_FILE_BYTES + 1), STDIN)
    return parse_document(_file_bytes(path), sendable(str(path)))


def parse_document(content: str | bytes, file: str) -> Document:
    """Like `scan_document`, for content that is already read; `file` is the name that messages show."""
    if len(content) > MAX_FILE_BYTES:
        raise _unreadable(file, f"is larger than {MAX_FILE_BYTES // 2**20} MiB", "is this the right file?")
    text = content if isinstance(content, str) else _decode(content, file)
    text = text.removeprefix("\ufeff")
    source = Source(file=file, lines=tuple(_LINE_BREAK.split(text)))
    composer = _Composer(source)
    root = composer.compose(_prepare(text, source))
    if root is None or root.is_null:
        raise _unreadable(file, "is empty", "hetplan schema cluster and hetplan schema model say what to write")
    return document_of(root, source, composer.mistakes)


def _file_bytes(path: str | Path) -> bytes:
    file = sendable(str(path))
    try:
        with open(path, "rb") as stream:
            return stream.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        raise _unreadable(file, "no such file", _neighbours(Path(path)) or "check the path") from None
    except IsADirectoryError:
        raise _unreadable(file, "is a directory, not a file", "name a file in it") from None
    except PermissionError:
        raise _unreadable(file, "cannot be read: permission denied", "check the permissions of the file") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise _unreadable(file, f"cannot be read: {reason.lower()}", "check the path") from None


def _neighbours(path: Path) -> str:
    """Files beside a missing one whose names are near."""
    try:
        names = [entry.name for entry in path.parent.iterdir() if entry.suffix in (".yaml", ".yml", ".json")]
    except (OSError, ValueError):
        return ""
    return did_you_mean(path.name, sorted(names))


def _decode(content: bytes, file: str) -> str:
    if content[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise _unreadable(file, "is UTF-16, not UTF-8", "save it as UTF-8")
    if b"\0" in content:
        raise _unreadable(file, "is a binary file, not text", "is this the right file?")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        lines = _LINE_BREAK.split(content[: error.start].decode("utf-8").removeprefix("\ufeff"))
        mistake = Mistake(
            kind="file",
            message=f"is not UTF-8 text: byte 0x{content[error.start]:02x}",
            hint="save it as UTF-8",
            file=file,
            line=len(lines),
            column=len(lines[-1]) + 1,
        )
        raise SpecError(mistake) from None


def _unreadable(file: str, message: str, hint: str) -> SpecError:
    return SpecError(Mistake(kind="file", message=message, hint=hint, file=file))


def _prepare(text: str, source: Source) -> str:
    """Text that both parsers read alike, each line in its place; refuses what neither should see."""
    bad = _UNPRINTABLE.search(text)
    if bad is not None:
        message = f"control character U+{ord(bad.group()):04X}"
        raise SpecError(source.mistake(_span_at(text, bad.start(), 1), message, "remove it"))
    if "\\u" in text:
        text = _SURROGATES.sub(_join_surrogates, text)
        half = _HALF.search(text)
        if half is not None:
            message, hint = "an escape stands for no character", "write the character itself"
            raise SpecError(source.mistake(_span_at(text, half.start(), 6), message, hint))
    if "\t" not in text:
        return text
    if not text.lstrip().startswith("{"):
        for number, line in enumerate(source.lines, 1):
            column = tab_in_indentation(line) if "\t" in line else None
            if column is not None:
                message, hint = "a tab in the indentation", "indent with spaces"
                raise SpecError(source.mistake(Span(number, column + 1, 1), message, hint))
    # A tab that only separates becomes a space: the Python parser takes none.
    pieces = re.split("([\r\n\x85\u2028\u2029])", text)
    return "".join(_QUOTED_OR_TAB.sub(_tab_to_space, piece) if "\t" in piece else piece for piece in pieces)


def _span_at(text: str, index: int, width: int) -> Span:
    before = _LINE_BREAK.split(text[:index])
    return Span(len(before), len(before[-1]) + 1, width)


def _tab_to_space(match: re.Match[str]) -> str:
    return " " if match.group() == "\t" else match.group()


def _join_surrogates(match: re.Match[str]) -> str:
    """JSON writes a character beyond 16 bits as two escapes; YAML has one for it."""
    high, low = int(match.group(1), 16), int(match.group(2), 16)
    return f"\\U{0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00):08x}"


class _Composer:
    """Builds the tree of nodes from the parser's events. `mistakes` are those that did not stop it."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.mistakes: list[Mistake] = []
        self.anchors: dict[str, Node] = {}
        self.documents = 0

    def compose(self, text: str) -> Node | None:
        """The tree of the one document in the text, or None where there is none."""
        root: Node | None = None
        stack: list[Node] = []
        count = 0
        for event in self._events(text):
            if isinstance(event, yaml.CollectionEndEvent):
                node = stack.pop()
                self._close(node, event)
            elif isinstance(event, yaml.NodeEvent):
                node = self._open(event)
                count += 1
                if count > MAX_VALUES:
                    raise self._fatal(node.span, f"more than {MAX_VALUES:,} values", "is this the right file?")
                if node.open:
                    stack.append(node)
                    if len(stack) > MAX_DEPTH:
                        raise too_deep(self.source, node.span)
                    continue
            else:
                self._count_documents(event)
                continue
            if stack:
                stack[-1].add(node)
            else:
                root = node
        return root

    def _events(self, text: str) -> Iterator[yaml.Event]:
        try:
            yield from yaml.parse(text, Loader=_LOADER)
        except yaml.MarkedYAMLError as error:
            complaint = Complaint(
                problem=error.problem or "",
                place=_place(error.problem_mark) or (0, 0),
                context=error.context or "",
                context_place=_place(error.context_mark),
            )
            raise self._syntax_error(complaint) from None
        except (yaml.YAMLError, UnicodeError, ValueError, OverflowError):
            # The Python parser ends so at an escape beyond Unicode.
            raise self._fatal(Span(1, 1, 1), "cannot be read as YAML", "check the escapes after \\") from None

    def _syntax_error(self, complaint: Complaint) -> SpecError:
        told = explain(complaint, self.source.lines)
        related = None
        if told.opened is not None:
            line, column = told.opened
            related = self.source.mistake(Span(line + 1, column + 1, 1), "opened here", note="opened here")
        line, column = told.place
        return SpecError(self.source.mistake(Span(line + 1, column + 1, 1), told.message, told.hint, related=related))

    def _count_documents(self, event: yaml.Event) -> None:
        if isinstance(event, yaml.DocumentStartEvent):
            self.documents += 1
            if self.documents > 1:
                raise self._fatal(self._span(event), "a second document begins here", "one file holds one document")

    def _open(self, event: yaml.NodeEvent) -> Node:
        """The node that an event begins; a scalar or an alias is complete with it."""
        span = self._span(event)
        if isinstance(event, yaml.AliasEvent):
            return self._alias(str(event.anchor), span)
        if isinstance(event, yaml.ScalarEvent):
            node = Node("scalar", span, str(event.value), plain=not event.style)
        else:
            kind = "list" if isinstance(event, yaml.SequenceStartEvent) else "mapping"
            node = Node(kind, span, block=not getattr(event, "flow_style", True), open=True)
        if event.anchor is not None:
            self.anchors[event.anchor] = node
        tag = getattr(event, "tag", None)
        if tag is not None:
            message, hint = f"tags are not used here: {quote(tag)}", "remove the tag, or put text in quotes"
            self.mistakes.append(self.source.mistake(span, message, hint))
            node.kind = node.kind if node.open else "broken"
        return node

    def _alias(self, name: str, span: Span) -> Node:
        target = self.anchors.get(name)
        if target is not None and not target.open:
            return Node("alias", span, target=target)
        if target is None:
            message, hint = f"no anchor &{name} before this alias", "put text that begins with * in quotes"
        else:
            message, hint = f"alias *{name} stands inside itself", "write the value out"
        self.mistakes.append(self.source.mistake(span, message, hint))
        return Node("broken", span)

    def _close(self, node: Node, event: yaml.Event) -> None:
        """End a list or mapping: one in brackets is as wide as its first line, another as its first entry."""
        node.open = False
        end = _place(event.end_mark) or (0, 0)
        if node.block:
            first = node.pairs[0][0] if node.pairs else node.items[0] if node.items else node
            node.span = first.span
        else:
            node.block = end[0] + 1 != node.span.line
            node.span = self._stretch((node.span.line - 1, node.span.column - 1), end)

    def _span(self, event: yaml.Event) -> Span:
        return self._stretch(_place(event.start_mark) or (0, 0), _place(event.end_mark) or (0, 0))

    def _stretch(self, start: tuple[int, int], end: tuple[int, int]) -> Span:
        """From start to end, or to the end of the text of the first line."""
        (line, column), (end_line, end_column) = start, end
        if end_line != line:
            end_column = len(self.source.lines[line].rstrip()) if line < len(self.source.lines) else column
        return Span(line + 1, column + 1, max(0, end_column - column))

    def _fatal(self, span: Span, message: str, hint: str) -> SpecError:
        return SpecError(self.source.mistake(span, message, hint))


def _place(mark: Any) -> tuple[int, int] | None:
    return None if mark is None else (mark.line, mark.column)
