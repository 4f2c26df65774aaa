"""What stages hold in memory at once, against counts of their own and against the publications."""

import itertools

import pytest

from hetplan.schedule.base import PipelineSchedule
from hetplan.schedule.holdings import holdings
from hetplan.schedule.schedules import SCHEDULES, schedule
from hetplan.schedule.simulator import Shape
from tests.schedule.events import agendas_of


def moments(shape: Shape, stage: int) -> set[tuple[int, ...]]:
    """What a stage holds after each of its operations, in the form of `holdings`; moments that hold less left out."""
    v = shape.virtual_stages
    held, seen = [0] * (2 * v), set()
    for operation in agendas_of(shape)[stage]:
        if operation.kind == "F":
            held[operation.chunk] += 1
        elif operation.kind == "B":
            held[operation.chunk] -= 1
            held[v + operation.chunk] += int(schedule(shape.schedule).splits_backward)
        else:
            held[v + operation.chunk] -= 1
        seen.add(tuple(held))
    return {a for a in seen if not any(a != b and all(y >= x for x, y in zip(a, b, strict=True)) for b in seen)}


def most(shape: Shape, stage: int) -> int:
    """Micro-batches that a stage holds at most, those that wait for weight gradients counted."""
    return max(sum(row) for row in holdings(shape, stage))


@pytest.mark.parametrize("entry", SCHEDULES, ids=lambda entry: entry.name)
def test_moments_that_hold_most(entry: PipelineSchedule) -> None:
    """All small shapes, on every stage."""
    for p, m, v in itertools.product((1, 2, 3, 4), (1, 2, 4, 8), (1, 2, 3)):
        if entry.chunks(v) or entry.obstacle(p, m):
            continue
        shape = Shape(schedule=entry.name, stages=p, num_microbatches=m, virtual_stages=v)
        for stage in range(p):
            found = holdings(shape, stage)
            assert len(found) == len(set(found))
            assert set(found) == moments(shape, stage), (shape, stage)


@pytest.mark.parametrize("extra", [(0, 0, 0, 0), (1, 1, 1, 0), (5, 2, 1, 0)])
@pytest.mark.parametrize("num_microbatches", [1, 3, 12])
def test_further_warmup_holds_more(extra: tuple[int, ...], num_microbatches: int) -> None:
    """1F1B holds min(m, p - j + further) micro-batches."""
    shape = Shape(stages=4, num_microbatches=num_microbatches, warmup=extra)
    for j in range(4):
        assert holdings(shape, j) == ((min(num_microbatches, 4 - j + extra[j]), 0),)
        assert set(holdings(shape, j)) == moments(shape, j)


@pytest.mark.parametrize("stages", [2, 4, 6])
def test_published_numbers_in_flight(stages: int) -> None:
    """All, or those of 1F1B's first stage, or one more.

    GPipe and breadth-first hold all, interleaved 2 (p - j - 1) + (v - 1) p + 1 chunks, ZB-H1 p micro-batches, ZB-V as
    much in 2 p halves, DualPipe p + 1.
    """
    p, m = stages, 4 * stages
    for j in range(p):
        assert most(Shape(schedule="gpipe", stages=p, num_microbatches=m), j) == m
        assert most(Shape(schedule="zb-h1", stages=p, num_microbatches=m), j) == p
        assert most(Shape(schedule="zb-v", stages=p, num_microbatches=m, virtual_stages=2), j) <= 2 * p
        assert most(Shape(schedule="dualpipe", stages=p, num_microbatches=m, virtual_stages=2), j) <= p + 1
        for v in (2, 3):
            looped = Shape(schedule="breadth-first", stages=p, num_microbatches=m, virtual_stages=v)
            assert most(looped, j) == v * m
            interleaved = Shape(schedule="interleaved-1f1b", stages=p, num_microbatches=m, virtual_stages=v)
            assert most(interleaved, j) == 2 * (p - j - 1) + (v - 1) * p + 1
    assert most(Shape(schedule="zb-v", stages=p, num_microbatches=m, virtual_stages=2), 0) == 2 * p
    assert most(Shape(schedule="dualpipe", stages=p, num_microbatches=m, virtual_stages=2), 0) == p + 1
