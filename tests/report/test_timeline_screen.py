"""The terminal timeline beyond its golden texts: numbers, colours, folding, notes."""

import re

import pytest
from rich.cells import cell_len

from hetplan.prediction import TRACE_KINDS
from hetplan.report.style import terminal
from hetplan.report.timeline import TRANSFER, Timeline
from hetplan.report.timeline_cells import cells, scale
from hetplan.report.timeline_screen import GLYPHS, TEXTURED, folded, timeline_notes, timeline_screen
from tests.report import samples
from tests.report import timeline_samples as made
from tests.report.test_screens import ESCAPES, Tty

FILLED = "".join(glyph for kind, (glyph, _) in GLYPHS.items() if kind not in TEXTURED)
BLANKS = str.maketrans(dict.fromkeys(FILLED, " "))


def drawn(shown: Timeline, width: int = 100, *, stages: bool = False) -> str:
    """The screen as a pipe gets it."""
    return samples.plain(timeline_screen(shown, samples.stream(width), stages=stages))


def coloured(shown: Timeline, environment: dict[str, str]) -> str:
    """What a terminal gets."""
    stream = Tty()
    out = terminal(stream, environment=environment, width=100)
    out.print(timeline_screen(shown, out))
    return stream.written()


@pytest.mark.parametrize("environment", [{"TERM": "xterm-256color"}, {"TERM": "xterm", "COLORTERM": "truecolor"}])
@pytest.mark.parametrize("sample", made.TIMELINES.values())
def test_colour_fills_blocks_and_adds_nothing(sample: made.Sample, environment: dict[str, str]) -> None:
    """Without its codes a coloured timeline is the plain one, but for the signs of the blocks that colour fills."""
    shown = sample()
    text = ESCAPES.sub("", coloured(shown, environment))
    assert [line.rstrip() for line in text.splitlines()] == [
        line.rstrip() for line in drawn(shown).translate(BLANKS).splitlines()
    ]


def test_colours_of_blocks() -> None:
    """Blocks have the colours of the dark theme; 16 colours, NO_COLOR and a pipe have signs instead."""
    text = coloured(made.six_stages(), {"TERM": "xterm", "COLORTERM": "truecolor"})
    # A style keeps the codes of the first colours that it was written in, so that 256 may be left from another test.
    assert re.search(r"48;(2;179;215;255|5;\d+)m", text)
    assert re.search(r"48;(2;75;139;212|5;\d+)m", text)
    for environment in ({"TERM": "xterm"}, {"TERM": "xterm-256color", "COLORTERM": "truecolor", "NO_COLOR": "1"}):
        plain = coloured(made.six_stages(), environment)
        assert "48;" not in plain
        assert ESCAPES.sub("", plain) == drawn(made.six_stages())


@pytest.mark.parametrize("width", [80, 100, 140])
def test_numbers_are_micro_batches(width: int) -> None:
    """Every number stands in the cell where a block of that micro-batch begins, and is never cut."""
    shown = made.six_stages()
    ruler = scale(shown, width)
    seen = 0
    for lane in shown.lanes:
        part = cells(shown, lane.index, ruler)
        own = shown.work.of(shown.work.stage == lane.index)
        for window, kinds, texts in zip(ruler.windows, part.kinds, part.texts, strict=True):
            at = 0
            while at < window.count:
                if not texts[at]:
                    at += 1
                    continue
                starts = own.start_s[own.kind == kinds[at]]
                index = abs(starts - window.start_s - at * ruler.cell_s).argmin()
                label = shown.label(0, int(own.microbatch[own.kind == kinds[at]][index]))
                assert "".join(texts[at : at + len(label)]) == label
                assert not texts[at + len(label)], "a cell of the block's own follows"
                at += len(label)
                seen += 1
    assert seen > 30


