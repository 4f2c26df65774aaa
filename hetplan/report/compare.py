"""Two results side by side: which is better, what changed in the plan, what changed in the inputs."""

from collections.abc import Callable

from hetplan.plan import Plan
from hetplan.report import measures, numbers
from hetplan.report.input_changes import input_changes
from hetplan.report.records import (
    ChangeRecord,
    CompareRecord,
    ComparisonVerdict,
    MeasureRecord,
    MeasureVerdict,
    PlanRecord,
    ResultRecord,
)

SAME = 1e-9
"""Relative differences below this are rounding error."""


def layers_by_group(plan: Plan) -> str:
    """Layers of every stage, groups apart: 32 | 13 13 13 13 12."""
    runs = measures.group_runs(plan)
    return " | ".join(measures.layers_text([stage.layers for stage in run.stages]) for run in runs)


PLAN_WORDS: tuple[tuple[str, bool, Callable[[Plan], str]], ...] = (
    ("schedule", True, lambda plan: measures.schedule_text(plan.schedule)),
    (
        "stages per group",
        True,
        lambda plan: " → ".join(f"{run.group} {len(run.stages)}" for run in measures.group_runs(plan)),
    ),
    ("layers", True, layers_by_group),
    ("parallel", True, measures.plan_parallel_text),
    (
        "micro-batches",
        False,
        lambda plan: f"{numbers.count(plan.num_microbatches)} of {measures.microbatch_text(plan)}",
    ),
    ("recompute", False, lambda plan: measures.recompute_text(plan.stages)),
    ("ZeRO", False, measures.zero_text),
    ("sequence parallel", False, lambda plan: "on" if plan.sequence_parallel else "off"),
)
"""What is said of a plan; whether it is said where both plans agree; and the words."""


def compare_record(before: ResultRecord, after: ResultRecord, *, fail_above_pct: float = 0.0) -> CompareRecord:
    """Compare the best plans of two results.

    A regression is a second plan that takes more time per token by more than `fail_above_pct`, or none where the
    first had one. Time per token equals time per iteration where both run the same batch.
    """
    a, b = _best(before), _best(after)
    verdict: ComparisonVerdict
    slowdown = _slowdown(a, b)
    if a is None or b is None:
        verdict = "none" if a is b else "found" if a is None else "lost"
        regression = a is not None
    else:
        step = 0.0 if slowdown is None else slowdown
        verdict = "same" if abs(step) <= SAME else "slower" if step > 0 else "faster"
        regression = step > max(SAME, fail_above_pct / 100)
    return CompareRecord(
        verdict=verdict,
        regression=regression,
        fail_above_pct=fail_above_pct,
        slowdown_pct=None if slowdown is None else slowdown * 100,
        before_status=before.status,
        after_status=after.status,
        measures=_measures(before, after),
        plan_changes=plan_changes(None if a is None else a.plan, None if b is None else b.plan),
        input_changes=input_changes(before.inputs, after.inputs),
    )


def same_tokens(before: ResultRecord, after: ResultRecord) -> bool:
    """Whether one iteration is the same number of tokens in both, so that its time can be compared."""
    a, b = before.inputs.training, after.inputs.training
    return a.global_batch_size * a.sequence_length == b.global_batch_size * b.sequence_length


def _best(record: ResultRecord) -> PlanRecord | None:
    return record.plans[0] if record.plans else None


def _slowdown(a: PlanRecord | None, b: PlanRecord | None) -> float | None:
    if a is None or b is None or a.prediction.tokens_per_s <= 0 or b.prediction.tokens_per_s <= 0:
        return None
    return a.prediction.tokens_per_s / b.prediction.tokens_per_s - 1


def _measures(before: ResultRecord, after: ResultRecord) -> tuple[MeasureRecord, ...]:
    """Time per iteration first where it decides, otherwise tokens/s."""

    def both(of: Callable[[ResultRecord, PlanRecord], float | None]) -> tuple[float | None, float | None]:
        first, second = (None if (best := _best(r)) is None else of(r, best) for r in (before, after))
        return first, second

    time = ("time per iteration", "s", *both(lambda _, p: p.prediction.iteration_time_s), False)
    rate = ("tokens/s", "tokens/s", *both(lambda _, p: p.prediction.tokens_per_s), True)
    comparable = same_tokens(before, after)
    rows = [
        *([time, rate] if comparable else [rate, time]),
        ("MFU", "1", *both(lambda _, p: p.prediction.mfu), True),
        ("memory headroom", "1", *both(lambda _, p: measures.headroom(p.prediction)), True),
        ("$/Mtok", "USD", *both(lambda r, p: measures.usd_per_mtok(r.inputs, p.prediction)), False),
    ]
    return tuple(
        MeasureRecord(
            name=name,
            unit=unit,
            before=a,
            after=b,
            verdict="unknown" if name == time[0] and not comparable else _verdict(a, b, more_is_better=more),
        )
        for name, unit, a, b, more in rows
    )


def _verdict(a: float | None, b: float | None, *, more_is_better: bool) -> MeasureVerdict:
    if a is None or b is None:
        return "unknown"
    if abs(b - a) <= SAME * max(abs(a), abs(b)):
        return "same"
    return "better" if (b > a) == more_is_better else "worse"


def plan_changes(before: Plan | None, after: Plan | None) -> tuple[ChangeRecord, ...]:
    """How two plans differ, in words; empty where they are the same or one is missing."""
    if before is None or after is None:
        return ()
    pairs = ((name, words(before), words(after)) for name, _, words in PLAN_WORDS)
    changes = tuple(ChangeRecord(key=name, before=a, after=b) for name, a, b in pairs if a != b)
    if not changes and before != after:
        return (ChangeRecord(key="recompute", before="as before", after="other layers"),)
    return changes
