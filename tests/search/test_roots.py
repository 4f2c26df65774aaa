"""Roots: chains and plans against the predictor and the list of all plans, the tables' numbering, and rough bounds."""

from collections.abc import Callable, Iterator
from functools import cache
from itertools import product

import numpy as np
import pytest

from hetplan.plan import ScheduleName
from hetplan.predict import plan_mistakes, predict_in
from hetplan.schedule.holdings import holdings
from hetplan.schedule.schedules import SCHEDULES, schedule
from hetplan.search.roots import RootSpace, Structure
from tests.search.brute import Space
from tests.search.instances import Instance, random_instance
from tests.search.spaces import NAMES, Floats, Ints, as_listed, some_spaces, structures, timed, under

SEEDS = range(8)


@cache
def spaces(name: ScheduleName) -> list[tuple[int, RootSpace]]:
    """A few roots of problems with slow links under one schedule."""
    return list(some_spaces(SEEDS, 2, under(name)))


def samples(name: ScheduleName, count: int) -> Iterator[tuple[int, RootSpace, Structure]]:
    """A few structures of each root."""
    for seed, space in spaces(name):
        listed = structures(space)
        for i in np.random.default_rng(seed).permutation(len(listed))[:count]:
            yield seed, space, listed[i]


def test_every_choice_is_tried() -> None:
    """The tests name all schedules that there are, and groups with degrees of their own are among the structures."""
    assert [entry.name for entry in SCHEDULES] == list(NAMES)
    apart = 0
    for name in NAMES:
        for _, space, structure in samples(name, 6):
            chosen = [space.options[o] for o, _ in structure]
            apart += len({(entry.dp, entry.microbatch_size) for entry in chosen}) > 1
    assert apart > 10


@pytest.mark.parametrize("name", NAMES)
def test_time_of_a_split_is_the_predictors(name: ScheduleName) -> None:
    """What a chain says of a split is what `predict` says of the plan that the root builds from it; the plan fits."""
    checked = deeper = recomputed = 0
    for seed, space, structure in samples(name, 6):
        splits, time_s = timed(space.chain(structure))
        for row in np.random.default_rng(seed).permutation(len(splits))[:2]:
            plan, setting = space.plan(structure, splits[row]), space.setting
            assert plan_mistakes(plan, setting.cluster, setting.model, setting.training) == []
            prediction = predict_in(setting, plan)
            assert prediction.iteration_time_s == pytest.approx(float(time_s[row]), rel=1e-12)
            assert prediction.fits
            held = splits[row] * schedule(name).copies
            assert [stage.layers for stage in plan.stages] == held.tolist()
            assert plan.num_microbatches == space.root.num_microbatches
            assert (plan.schedule.name, plan.schedule.virtual_stages) == (name, space.root.virtual_stages)
            assert (plan.schedule.warmup is not None) == (space.root.warmup > 0)
            deeper += space.root.warmup > 0
            recomputed += any(stage.recompute.none < stage.layers for stage in plan.stages)
            checked += 1
    assert checked >= 15
    assert recomputed > 0
    assert deeper > 0 or name != "1f1b"


def by_split(splits: Ints, time_s: Floats, copies: int = 1) -> dict[tuple[int, ...], float]:
    """Seconds of the splits that fit, by blocks of each stage."""
    found = zip((copies * splits).tolist(), time_s.tolist(), strict=True)
    return {tuple(split): seconds for split, seconds in found if np.isfinite(seconds)}


def check_splits(make: Callable[[int], Instance], seeds: range) -> tuple[int, int]:
    """The splits of chains, and their seconds, are those listed from the definition of the space; no other fits.

    Returns how many fit and how many do not.
    """
    fitting = missing = 0
    for seed in seeds:
        brute = Space(make(seed))
        for _, space in some_spaces(range(seed, seed + 1), 2, make):
            root, listed = space.root, structures(space)
            for i in np.random.default_rng(seed).permutation(len(listed))[:6]:
                job, chain = as_listed(space, listed[i])
                batch = brute.batch(job, brute.shape(job, chain), [chain])
                told = by_split(batch.layout.splits, batch.time_s[0])
                found = by_split(*timed(space.chain(listed[i])), schedule(root.schedule).copies)
                assert found == pytest.approx(told, rel=1e-12), (seed, root, listed[i])
                fitting, missing = fitting + len(told), missing + len(batch.layout.splits) - len(told)
    return fitting, missing


MADE = pytest.mark.parametrize("make", [random_instance, *map(under, NAMES)], ids=["no slow links", *NAMES])


