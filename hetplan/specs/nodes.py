"""The tree of a YAML document, and the plain data it stands for.

Rules: a key is given once and is text; of scalars without quotes only true, false, null and decimal numbers are not
text; a number is finite; merge keys are refused; aliases are followed within a limit.
"""

import math
import re
from dataclasses import dataclass, field

from hetplan.errors import Mistake, SpecError
from hetplan.specs.document import Document, Source, Span, in_file_order
from hetplan.specs.wording import KeyPath, shorten

MAX_ALIAS_VALUES = 10_000
MAX_DEPTH = 50
MAX_DIGITS = 300

_INT = re.compile(r"[-+]?(?:0|[1-9][0-9]*)")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|(?:0|[1-9][0-9]*)(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[-+]?\.?(?:nan|inf|infinity)", re.IGNORECASE)
_NULLS = ("", "~", "null")


@dataclass(slots=True)
class Node:
    """A value as it stands in the file.

    `kind` is "scalar", "list", "mapping", "alias" or "broken". `plain` scalars have no quotes. `block` marks lists and
    mappings that are not on one line. `open` ones are still being read.
    """

    kind: str
    span: Span
    text: str = ""
    plain: bool = False
    items: list["Node"] = field(default_factory=list)
    pairs: list[tuple["Node", "Node"]] = field(default_factory=list)
    key: "Node | None" = None
    target: "Node | None" = None
    block: bool = False
    open: bool = False

    def add(self, node: "Node") -> None:
        """Put the next node into a list or mapping; in a mapping, keys and values take turns."""
        if self.kind == "list":
            self.items.append(node)
        elif self.key is None:
            self.key = node
        else:
            self.pairs.append((self.key, node))
            self.key = None

    @property
    def is_null(self) -> bool:
        """Whether it stands for nothing."""
        return self.kind == "scalar" and self.plain and self.text in _NULLS


def too_deep(source: Source, span: Span) -> SpecError:
    """The error for a document that is nested beyond all use."""
    return SpecError(source.mistake(span, f"more than {MAX_DEPTH} levels deep", "is this the right file?"))


def document_of(root: Node, source: Source, mistakes: list[Mistake]) -> Document:
    """The document of a tree; `mistakes` are those that reading it found. Raises SpecError beyond the limits."""
    builder = _Builder(source=source, mistakes=list(mistakes))
    data = builder.value(root, (), behind_alias=False)
    return Document(
        data=data,
        file=source.file,
        lines=source.lines,
        keys=builder.keys,
        values=builder.values,
        blocks=frozenset(builder.blocks),
        broken=frozenset(builder.broken),
        mistakes=in_file_order(builder.mistakes),
    )


@dataclass(slots=True, kw_only=True)
class _Builder:
    """Turns nodes into plain data, and notes positions and mistakes on the way."""

    source: Source
    mistakes: list[Mistake]
    keys: dict[KeyPath, Span] = field(default_factory=dict)
    values: dict[KeyPath, Span] = field(default_factory=dict)
    blocks: set[KeyPath] = field(default_factory=set)
    broken: set[KeyPath] = field(default_factory=set)
    alias_values: int = 0

    def value(self, node: Node, path: KeyPath, *, behind_alias: bool) -> object:
        """Plain data of a node. The depth is bounded, so this may recurse."""
        if node.target is not None:
            node, behind_alias = node.target, True
        if behind_alias:
            self.alias_values += 1
            if self.alias_values > MAX_ALIAS_VALUES:
                message = f"aliases stand for more than {MAX_ALIAS_VALUES:,} values"
                raise SpecError(self.source.mistake(node.span, message, "write the values out"))
        if len(path) > MAX_DEPTH:
            raise too_deep(self.source, node.span)
        self.values[path] = node.span
        if node.block:
            self.blocks.add(path)
        match node.kind:
            case "scalar":
                return self._scalar(node, path)
            case "list":
                return tuple(
                    self.value(item, (*path, i), behind_alias=behind_alias) for i, item in enumerate(node.items)
                )
            case "mapping":
                return self._mapping(node, path, behind_alias=behind_alias)
        self.broken.add(path)
        return None

    def _mapping(self, node: Node, path: KeyPath, *, behind_alias: bool) -> dict[str, object]:
        data: dict[str, object] = {}
        for key, value in node.pairs:
            name = self._key(key, path)
            if name is None:
                continue
            here = (*path, name)
            if name in data:
                first = self.source.mistake(self.keys[here], "first here", note="first here")
                self.mistakes.append(
                    self.source.mistake(
                        key.span,
                        "given twice",
                        "remove one of the two; neither is taken silently",
                        path=here,
                        kind="duplicate-key",
                        note="again here",
                        related=first,
                    )
                )
                continue
            self.keys[here] = key.span
            data[name] = self.value(value, here, behind_alias=behind_alias)
            if not self.values[here].width:
                self.values[here] = key.span
        return data

    def _key(self, node: Node, path: KeyPath) -> str | None:
        """The text of a key, or None with a mistake where it is not text."""
        key = node.target or node
        if key.kind == "broken":
            return None
        if key.kind == "scalar" and not key.plain:
            return key.text
        message, hint = "a key must be text", "write key: value"
        if key.kind == "scalar":
            if key.text == "<<":
                message, hint = "merge keys (<<) are not used here", "write the keys out"
            elif key.is_null:
                message = 'a key is missing before ":"'
            elif key.text in ("true", "false") or _FLOAT.fullmatch(key.text) or _NOT_FINITE.fullmatch(key.text):
                text = shorten(key.text)
                message, hint = f"a key must be text, not {text}", f'write "{text}" in quotes'
            else:
                return key.text
        self.mistakes.append(self.source.mistake(node.span, message, hint, path=path))
        return None

    def _scalar(self, node: Node, path: KeyPath) -> object:
        """The value of a scalar, or None with a mistake where there is none."""
        text = node.text
        if not node.plain:
            if not any("\ud800" <= c <= "\udfff" for c in text):
                return text
            message, hint = "an escape stands for no character", "write the character itself"
        elif text in _NULLS:
            return None
        elif text in ("true", "false"):
            return text == "true"
        elif _FLOAT.fullmatch(text) and len(text) > MAX_DIGITS:
            message, hint = "the number is too long", f"at most {MAX_DIGITS} digits"
        elif _INT.fullmatch(text):
            return int(text)
        elif _FLOAT.fullmatch(text):
            number = float(text)
            if math.isfinite(number):
                return number
            message, hint = f"{shorten(text)} is too large", "write a finite number"
        elif _NOT_FINITE.fullmatch(text):
            message, hint = f"{text} is not a number to plan with", "write a finite number, or text in quotes"
        else:
            return text
        self.broken.add(path)
        self.mistakes.append(self.source.mistake(node.span, message, hint, path=path))
        return None
