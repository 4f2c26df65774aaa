"""The tuple of schedules: names, orders of work as published, idle time as stated."""

import itertools
import re
from collections.abc import Iterator
from typing import get_args

import numpy as np
import pytest

from hetplan.plan import Schedule, ScheduleName
from hetplan.schedule.base import PipelineSchedule
from hetplan.schedule.schedules import SCHEDULES, schedule
from hetplan.schedule.simulator import Shape, compile_shape, step_s
from tests.schedule.events import Network, Operation, agendas_of
from tests.schedule.shapes import uniform

NAMES = [entry.name for entry in SCHEDULES]
SPLIT = [entry.name for entry in SCHEDULES if entry.splits_backward]


def shapes_of(entry: PipelineSchedule, most_stages: int = 6, most_microbatches: int = 13) -> Iterator[Shape]:
    """All small shapes of a schedule."""
    for p, m, v in itertools.product(range(1, most_stages + 1), range(1, most_microbatches + 1), (1, 2, 3)):
        if entry.chunks(v) is None and entry.obstacle(p, m) is None:
            yield Shape(schedule=entry.name, stages=p, num_microbatches=m, virtual_stages=v)


def written(row: list[Operation]) -> str:
    """An order of work in letters: F, B or W, the chunk where there are several, the micro-batch."""
    several = any(operation.chunk for operation in row)
    return " ".join(f"{o.kind}{'ab'[o.chunk] if several else ''}{o.microbatch}" for o in row)


def one_in_one_out(forwards: list[Operation], ahead: int) -> list[Operation]:
    """Run forwards until `ahead` of them wait for their backward, then a backward; backwards as their list says."""
    last = max(o.chunk for o in forwards)
    # Chunks come back in reverse, micro-batches as they went.
    backwards = [o._replace(kind="B", chunk=last - o.chunk) for o in forwards]
    done: list[Operation] = []
    f = b = 0
    while b < len(backwards):
        if f < len(forwards) and f - b < ahead:
            done.append(forwards[f])
            f += 1
        else:
            done.append(backwards[b])
            b += 1
    return done


def test_plans_name_the_schedules_of_the_tuple() -> None:
    """A schedule that is added to the tuple is a name that plans accept, and the other way round."""
    assert list(get_args(Schedule.model_fields["name"].annotation)) == NAMES
    assert len(set(NAMES)) == len(NAMES)


def test_schedules_are_found_by_name() -> None:
    """By its name, and by no other."""
    assert [schedule(name) for name in NAMES] == list(SCHEDULES)
    with pytest.raises(KeyError):
        schedule("2f2b")


@pytest.mark.parametrize("name", NAMES)
def test_readers_learn_what_it_is(name: ScheduleName) -> None:
    """Each says what it is, where it comes from and which frameworks run it."""
    entry = schedule(name)
    assert entry.description
    assert re.search(r"(19|20)\d\d", entry.source)
    assert entry.frameworks
    assert all(entry.frameworks)


@pytest.mark.parametrize("entry", SCHEDULES, ids=lambda entry: entry.name)
def test_each_operation_once_and_no_deadlock(entry: PipelineSchedule) -> None:
    """All small shapes: F, B and W of every micro-batch on every chunk of its path, once; the order can be worked."""
    seen = 0
    for shape in shapes_of(entry):
        net = Network(shape)
        done = [operation for row in net.agendas for operation in row]
        assert len(done) == len(set(done))
        assert set(done) == set(net.source)
        clock = net.unit_time()
        for row in net.agendas:
            assert [operation.stage for operation in row] == [row[0].stage] * len(row)
        assert max(clock.values()) >= len(net.agendas[0])
        compile_shape(shape)
        seen += 1
    assert seen >= 6


@pytest.mark.parametrize("name", NAMES)
def test_microbatches_in_turn(name: ScheduleName) -> None:
    """On every chunk each kind of work takes the micro-batches of a route in turn."""
    for shape in shapes_of(schedule(name)):
        turns: dict[tuple[str, int, int], int] = {}
        for row in agendas_of(shape):
            for o in row:
                assert turns.get(o[:3], -1) < o.microbatch
                turns[o[:3]] = o.microbatch


@pytest.mark.parametrize("extra", [(), (0, 0, 0, 0), (1, 1, 1, 0), (4, 2, 2, 0), (0, 1, 1, 0), (20, 0, 0, 0)])
def test_1f1b_holds_so_many_at_once(extra: tuple[int, ...]) -> None:
    """A stage goes forward while it holds fewer micro-batches than stages are left, with its further warm-up."""
    p = 4
    for m in range(1, 12):
        rows = agendas_of(Shape(stages=p, num_microbatches=m, warmup=extra))
        for j, row in enumerate(rows):
            forwards = [Operation("F", j, 0, i) for i in range(m)]
            assert row == one_in_one_out(forwards, p - j + (extra[j] if extra else 0))


