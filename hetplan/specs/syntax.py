"""What the YAML parser could not read, in words that help the writer of the file.

The C parser and the Python one word the same error differently and place some of them differently; here both become
one message at one place.
"""

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Complaint:
    """An error of the parser: its words, and 0-based (line, column) of the error and of what it was reading."""

    problem: str
    place: tuple[int, int]
    context: str = ""
    context_place: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Message, hint and 0-based place; `opened` is where an unclosed or broken bracket began."""

    message: str
    hint: str
    place: tuple[int, int]
    opened: tuple[int, int] | None = None


_INDENT = "keys of one mapping, and items of one list, start in the same column"
_ALIAS = "quote text that begins with & or *"

# (error contains, context contains, message, hint, whether the place is where the construct began)
_TABLE = (
    ("maximum nesting", "", "too many levels deep", "is this the right file?", False),
    ("unexpected end of stream", "quoted", "a quote is never closed", "add the closing quote", True),
    ("unexpected document", "quoted", "a quote is never closed", "add the closing quote", True),
    ("could not find expected ':'", "", 'a key without ":"', "write key: value, or quote text of several lines", True),
    ("mapping values are not allowed", "", '":" is not allowed here', f'quote text that holds ": "; {_INDENT}', False),
    ("unexpected ':'", "", '":" is not allowed here', 'quote text that holds ":"', False),
    ("sequence entries are not allowed", "", 'a list item "-" is not allowed here', "begin lists on a new line", False),
    ("mapping keys are not allowed", "", '"?" is not allowed here', "quote text that begins with ?", False),
    (
        "unknown escape character",
        "",
        "unknown escape after \\",
        "write \\\\ for a backslash, or use single quotes",
        False,
    ),
    ("hexdec", "", "unfinished escape after \\", "write \\uXXXX with four hexadecimal digits", False),
    ("escape sequence of", "", "unfinished escape after \\", "write \\uXXXX with four hexadecimal digits", False),
    ("invalid unicode character escape", "", "an escape stands for no character", "write the character itself", False),
    ("alphabetic or numeric", "alias", '"*" begins an alias and none follows', _ALIAS, True),
    ("alphabetic or numeric", "anchor", '"&" begins an anchor and none follows', _ALIAS, True),
    ("tag", "", "tags (!) are not used here", "quote text that begins with !", True),
    ("tag", "directive", "directives (%) are not used here", "remove this line", True),
    ("directive", "", "directives (%) are not used here", "remove this line", True),
    ("incompatible yaml document", "", "this YAML version is not known", "remove the %YAML line", False),
    ("document start", "", "text after the end of the document", "one file holds one document", False),
    ("comment or line break", "block scalar", "cannot read the | or > of a block of text", "write | alone", False),
    ("indentation", "block scalar", "cannot read the | or > of a block of text", "write | alone", False),
    ("'-' indicator", "", "expected another list item", _INDENT, False),
    ("<block end>", "block collection", "expected another list item", _INDENT, False),
)


def explain(complaint: Complaint, lines: tuple[str, ...]) -> Explanation:
    """Turn a parser's complaint about these lines into a message and a hint."""
    problem, context = complaint.problem.lower(), complaint.context.lower()
    place = _inside(complaint.place, lines)
    began = None if complaint.context_place is None else _inside(complaint.context_place, lines)
    if "flow sequence" in context or "flow mapping" in context or "flow node" in context:
        return _bracket(problem, place, began, lines)
    if "cannot start any token" in problem:
        return _bad_start(place, lines)
    for words, where, message, hint, at_start in _TABLE:
        if words in problem and where in context:
            spot = began if at_start and began is not None else place
            if "escape" in message and _char(spot, lines) != "\\":
                spot = (spot[0], max(0, lines[spot[0]].rfind("\\", 0, spot[1] + 1)))
            return Explanation(message=message, hint=hint, place=spot)
    before = lines[place[0]][: place[1]].strip()
    if _char(place, lines) == ":" and not before:
        return Explanation(message='a key is missing before ":"', hint="write key: value", place=place)
    if before:
        return Explanation(message="text after the end of the value", hint="quote the whole value", place=place)
    return Explanation(message="expected a key here", hint=_INDENT, place=place)


def _bracket(
    problem: str, place: tuple[int, int], began: tuple[int, int] | None, lines: tuple[str, ...]
) -> Explanation:
    """An error between brackets: never closed, or something other than a comma between two entries."""
    opening = _char(began, lines) if began is not None else ""
    closing = {"[": "]", "{": "}"}.get(opening)
    last = (len(lines) - 1, len(lines[-1]))
    while last[0] > 0 and not lines[last[0]].strip():
        last = (last[0] - 1, len(lines[last[0] - 1]))
    if closing is not None and began is not None and place >= (last[0], len(lines[last[0]].rstrip())):
        return Explanation(message=f'"{opening}" is never closed', hint=f"add {closing}", place=began)
    if "node content" in problem or closing is None:
        return Explanation(message="a value is missing here", hint="remove the extra comma or bracket", place=place)
    return Explanation(
        message=f'expected "," or "{closing}" here', hint="put a comma between entries", place=place, opened=began
    )


def _bad_start(place: tuple[int, int], lines: tuple[str, ...]) -> Explanation:
    """A value cannot begin with this character."""
    char = _char(place, lines)
    if char == "\t":
        return Explanation(message="a tab in the indentation", hint="indent with spaces", place=place)
    return Explanation(message=f"a value cannot begin with {char}", hint="put the value in quotes", place=place)


def _inside(place: tuple[int, int], lines: tuple[str, ...]) -> tuple[int, int]:
    """The place, moved back to the last text of the file where the parser stopped behind it."""
    line, column = place
    if line >= len(lines):
        line = len(lines) - 1
        column = len(lines[line])
    while line > 0 and not lines[line].strip():
        line -= 1
        column = len(lines[line])
    return line, min(column, len(lines[line]))


def _char(place: tuple[int, int] | None, lines: tuple[str, ...]) -> str:
    return "" if place is None else lines[place[0]][place[1] : place[1] + 1]


_LEADING_TAB = re.compile(r"[ ]*(?:-[ ]*)*\t")


def tab_in_indentation(line: str) -> int | None:
    """0-based column of a tab that indents something on this line, or None."""
    match = _LEADING_TAB.match(line)
    if match is None or line[match.end() :].strip().startswith("#") or not line.strip(" \t-"):
        return None
    return match.end() - 1
