"""The whole search: what more hardware does, what limits do, and what is promised of the result."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from importlib import import_module

import numpy as np
import pytest

from hetplan.plan import Plan
from hetplan.predict import Setting
from hetplan.search.best_first import PlanSearch
from hetplan.search.fitting import Fit
from hetplan.search.options import Progress, SearchOptions
from hetplan.search.planner import search
from hetplan.search.result import RankedPlan, SearchResult
from hetplan.specs.cluster import ClusterSpec, GroupSpec, LinkRate
from tests.search.brute import enumerate_plans
from tests.search.instances import Instance, random_instance, slow_link_instance
from tests.search.spaces import all_groups, options_of, setting_of, with_memory

SAME = 1e-9
SEEDS = (600, 602, 606)
HARD = (4, 8, 9)
"""Problems that take several nodes."""
SLOW = 10_000
"""From here on seeds are those of problems with slow links."""
STAGED = (SLOW + 37, SLOW + 35)
"""Problems of several schedules, further warm-up and degrees by group, with parts of the space searched first."""


def problem(seed: int) -> Instance:
    """The problem of a seed."""
    return random_instance(seed) if seed < SLOW else slow_link_instance(seed - SLOW)


def run(instance: Instance, observe: Callable[[Progress], None] | None = None, **values: object) -> SearchResult:
    """The answer under some options."""
    options = replace(options_of(instance), **values)  # type: ignore[arg-type]
    return search(instance.cluster, instance.model, instance.training, instance.stack, options, observe)


@cache
def answer(seed: int) -> SearchResult:
    """The answer to a seed's problem at gap 0."""
    return run(problem(seed))


def best_plan(seed: int) -> RankedPlan:
    """Its best plan."""
    return answer(seed).plans[0]


def best_of_seed(seed: int) -> float:
    """Best time of a seed's problem at gap 0."""
    return best_plan(seed).prediction.iteration_time_s


def used_group(seed: int) -> int:
    """The group with the slowest stage of the best plan, where more of something helps most."""
    entry = best_plan(seed)
    names = [group.name for group in problem(seed).cluster.groups]
    return names.index(entry.plan.stages[entry.prediction.bottleneck].group)


def best(instance: Instance) -> float:
    """Best time at gap 0, infinite where nothing fits."""
    result = run(instance)
    assert result.status in ("optimal", "infeasible")
    return result.plans[0].prediction.iteration_time_s if result.plans else np.inf


@cache
def truth(seed: int) -> float:
    """The best time of all plans, listed one by one."""
    return enumerate_plans(problem(seed)).best_s


def with_groups(instance: Instance, change: Callable[[GroupSpec], GroupSpec], index: int) -> Instance:
    """The problem with one group changed."""
    groups = list(instance.cluster.groups)
    groups[index] = change(groups[index])
    return replace(instance, cluster=instance.cluster.model_copy(update={"groups": tuple(groups)}))


def faster(group: GroupSpec) -> GroupSpec:
    """Half as many FLOP/s and bytes/s again."""
    sheet = group.accelerator
    rates = {name: rate and 1.5 * rate for name, rate in sheet.peak.model_dump().items()}
    update = {
        "peak": sheet.peak.model_copy(update=rates),
        "memory_bandwidth_bytes_per_s": 1.5 * sheet.memory_bandwidth_bytes_per_s,
    }
    return group.model_copy(update={"accelerator": sheet.model_copy(update=update)})


def roomier(group: GroupSpec) -> GroupSpec:
    """Half as much memory again."""
    return group.model_copy(update={"usable_memory_bytes": 1.5 * group.usable_bytes})


def better_joined(group: GroupSpec) -> GroupSpec:
    """Three times the bandwidth inside the node and between nodes."""
    sheet, network = group.accelerator, group.inter_node
    assert network is not None
    peer = sheet.link_per_peer_bytes_per_s
    links = {"link_bytes_per_s": 3 * sheet.link_bytes_per_s, "link_per_peer_bytes_per_s": peer and 3 * peer}
    rate = LinkRate(bandwidth_bytes_per_s=3 * network.bandwidth_bytes_per_s, latency_s=network.latency_s)
    return group.model_copy(update={"accelerator": sheet.model_copy(update=links), "inter_node": rate})


