"""The timeline as data: seconds that add up, phases, what stands beside the work, the record."""

import json

import numpy as np
import pytest
from jsonschema import Draft202012Validator

from hetplan.prediction import TRACE_KINDS, Trace
from hetplan.report.schemas import json_schema
from hetplan.report.timeline import MAIN, TRANSFER, Timeline, nice_step, time_unit
from hetplan.report.timeline_record import TimelineRecord, timeline_json, timeline_record
from hetplan.report.timeline_totals import totals
from hetplan.report.timeline_words import block_words
from tests.report import samples
from tests.report import timeline_samples as made

ALL = (*made.TIMELINES.values(), made.odd_names)


def gpipe(stages: int = 3, microbatches: int = 5) -> Timeline:
    """All forward passes, then all backward passes."""
    order = [(kind, 0, i) for kind in (made.FORWARD, made.BACKWARD) for i in range(microbatches)]
    trace = made.traced([order] * stages, forward_s=[1.0] * stages, backward_s=[2.0] * stages, hop_s=[0.0] * stages)
    return made.timeline_of(trace, samples.plan([("a100", [5] * stages)], microbatches=microbatches))


@pytest.mark.parametrize("sample", ALL)
def test_seconds_add_up(sample: made.Sample) -> None:
    """Of every stage: work, idle time and what lies outside the pipeline are the iteration time."""
    shown = sample()
    for lane in shown.lanes:
        assert sum(lane.seconds) + lane.idle_s + lane.outside_s == pytest.approx(shown.iteration_s, rel=1e-12)
        assert 0 < lane.busy < 1


@pytest.mark.parametrize("sample", ALL)
def test_table_adds_up_as_printed(sample: made.Sample) -> None:
    """The cells of every row of the table add up to the total, and are the seconds to their last digit."""
    shown = sample()
    table = totals(shown)
    unit_s = time_unit(shown.iteration_s)[1]
    places = len(table.total.partition(".")[2])
    for lane, row in zip(shown.lanes, table.rows, strict=True):
        values = [0.0 if cell == "-" else float(cell.replace(",", "")) for cell in row[:-1]]
        parts = values[: len(table.parts)]
        assert round(sum(parts), places) == float(table.total.replace(",", ""))
        assert parts[table.parts.index("idle")] == pytest.approx(lane.idle_s / unit_s, abs=1.01 * 10.0**-places)
        assert row[-1] == f"{100 * lane.busy:.1f}%"


def test_kinds_that_do_not_occur_are_left_out() -> None:
    """Columns of the table are those of the kinds that occur."""
    assert totals(made.few_microbatches()).parts[:2] == ("forward", "backward")
    assert "recompute" in totals(made.six_stages()).parts
    assert totals(made.split_backward()).parts[:3] == ("forward", "input gradient", "weight gradient")
    assert totals(made.virtual_stages()).beside == ("hidden sync", "transfers")
    assert totals(made.six_stages()).beside == ("transfers",)


def test_order_of_events_does_not_matter() -> None:
    """A trace whose events are shuffled gives the same timeline."""
    shown = made.virtual_stages()
    again = made.timeline_of(made.permuted(shown.trace), shown.plan)
    assert again.lanes == shown.lanes
    assert again.views == shown.views
    for name in ("kind", "stage", "start_s", "end_s", "chunk", "microbatch", "activations"):
        assert np.array_equal(getattr(again.work, name), getattr(shown.work, name)), name
        assert np.array_equal(getattr(again.beside, name), getattr(shown.beside, name)), name


def test_hidden_reductions_stand_beside_the_work() -> None:
    """What of a reduction overlaps with work is beside it, the rest in the stage's row; nothing in a row overlaps."""
    shown = made.virtual_stages()
    exposed = shown.work.of(shown.work.kind == made.SYNC)
    for lane in shown.lanes:
        own = exposed.of(exposed.stage == lane.index)
        assert float((own.end_s - own.start_s).sum()) == pytest.approx(lane.seconds[MAIN.index("gradient_sync")])
        assert lane.hidden_sync_s == pytest.approx(0.4)
        row = shown.work.of(shown.work.stage == lane.index)
        assert (row.start_s[1:] >= row.end_s[:-1] - 1e-9).all()
    assert np.isin(shown.beside.kind, (made.SYNC, TRANSFER)).all()


def test_a_reduction_behind_part_of_the_work() -> None:
    """A reduction from 2 to 8 behind work from 3 to 4 and from 5 to 6: what follows the work, 2 seconds, is exposed."""
    rows = [
        (made.FORWARD, 0, 0, 1.0),
        (made.BACKWARD, 0, 1.0, 2.0),
        (made.FORWARD, 1, 3.0, 4.0),
        (made.BACKWARD, 1, 5.0, 6.0),
        (made.SYNC, -1, 2.0, 8.0),
    ]
    kind, microbatch, start, end = (np.array(column) for column in zip(*rows, strict=True))
    none = np.zeros(len(rows), dtype=np.int64)
    trace = Trace(
        iteration_time_s=8.5,
        kind=kind.astype(np.int64),
        stage=none,
        chunk=none,
        microbatch=microbatch.astype(np.int64),
        sender=none - 1,
        start_s=start,
        end_s=end,
    )
    shown = made.timeline_of(trace, samples.plan([("a100", [5])], microbatches=2))
    (lane,) = shown.lanes
    assert lane.seconds == (2.0, 0.0, 2.0, 0.0, 2.0, 0.0)
    assert (lane.idle_s, lane.outside_s, lane.hidden_sync_s) == (2.0, 0.5, 4.0)
    exposed = shown.work.of(shown.work.kind == made.SYNC)
    assert [*zip(exposed.start_s.tolist(), exposed.end_s.tolist(), strict=True)] == [(6, 8)]


