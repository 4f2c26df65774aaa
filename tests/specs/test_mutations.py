"""Example files with something wrong in them: a mistake with a place, and never another exception."""

import io
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from hetplan.errors import SpecError
from hetplan.report.build import error_record
from hetplan.report.errors import error_lines
from hetplan.report.style import terminal
from hetplan.specs.files import load_cluster, load_model

ROOT = Path(__file__).parents[2]
CLUSTERS = sorted((ROOT / "clusters").glob("*.yaml"))
MODELS = sorted((ROOT / "models").glob("*.yaml"))
CONFIGS = sorted((ROOT / "tests" / "data" / "huggingface").glob("*.json"))
HUGE = "1" + "0" * 30


@dataclass(frozen=True)
class Mutation:
    """The first match of `pattern` becomes `new`; the mistake is of `kind` and underlines `under` if given."""

    name: str
    pattern: str
    new: str
    kind: str
    under: str | None = None

    def of(self, text: str) -> str | None:
        """The text with its mistake, or None where it has nothing to change."""
        changed, count = re.subn(self.pattern, self.new, text, count=1, flags=re.MULTILINE)
        return changed if count else None


def _value(key: str, new: str, kind: str, under: str | None = None, name: str = "") -> Mutation:
    """Another value for the first such key; by default the caret stands under it."""
    under = new if under is None else under
    return Mutation(
        name or f"{key} is {new[:12]}", rf"^([^#\n]*\b{key}): [^,}}\n#]*[^,}}\n# ]", rf"\1: {new}", kind, under
    )


def _renamed(key: str, new: str) -> Mutation:
    return Mutation(f"{key} renamed", rf"\b{key}:", f"{new}:", "unknown-key", new)


def _dropped(key: str) -> Mutation:
    return Mutation(f"{key} dropped", rf"^  (  )?{key}:.*\n", "", "missing-key")