@pytest.mark.parametrize("change", [faster, roomier, better_joined])
def test_more_of_anything_is_never_worse(change: Callable[[GroupSpec], GroupSpec]) -> None:
    """More FLOP/s, memory or bandwidth on a group never makes the best time longer, and somewhere makes it shorter."""
    gained = 0
    for seed in (SEEDS[0], STAGED[0]):
        instance = problem(seed)
        index = used_group(seed)
        other = best(with_groups(instance, change, index))
        assert other <= best_of_seed(seed) * (1 + SAME), (seed, index)
        gained += other < best_of_seed(seed) * (1 - SAME)
    assert gained > 0


def test_better_links_are_never_worse() -> None:
    """Ten times the bandwidth between groups never makes the best time longer."""
    for seed in (SEEDS[0], STAGED[0]):
        instance = problem(seed)
        links = tuple(
            link.model_copy(
                update={
                    "bandwidth_bytes_per_s": 10 * link.bandwidth_bytes_per_s,
                    "total_bandwidth_bytes_per_s": link.total_bandwidth_bytes_per_s
                    and 10 * link.total_bandwidth_bytes_per_s,
                }
            )
            for link in instance.cluster.links
        )
        cluster = instance.cluster.model_copy(update={"links": links})
        assert best(replace(instance, cluster=cluster)) <= best_of_seed(seed) * (1 + SAME)


def test_order_of_the_file_does_not_matter() -> None:
    """Groups and links in another order, links named the other way round: the same best time."""
    turned = 0
    for seed in (*SEEDS[:2], STAGED[0]):
        instance = problem(seed)
        cluster = instance.cluster
        links = tuple(link.model_copy(update={"between": link.between[::-1]}) for link in cluster.links[::-1])
        changed = ClusterSpec(name="tiny", groups=cluster.groups[::-1], links=links)
        assert best(replace(instance, cluster=changed)) == pytest.approx(best_of_seed(seed), rel=SAME)
        turned += len(cluster.groups) > 1
    assert turned >= 2


@pytest.mark.parametrize("limit_s", [0.0, 5e-3])
def test_time_limit_claims_no_more_than_it_proved(limit_s: float) -> None:
    """Stopped by the clock, the bound is still below the best of all plans, and "optimal" means a closed gap."""
    stopped = 0
    for seed in (*HARD, STAGED[0]):
        result = run(problem(seed), time_limit_s=limit_s)
        assert result.status in ("feasible", "unknown", "optimal")
        assert result.bound_s <= truth(seed) * (1 + SAME)
        if result.plans:
            seconds = result.plans[0].prediction.iteration_time_s
            assert result.gap == pytest.approx((seconds - result.bound_s) / seconds, abs=1e-12)
            assert (result.status == "optimal") == (result.gap <= 0.001)
            assert all(entry.prediction.fits for entry in result.plans)
        stopped += result.stopped_by == "time"
    assert stopped > 0


def test_node_limit_reproduces() -> None:
    """No more nodes than allowed, the same record twice, a bound below the best of all plans at every limit."""
    for seed in (HARD[0], STAGED[0]):
        bounds = []
        for limit in (0, 3, 1000):
            first, second = (run(problem(seed), node_limit=limit) for _ in range(2))
            assert replace(first, elapsed_s=0.0) == replace(second, elapsed_s=0.0)
            assert first.certificate.nodes <= limit
            assert first.bound_s <= truth(seed) * (1 + SAME), (seed, limit)
            assert (first.status == "optimal") == (first.gap <= 0.001)
            bounds.append((first.stopped_by, first.gap))
        assert bounds[0][0] == "nodes"
        assert bounds[0][1] > 0
        assert bounds[-1][0] == "gap"
        assert bounds[-1][1] <= SAME


@pytest.mark.parametrize("calls", [1, 3, 8])
def test_interrupt_keeps_the_best(calls: int) -> None:
    """Interrupted from outside at some point, the search returns its plans so far and a bound that holds."""
    for seed in (*HARD, STAGED[0]):
        left = calls

        def observe(progress: Progress) -> None:
            nonlocal left
            assert progress.best_s is None or progress.bound_s <= progress.best_s * (1 + SAME)
            left -= 1
            if left == 0:
                raise KeyboardInterrupt

        result = run(problem(seed), observe)
        assert result.stopped_by == ("interrupt" if left <= 0 else "gap")
        assert result.plans
        assert result.bound_s <= truth(seed) * (1 + SAME)
        assert result.status == ("optimal" if result.gap <= 0.001 else "feasible")
        if calls == 1:
            assert result.stopped_by == "interrupt"


