"""The timeline as files: HTML that asks for nothing, SVG that is XML, a trace that viewers open."""

import base64
import json
import re
import shutil
import subprocess
import time
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from importlib import resources
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from jsonschema import Draft202012Validator

from hetplan.prediction import TRACE_KINDS
from hetplan.report.timeline import Timeline
from hetplan.report.timeline_chrome import chrome_trace
from hetplan.report.timeline_html import timeline_html
from hetplan.report.timeline_style import DARK, LIGHT
from hetplan.report.timeline_svg import MOST_BLOCKS, timeline_svg
from hetplan.report.timeline_totals import totals
from tests.report import timeline_samples as made

SVG = "{http://www.w3.org/2000/svg}"
ALL = {**made.TIMELINES, "timeline-names": made.odd_names}
each = pytest.mark.parametrize("sample", ALL.values(), ids=ALL)

TRACE_SCHEMA = {
    "type": "object",
    "required": ["traceEvents", "displayTimeUnit"],
    "properties": {
        "displayTimeUnit": {"enum": ["ms", "ns"]},
        "traceEvents": {
            "type": "array",
            "items": {
                "oneOf": [
                    {
                        "properties": {
                            "ph": {"const": "X"},
                            "name": {"type": "string", "minLength": 1},
                            "cat": {"enum": list(TRACE_KINDS)},
                            "pid": {"type": "integer", "minimum": 1},
                            "tid": {"type": "integer", "minimum": 1},
                            "ts": {"type": "number", "minimum": 0},
                            "dur": {"type": "number", "minimum": 0},
                            "args": {"type": "object"},
                        },
                        "required": ["ph", "name", "cat", "pid", "tid", "ts", "dur"],
                        "additionalProperties": False,
                    },
                    {
                        "properties": {
                            "ph": {"const": "M"},
                            "name": {"enum": ["process_name", "process_sort_index", "thread_name"]},
                            "pid": {"type": "integer", "minimum": 1},
                            "tid": {"type": "integer", "minimum": 0},
                            "args": {
                                "oneOf": [
                                    {"required": ["name"], "properties": {"name": {"type": "string"}}},
                                    {"required": ["sort_index"], "properties": {"sort_index": {"type": "integer"}}},
                                ]
                            },
                        },
                        "required": ["ph", "name", "pid", "tid", "args"],
                        "additionalProperties": False,
                    },
                ]
            },
        },
    },
}
"""The part of the Trace Event Format that is written: an object with complete events and metadata."""


class Page(HTMLParser):
    """Tags, texts of table cells, and the data of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.cells: list[list[str]] = []
        self.data = ""
        self._open = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collects the tag, and opens a row or a cell."""
        self.tags.append((tag, dict(attrs)))
        self._open = tag if tag in ("td", "th") else "data" if dict(attrs).get("id") == "data" else ""
        if tag == "tr":
            self.cells.append([])

    def handle_data(self, data: str) -> None:
        """Collects texts of cells, and the data."""
        if self._open in ("td", "th"):
            self.cells[-1].append(data)
        elif self._open == "data":
            self.data += data

    def handle_endtag(self, tag: str) -> None:
        """Closes what is open."""
        self._open = ""

    def all(self, tag: str, **attributes: str) -> list[dict[str, str | None]]:
        """Attributes of the tags that have these."""
        found = [entry for name, entry in self.tags if name == tag]
        return [e for e in found if all(e.get(key.rstrip("_")) == value for key, value in attributes.items())]


def decoded(data: dict[str, Any]) -> dict[str, np.ndarray[Any, np.dtype[np.int64]]]:
    """Columns of the page's events, as its script reads them."""
    names = ("start", "end", "meta", *(("sender",) if "sender" in data else ()))
    return {name: np.frombuffer(base64.b64decode(data[name]), dtype="<u4").astype(np.int64) for name in names}


def contrast(first: str, second: str) -> float:
    """WCAG 2 contrast of two colours."""

    def luminance(colour: str) -> float:
        channels = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(first), luminance(second)))
    return (high + 0.05) / (low + 0.05)