def test_gpipe_goes_all_forward_then_all_backward() -> None:
    """As written."""
    for j, row in enumerate(agendas_of(Shape(schedule="gpipe", stages=3, num_microbatches=4))):
        assert row == [Operation(kind, j, 0, i) for kind in "FB" for i in range(4)]


@pytest.mark.parametrize("stages", [1, 2, 3, 4])
@pytest.mark.parametrize("virtual_stages", [2, 3])
@pytest.mark.parametrize("groups", [1, 2, 3])
def test_interleaved_warms_up_as_megatron_does(stages: int, virtual_stages: int, groups: int) -> None:
    """Groups of p micro-batches chunk by chunk; 2 (p - 1 - j) + (v - 1) p forwards ahead, one more in turn."""
    p, v, m = stages, virtual_stages, stages * groups
    shape = Shape(schedule="interleaved-1f1b", stages=p, num_microbatches=m, virtual_stages=v)
    for j, row in enumerate(agendas_of(shape)):
        forwards = [Operation("F", j, c, g * p + i) for g in range(groups) for c in range(v) for i in range(p)]
        assert row == one_in_one_out(forwards, 2 * (p - 1 - j) + (v - 1) * p + 1)


def test_breadth_first_finishes_a_chunk_before_the_next() -> None:
    """All micro-batches through a chunk, then the next; backwards from the last chunk."""
    shape = Shape(schedule="breadth-first", stages=2, num_microbatches=3, virtual_stages=3)
    for j, row in enumerate(agendas_of(shape)):
        forwards = [Operation("F", j, c, i) for c in (0, 1, 2) for i in range(3)]
        assert row == forwards + [Operation("B", j, c, i) for c in (2, 1, 0) for i in range(3)]


def test_zb_h1_is_1f1b_with_late_weight_gradients() -> None:
    """F and B as 1F1B does them; a stage owes as many weight gradients as there are stages above it."""
    for shape in shapes_of(schedule("zb-h1")):
        plain = agendas_of(Shape(stages=shape.stages, num_microbatches=shape.num_microbatches))
        for j, (row, usual) in enumerate(zip(agendas_of(shape), plain, strict=True)):
            assert [o for o in row if o.kind != "W"] == usual
            owed = 0
            for before, o in zip([None, *row], row, strict=False):
                owed += {"F": 0, "B": 1, "W": -1}[o.kind]
                assert owed <= j + 1
                if o.kind == "F" or (before and before.kind == "B" == o.kind):
                    assert owed <= j + (o.kind == "B")
                if o.kind == "W" and any(later.kind != "W" for later in row[row.index(o) :]):
                    assert owed == j


@pytest.mark.parametrize(
    ("name", "stages", "num_microbatches", "virtual_stages", "rows"),
    [
        ("1f1b", 3, 4, 1, ["F0 F1 F2 B0 F3 B1 B2 B3", "F0 F1 B0 F2 B1 F3 B2 B3", "F0 B0 F1 B1 F2 B2 F3 B3"]),
        (
            "interleaved-1f1b",
            2,
            4,
            2,
            [
                "Fa0 Fa1 Fb0 Fb1 Fa2 Bb0 Fa3 Bb1 Fb2 Ba0 Fb3 Ba1 Bb2 Bb3 Ba2 Ba3",
                "Fa0 Fa1 Fb0 Bb0 Fb1 Bb1 Fa2 Ba0 Fa3 Ba1 Fb2 Bb2 Fb3 Bb3 Ba2 Ba3",
            ],
        ),
        (
            "zb-h1",
            3,
            4,
            1,
            [
                "F0 F1 F2 B0 W0 F3 B1 W1 B2 W2 B3 W3",
                "F0 F1 B0 F2 B1 W0 F3 B2 W1 B3 W2 W3",
                "F0 B0 F1 B1 F2 B2 W0 F3 B3 W1 W2 W3",
            ],
        ),
        (
            "zb-v",
            2,
            3,
            2,
            [
                "Fa0 Fa1 Fa2 Fb0 Bb0 Wb0 Fb1 Bb1 Wb1 Ba0 Wa0 Fb2 Bb2 Wb2 Ba1 Wa1 Ba2 Wa2",
                "Fa0 Fb0 Fa1 Fb1 Bb0 Wb0 Fa2 Ba0 Wa0 Fb2 Bb1 Wb1 Ba1 Bb2 Ba2 Wa1 Wb2 Wa2",
            ],
        ),
        (
            "dualpipe",
            4,
            8,
            2,
            [
                "Fa0 Fa1 Fa2 Fb4 Bb4 Wb4 Fb5 Fa3 Bb5 Wb5 Fb6 Ba0 Wa0 Bb6 Wb6 Fb7 Ba1 Wa1 Bb7 Wb7 Ba2 Wa2 Ba3 Wa3",
                "Fa0 Fb4 Fa1 Fb5 Fa2 Bb4 Wb4 Fb6 Ba0 Wa0 Fa3 Bb5 Wb5 Fb7 Ba1 Wa1 Bb6 Wb6 Ba2 Wa2 Bb7 Ba3 Wb7 Wa3",
            ],
        ),
    ],
)
def test_orders_as_published(
    name: ScheduleName, stages: int, num_microbatches: int, virtual_stages: int, rows: list[str]
) -> None:
    """Small examples, worked through with the frameworks' own rules.

    1f1b, interleaved-1f1b: NVIDIA/Megatron-LM; zb-h1: torch ScheduleInterleavedZeroBubble with one chunk; zb-v: torch
    ScheduleZBVZeroBubble; dualpipe: deepseek-ai/DualPipe, whose second direction counts its micro-batches from m / 2.
    """
    shape = Shape(schedule=name, stages=stages, num_microbatches=num_microbatches, virtual_stages=virtual_stages)
    assert [written(row) for row in agendas_of(shape)][: len(rows)] == rows