@MADE
def test_chains_have_every_split_that_fits(make: Callable[[int], Instance]) -> None:
    """On a few problems, in some of which memory leaves out splits."""
    fitting, missing = check_splits(make, SEEDS)
    assert fitting >= 20
    assert missing >= 5


@pytest.mark.proof
@MADE
def test_chains_have_every_split_that_fits_widely(make: Callable[[int], Instance]) -> None:
    """On many problems."""
    check_splits(make, range(100))


@pytest.mark.parametrize("name", NAMES)
def test_rows_and_depths_are_those_of_the_pipeline(name: ScheduleName) -> None:
    """A stage's row names what it holds under the schedule, its depth is one of those of its place."""
    checked = set()
    for _, space, structure in samples(name, 8):
        shape = space.shape(tuple(stages for _, stages in structure))
        for at in range(shape.stages):
            place = space.place(at, shape.stages)
            row = space.holding_rows(place)[space.table_row(structure, at)]
            assert set(row) == set(holdings(shape, at))
            assert shape.stages - at in space.depths(place)
            checked.add((place, row))
    assert {place for place, _ in checked} == {"first", "middle", "last"} or name == "dualpipe"
    assert len({row for _, row in checked}) > 4
    with pytest.raises(IndexError):
        space.table_row(structure, shape.stages)


@pytest.mark.parametrize("name", NAMES)
def test_terms_by_depth_are_those_of_the_chain(name: ScheduleName) -> None:
    """A root's f, c, A and h by option, place, depth and changes of group below are those of every chain's stages."""
    finite = 0
    for _, space, structure in samples(name, 8):
        chain = space.chain(structure)
        owners = [(o, len(structure) - 1 - run) for run, (o, stages) in enumerate(structure) for _ in range(stages)]
        assert chain.hop_weight == space.hop_weight
        for at, (option, changes) in enumerate(owners):
            place, depth = space.place(at, chain.stages), chain.stages - at
            below = changes if space.root.warmup else 0
            assert below <= space.most_changes
            for term, told in (("fill", chain.time_s[at]), ("tied", chain.tied_s[at])):
                table = space.term(option, place, below, term)
                assert table[depth - 1] == pytest.approx(told, rel=1e-12), (term, place, depth)
                finite += int(np.isfinite(told).sum())
            if place != "last":
                # Other depths of the place's table are no stage of this one.
                assert len(table) == space.max_stages
        first = space.after_first(owners[0][0])
        # What stages with the same weights exchange depends on both ends, and is left out.
        more = (chain.ending_s[0] - first)[chain.possible[0]]
        assert (more >= -1e-15).all()
        tied = space.setting.model.architecture.tied_embeddings
        assert more.max(initial=0.0) <= 1e-15 or tied or schedule(name).copies == 2
    assert finite > 100


def test_terms_grow_with_the_changes_below() -> None:
    """A warm-up that is deeper per change of group keeps more in flight: f never falls as changes are added."""
    grown = 0
    for _, space in spaces("1f1b"):
        for option, changes in product(range(len(space.options)), range(space.most_changes)):
            fewer, more = (space.term(option, "middle", e, "fill") for e in (changes, changes + 1))
            assert (more >= fewer).all()
            grown += int((more > fewer).sum())
    assert grown > 0


def test_stages_and_configurations() -> None:
    """Stages are counted by group, at most as many as there are blocks; configurations leave order open."""
    for _, space in some_spaces(SEEDS, 3):
        most = {e.group: max(o.max_stages for o in space.options if o.group == e.group) for e in space.options}
        layers = space.setting.model.architecture.layers
        assert space.max_stages == min(sum(most.values()), space.limits.max_stages, layers)
        chosen = {
            tuple(sorted(structure))
            for structure in structures(space)
            if len(structure) == 1 or len({o for o, _ in structure}) == len(structure)
        }
        # Those with one stage, or with more than there may be, are counted too.
        assert space.count() >= len(chosen)
        ways = [1 + sum(e.max_stages for e in space.options if e.group == group) for group in most]
        assert space.count() == np.prod(ways) - 1


def test_tables_are_shared_between_roots() -> None:
    """Roots that differ in the order of work alone share options; the same table serves equal holdings."""
    found = [space for _, space in some_spaces(range(4, 8), 200, under("zb-h1"))]
    same = [
        (a, b) for a in found for b in found if a is not b and a.shared is b.shared and a.root.samples == b.root.samples
    ]
    assert any(a.options is b.options for a, b in same)
    for a, b in same:
        if a.options is b.options:
            assert a.table(0, "last") is b.table(0, "last") or a.holding_rows("last") != b.holding_rows("last")