# -- colours


@pytest.mark.parametrize("theme", [LIGHT, DARK])
def test_colours_have_contrast(theme: type(LIGHT)) -> None:  # type: ignore[valid-type]
    """Marks have 3 with the ground, texts 4.5, and the depths of useful work differ by 1.6 or more."""
    assert min(contrast(colour, theme.ground) for colour in theme.marks.values()) >= 3
    assert min(contrast(theme.ground, colour) for colour in (theme.ink, theme.quiet)) >= 4.5
    assert min(contrast(colour, theme.marks[kind]) for kind, colour in theme.texts.items()) >= 4.5
    depths = [theme.marks[kind] for kind in ("forward", "backward", "weight")]
    assert contrast(depths[0], depths[1]) >= 2.3
    assert contrast(depths[1], depths[2]) >= 1.6


# -- HTML


@each
def test_page_asks_for_nothing(sample: made.Sample) -> None:
    """No address anywhere, no tag that loads; a policy forbids what might be overlooked."""
    text = timeline_html(sample())
    assert not re.search(r"https?:|//[a-z]+\.|url\(|@import|srcset|fetch\(|XMLHttp|import\(", text)
    page = Page(text)
    assert not {"img", "iframe", "object", "embed", "base", "form"} & {tag for tag, _ in page.tags}
    assert [entry["href"] for entry in page.all("link")] == ["data:,"]
    assert not any(entry.get("src") or entry.get("href") for entry in page.all("script") + page.all("style"))
    (policy,) = page.all("meta", **{"http-equiv": "Content-Security-Policy"})
    assert str(policy["content"]).startswith("default-src 'none'")


@each
def test_page_holds_every_event(sample: made.Sample) -> None:
    """The columns that the script reads are the blocks, to a part in a thousand million."""
    shown = sample()
    data = json.loads(Page(timeline_html(shown)).data)
    assert data["total"] == shown.iteration_s
    for name, blocks in (("work", shown.work), ("beside", shown.beside)):
        columns, at = decoded(data[name]), data[name]["at"]
        assert [at[0], at[-1], len(at)] == [0, len(blocks), len(shown.lanes) + 1]
        for s in range(len(shown.lanes)):
            assert (blocks.stage[at[s] : at[s + 1]] == s).all()
        assert columns["start"] / (2**32 - 1) * shown.iteration_s == pytest.approx(
            blocks.start_s, abs=1e-9 * data["total"]
        )
        assert columns["end"] / (2**32 - 1) * shown.iteration_s == pytest.approx(blocks.end_s, abs=1e-9 * data["total"])
        meta = columns["meta"]
        assert np.array_equal(meta & 7, blocks.kind)
        assert np.array_equal((meta >> 3 & 255) - 1, blocks.chunk)
        assert np.array_equal((meta >> 11 & 1048575) - 1, blocks.microbatch)
        assert np.array_equal(meta >> 31 == 1, blocks.activations)
    assert np.array_equal(decoded(data["beside"])["sender"], np.maximum(shown.beside.sender, 0))


@each
def test_page_has_the_table(sample: made.Sample) -> None:
    """The table under the picture holds the totals, for readers who do not see it."""
    shown = sample()
    page = Page(timeline_html(shown))
    head, *rows = page.cells
    table = totals(shown)
    assert head == ["stage", "group", "layers", *table.parts, *table.beside, "busy"]
    assert [row[-len(table.rows[0]) :] for row in rows] == [list(row) for row in table.rows]
    assert [row[0] for row in rows] == [f"S{lane.index}" for lane in shown.lanes]
    assert page.all("canvas", id="chart", role="img")[0]["aria-label"]