def test_cells_hold_what_takes_most_of_their_time() -> None:
    """Shares of kinds over all cells of a short iteration are those of its seconds, within a cell for each block."""
    shown = made.few_microbatches()
    ruler = scale(shown, 100)
    assert len(ruler.windows) == 1
    for lane in shown.lanes:
        kinds = cells(shown, lane.index, ruler).kinds[0]
        for kind in ("forward", "backward", "gradient_sync", "optimizer"):
            number = TRACE_KINDS.index(kind)
            blocks = ((shown.work.stage == lane.index) & (shown.work.kind == number)).sum()
            seconds = (shown.work.end_s - shown.work.start_s)[
                (shown.work.stage == lane.index) & (shown.work.kind == number)
            ].sum()
            assert kinds.count(number) * ruler.cell_s == pytest.approx(seconds, abs=blocks * ruler.cell_s)


@pytest.mark.parametrize("width", [40, 80, 100, 140])
def test_the_last_stage_is_seen_to_begin(width: int) -> None:
    """However deep the pipeline, every row of the fill shows some work."""
    text = drawn(made.many_stages(), width, stages=True)
    rows = [line for line in text.splitlines() if re.match(r" S\d", line) and line.endswith("%")]
    assert len(rows) == 25
    assert all("░" in row.partition("┊")[0] for row in rows)


@pytest.mark.parametrize("sample", made.TIMELINES.values())
def test_rare_kinds_are_seen(sample: made.Sample) -> None:
    """The optimizer stands in every row, however short it is."""
    for line in drawn(sample(), 80, stages=True).splitlines():
        if re.match(r" S\d.*%$", line):
            assert "█" in line


def test_folding_keeps_every_stage_once() -> None:
    """At most 12 rows, which cover all stages in order, whatever the groups are."""
    lanes = made.many_stages().lanes
    for count in (1, 12, 13, 25):
        rows = folded(lanes[:count])
        assert len(rows) <= 12
        assert [lane.index for row in rows for lane in row.lanes] == list(range(count))
    plan = samples.plan([(f"g{i % 2}", [1]) for i in range(40)], microbatches=2)
    trace = made.traced(
        [made.one_f_one_b(40, s, 2) for s in range(40)], forward_s=[1.0] * 40, backward_s=[2.0] * 40, hop_s=[0.1] * 39
    )
    shown = made.timeline_of(trace, plan)
    assert len(folded(shown.lanes)) <= 12
    assert "stages of g" in drawn(shown)
    assert "--stages prints all 40" in drawn(shown)


def test_names_print_as_written() -> None:
    """Group names are never read as markup; long ones leave the rows for a line of their own."""
    assert re.search(r"^ S1 \[red\] +10 ", drawn(made.odd_names()), re.MULTILINE)
    plan = samples.plan([("a" * 60, [5, 5])], microbatches=4)
    cluster = samples.cluster("c", [{"name": "a" * 60, "accelerator": samples.A100, "nodes": 32}])
    trace = made.traced(
        [made.one_f_one_b(2, s, 4) for s in range(2)], forward_s=[0.1, 0.1], backward_s=[0.2, 0.2], hop_s=[0.01]
    )
    text = drawn(made.timeline_of(trace, plan, cluster), 80)
    assert f"\n S0–S1 {'a' * 60}\n" in text
    assert all(cell_len(line) <= 80 for line in text.splitlines())


def test_legend_has_what_occurs() -> None:
    """Kinds that do not occur and transfers, which rows do not show, are not in the legend."""
    text = drawn(made.few_microbatches())
    assert "recompute" not in text
    assert "weight" not in text
    assert TRACE_KINDS[TRANSFER] not in text
    assert "╬╬ weight gradient" in drawn(made.split_backward())
    assert "▓▓ input gradient" in drawn(made.split_backward())


def test_notes() -> None:
    """Warnings where a plan does not fit, then the steps."""
    shown = made.six_stages()
    out = samples.stream(100)
    assert timeline_notes(shown, out) == []
    (line,) = samples.plain(
        timeline_notes(shown, out, steps=[("hetplan timeline r.json -o t.html", "zoom")])
    ).splitlines()
    assert line == "→ hetplan timeline r.json -o t.html  zoom"
    assert "the plan does not fit: stage 1 on a100 needs more memory than it has" in samples.plain(
        timeline_notes(made.too_large(), out)
    )