@pytest.mark.parametrize("stages", [1, 2, 3, 5])
def test_zb_v_leaves_out_the_microbatches_that_there_are_not(stages: int) -> None:
    """A small batch is worked in the order of one that fills the pipeline."""
    full = agendas_of(Shape(schedule="zb-v", stages=stages, num_microbatches=2 * stages - 1, virtual_stages=2))
    for m in range(1, 2 * stages - 1):
        small = agendas_of(Shape(schedule="zb-v", stages=stages, num_microbatches=m, virtual_stages=2))
        assert small == [[o for o in row if o.microbatch < m] for row in full]


@pytest.mark.parametrize("stages", [1, 2, 3, 4, 6])
@pytest.mark.parametrize("more", [0, 1, 5])
def test_zb_v_never_idles_between_first_and_last(stages: int, more: int) -> None:
    """With F = B = W and 2 p - 1 micro-batches or more every stage works without a pause once it has begun."""
    clock = Network(Shape(schedule="zb-v", stages=stages, num_microbatches=2 * stages - 1 + more, virtual_stages=2))
    ends = clock.unit_time()
    for row in clock.agendas:
        assert ends[row[-1]] - ends[row[0]] + 1 == len(row)


@pytest.mark.parametrize("stages", [2, 4, 6])
@pytest.mark.parametrize("num_microbatches", [12, 16])
def test_dualpipe_is_its_own_mirror_image(stages: int, num_microbatches: int) -> None:
    """A stage and the one as far from the other end do the same with the directions exchanged."""
    half = num_microbatches // 2
    rows = agendas_of(Shape(schedule="dualpipe", stages=stages, num_microbatches=num_microbatches, virtual_stages=2))
    for row, mirror in zip(rows, reversed(rows), strict=True):
        turned = [(o.kind, 1 - o.chunk, o.microbatch + (half if o.chunk == 0 else -half)) for o in row]
        assert turned == [(o.kind, o.chunk, o.microbatch) for o in mirror]


@pytest.mark.parametrize("name", ["1f1b", "gpipe"])
def test_levels_grow_along_all_that_must_follow(name: ScheduleName) -> None:
    """A closed form of levels is one: along every stage's order and from every operation to those that wait for it."""
    entry, known = schedule(name), 0
    for p, m in itertools.product((1, 2, 3), (1, 2, 3, 5)):
        for extra in itertools.product(range(4), repeat=p) if name == "1f1b" else ((0,) * p,):
            level = entry.level(p, m, extra)
            if level is None:
                continue
            known += 1
            net = Network(Shape(schedule=name, stages=p, num_microbatches=m, warmup=extra))
            at = {o: int(level[o.stage, "FB".index(o.kind) * m + o.microbatch]) for o in net.source}
            for row in net.agendas:
                assert all(at[a] < at[b] for a, b in itertools.pairwise(row))
            assert all(at[a] < at[b] for b, a in net.source.items() if a)
    assert known >= (100 if name == "1f1b" else 12)


def stated_idle(entry: PipelineSchedule, **numbers: float) -> float:
    """A schedule's bubble as it is written for readers, worked out."""
    formula = re.split(r" where |,", entry.bubble)[0]
    assert set(re.findall(r"[A-Za-z]+", formula)) <= set("FBWpvm"), entry.bubble
    product = re.sub(r"(?<=[\w)]) (?=[(A-Z])", " * ", formula)
    return float(eval(product, {}, numbers))