ANYWHERE = (
    Mutation("name dropped", r"^name:.*\n", "", "missing-key", None),
    Mutation("name twice", r"^(name:.*\n)", r"\1\1", "duplicate-key", "name"),
    Mutation("name empty", r"^name:.*", "name: ''", "length", "''"),
    Mutation("name is a number", r"^name:.*", "name: 5", "type", "5"),
    Mutation("name unprintable", r"^name:.*", 'name: "a\\\\e[31m"', "value", '"a\\e[31m"'),
    Mutation("unknown key", r"^name:", "colour: red\nname:", "unknown-key", "colour"),
    Mutation("tab", r"^  ", "\t", "syntax", "\t"),
    Mutation("quote not closed", r"^name: ", 'name: "', "syntax", '"'),
    Mutation("bracket not closed", r"^name: ", "name: [", "syntax"),
    Mutation("colon left out", r"^name:", "name", "syntax"),
    Mutation("second document", r"\Z", "---\nname: x\n", "syntax", "---"),
    Mutation("merge key", r"^name:", "<<: x\nname:", "syntax", "<<"),
    Mutation("number as key", r"^name:", "5: x\nname:", "syntax", "5"),
    Mutation("tag", r"^name: ", "name: !!str ", "syntax"),
    Mutation("alias without anchor", r"^name: .*", "name: *x", "syntax", "*x"),
    Mutation("alias in itself", r"^name: .*", "name: &x [*x]", "syntax", "*x"),
    Mutation("control character", r"^name: ", "name: \x07", "syntax", "\x07"),
)
CLUSTER_MUTATIONS = (
    *ANYWHERE,
    *(_dropped(key) for key in ("accelerator", "nodes", "accelerators_per_node", "bandwidth", "latency")),
    _renamed("accelerator", "acelerator"),
    _renamed("nodes", "ndoes"),
    _renamed("groups", "group"),
    _renamed("bandwidth", "bandwith"),
    _value("bandwidth", "3200", "quantity", name="unit removed"),
    _value("bandwidth", "3200 Gb/s", "quantity", name="unit that is none"),
    _value("bandwidth", "3200 GiB", "quantity", name="unit of a size"),
    _value("bandwidth", "-3200 Gbit/s", "quantity", name="negative bandwidth"),
    _value("bandwidth", "0 Gbit/s", "quantity", name="no bandwidth"),
    _value("bandwidth", "1e99 GB/s", "quantity", name="huge bandwidth"),
    _value("latency", "5", "quantity", name="latency without unit"),
    _value("latency", "5 GB/s", "quantity", name="latency in bytes"),
    _value("nodes", "-4", "range"),
    _value("nodes", "0", "range"),
    _value("nodes", ".nan", "syntax"),
    _value("nodes", ".inf", "syntax"),
    _value("nodes", HUGE, "range"),
    _value("nodes", "9" * 5000, "syntax", name="nodes of 5,000 digits"),
    _value("nodes", "4.5", "type"),
    _value("nodes", "four", "type"),
    _value("nodes", "'4'", "type"),
    _value("nodes", "~", "type"),
    _value("nodes", "[4]", "type"),
    _value("accelerators_per_node", "-8", "range"),
    _value("accelerators_per_node", HUGE, "range"),
    _value("accelerator", "a100-smx4-80gb", "reference"),
    _value("accelerator", "A100", "reference", name="ambiguous accelerator"),
    _value("accelerator", "5", "type"),
    _value("path", "rdma", "choice"),
    Mutation("nodes twice", r"^( *nodes:.*\n)", r"\1\1", "duplicate-key", "nodes"),
    Mutation("no network", r"^    inter_node:.*\n", "", "missing-key"),
    Mutation("link missing", r"^  - between:.*\n(    .*\n)+", "", "link"),
    Mutation("link twice", r"(^  - between:.*\n(    .*\n)+)", r"\1\1", "value"),
    Mutation("link to no group", r"between: \[[^,]*", "between: [nowhere", "reference", "nowhere"),
    Mutation("link to itself", r"between: \[([^,]*), [^]]*", r"between: [\1, \1", "value"),
    Mutation("link without ends", r"^  - between:.*\n    bandwidth", "  - bandwidth", "missing-key", "bandwidth"),
    Mutation("link of one", r"between: \[([^,]*), [^]]*", r"between: [\1", "length", None),
    Mutation("groups empty", r"^groups:\n(  .*\n)+", "groups: []\n", "length", "[]"),
    Mutation("groups a number", r"^groups:\n(  .*\n)+", "groups: 5\n", "type", "5"),
    Mutation("too much memory", r"^(    nodes:.*)", r"\1\n    usable_memory: 99 TB", "range", "99 TB"),
    Mutation("host twice", r"^(    nodes:.*)", r"\1\n    hosts: [n1, n1]", "value", "n1"),
    Mutation("group twice", r"(^  - name:.*\n(    .*\n)+)(?=links:)", r"\1\1", "value"),
)
MODEL_MUTATIONS = (
    *ANYWHERE,
    *(_dropped(key) for key in ("layers", "hidden_size", "ffn_hidden_size", "attention_heads", "vocab_size")),
    _renamed("layers", "layrs"),
    _renamed("vocab_size", "vocabsize"),
    _renamed("architecture", "architcture"),
    _renamed("training", "trainig"),
    _value("layers", "-1", "range"),
    _value("layers", "0", "range"),
    _value("layers", HUGE, "range"),
    _value("layers", ".NaN", "syntax"),
    _value("layers", "many", "type"),
    _value("layers", "80.5", "type"),
    _value("layers", "{}", "type"),
    _value("hidden_size", "-8192", "range"),
    _value("vocab_size", "32_000", "type"),
    _value("attention_heads", "1e999", "syntax"),
    _value("global_batch_size", "0", "range"),
    _value("global_batch_size", "512 sequences", "type"),
    _value("sequence_length", "-4096", "range"),
    _value("sequence_length", HUGE, "range"),
    _value("precision", "bf61", "choice"),
    _value("precision", "16", "type"),
    _value("optimizer", "adamw", "choice"),
    _value("gated_mlp", "yes", "type"),
    Mutation("experts without number", r"^  layers:", "  experts: 4\n  experts_per_token: 9\n  layers:", "range", "9"),
    Mutation("layers twice", r"^(  layers:.*\n)", r"\1\1", "duplicate-key", "layers"),
    Mutation("shapes twice", r"^architecture:", "huggingface: x.json\narchitecture:", "choice", "x.json"),
    Mutation("shapes a list", r"^architecture:\n(  .*\n)+", "architecture: []\n", "type", "[]"),
    Mutation("shapes missing", r"^architecture:\n(  .*\n)+", "", "missing-key"),
)


def check_mutation(mutation: Mutation, text: str, load: Callable[[Path], object], path: Path) -> None:
    """The mistake that was put in is found, in its file, at a line and column, with a hint."""
    path.write_text(text, encoding="utf-8")
    with pytest.raises(SpecError) as caught:
        load(path)
    for mistake in caught.value.mistakes:
        assert mistake.file == str(path)
        assert mistake.line is not None
        assert mistake.column is not None
        assert mistake.message
        assert mistake.hint
    found = [m for m in caught.value.mistakes if m.kind == mutation.kind]
    assert found, caught.value
    lines = text.split("\n")
    under = [lines[(m.line or 1) - 1][(m.column or 1) - 1 :][: m.width] for m in found]
    assert mutation.under is None or mutation.under in under
    drawn(caught.value)


