"""Every screen of the report room, made from the samples: name to lines."""

import dataclasses
from collections.abc import Callable

from rich.text import Text

from hetplan.report.build import predict_record, search_record
from hetplan.report.compare import compare_record
from hetplan.report.compare_screen import compare_screen
from hetplan.report.predict_screen import predict_notes, predict_screen
from hetplan.report.records import PredictRecord, ResultRecord
from hetplan.report.search_screen import Files, search_notes, search_screen
from hetplan.report.show import (
    accelerator_screen,
    accelerators_screen,
    schedules_record,
    schedules_screen,
    select_accelerators,
)
from hetplan.report.style import Terminal
from hetplan.report.timeline import Timeline
from hetplan.report.timeline_screen import timeline_screen
from tests.report import samples, timeline_samples

Screen = Callable[[Terminal], list[Text]]
FILES = Files(cluster="clusters/hethub-768.yaml", model="models/llama-140b.yaml", saved="r.json")
SHEETS = tuple(samples.spec(data) for data in (samples.MI300X, samples.A100, samples.A30, samples.V100))


def predicted(*, fits: bool = True) -> PredictRecord:
    """One plan's prediction; without `fits`, a stage needs more memory than there is."""
    entry = samples.five_plans()[0]
    prediction = entry.prediction
    if not fits:
        first, second, *rest = prediction.stages
        memory = dataclasses.replace(second.memory, activations_bytes=40 * samples.GIB)
        second = dataclasses.replace(second, memory=memory, verdict="oom", binding="memory")
        prediction = dataclasses.replace(prediction, stages=(first, second, *rest))
    return predict_record(entry.plan, prediction, samples.inputs(samples.mixed_cluster()), samples.RUN)


def slower() -> ResultRecord:
    """The mixed cluster with a slower link, and the plan that is best then."""
    plan = samples.plan([("a100", [13, 13, 13, 13, 14]), ("mi300x", [31])])
    best = samples.ranked(1, 33.1, plan, headroom=0.172)
    return search_record(samples.result([best]), samples.inputs(samples.mixed_cluster("25 Gbit/s")), samples.RUN)


def _search(record: Callable[[], ResultRecord], *, stages: bool = False) -> Screen:
    return lambda terminal: search_screen(record(), terminal, stages=stages)


def _notes(record: Callable[[], ResultRecord]) -> Screen:
    return lambda terminal: search_notes(record(), terminal, files=FILES)


def _compare(before: Callable[[], ResultRecord], after: Callable[[], ResultRecord], allowed: float = 0.0) -> Screen:
    def screen(terminal: Terminal) -> list[Text]:
        a, b = before(), after()
        record = compare_record(a, b, fail_above_pct=allowed)
        return compare_screen(a, b, terminal, record=record, names=("before.json", "after.json"))

    return screen


def _timeline(made: Callable[[], Timeline], *, stages: bool = False) -> Screen:
    return lambda terminal: timeline_screen(made(), terminal, stages=stages)


def _accelerators(terminal: Terminal) -> list[Text]:
    return accelerators_screen(select_accelerators(SHEETS), terminal, total=len(SHEETS))


SCREENS: dict[str, Screen] = {
    "search": _search(samples.optimal),
    "search-notes": _notes(samples.optimal),
    "search-feasible": _search(samples.feasible),
    "search-feasible-notes": _notes(samples.feasible),
    "search-interrupted": _search(lambda: samples.feasible("interrupt")),
    "search-unknown": _search(samples.unknown),
    "search-many-stages": _search(samples.many_stages),
    "search-all-stages": _search(samples.many_stages, stages=True),
    "search-infeasible": _search(samples.infeasible),
    "search-schedules": _search(samples.schedules),
    "predict": lambda terminal: predict_screen(predicted(), terminal),
    "predict-does-not-fit": lambda terminal: predict_screen(predicted(fits=False), terminal),
    "predict-notes": lambda terminal: predict_notes(predicted(), terminal),
    "compare": _compare(samples.optimal, slower, 2.0),
    "compare-same": _compare(samples.optimal, samples.optimal),
    "compare-lost": _compare(samples.optimal, samples.infeasible),
    "compare-unlike": _compare(samples.many_stages, samples.optimal),
    **{name: _timeline(made) for name, made in timeline_samples.TIMELINES.items()},
    "timeline-all-stages": _timeline(timeline_samples.many_stages, stages=True),
    "show-accelerators": _accelerators,
    "show-accelerator": lambda terminal: accelerator_screen(SHEETS[1], terminal),
    "show-schedules": lambda terminal: schedules_screen(schedules_record(), terminal),
}