def test_activations_are_told_from_gradients() -> None:
    """On one chunk activations come from the stage above and gradients from the one below; loops turn that round."""
    beside = made.six_stages().beside
    assert np.array_equal(beside.activations, beside.sender < beside.stage)
    shown = made.virtual_stages()
    around = (shown.beside.kind == TRANSFER) & (shown.beside.stage == 0) & (shown.beside.sender == 3)
    assert shown.beside.activations[around].all()
    assert (shown.beside.chunk[around] > 0).all()


@pytest.mark.parametrize("sample", [*ALL, gpipe])
def test_views_lie_inside_the_iteration(sample: made.Sample) -> None:
    """Fill begins at 0, drain ends with the iteration, and steady lies between."""
    shown = sample()
    views = shown.views
    assert views["fill"].start_s == 0
    assert views["drain"].end_s == shown.iteration_s
    for window in views.values():
        assert 0 <= window.start_s < window.end_s <= shown.iteration_s
    assert 0 < shown.period_s <= shown.iteration_s


def test_phases_of_1f1b() -> None:
    """Steady is from the first stage's first backward to its last forward; it repeats every micro-batch."""
    shown = made.six_stages()
    work = shown.work.of(shown.work.stage == 0)
    assert shown.steady.start_s == work.start_s[work.kind != made.FORWARD].min()
    assert shown.steady.end_s == work.end_s[work.kind == made.FORWARD].max()
    assert shown.period_s == pytest.approx(0.582, rel=0.02)
    assert "steady" in shown.views
    assert "steady" not in made.few_microbatches().views


def test_phases_of_gpipe() -> None:
    """Where no forward overlaps with a backward, steady is while every stage has work."""
    shown = gpipe()
    assert (shown.steady.start_s, shown.steady.end_s) == (2.0, 17.0)


def test_one_stage_and_one_microbatch() -> None:
    """The least that there is can be drawn."""
    trace = made.traced([made.one_f_one_b(1, 0, 1)], forward_s=[1.0], backward_s=[2.0], hop_s=[])
    shown = made.timeline_of(trace, samples.plan([("a100", [5])], microbatches=1))
    assert shown.lanes[0].seconds[0] == 1.0
    assert shown.views["drain"].end_s == shown.iteration_s


def test_labels() -> None:
    """Numbers count from 1, with the chunk where there are several."""
    assert made.six_stages().label(0, 11) == "12"
    assert made.virtual_stages().label(1, 11) == "12.2"
    assert made.six_stages().label(-1, -1) == ""


def test_words_of_a_block() -> None:
    """Stage, group, kind, micro-batch and times; of a transfer also what comes from where."""
    shown = made.six_stages()
    assert block_words(shown, shown.work, 0) == "S0 mi300x: forward of micro-batch 1, 184 ms, 0.000 to 0.184 s"
    moving = shown.beside.of((shown.beside.stage == 1) & shown.beside.activations)
    said = block_words(shown, moving, 0)
    assert said == "S1 a100: activations of micro-batch 1 from S0 mi300x, 15.0 ms, 0.184 to 0.199 s"
    looped = made.virtual_stages()
    hidden = looped.beside.of(looped.beside.kind == made.SYNC)
    assert "gradient sync behind the work, virtual stage 3 of 3" in block_words(looped, hidden, 0, hidden=True)


@pytest.mark.parametrize(("span", "most", "step"), [(10, 10, 1), (10, 9, 2), (31, 11, 5), (0.07, 10, 0.01), (3, 1, 5)])
def test_steps_of_an_axis(span: float, most: float, step: float) -> None:
    """1, 2 or 5 times a power of ten."""
    assert nice_step(span, most) == pytest.approx(step)


@pytest.mark.parametrize("sample", ALL)
def test_record(sample: made.Sample) -> None:
    """The record follows its schema, holds every event, and is read back as it was; columns stand on one line each."""
    shown = sample()
    text = timeline_json(timeline_record(shown))
    data = json.loads(text)
    Draft202012Validator(json_schema("timeline")).validate(data)
    assert TimelineRecord.model_validate_json(text) == timeline_record(shown)
    assert list(data) == list(TimelineRecord.model_fields)
    columns = data["events"]
    assert {len(column) for column in columns.values()} == {len(shown.trace.kind)}
    assert columns["kind"] == [TRACE_KINDS[kind] for kind in shown.trace.kind]
    assert columns["end_s"] == shown.trace.end_s.tolist()
    for stage in data["stages"]:
        parts = [value for key, value in stage.items() if key.endswith("_s")][:8]
        assert sum(parts) == pytest.approx(data["iteration_time_s"])
    assert text.partition('"events"')[2].count("\n") == len(columns) + 3
