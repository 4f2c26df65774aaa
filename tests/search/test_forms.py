"""The form of round-trip bounds against simulated pipelines, and what few micro-batches say of many."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest

from hetplan.plan import ScheduleName
from hetplan.schedule.holdings import holdings
from hetplan.schedule.paths import trips
from hetplan.schedule.schedules import schedule
from hetplan.schedule.simulator import Shape, completion, order_of, step_s
from hetplan.search.forms import Form, form
from hetplan.search.space import VIRTUAL_STAGES
from tests.schedule.shapes import Pipeline, random_shape, random_times, uniform
from tests.search.spaces import NAMES, Floats


def shapes(name: ScheduleName, count: int) -> Iterator[tuple[np.random.Generator, Shape]]:
    """Random shapes of two stages or more."""
    rng, found = np.random.default_rng(7), 0
    while found < count:
        shape = random_shape(rng, name)
        if shape.stages > 1:
            found += 1
            yield rng, shape


def bound_s(paths: Form, pipeline: Pipeline) -> Floats:
    """The bound max c + sum f + h X + A_first of each candidate, shape (K,)."""
    stages = pipeline.shape.stages
    tied = np.stack([paths.tied(j, pipeline.work_s[:, j]) for j in range(stages)], axis=1)
    assert paths.fill(pipeline.work_s).shape == tied.shape == (len(pipeline.work_s), stages)
    hops = paths.hop * pipeline.hop_s[:, :-1].sum(axis=1)
    found: Floats = (
        tied.max(axis=1) + paths.fill(pipeline.work_s).sum(axis=1) + hops + pipeline.after_s[:, 0] @ paths.after
    )
    return found


@pytest.mark.parametrize("name", NAMES)
def test_no_pipeline_is_faster(name: ScheduleName) -> None:
    """T >= max c + sum f + h X + A_first, whatever the times, transfers and further warm-up."""
    ratios = []
    for rng, shape in shapes(name, 30):
        pipeline = random_times(rng, shape, 8)
        time_s = step_s(shape, *pipeline.times).max(axis=1)
        bound = bound_s(form(shape), pipeline)
        assert (bound <= time_s * (1 + 1e-12)).all(), shape
        ratios += (bound / time_s).tolist()
    assert np.median(ratios) > 0.6, "a bound that says nothing would pass the rest"


@pytest.mark.parametrize("name", NAMES[2:])
def test_nearly_exact_where_stages_are_alike(name: ScheduleName) -> None:
    """Equal stages without hops: the form misses little of the time. 1F1B and GPipe have closed forms instead."""
    for _, shape in shapes(name, 10):
        units = (1.0, 1.0, 1.0) if schedule(name).splits_backward else (1.0, 2.0)
        pipeline = uniform(replace(shape, transfers="overlapped"), *units)
        time_s = float(step_s(pipeline.shape, *pipeline.times).max())
        assert 0.7 * time_s <= bound_s(form(pipeline.shape), pipeline)[0] <= time_s * (1 + 1e-12)


def test_parts_are_those_of_one_kind_of_path() -> None:
    """The least of what paths through other stages visit is f; what the stage's own path visits there is c + f."""
    for name in NAMES:
        for rng, shape in shapes(name, 4):
            few = replace(shape, num_microbatches=shape.steady.num_microbatches)
            paths, work = form(few), random_times(rng, few).work_s[0]
            kinds = [np.array([path.work for path in kind]) for kind in trips(few)]
            others = ~np.eye(few.stages, dtype=bool)
            matching = [
                kind
                for kind in kinds
                if np.array_equal(np.unique(kind[others], axis=0), paths.elsewhere)
                and np.array_equal(kind[np.arange(few.stages), np.arange(few.stages)], paths.own)
            ]
            assert matching
            for j in range(few.stages):
                whole = paths.tied(j, work[j]) + paths.fill(work[j])
                assert whole == pytest.approx(float(matching[0][j, j] @ work[j]))
                assert paths.fill(work[j]) <= (matching[0][others[:, j], j] @ work[j]).min() * (1 + 1e-12)


def many(name: ScheduleName) -> list[Shape]:
    """Shapes with more than four micro-batches per stage, as search has them."""
    found = []
    for stages in (2, 3, 4):
        for m in (4 * stages + 1, 4 * stages + 2, 5 * stages, 8 * stages, 9 * stages):
            found += [
                Shape(schedule=name, stages=stages, num_microbatches=m, virtual_stages=v)
                for v in (1, *VIRTUAL_STAGES)
                if schedule(name).chunks(v) is None and schedule(name).obstacle(stages, m) is None
            ]
    return found


@pytest.fixture
def long_form(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """Makes forms, holdings and completion be worked out from all micro-batches."""
    cached = (form, holdings, completion, trips)

    def begin() -> None:
        monkeypatch.setattr(Shape, "steady", property(lambda shape: shape))
        for function in cached:
            function.cache_clear()

    yield begin
    for function in cached:
        function.cache_clear()


@pytest.mark.parametrize("name", NAMES)
def test_few_microbatches_say_what_many_do(name: ScheduleName, long_form: Callable[[], None]) -> None:
    """Beyond four micro-batches per stage, holdings, completion and forms are those of the whole batch."""

    def said(shape: Shape) -> tuple[object, ...]:
        held = [set(holdings(shape, j)) for j in range(shape.stages)]
        return held, completion(shape).tolist(), form(shape)

    listed = many(name)
    short = [said(shape) for shape in listed]
    assert any(shape.steady != shape for shape in listed) or name == "breadth-first"
    long_form()
    for shape, (held, complete, paths) in zip(listed, short, strict=True):
        told_held, told_complete, told = said(shape)
        assert held == told_held, shape
        assert complete == told_complete, shape
        assert isinstance(paths, Form)
        assert isinstance(told, Form)
        assert np.array_equal(paths.elsewhere, told.elsewhere), shape
        assert np.allclose(paths.own, told.own, rtol=1e-12), shape
        assert np.array_equal(paths.after, told.after), shape
        assert paths.hop == told.hop, shape


def test_steady_shape_is_legal() -> None:
    """The pipeline with fewer micro-batches exists under the schedule and differs in nothing else."""
    for name in NAMES:
        for shape in many(name):
            few = shape.steady
            assert schedule(name).obstacle(few.stages, few.num_microbatches) is None
            assert replace(few, num_microbatches=shape.num_microbatches) == shape
            assert few.steady is few
            assert order_of(few).shape[0] == shape.stages