@pytest.mark.parametrize("name", NAMES)
def test_idle_time_is_what_it_says(name: ScheduleName) -> None:
    """Equal stages, no hops, micro-batches enough: the time beyond a stage's own work is the stated bubble."""
    entry, seen = schedule(name), 0
    for p, m, v in itertools.product((1, 2, 3, 4, 6), (12, 24), (1, 2, 3)):
        if entry.chunks(v) or entry.obstacle(p, m):
            continue
        # Seconds of a whole stage. Conditions that a formula states hold in all of these.
        for seconds in [(6.0, 6.0, 6.0)] if name == "zb-v" else [(6.0, 6.0, 6.0), (8.0, 7.0, 5.0), (9.0, 9.0, 2.0)]:
            parts = seconds if entry.splits_backward else seconds[:2]
            # DualPipe's stage holds a whole stage of each direction, and half of the micro-batches take either.
            each = [s / (1 if name == "dualpipe" else v) for s in parts]
            shape = Shape(schedule=name, stages=p, num_microbatches=m, virtual_stages=v)
            pipeline = uniform(shape, *each)
            idle = float(step_s(shape, *pipeline.times).max()) - m * sum(parts)
            stated = stated_idle(entry, F=seconds[0], B=seconds[1], W=seconds[2], p=p, v=v, m=m)
            assert idle == pytest.approx(stated, abs=1e-9), (shape, seconds)
            seen += 1
    assert seen >= 8


@pytest.mark.parametrize("num_microbatches", [1, 3, 5, 6])
def test_few_microbatches_idle_longer(num_microbatches: int) -> None:
    """Below p micro-batches: breadth-first waits for each chunk to come around, zb-h1 has too few W to fill with."""
    p, m, v, f, b, w = 6, num_microbatches, 3, 3.0, 5.0, 2.0
    loop = uniform(Shape(schedule="breadth-first", stages=p, num_microbatches=m, virtual_stages=v), f, b)
    idle = float(step_s(loop.shape, *loop.times).max()) - m * v * (f + b)
    assert idle == pytest.approx((p - 1 + (v - 1) * (p - m)) * (f + b))
    zero = uniform(Shape(schedule="zb-h1", stages=p, num_microbatches=m), f, b, w)
    idle = float(step_s(zero.shape, *zero.times).max()) - m * (f + b + w)
    assert idle == pytest.approx((p - 1) * (f + b) - (m - 1) * w)


@pytest.mark.parametrize(
    ("name", "virtual_stages", "stages", "num_microbatches", "fits"),
    [
        ("1f1b", 1, 4, 1, True),
        ("1f1b", 2, 4, 1, False),
        ("gpipe", 1, 3, 1, True),
        ("gpipe", 2, 3, 1, False),
        ("interleaved-1f1b", 2, 4, 8, True),
        ("interleaved-1f1b", 1, 4, 8, False),
        ("interleaved-1f1b", 2, 4, 6, False),
        ("breadth-first", 5, 4, 3, True),
        ("breadth-first", 1, 4, 3, False),
        ("zb-h1", 1, 4, 2, True),
        ("zb-h1", 2, 4, 2, False),
        ("zb-v", 2, 4, 1, True),
        ("zb-v", 3, 4, 1, False),
        ("dualpipe", 2, 4, 8, True),
        ("dualpipe", 1, 4, 8, False),
        ("dualpipe", 2, 3, 8, False),
        ("dualpipe", 2, 4, 6, False),
        ("dualpipe", 2, 4, 9, False),
    ],
)
def test_what_a_schedule_needs(
    name: ScheduleName, virtual_stages: int, stages: int, num_microbatches: int, fits: bool
) -> None:
    """Chunks per stage, whole groups of micro-batches, even numbers; what does not fit is named in words."""
    problems = [schedule(name).chunks(virtual_stages), schedule(name).obstacle(stages, num_microbatches)]
    assert (problems == [None, None]) == fits
    assert all(re.match(r"(takes|needs) .*\w$", problem) for problem in problems if problem)


@pytest.mark.parametrize("name", SPLIT)
def test_weight_gradients_follow_their_backward(name: ScheduleName) -> None:
    """On every stage a micro-batch's W comes after its B, and B after F."""
    for shape in shapes_of(schedule(name)):
        for row in agendas_of(shape):
            at = {o: k for k, o in enumerate(row)}
            assert all(at[o] > at[o._replace(kind={"B": "F", "W": "B"}[o.kind])] for o in row if o.kind != "F")


def test_orders_are_arrays_of_their_own() -> None:
    """Changing an order that was handed out does not change the next."""
    for name in NAMES:
        v = 1 if schedule(name).chunks(1) is None else 2
        first = schedule(name).order(2, 4, v, ())
        kept = first.copy()
        first[:] = -1
        assert np.array_equal(schedule(name).order(2, 4, v, ()), kept)
