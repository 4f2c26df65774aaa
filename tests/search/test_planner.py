"""`search`: which part of the space comes first, and what it says besides the plans."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from hetplan.plan import ScheduleName
from hetplan.predict import predict_in
from hetplan.search import planner
from hetplan.search.best_first import PlanSearch
from hetplan.search.options import SearchOptions, SpaceName
from hetplan.search.planner import search
from hetplan.search.result import SearchResult, StoppedBy
from tests.search.brute import enumerate_plans
from tests.search.brute_space import Chain, Job
from tests.search.instances import Instance, random_instance, slow_link_instance
from tests.search.spaces import all_groups, options_of, setting_of

Part = tuple[SpaceName, tuple[ScheduleName, ...], int]
"""Space, schedules, and most further warm-up."""
STAGED = (2, 37, 49)
"""Problems with slow links where plain 1F1B is not all that is searched."""


def run(instance: Instance, **values: object) -> SearchResult:
    """The answer at gap 0."""
    options = replace(options_of(instance), **values)  # type: ignore[arg-type]
    return search(instance.cluster, instance.model, instance.training, instance.stack, options)


@cache
def answer(seed: int) -> SearchResult:
    """The answer to a problem with slow links."""
    return run(slow_link_instance(seed))


def parts_of(instance: Instance, monkeypatch: pytest.MonkeyPatch, **values: object) -> list[Part]:
    """The parts of the space that are searched on all groups, in order."""
    found: list[Part] = []

    class Recorded(PlanSearch):
        """A search that writes down that it begins."""

        def run(self) -> StoppedBy:
            if self.groups == all_groups(instance):
                asked: SearchOptions = self.options
                found.append((asked.space, asked.schedules, asked.limits.max_warmup))
            return super().run()

    monkeypatch.setattr(planner, "PlanSearch", Recorded)
    run(instance, **values)
    return found


BOTH: tuple[ScheduleName, ...] = ("1f1b", "gpipe")
PLAIN: Part = ("uniform", ("1f1b",), 0)


@pytest.mark.parametrize(
    ("space", "schedules", "max_warmup", "told"),
    [
        ("uniform", ("1f1b",), 0, [PLAIN]),
        ("uniform", ("1f1b",), 2, [PLAIN, ("uniform", ("1f1b",), 2)]),
        ("uniform", BOTH, 2, [PLAIN, ("uniform", BOTH, 2)]),
        ("uniform", ("gpipe",), 2, [("uniform", ("gpipe",), 2)]),
        ("per-group", BOTH, 2, [PLAIN, ("uniform", BOTH, 2), ("per-group", BOTH, 2)]),
        ("per-group", ("gpipe",), 0, [("uniform", ("gpipe",), 0), ("per-group", ("gpipe",), 0)]),
    ],
)
def test_parts_of_the_space_come_first(
    space: SpaceName,
    schedules: tuple[ScheduleName, ...],
    max_warmup: int,
    told: list[Part],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Plain 1F1B, then the uniform space, then all; what is all already is searched once."""
    instance = slow_link_instance(37)
    limits = replace(instance.limits, max_warmup=max_warmup)
    found = parts_of(instance, monkeypatch, space=space, schedules=schedules, limits=limits)
    assert found == told


def test_one_group_has_no_deeper_warmup(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing changes below a stage, plain 1F1B is all of 1F1B."""
    instance = random_instance(22)
    assert len(instance.cluster.groups) == 1
    limits = replace(instance.limits, max_warmup=4)
    assert parts_of(instance, monkeypatch, limits=limits) == [("uniform", ("1f1b",), 4)]


def is_plain(job: Job, chain: Chain) -> bool:
    """1F1B without further warm-up and with the same degrees everywhere."""
    alike = len({(part.dp, part.microbatch_size) for part in chain}) == 1
    return job.schedule == "1f1b" and not job.warmup and alike


@pytest.mark.parametrize("seed", STAGED)
def test_plain_is_the_best_of_its_kind(seed: int) -> None:
    """The rival that is named is the best of all uniform plans under plain 1F1B, with the time that `predict` says."""
    instance, result = slow_link_instance(seed), answer(seed)
    rival = result.plain
    assert rival is not None
    least = enumerate_plans(instance).least_s(is_plain)
    assert rival.iteration_time_s == pytest.approx(least, rel=1e-9)
    assert rival.gap <= 1e-9
    assert rival.plan.schedule.name == "1f1b"
    assert rival.plan.schedule.warmup is None
    assert predict_in(setting_of(instance), rival.plan).iteration_time_s == rival.iteration_time_s
    best = result.plans[0].prediction.iteration_time_s
    assert best <= rival.iteration_time_s
    assert bool(rival.why) == (best < rival.iteration_time_s * 0.999)
    deeper = result.plans[0].plan.schedule.warmup
    assert ("warm-up" in rival.why) == (deeper is not None)


def test_no_rival_where_plain_is_all_or_nothing() -> None:
    """Where plain 1F1B is the whole space, or is not in it, there is nothing to compare with."""
    instance = slow_link_instance(37)
    assert run(instance, schedules=("gpipe",)).plain is None
    assert run(random_instance(4)).plain is None


def test_what_is_searched_first_changes_no_count() -> None:
    """Configurations are those of the space asked for, whichever parts were searched before."""
    for seed in STAGED:
        instance = slow_link_instance(seed)
        whole = PlanSearch(setting_of(instance), all_groups(instance), options_of(instance), deadline=np.inf)
        result = answer(seed)
        assert result.candidates == sum(space.count() for space in whole.roots)
        assert result.pruned.memory + result.pruned.bound <= result.candidates
        assert result.certificate.nodes > 0
        assert (result.space, result.schedules) == (instance.space, instance.schedules)


def test_idle_groups_are_explained() -> None:
    """A group that the best plan leaves unused is named with the reason; one in use is not."""
    explained = 0
    for instance in [*map(random_instance, range(100, 103)), slow_link_instance(37)]:
        result = run(instance)
        if not result.plans:
            continue
        used = {stage.group for stage in result.plans[0].plan.stages}
        for group in instance.cluster.groups:
            told = [warning for warning in result.warnings if warning.startswith(f"group {group.name} stays idle: ")]
            assert len(told) == (group.name not in used)
            explained += len(told)
    assert explained