@pytest.mark.parametrize("alone", [True, False])
def test_interrupt_before_the_search_begins(alone: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupted on one type alone, or before the first root is queued, no bound is claimed that was not proved."""
    module, checked = import_module("hetplan.search.best_first"), 0
    plain = module.first_fit

    def interrupted(setting: Setting, options: SearchOptions, groups: tuple[int, ...]) -> Fit | None:
        if (len(groups) < len(setting.cluster.groups)) == alone:
            raise KeyboardInterrupt
        return plain(setting, options, groups)  # type: ignore[no-any-return]

    monkeypatch.setattr(module, "first_fit", interrupted)
    for seed in (*HARD, SEEDS[0], STAGED[0]):
        result = run(problem(seed))
        if result.stopped_by != "interrupt":
            # One type is the whole cluster.
            continue
        checked += 1
        assert result.bound_s <= truth(seed) * (1 + SAME), seed
        assert result.status == ("unknown" if not result.plans else "optimal" if result.gap <= 0.001 else "feasible")
    assert checked > 1


def configuration(plan: Plan) -> tuple[object, ...]:
    """What makes a plan another one than those of other splits."""
    return (
        plan.schedule.name,
        plan.schedule.virtual_stages,
        plan.num_microbatches,
        tuple((s.group, s.tp, s.dp, s.microbatch_size, s.zero) for s in plan.stages),
    )


def test_top_plans_are_distinct_and_sorted() -> None:
    """As many plans as asked for where there are so many, of different configurations, ranked by their times."""
    most = 0
    for seed in (SEEDS[0], STAGED[0]):
        result = run(problem(seed), top=7)
        times = [entry.prediction.iteration_time_s for entry in result.plans]
        assert times == sorted(times)
        assert [entry.rank for entry in result.plans] == list(range(1, len(times) + 1))
        assert len({configuration(entry.plan) for entry in result.plans}) == len(times) <= 7
        assert all(entry.prediction.fits for entry in result.plans)
        most = max(most, len(times))
        assert times[0] == best_of_seed(seed)
    assert most == 7
    fewer = run(problem(SEEDS[0]), top=1)
    assert len(fewer.plans) == 1
    assert fewer.plans[0].prediction.iteration_time_s == best_of_seed(SEEDS[0])


@pytest.mark.parametrize("gap", [0.001, 0.3])
def test_gap_is_kept(gap: float) -> None:
    """The bound is within the gap of the best time and at most the best of all plans, however wide the gap."""
    for seed in (37, HARD[0], STAGED[0]):
        result = run(problem(seed), gap=gap)
        seconds = result.plans[0].prediction.iteration_time_s
        assert result.stopped_by == "gap"
        assert result.bound_s >= (1 - gap) * seconds * (1 - SAME)
        assert result.bound_s <= truth(seed) * (1 + SAME)
        assert result.gap <= gap * (1 + SAME)


def test_mixing_is_never_worse_than_one_type() -> None:
    """The best plan is at least as fast as each type's own, which is at most that of a search on that type alone."""
    several = 0
    for seed in (SEEDS[0], STAGED[0]):
        instance, result = problem(seed), answer(seed)
        tokens = instance.training.global_batch_size * instance.training.sequence_length
        names = {group.accelerator.name for group in instance.cluster.groups}
        assert {entry.accelerator for entry in result.single_types} == names
        for entry in result.single_types:
            groups = tuple(g for g in instance.cluster.groups if g.accelerator.name == entry.accelerator)
            links = tuple(
                link for link in instance.cluster.links if {*link.between} <= {group.name for group in groups}
            )
            cluster = ClusterSpec(name="alone", groups=groups, links=links)
            alone = best(replace(instance, cluster=cluster))
            if entry.tokens_per_s is None:
                assert alone == np.inf
                continue
            seconds = tokens / entry.tokens_per_s
            assert result.plans[0].prediction.iteration_time_s <= seconds * (1 + SAME)
            assert alone * (1 - SAME) <= seconds <= alone / 0.99 * (1 + SAME)
        several += len(names) > 1
    assert several


def test_both_solvers_find_the_same() -> None:
    """HiGHS and SCIP lead to the same best time; the certificate names the solver."""
    for seed in HARD[:2]:
        result = run(problem(seed), solver="scip")
        assert result.plans[0].prediction.iteration_time_s == pytest.approx(truth(seed), rel=SAME)
        assert result.certificate.program == "scip"


def test_bounds_and_programs_find_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small problems time all splits of a structure; where bounds choose among them, the best is the same."""
    monkeypatch.setattr(import_module("hetplan.search.best_first"), "FEW_SPLITS", 0)
    programs = 0
    for seed, gap in ((HARD[0], 0.0), (HARD[1], 0.02), (HARD[2], 0.0), (STAGED[0], 0.0)):
        result = run(problem(seed), gap=gap)
        best = result.plans[0].prediction.iteration_time_s
        assert truth(seed) * (1 - SAME) <= best <= truth(seed) / (1 - gap) * (1 + SAME)
        assert best * (1 - gap) * (1 - SAME) <= result.bound_s <= truth(seed) * (1 + SAME)
        programs += result.certificate.programs
    assert programs > 4


def test_infeasible_is_said_whatever_the_limit() -> None:
    """Where nothing fits, that is the answer even without time to search."""
    instance = with_memory(problem(600), 0.05)
    for limit_s in (0.0, 5.0):
        result = run(instance, time_limit_s=limit_s)
        assert (result.status, result.plans, result.bound_s) == ("infeasible", (), np.inf)


def parts(seed: int, deadline: float, **values: object) -> tuple[PlanSearch, PlanSearch]:
    """A search of the whole space of a problem, and one of a part of it that stops at the deadline."""
    instance = problem(seed)
    setting, groups, asked = setting_of(instance), all_groups(instance), options_of(instance)
    whole = PlanSearch(setting, groups, asked, deadline=np.inf)
    part = PlanSearch(setting, groups, replace(asked, **values), deadline=deadline)  # type: ignore[arg-type]
    return whole, part


@pytest.mark.parametrize("deadline", [0.0, np.inf])
def test_what_a_search_follows_is_not_searched_again(deadline: float) -> None:
    """Plans and bounds are taken over: together they hold for the whole space, and roots are searched once."""
    for seed in STAGED:
        whole, part = parts(seed, deadline, schedules=("1f1b",))
        everything = {space.root for space in whole.roots}
        stopped = part.run()
        assert stopped == ("time" if deadline == 0 else "gap")
        before, own = part.best_s, part.bound_s
        whole.follow(part)
        assert whole.best_s == before
        assert whole.bound_s <= own
        assert {space.root for space in whole.roots} == everything - {space.root for space in part.roots}
        assert len(whole.roots) < len(everything)
        assert whole.run() == "gap"
        assert whole.bound_s <= truth(seed) * (1 + SAME)
        assert whole.bound_s <= own
        if deadline:
            assert whole.best_s == pytest.approx(truth(seed), rel=SAME)
            assert whole.bound_s == pytest.approx(truth(seed), rel=SAME)
        else:
            assert whole.bound_s == pytest.approx(min(own, whole.target_s))


def test_bound_of_what_is_searched_again_does_not_count() -> None:
    """The whole per-group space holds the uniform one: where it is searched to the end, its bound alone decides."""
    for seed in STAGED:
        whole, part = parts(seed, 0.0, space="uniform")
        assert whole.options.space == "per-group"
        assert part.run() == "time"
        whole.follow(part)
        assert whole.run() == "gap"
        assert whole.bound_s == pytest.approx(truth(seed), rel=SAME)


def test_gap_is_no_reason_where_it_is_open() -> None:
    """A search that ends with an open gap names the limit that was reached, in whichever part."""
    limited = 0
    for seed in (SLOW + 19, STAGED[0]):
        for limit in (1, 6):
            result = run(problem(seed), node_limit=limit)
            assert (result.stopped_by == "gap") == (result.gap <= SAME), (seed, limit)
            limited += result.stopped_by == "nodes"
    assert limited > 2


def test_what_is_too_much_to_list_stays_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """With little room the bound still holds, and a search that left something open does not say it closed the gap."""
    module = import_module("hetplan.search.best_first")
    monkeypatch.setattr(module, "STRUCTURES_AT_ONCE", 2)
    monkeypatch.setattr(module, "SPLITS_AT_ONCE", 1)
    monkeypatch.setattr(module, "FEW_SPLITS", 0)
    ends = Counter[str]()
    for seed in (*STAGED, *range(6)):
        instance = problem(seed)
        search = PlanSearch(setting_of(instance), all_groups(instance), options_of(instance), deadline=np.inf)
        stopped = search.run()
        ends[stopped] += 1
        assert search.bound_s <= truth(seed) * (1 + SAME)
        if search.found:
            assert search.best_s >= truth(seed) * (1 - SAME)
        assert stopped == ("gap" if search.bound_s >= search.target_s else "nodes")
    assert set(ends) == {"gap", "nodes"}
