"""Files that are no YAML: one message at one place, whichever parser reads them."""

import pytest
import yaml

from hetplan.errors import Mistake, SpecError
from hetplan.specs import loader
from hetplan.specs.syntax import tab_in_indentation

PARSERS = [pytest.param(yaml.SafeLoader, id="python")]
if hasattr(yaml, "CSafeLoader"):
    PARSERS.append(pytest.param(yaml.CSafeLoader, id="c"))

BROKEN = [
    ('a: "abc\nb: 1\n', 1, 4, "a quote is never closed"),
    ("a: 'abc\nb: 1\n", 1, 4, "a quote is never closed"),
    ("a: {x: 1\n", 1, 4, '"{" is never closed'),
    ("a: [1, 2\n\n", 1, 4, '"[" is never closed'),
    ("a: [1, 2\nb: 3\n", 2, 2, 'expected "," or "]" here'),
    ('{"a": 1 "b": 2}', 1, 12, 'expected "," or "}" here'),
    ("a: [1,,2]\n", 1, 7, "a value is missing here"),
    ("a: b: c\n", 1, 5, '":" is not allowed here'),
    ("a: 1\n  b: 2\n", 2, 4, '":" is not allowed here'),
    ("a: 1\nb\nc: 2\n", 2, 1, 'a key without ":"'),
    ("a:\n    b: 1\n  c: 2\n", 3, 3, "expected a key here"),
    ("a:\n  - 1\n  b: 2\n", 3, 3, "expected another list item"),
    ("a: - b\n", 1, 4, 'a list item "-" is not allowed here'),
    ('a: "b" c\n', 1, 8, "text after the end of the value"),
    ("a: 'it's'\n", 1, 8, "text after the end of the value"),
    ("a: @x\n", 1, 4, "a value cannot begin with @"),
    ("a: `x\n", 1, 4, "a value cannot begin with `"),
    ("a: %x\n", 1, 4, "a value cannot begin with %"),
    ("a: *\n", 1, 4, '"*" begins an alias and none follows'),
    ("a: & b\n", 1, 4, '"&" begins an anchor and none follows'),
    ('a: "\\q"\n', 1, 5, "unknown escape after \\"),
    (": a\n", 1, 1, 'a key is missing before ":"'),
    ("a: |1x\n b\n", 1, 6, "cannot read the | or > of a block of text"),
    ("a: !foo!x 1\n", 1, 4, "tags (!) are not used here"),
    ("%YAML 3.0\n---\na: 1\n", 1, 1, "this YAML version is not known"),
    ("a: 1\n...\nb: 2\n", 3, 1, "text after the end of the document"),
    ("a: 1\n---\nb: 2\n", 2, 1, "a second document begins here"),
    ("a:\n\tb: 1\n", 2, 1, "a tab in the indentation"),
    ("a:\n  \tb: 1\n", 2, 3, "a tab in the indentation"),
    ("a:\n-\tb: 1\n", 2, 2, "a tab in the indentation"),
    ("a: \x01\n", 1, 4, "control character U+0001"),
    ('{"a": "\\ud800"}', 1, 8, "an escape stands for no character"),
]


def mistake_in(text: str) -> Mistake:
    """The one mistake of a text that cannot be read."""
    with pytest.raises(SpecError) as caught:
        loader.parse_document(text, "a.yaml")
    (mistake,) = caught.value.mistakes
    return mistake


@pytest.mark.parametrize("parser", PARSERS)
@pytest.mark.parametrize(("text", "line", "column", "message"), BROKEN)
def test_broken_text_has_a_place_and_words(
    text: str, line: int, column: int, message: str, parser: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Either parser stops at the same place, and the message has a hint."""
    monkeypatch.setattr(loader, "_LOADER", parser)
    mistake = mistake_in(text)
    assert (mistake.line, mistake.column, mistake.message) == (line, column, message)
    assert mistake.hint
    assert mistake.excerpt == ((line, text.split("\n")[line - 1]),)


def test_an_unfinished_bracket_shows_where_it_was_opened() -> None:
    """The bracket is the earlier place that belongs to the mistake."""
    related = mistake_in("a: [1, 2\nb: 3\n").related
    assert related is not None
    assert (related.line, related.column, related.note) == (1, 4, "opened here")


@pytest.mark.parametrize("parser", PARSERS)
@pytest.mark.parametrize("opening", ["[", "{", "- ", "? ", "a: {"])
def test_deep_nesting_is_refused_not_followed(opening: str, parser: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred thousand levels give a message, and no recursion error."""
    monkeypatch.setattr(loader, "_LOADER", parser)
    assert "levels deep" in mistake_in(opening * 100_000).message


def test_deep_nesting_over_lines_is_refused() -> None:
    """So do levels by indentation, at the first that is too many."""
    mistake = mistake_in("".join(f"{'  ' * level}a:\n" for level in range(60)))
    assert (mistake.line, mistake.message) == (51, "more than 50 levels deep")


@pytest.mark.parametrize(
    ("line", "column"), [("\ta", 0), ("  \ta", 2), ("- \ta", 2), ("a\tb", None), ("\t", None), ("\t# a", None)]
)
def test_tabs_count_only_where_they_indent(line: str, column: int | None) -> None:
    """A tab between words, on a blank line or before a comment does no harm."""
    assert tab_in_indentation(line) == column