def test_buttons_are_what_can_be_asked() -> None:
    """Views that exist, kinds that occur, and idle time."""
    page = Page(timeline_html(made.six_stages()))
    assert [entry["data-view"] for entry in page.all("button", class_="view")] == ["all", "fill", "steady", "drain"]
    kinds = [int(str(entry["data-kind"])) for entry in page.all("button", class_="kind")]
    assert [TRACE_KINDS[kind] for kind in kinds[:-1]] == [
        "forward",
        "recompute",
        "backward",
        "gradient_sync",
        "optimizer",
        "transfer",
    ]
    assert kinds[-1] == len(TRACE_KINDS)
    short = Page(timeline_html(made.few_microbatches()))
    assert [entry["data-view"] for entry in short.all("button", class_="view")] == ["all", "fill", "drain"]
    assert "1" not in [entry["data-kind"] for entry in short.all("button", class_="kind")]


def test_names_are_escaped() -> None:
    """Names that mean something to HTML stand as text, in the page and in the script's data; [red] stays."""
    text = timeline_html(made.odd_names())
    page = Page(text)
    assert text.count("<script") == text.count("</script>") == 2
    assert [row[1] for row in page.cells[1:]] != []
    assert "&lt;b&gt;&amp;&quot;" in text
    assert "[red]" in text
    assert [stage["group"] for stage in json.loads(page.data)["stages"]] == ['<b>&"', "[red]"]
    assert "<" not in page.data


