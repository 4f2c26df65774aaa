"""The best plans found so far."""

from __future__ import annotations

from dataclasses import dataclass

from hetplan.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A timed plan of the search."""

    time_s: float
    plan: Plan


class Incumbents:
    """Distinct configurations with their best plans; `gap` is the share by which a better plan may be missed."""

    def __init__(self, gap: float) -> None:
        self.gap = gap
        self.found: dict[tuple[object, ...], Found] = {}
        self.best_s = float("inf")

    @property
    def target_s(self) -> float:
        """Plans at or above this time need not be looked at."""
        # A hair inside the gap that was asked for, so that rounding does not put the result outside it.
        return self.best_s * (1 - self.gap * (1 - 1e-6))

    def add(self, key: tuple[object, ...], time_s: float, plan: Plan) -> None:
        """Keep a plan if it is the best of its configuration."""
        if key not in self.found or time_s < self.found[key].time_s:
            self.found[key] = Found(time_s=time_s, plan=plan)
            self.best_s = min(self.best_s, time_s)

    def adopt(self, other: Incumbents, *, plain: bool = False) -> None:
        """Take over the plans of a search over a part of the space; `plain`: those of plain 1F1B with like stages."""
        for key, entry in other.found.items():
            if not plain or is_plain(entry.plan):
                self.add(key, entry.time_s, entry.plan)

    def ranked(self) -> list[Found]:
        """Distinct configurations, best first."""
        return sorted(self.found.values(), key=lambda entry: (entry.time_s, entry.plan.model_dump_json()))


def is_plain(plan: Plan) -> bool:
    """Whether a plan is one of 1F1B without deeper warm-up, whose stages share dp and micro-batch size."""
    alike = {(stage.dp, stage.microbatch_size) for stage in plan.stages}
    return plan.schedule.name == "1f1b" and not any(plan.schedule.warmup or ()) and len(alike) == 1
