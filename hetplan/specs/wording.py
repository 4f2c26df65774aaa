"""Words and names in messages about input: key paths, found values, near names."""

import re
from collections.abc import Iterable, Mapping

KeyPath = tuple[str | int, ...]
"""Where a value stands in a document: ("groups", 0, "name")."""

COMMAND_LINE = "command line"
"""What stands for the file of a mistake in an option."""

LONGEST_QUOTE = 48
_PLAIN_KEY = re.compile(r"[\w-]{1,60}")


def sendable(text: str) -> str:
    """The text with half characters, which names of files and arguments may hold, written as escapes."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def shorten(text: str, longest: int = LONGEST_QUOTE) -> str:
    """The text, its middle left out where it is longer than a message can carry."""
    text = sendable(text)
    if len(text) <= longest:
        return text
    head = (longest - 1) * 2 // 3
    return f"{text[:head]}…{text[-(longest - 1 - head) :]}"


def quote(text: str) -> str:
    """The text in double quotes, shortened."""
    return f'"{shorten(text)}"'


def key_text(path: KeyPath) -> str:
    """A key path as users read it: groups[0].inter_node.bandwidth."""
    parts: list[str] = []
    for part in path:
        if isinstance(part, int):
            parts.append(f"[{part}]")
        else:
            name = part if _PLAIN_KEY.fullmatch(part) else quote(part)
            parts.append(f".{name}" if parts else name)
    return "".join(parts)


def number_text(value: float) -> str:
    """A number as the message shows it: whole ones with commas, absurdly long ones by their power of ten."""
    if abs(value) < 10**15 and value == int(value):
        return f"{int(value):,}"
    return f"{float(value):.6g}" if abs(value) < 10**300 else "a huge number"


def found(value: object) -> str:
    """What stands in the file, in words."""
    match value:
        case None:
            return "nothing"
        case bool():
            return "true" if value else "false"
        case float() if value.is_integer() and abs(value) < 1e15:
            return f"{number_text(value)} written as a decimal"
        case int() | float():
            return number_text(value)
        case str():
            return f"text {quote(value)}" if value else "empty text"
        case Mapping():
            return "a mapping of keys"
        case _:
            return "a list"


def distance(a: str, b: str) -> int:
    """Edit distance: letters put in, left out, changed, or two neighbours swapped (optimal string alignment)."""
    before: list[int] = []
    last = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        row = [i]
        for j, y in enumerate(b, 1):
            best = min(last[j] + 1, row[j - 1] + 1, last[j - 1] + (x != y))
            if i > 1 and j > 1 and x == b[j - 2] and a[i - 2] == y:
                best = min(best, before[j - 2] + 1)
            row.append(best)
        before, last = last, row
    return last[-1]


def nearest(word: str, names: Iterable[str], limit: int = 3) -> tuple[str, ...]:
    """The names most like `word`, nearest first, at most `limit`; none where all are far."""
    if len(word) > 100:
        return ()
    lower = word.lower()
    ranked: list[tuple[int, int, str]] = []
    for order, name in enumerate(names):
        allowed = max(1, min(len(word), len(name)) // 3)
        if abs(len(word) - len(name)) <= allowed:
            edits = distance(lower, name.lower())
            if edits <= allowed:
                ranked.append((edits, order, name))
    return tuple(name for _, _, name in sorted(ranked)[:limit])


def did_you_mean(word: str, names: Iterable[str]) -> str:
    """Like "did you mean a, b or c?", or nothing where all names are far."""
    near = nearest(word, names)
    return f"did you mean {either(near)}?" if near else ""


def either(names: Iterable[str]) -> str:
    """Like "a, b or c"."""
    items = tuple(names)
    return " or ".join(filter(None, (", ".join(items[:-1]), *items[-1:])))