def test_a_plan_that_does_not_fit_says_so() -> None:
    """The page warns; one that fits does not."""
    assert "does not fit on S1" in timeline_html(made.too_large())
    assert "does not fit" not in timeline_html(made.six_stages())


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
def test_script_can_be_read() -> None:
    """The script has no mistake of syntax."""
    parts = [
        resources.files("hetplan.report").joinpath(f"timeline_{part}.js").read_text("utf-8") for part in ("draw", "use")
    ]
    done = subprocess.run(["node", "--check", "-"], input="\n".join(parts), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


# -- SVG


@each
def test_svg_is_xml_and_asks_for_nothing(sample: made.Sample) -> None:
    """It parses, names no address but the namespace, and has a title and a description."""
    text = timeline_svg(sample())
    root = ET.fromstring(text)
    assert root.tag == f"{SVG}svg"
    assert re.findall(r"https?://[^\"<]*", text) == ["http://www.w3.org/2000/svg"]
    assert not re.search(r"url\((?!#)|<script|href|@import|@font-face", text)
    assert root.findtext(f"{SVG}title")
    assert root.findtext(f"{SVG}desc")


@each
def test_svg_stays_inside_its_frame(sample: made.Sample) -> None:
    """Every block and text lies inside the picture, and blocks inside the panels."""
    root = ET.fromstring(timeline_svg(sample()))
    _, _, width, height = (float(value) for value in root.attrib["viewBox"].split())
    for block in root.iter(f"{SVG}rect"):
        if "x" in block.attrib and "y" in block.attrib:
            right = float(block.attrib["x"]) + float(block.attrib["width"])
            assert 0 <= float(block.attrib["x"]) <= right <= width
            assert float(block.attrib["y"]) + float(block.attrib["height"]) <= height
    for text in root.iter(f"{SVG}text"):
        assert 0 <= float(text.attrib["x"]) <= width
        assert 0 < float(text.attrib["y"]) <= height


def blocks_of(root: ET.Element, kind: str) -> list[ET.Element]:
    """Blocks of a kind that have a title."""
    groups = (group for group in root.iter(f"{SVG}g") if group.get("class") == kind)
    return [block for group in groups for block in group.iter(f"{SVG}rect")]


def test_svg_draws_the_whole_iteration() -> None:
    """Every event has its block with a title, as wide as it is long."""
    shown = made.six_stages()
    root = ET.fromstring(timeline_svg(shown))
    for kind in shown.kinds:
        count = int((shown.trace.kind == TRACE_KINDS.index(kind)).sum())
        found = blocks_of(root, kind.replace("_", "-"))
        assert len(found) == count, kind
        assert all(block.findtext(f"{SVG}title") for block in found)
    (idle, *_) = (rect for rect in root.iter(f"{SVG}rect") if rect.get("class") == "idle")
    per_s = float(idle.attrib["width"]) / shown.pipeline_s
    first = blocks_of(root, "backward")[0]
    assert float(first.attrib["width"]) == pytest.approx(0.352 * per_s - 1, abs=0.2)


def test_svg_of_many_blocks_leaves_the_middle_out() -> None:
    """Above 5,000 blocks: fill, two steady periods, drain, and a line that says so."""
    shown = made.many_stages()
    assert len(shown.work) + len(shown.beside) > MOST_BLOCKS
    text = timeline_svg(shown)
    root = ET.fromstring(text)
    assert "Fill, two steady periods and drain; the rest is left out." in text
    assert len([rect for rect in root.iter(f"{SVG}rect") if rect.get("class") == "idle"]) == 3 * len(shown.lanes) + 1
    assert len(blocks_of(root, "forward")) < (shown.trace.kind == made.FORWARD).sum() / 2
    assert "left out" not in timeline_svg(made.six_stages())


def test_svg_numbers_fit() -> None:
    """Numbers stand only in blocks with room for two digits; further chunks have light edges."""
    root = ET.fromstring(timeline_svg(made.split_backward()))
    assert [text.text for text in root.iter(f"{SVG}text") if "n on-forward" in text.get("class", "")][:4] == [
        "1",
        "2",
        "3",
        "4",
    ]
    crowded = ET.fromstring(timeline_svg(made.six_stages()))
    assert not [text for text in crowded.iter(f"{SVG}text") if "n on-" in text.get("class", "")]
    edges = list(ET.fromstring(timeline_svg(made.virtual_stages())).iter(f"{SVG}path"))
    assert edges[0].get("class") == "edge"
    assert not list(root.iter(f"{SVG}path"))


# -- trace


@each
def test_trace_follows_its_schema(sample: made.Sample) -> None:
    """Viewers find an object of complete events in microseconds, with names of processes and threads."""
    shown = sample()
    data = json.loads(chrome_trace(shown))
    Draft202012Validator(TRACE_SCHEMA).validate(data)
    events = [event for event in data["traceEvents"] if event["ph"] == "X"]
    assert len(events) == len(shown.trace.kind)
    assert sum(event["dur"] for event in events) == pytest.approx(
        float((shown.trace.end_s - shown.trace.start_s).sum()) * 1e6, abs=0.001 * len(events)
    )
    names = {e["pid"]: e["args"]["name"] for e in data["traceEvents"] if e["name"] == "process_name"}
    assert names == {lane.index + 1: f"S{lane.index} {lane.group}" for lane in shown.lanes}
    named = {(e["pid"], e["tid"]) for e in data["traceEvents"] if e["name"] == "thread_name"}
    assert {(event["pid"], event["tid"]) for event in events} <= named


@each
def test_events_of_a_thread_do_not_overlap(sample: made.Sample) -> None:
    """Complete events of one thread come one after the other: viewers would take them for nested."""
    threads: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for event in json.loads(chrome_trace(sample()))["traceEvents"]:
        if event["ph"] == "X":
            start = round(event["ts"] * 1000)
            threads.setdefault((event["pid"], event["tid"]), []).append((start, start + round(event["dur"] * 1000)))
    for spans in threads.values():
        ordered = sorted(spans)
        assert all(a[1] <= b[0] for a, b in pairwise(ordered))


# -- size


def test_large_timelines_are_written_fast(large: Timeline) -> None:
    """A pipeline of 64 stages and 512 micro-batches is a page of a few MB, and is written at once."""
    started = time.perf_counter()
    text = timeline_html(large)
    assert time.perf_counter() - started < 1.0
    assert len(large.trace.kind) > 130_000
    assert len(text) < 4_000_000


@pytest.fixture(scope="module")
def large() -> Timeline:
    """64 stages and 512 micro-batches, all alike, in lockstep."""
    return made.lockstep(64, 512)
