"""The ranked plans of a search, side by side."""

from collections.abc import Callable

from rich.text import Text

from hetplan.plan import Plan
from hetplan.report import measures, numbers
from hetplan.report.layout import Column, flow, table, wrapped
from hetplan.report.records import PlanRecord, ResultRecord
from hetplan.report.style import QUIET, WATCH, Terminal


def plans_lines(record: ResultRecord, terminal: Terminal) -> list[Text]:
    """Heading, table, and a note where the ranking is not to be trusted."""
    plans = record.plans
    space = record.bound.plan_space
    parts = [terminal.text(f"best {len(plans)} found of {numbers.count(space.configurations)}")]
    schedules = {measures.schedule_text(entry.plan.schedule) for entry in plans}
    same_schedule = len(schedules) == 1
    if same_schedule and not terminal.wide:
        parts.append(terminal.text(f"all {next(iter(schedules))}"))
    searched = f"{len(space.schedules)} schedules searched" if len(space.schedules) > 2 else ", ".join(space.schedules)
    if len(space.schedules) > 1 or not same_schedule:
        parts.append(terminal.text(searched if len(space.schedules) > 2 else f"{searched} searched"))
    if space.name != "uniform":
        parts.append(terminal.text(f"{space.name} space"))
    lines = flow(parts, terminal, prefix=terminal.join(("Plans", "bold"), "   "))
    shown_schedule = terminal.wide or not same_schedule
    marks = ["bold" if entry.rank == 1 else "" for entry in plans]
    lines += table(_columns(record, terminal, schedule=shown_schedule), terminal, marks=marks)
    if any(measures.inside_range(entry, plans[0]) for entry in plans[1:]):
        note = "≈ inside the prediction range of plan 1: time both before choosing"
        lines += wrapped(terminal.text(note, QUIET), terminal, prefix=Text(" ", end=""))
    return lines


def _columns(record: ResultRecord, terminal: Terminal, *, schedule: bool) -> list[Column]:
    plans = record.plans
    best = plans[0]
    times = [entry.prediction.iteration_time_s for entry in plans]
    digits = numbers.digits_apart(times)

    def cells(make: Callable[[PlanRecord], str | Text]) -> tuple[Text, ...]:
        made = [make(entry) for entry in plans]
        return tuple(terminal.text(cell) if isinstance(cell, str) else cell for cell in made)

    def versus(entry: PlanRecord) -> Text:
        if entry is best:
            return terminal.text("best")
        text = numbers.change(times[0], entry.prediction.iteration_time_s)
        return terminal.text(f"≈ {text}" if measures.inside_range(entry, best) else text)

    def headroom(entry: PlanRecord) -> Text:
        share = measures.headroom(entry.prediction)
        text = numbers.percent(share)
        return terminal.text(f"! {text}", WATCH) if share < measures.LITTLE_HEADROOM else terminal.text(text)

    def price(entry: PlanRecord) -> str:
        usd = measures.usd_per_mtok(record.inputs, entry.prediction)
        return numbers.MISSING if usd is None else numbers.money(usd)

    def runs(entry: PlanRecord) -> Text:
        cell = Text(end="")
        for run in measures.group_runs(entry.plan):
            style = measures.group_style(record.inputs.cluster, run.group)
            arrow = " → " if cell else ""
            cell = terminal.join(cell, arrow, (run.group, style), f" {len(run.stages)}")
        return cell

    def band(entry: PlanRecord) -> str:
        p = entry.prediction
        return numbers.seconds_range(p.iteration_time_low_s, p.iteration_time_high_s)

    some_idle = any(measures.idle_total(entry) for entry in plans[1:]) and not measures.idle_total(best)
    columns = [
        Column(header="#", cells=cells(lambda e: str(e.rank))),
        Column(header="time", cells=cells(lambda e: numbers.seconds(e.prediction.iteration_time_s, digits))),
        Column(header="vs best", cells=cells(versus)),
        Column(header="range", cells=cells(band), drop=7),
        Column(header="tokens/s", cells=cells(lambda e: numbers.rate(e.prediction.tokens_per_s)), drop=5),
        Column(header="MFU", cells=cells(lambda e: numbers.percent(e.prediction.mfu)), drop=2),
        Column(header="of roofline", cells=cells(lambda e: numbers.percent(e.prediction.roofline_ratio)), drop=6),
        Column(header="headroom", cells=cells(headroom)),
    ]
    if measures.usd_per_mtok(record.inputs, best.prediction) is not None:
        columns.append(Column(header="$/Mtok", cells=cells(price), drop=3))
    idle = cells(lambda e: numbers.count(measures.idle_total(e)))
    columns += [
        Column(header="idle", cells=idle, drop=0 if some_idle else 7),
        Column(header="stages per group", cells=cells(runs), align="left"),
        Column(header="parallel", cells=cells(lambda e: measures.plan_parallel_text(e.plan)), align="left"),
    ]
    columns += _told_apart(record, terminal)
    if schedule:
        text = cells(lambda e: measures.schedule_text(e.plan.schedule))
        columns.append(Column(header="schedule", cells=text, align="left"))
    return columns


def _told_apart(record: ResultRecord, terminal: Terminal) -> list[Column]:
    """What tells plans apart that would otherwise look alike: these columns must stay then, and are left out else.

    The number of micro-batches is worth its place without that where there is room.
    """
    plans = [entry.plan for entry in record.plans]
    shown: list[tuple[object, ...]] = [
        (
            measures.plan_parallel_text(plan),
            measures.schedule_text(plan.schedule),
            *((run.group, len(run.stages)) for run in measures.group_runs(plan)),
        )
        for plan in plans
    ]
    columns = []
    for header, words in _IDENTITY:
        texts = [words(plan) for plan in plans]
        needed = len(set(shown)) < len(shown) and len(set(texts)) > 1
        if needed:
            shown = [(*known, text) for known, text in zip(shown, texts, strict=True)]
        if needed or header == "micro-b.":
            cells = tuple(terminal.text(text) for text in texts)
            columns.append(Column(header=header, cells=cells, drop=0 if needed else 8))
    return columns


def _layers(plan: Plan) -> str:
    return " | ".join(measures.layers_text([s.layers for s in run.stages]) for run in measures.group_runs(plan))


_IDENTITY: tuple[tuple[str, Callable[[Plan], str]], ...] = (
    ("mb", measures.microbatch_text),
    ("ZeRO", measures.zero_text),
    ("micro-b.", lambda plan: numbers.count(plan.num_microbatches)),
    ("layers", _layers),
    ("recompute", lambda plan: measures.recompute_text(plan.stages)),
)