def drawn(error: SpecError) -> None:
    """Every mistake can be printed within the width and put into JSON, whatever stands in the file."""
    assert error.mistakes
    assert len(error_record("search", *error.mistakes).errors) == len(error.mistakes)
    first = {f"{m.file}:{m.line}" if m.line else f"{m.file}" for m in error.mistakes}
    for encoding in ("utf-8", "ascii"):
        stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
        for line in error_lines("search", error.mistakes, terminal(stream, width=80, environment={})):
            text = line.plain
            text.encode(encoding)
            assert "\n" not in text
            assert cell_len(text) <= 80 or text.startswith(tuple(first))


def check_examples(mutation: Mutation, paths: list[Path], load: Callable[[Path], object], target: Path) -> None:
    """Put the mistake into every example that has a place for it; at least one must."""
    spoilt = 0
    for path in paths:
        text = path.read_text(encoding="utf-8")
        changed = mutation.of(text)
        if changed not in (None, text):
            spoilt += 1
            check_mutation(mutation, changed or "", load, target.with_name(path.name))
    assert spoilt, "no example has what this changes"


@pytest.mark.parametrize("mutation", CLUSTER_MUTATIONS, ids=lambda m: m.name)
def test_bad_clusters(mutation: Mutation, tmp_path: Path) -> None:
    """Each known way to spoil a cluster is found where it is, in every example."""
    check_examples(mutation, CLUSTERS, load_cluster, tmp_path / "c.yaml")


@pytest.mark.parametrize("mutation", MODEL_MUTATIONS, ids=lambda m: m.name)
def test_bad_models(mutation: Mutation, tmp_path: Path) -> None:
    """Each known way to spoil a model is found where it is, in every example."""
    check_examples(mutation, MODELS, load_model, tmp_path / "m.yaml")


PIECES = st.one_of(
    st.binary(max_size=4),
    st.sampled_from(
        [c.encode() for c in "\t\n\r :-[]{}\"'#&*!|>%@`,?\\~<=09a\0\x1b\x85\u2028\u202eé\U0001f600\ufeff."]
    ),
    st.sampled_from(
        [b"- ", b": ", b"---\n", b"...\n", b"<<: ", b"*x", b"&x ", b"!!int ", b"\\ud800", b"1e999", b"\t- "]
    ),
)
EDITS = st.lists(
    st.tuples(
        st.sampled_from(["delete line", "double line", "swap lines", "insert", "replace", "delete"]),
        st.integers(0, 10_000),
        st.integers(0, 10_000),
        PIECES,
    ),
    min_size=1,
    max_size=4,
)
Edits = list[tuple[str, int, int, bytes]]


def edited(content: bytes, edits: Edits) -> bytes:
    """The content after some edits, such as a hand that slips would make."""
    for what, first, second, piece in edits:
        lines = content.split(b"\n")
        i, j = first % len(lines), second % len(lines)
        at = first % (len(content) + 1)
        match what:
            case "delete line":
                del lines[i]
            case "double line":
                lines.insert(j, lines[i])
            case "swap lines":
                lines[i], lines[j] = lines[j], lines[i]
            case "insert":
                lines = [content[:at] + piece + content[at:]]
            case "replace":
                lines = [content[:at] + piece + content[at + max(1, len(piece)) :]]
            case _:
                lines = [content[:at] + content[at + 1 + second % 8 :]]
        content = b"\n".join(lines)
    return content


def check_edits(path: Path, edits: Edits, target: Path) -> None:
    """The edited file is valid or has mistakes; no other exception comes out."""
    load: Callable[[Path], object] = load_cluster if path in CLUSTERS else load_model
    target.write_bytes(edited(path.read_bytes(), edits))
    try:
        load(target)
    except SpecError as error:
        drawn(error)


@pytest.mark.parametrize("path", [*CLUSTERS, *MODELS, *CONFIGS], ids=lambda p: p.name)
def test_random_edits(path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Twenty fixed random edits of every example file."""
    target = tmp_path_factory.mktemp("edits") / path.name

    @settings(max_examples=20)
    @given(EDITS)
    def run(edits: Edits) -> None:
        check_edits(path, edits, target)

    run()


@pytest.mark.proof
@pytest.mark.parametrize("path", [*CLUSTERS, *MODELS, *CONFIGS], ids=lambda p: p.name)
def test_random_edits_at_length(path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Five hundred of them."""
    target = tmp_path_factory.mktemp("edits") / path.name

    @settings(max_examples=500)
    @given(EDITS)
    def run(edits: Edits) -> None:
        check_edits(path, edits, target)

    run()
