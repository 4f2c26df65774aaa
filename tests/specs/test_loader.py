"""Reading files as values with positions."""

import io
import os
import sys
import time
from pathlib import Path

import pytest
import yaml

from hetplan.errors import Mistake, SpecError
from hetplan.specs import loader
from hetplan.specs.document import Document, Problem, Span
from hetplan.specs.loader import load_spec, parse_document, problems_to_mistakes, read_document, scan_document
from hetplan.specs.training import TrainingSpec
from hetplan.specs.wording import KeyPath

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((*(ROOT / "clusters").glob("*.yaml"), *(ROOT / "models").glob("*.yaml")))
CONFIGS = sorted((ROOT / "tests" / "data" / "huggingface").glob("*.json"))


def document(text: str | bytes) -> Document:
    """The document of a text."""
    return parse_document(text, "a.yaml")


def refusal(path: str | Path) -> Mistake:
    """The one mistake that makes a file unreadable."""
    with pytest.raises(SpecError) as caught:
        read_document(path)
    (mistake,) = caught.value.mistakes
    return mistake


@pytest.fixture(params=["c", "python"])
def parser(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reads with the C parser, then with the Python one."""
    name = "CSafeLoader" if request.param == "c" else "SafeLoader"
    if not hasattr(yaml, name):
        pytest.skip("PyYAML without the C parser")
    monkeypatch.setattr(loader, "_LOADER", getattr(yaml, name))


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("true", True),
        ("false", False),
        ("True", "True"),
        ("yes", "yes"),
        ("no", "no"),
        ("on", "on"),
        ("~", None),
        ("null", None),
        ("", None),
        ("Null", "Null"),
        ("12", 12),
        ("-3", -3),
        ("+3", 3),
        ("0", 0),
        ("010", "010"),
        ("0x10", "0x10"),
        ("0o17", "0o17"),
        ("1_000", "1_000"),
        ("1,000", "1,000"),
        ("12:30", "12:30"),
        ("2026-01-31", "2026-01-31"),
        ("1.5", 1.5),
        (".5", 0.5),
        ("1e3", 1000.0),
        ("-2.5E-3", -0.0025),
        ("'12'", "12"),
        ('"true"', "true"),
        ('"a\\u00e9\\n"', "aé\n"),
        ("'it''s'", "it's"),
        ("400 Gbit/s", "400 Gbit/s"),
        ("[1, [a, ~]]", (1, ("a", None))),
        ("{b: {c: 1}}", {"b": {"c": 1}}),
        ("[]", ()),
        ("|\n  x\n  y\n", "x\ny\n"),
        (">-\n  x\n  y\n", "x y"),
    ],
)
@pytest.mark.usefixtures("parser")
def test_scalars_are_what_they_look_like(written: str, value: object) -> None:
    """Only true, false, null and decimal numbers are not text."""
    read = document(f"a: {written}")
    assert read.data == {"a": value}
    assert type(read.data["a"]) is type(value)
    assert read.mistakes == ()


@pytest.mark.parametrize(
    ("text", "line", "column", "message"),
    [
        ("a: .nan", 1, 4, ".nan is not a number to plan with"),
        ("a: NaN", 1, 4, "NaN is not a number to plan with"),
        ("a: [1, -.inf]", 1, 8, "-.inf is not a number to plan with"),
        ("a: Infinity", 1, 4, "Infinity is not a number to plan with"),
        ("a: 1e400", 1, 4, "1e400 is too large"),
        (f"a: {'9' * 5000}", 1, 4, "the number is too long"),
        ("a: !!str 5", 1, 4, 'tags are not used here: "tag:yaml.org,2002:str"'),
        ("a: !python/object:os.system [ls]", 1, 4, 'tags are not used here: "!python/object:os.system"'),
        ("a: *b", 1, 4, "no anchor &b before this alias"),
        ("a: &a [*a]", 1, 8, "alias *a stands inside itself"),
        ("a: &a {b: *a}", 1, 11, "alias *a stands inside itself"),
        ("a: &x {b: 1}\nc: {<<: *x}", 2, 5, "merge keys (<<) are not used here"),
        ("1: a", 1, 1, "a key must be text, not 1"),
        ("true: a", 1, 1, "a key must be text, not true"),
        ("~: a", 1, 1, 'a key is missing before ":"'),
        ("[a, b]: c", 1, 1, "a key must be text"),
        ("a: 1\nb:\n  a: 1\na: 2", 4, 1, "given twice"),
    ],
)
@pytest.mark.usefixtures("parser")
def test_refused_values_have_a_place_and_a_hint(text: str, line: int, column: int, message: str) -> None:
    """What could be misread is refused where it stands, and reading goes on."""
    (mistake,) = document(text).mistakes
    assert (mistake.line, mistake.column, mistake.message) == (line, column, message)
    assert mistake.hint


def test_all_mistakes_come_in_file_order() -> None:
    """Reading does not stop at the first mistake."""
    read = document("a: .nan\nb: &x [*x]\nc: {d: 1, d: 2, d: 3}\n2: e\n")
    assert [(m.line, m.column) for m in read.mistakes] == [(1, 4), (2, 8), (3, 11), (3, 17), (4, 1)]
    assert read.broken == {("a",), ("b", 0)}


def test_duplicate_keys_name_both_places() -> None:
    """The first is kept for the checks that follow, and shown beside the second."""
    read = document("a:\n  kv: 88\n  kv: 8\n")
    (mistake,) = read.mistakes
    assert (mistake.kind, mistake.key, mistake.line, mistake.note) == ("duplicate-key", "a.kv", 3, "again here")
    assert mistake.related is not None
    assert (mistake.related.line, mistake.related.column, mistake.related.note) == (2, 3, "first here")
    assert read.data == {"a": {"kv": 88}}


@pytest.mark.parametrize(
    ("path", "key", "value"),
    [
        (("name",), Span(1, 1, 4), Span(1, 7, 4)),
        (("groups", 0, "nodes"), Span(4, 5, 5), Span(4, 12, 2)),
        (("groups", 0, "net", "bandwidth"), Span(5, 11, 9), Span(5, 22, 10)),
        (("groups", 0, "net"), Span(5, 5, 3), Span(5, 10, 23)),
        (("groups", 1), None, Span(6, 5, 4)),
        (("quoted",), Span(8, 1, 6), Span(8, 9, 5)),
        (("empty",), Span(9, 1, 5), Span(9, 1, 5)),
    ],
)
@pytest.mark.usefixtures("parser")
def test_keys_and_values_have_places(path: KeyPath, key: Span | None, value: Span) -> None:
    """Line, column and width of every key and value, counted from 1; an empty value stands at its key."""
    text = """name: demo
groups:
  - name: fast
    nodes: 44
    net: {bandwidth: 800 Gbit/s}
  - name: old  # a comment
    nodes: 8
quoted: "a b"
empty:
"""
    read = document(text)
    assert read.keys.get(path) == key
    assert read.values[path] == value


@pytest.mark.usefixtures("parser")
def test_json_is_read_with_tabs_and_escapes() -> None:
    """JSON as other programs write it: tabs, escaped slashes, characters in two escapes, exponents."""
    read = document(
        '{\n\t"a": [1,\t2.5e3, -0],\n\t"b": "\\u00e9\\/\\ud83d\\ude00",\n\t"c": {"d": null, "e": true}\n}\n'
    )
    assert read.data == {"a": (1, 2500.0, 0), "b": "é/\U0001f600", "c": {"d": None, "e": True}}
    assert read.keys[("c", "d")] == Span(4, 8, 3)


@pytest.mark.usefixtures("parser")
def test_tabs_that_do_not_indent_are_blanks() -> None:
    """A tab after a colon or before a comment separates; one in quotes stays."""
    assert document('a:\t1\t# x\n\t\nb:\t"c\td"\t\n').data == {"a": 1, "b": "c\td"}


@pytest.mark.parametrize("ending", ["\n", "\r\n", "\r"])
def test_lines_end_in_any_way(ending: str) -> None:
    """Unix, Windows and old Mac line ends give the same data and places."""
    read = document(f"a: 1{ending}b: x{ending}")
    assert (read.data, read.values[("b",)], read.lines) == ({"a": 1, "b": "x"}, Span(2, 4, 1), ("a: 1", "b: x", ""))


def test_a_byte_order_mark_is_no_character() -> None:
    """A file saved with a mark starts at column 1 all the same."""
    assert document("\ufeffa: 1".encode()).keys[("a",)] == Span(1, 1, 1)


def test_anchors_stand_for_their_value() -> None:
    """An alias has the value of its anchor, and its places."""
    read = document("a: &x {b: 1}\nc: *x\nd: [*x, &x 5, *x]\n")
    assert read.data == {"a": {"b": 1}, "c": {"b": 1}, "d": ({"b": 1}, 5, 5)}
    assert read.values[("c", "b")] == read.values[("a", "b")]


def test_a_yaml_bomb_is_refused() -> None:
    """Ten lines that stand for billions of values give one mistake, at once."""
    bomb = "a: &a [x, x, x, x, x, x, x, x, x]\n"
    for before, name in zip("abcdefghi", "bcdefghij", strict=True):
        bomb += f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n"
    started = time.perf_counter()
    with pytest.raises(SpecError, match="aliases stand for more than 10,000 values"):
        document(bomb)
    assert time.perf_counter() - started < 5


def test_many_plain_values_are_no_bomb() -> None:
    """A long list of host names is fine; only a list of absurd length is not."""
    names = ", ".join(f"n{i}" for i in range(20_000))
    assert len(document(f"hosts: [{names}]").values) == 20_002
    with pytest.raises(SpecError, match="more than 250,000 values"):
        document("a: [" + "1," * 250_001 + "]")


@pytest.mark.parametrize("text", ["", "\n\n", "# nothing\n", "---\n", "null", "~", "\ufeff"])
def test_empty_files_are_mistakes(text: str) -> None:
    """A file without a value is refused, comments or not."""
    with pytest.raises(SpecError, match=r"a\.yaml: is empty"):
        document(text)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a: \0\0", "is a binary file, not text"),
        (b"\x7fELF\x02\x01\x01\0\0", "is a binary file, not text"),
        ("a: 1".encode("utf-16"), "is UTF-16, not UTF-8"),
        (b"a: 1\nb: \xff", "is not UTF-8 text: byte 0xff"),
        (b"a: " + b"x" * (4 * 2**20), "is larger than 4 MiB"),
    ],
)
def test_files_that_are_no_text_are_refused(content: bytes, message: str, tmp_path: Path) -> None:
    """One mistake with a hint, not one for each byte."""
    path = tmp_path / "a.yaml"
    path.write_bytes(content)
    mistake = refusal(path)
    assert (mistake.kind, mistake.file, mistake.message) == ("file", str(path), message)
    assert mistake.hint


def test_a_wrong_byte_has_a_place() -> None:
    """The byte that is not UTF-8 is found by line and column."""
    with pytest.raises(SpecError) as caught:
        document("é: 1\nü: ".encode() + b"\xff")
    assert (caught.value.mistakes[0].line, caught.value.mistakes[0].column) == (2, 4)


def test_files_that_are_not_there_are_refused(tmp_path: Path) -> None:
    """A missing file, a directory and an impossible name are one mistake each, with a hint."""
    (tmp_path / "hethub-768.yaml").write_text("a: 1")
    missing = refusal(tmp_path / "hethub-786.yaml")
    assert (missing.message, missing.hint) == ("no such file", "did you mean hethub-768.yaml?")
    assert refusal(tmp_path / "nothing" / "a.yaml").hint == "check the path"
    assert refusal(tmp_path).message == "is a directory, not a file"
    assert refusal(tmp_path / "hethub-768.yaml" / "a").message == "cannot be read: not a directory"
    assert refusal("a\udcff").file == "a\\udcff"
    assert refusal("a\0b").message.startswith("cannot be read")
    assert refusal("a" * 5000).hint == "check the path"


@pytest.mark.skipif(os.name == "nt" or not hasattr(os, "geteuid") or os.geteuid() == 0, reason="needs a plain user")
def test_files_without_permission_are_refused(tmp_path: Path) -> None:
    """A file that may not be read is a mistake, not a traceback."""
    path = tmp_path / "a.yaml"
    path.write_text("a: 1")
    path.chmod(0)
    assert refusal(path).message == "cannot be read: permission denied"


def test_permission_errors_are_mistakes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever runs the tests, an error of the system while opening becomes a mistake."""

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("builtins.open", refuse)
    mistake = refusal("a.yaml")
    assert (mistake.message, mistake.hint) == (
        "cannot be read: permission denied",
        "check the permissions of the file",
    )


@pytest.mark.parametrize("stream", [io.TextIOWrapper(io.BytesIO(b"a: \xc3\xa9")), io.StringIO("a: é")])
def test_a_dash_is_stdin(stream: io.TextIOBase, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stdin is read as bytes where it can be, and named in messages."""
    monkeypatch.setattr(sys, "stdin", stream)
    read = read_document("-")
    assert (read.data, read.file) == ({"a": "é"}, "<stdin>")


def test_read_document_raises_what_scan_document_collects(tmp_path: Path) -> None:
    """Mistakes that do not stop reading stand in the document or in the error."""
    path = tmp_path / "a.yaml"
    path.write_text("a: 1\na: .nan\nb: .inf")
    mistakes = scan_document(path).mistakes
    assert [m.line for m in mistakes] == [2, 3]
    with pytest.raises(SpecError) as caught:
        read_document(path)
    assert caught.value.mistakes == mistakes


def test_load_spec_reports_all_kinds_of_mistakes_together(tmp_path: Path) -> None:
    """Those of reading, of types and of checks come in file order; a broken value is reported once."""
    path = tmp_path / "a.yaml"
    path.write_text("global_batch_size: .nan\nsequence_length: -1\nsequence_length: 5\nprecision: bf16\n")

    def checks(data: dict[str, object]) -> list[tuple[KeyPath, str, str]]:
        assert data["global_batch_size"] is None
        return [(("global_batch_size",), "not again", ""), (("precision",), "not today", "tomorrow")]

    with pytest.raises(SpecError) as caught:
        load_spec(path, TrainingSpec, checks=checks)
    assert [(m.line, m.kind, m.message) for m in caught.value.mistakes] == [
        (1, "syntax", ".nan is not a number to plan with"),
        (2, "range", "-1 is out of range"),
        (3, "duplicate-key", "given twice"),
        (4, "value", "not today"),
    ]


def test_load_spec_gives_the_spec(tmp_path: Path) -> None:
    """A good file gives the model, and a check without findings changes nothing."""
    path = tmp_path / "a.json"
    path.write_text('{"global_batch_size": 8, "precision": "fp16"}')
    spec = load_spec(path, TrainingSpec, checks=lambda _: [])
    assert spec == TrainingSpec(global_batch_size=8, precision="fp16")


def test_problems_find_their_place() -> None:
    """A problem stands at its value, its key, or the nearest parent in the file."""
    read = document("a:\n  - b: 1\n    c: {d: 2}\ne:\n  f: 3\n")
    places = {
        Problem(("a", 0, "b"), "m"): (2, 8, 1),
        Problem(("a", 0, "b"), "m", at_key=True): (2, 5, 1),
        Problem(("a", 0, "x"), "m"): (2, 5, 1),
        Problem(("a", 0, "c", "x"), "m"): (3, 5, 1),
        Problem(("e",), "m"): (4, 1, 1),
        Problem(("e", "x", "y"), "m"): (4, 1, 1),
        Problem((), "m"): (1, 1, 1),
    }
    for problem, place in places.items():
        (mistake,) = problems_to_mistakes(read, [problem])
        assert (mistake.line, mistake.column, mistake.width) == place, problem


def test_excerpts_show_which_item_it_is() -> None:
    """The line before is shown where the list item begins there, and only then."""
    read = document("groups:\n  - name: fast\n    nodes: 0\n    hosts: x\n")
    after, later = problems_to_mistakes(read, [(("groups", 0, "nodes"), "m", ""), (("groups", 0, "hosts"), "m", "")])
    assert after.excerpt == ((2, "  - name: fast"), (3, "    nodes: 0"))
    assert later.excerpt == ((4, "    hosts: x"),)


@pytest.mark.parametrize("path", [*EXAMPLES, *CONFIGS], ids=lambda p: p.name)
@pytest.mark.usefixtures("parser")
def test_examples_read_as_plain_loading_would(path: Path) -> None:
    """On files without traps the data equal those of an independent loader, and every value has a place."""

    def tuples(value: object) -> object:
        if isinstance(value, dict):
            return {k: tuples(v) for k, v in value.items()}
        return tuple(map(tuples, value)) if isinstance(value, list) else value

    text = path.read_text(encoding="utf-8")
    # YAML 1.1 takes 1e-05 for text.
    plain = tuples(yaml.safe_load(text.replace("1e-0", "1.0e-0")))
    assert read_document(path).data == plain


@pytest.mark.skipif(not hasattr(yaml, "CSafeLoader"), reason="PyYAML without the C parser")
@pytest.mark.parametrize("path", [*EXAMPLES, *CONFIGS], ids=lambda p: p.name)
def test_both_parsers_give_the_same_document(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Data and all places are the same."""
    monkeypatch.setattr(loader, "_LOADER", yaml.CSafeLoader)
    fast = read_document(path)
    monkeypatch.setattr(loader, "_LOADER", yaml.SafeLoader)
    assert read_document(path) == fast


@pytest.mark.skipif(not hasattr(yaml, "CSafeLoader"), reason="PyYAML without the C parser")
def test_reading_takes_milliseconds() -> None:
    """The largest example reads in well under 20 ms, the best of five."""
    path = max(EXAMPLES, key=lambda p: p.stat().st_size)
    times = []
    for _ in range(5):
        started = time.perf_counter()
        read_document(path)
        times.append(time.perf_counter() - started)
    assert min(times) < 0.02
