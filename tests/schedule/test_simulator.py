"""The recurrence against an event simulation of its own and against closed forms."""

import heapq

import numpy as np
import pytest

from hetplan.schedule.simulator import stage_ends
from tests.schedule.shapes import Pipeline, random_pipeline


def event_ends(pipeline: Pipeline) -> list[float]:
    """When each stage ends its last backward, by a clock and a heap of events.

    Stages are workers with an inbox. A free stage takes its next piece of work by the one-forward-one-backward rule:
    it may run as many forwards ahead of its backwards as there are stages from it to the last, itself counted; at
    that limit, or with no forward left, it takes a backward. It waits for exactly that piece to arrive. What it has
    computed travels to its neighbour while it goes on working.
    """
    stages, m = len(pipeline.forward_s), pipeline.num_microbatches
    forwards_done, backwards_done = [0] * stages, [0] * stages
    # Micro-batches whose input has arrived; all are at the first stage from the start.
    forwards_here = [m] + [0] * (stages - 1)
    backwards_here = [0] * stages
    busy = [False] * stages
    ends = [0.0] * stages
    events: list[tuple[float, int, str, int]] = []
    number = 0

    def push(time: float, kind: str, stage: int) -> None:
        nonlocal number
        number += 1
        heapq.heappush(events, (time, number, kind, stage))

    def start(time: float, stage: int) -> None:
        if busy[stage]:
            return
        ahead = forwards_done[stage] - backwards_done[stage]
        if forwards_done[stage] < m and ahead < stages - stage:
            if forwards_here[stage] > forwards_done[stage]:
                busy[stage] = True
                push(time + float(pipeline.forward_s[stage]), "forward done", stage)
        elif backwards_done[stage] < m and backwards_here[stage] > backwards_done[stage]:
            busy[stage] = True
            push(time + float(pipeline.backward_s[stage]), "backward done", stage)

    start(0.0, 0)
    while events:
        time, _, kind, stage = heapq.heappop(events)
        if kind == "forward done":
            busy[stage] = False
            forwards_done[stage] += 1
            if stage + 1 < stages:
                push(time + float(pipeline.hop_s[stage]), "forward arrives", stage + 1)
            else:
                backwards_here[stage] += 1
        elif kind == "backward done":
            busy[stage] = False
            backwards_done[stage] += 1
            ends[stage] = time
            if stage:
                push(time + float(pipeline.hop_s[stage - 1]), "backward arrives", stage - 1)
        elif kind == "forward arrives":
            forwards_here[stage] += 1
        else:
            backwards_here[stage] += 1
        start(time, stage)
    assert backwards_done == [m] * stages
    return ends


def compare(seed: int, cases: int) -> None:
    """Both simulations of random pipelines."""
    rng = np.random.default_rng(seed)
    for _ in range(cases):
        pipeline = random_pipeline(rng)
        ends = stage_ends(
            "1f1b",
            pipeline.forward_s[None],
            pipeline.backward_s[None],
            pipeline.hop_s[None],
            pipeline.num_microbatches,
        )
        assert ends[0].tolist() == pytest.approx(event_ends(pipeline), rel=1e-12)


def test_equals_event_simulation() -> None:
    """Every stage of 500 random pipelines ends when the event simulation says."""
    compare(0, 500)


@pytest.mark.proof
def test_equals_event_simulation_widely() -> None:
    """The same for 5,000 pipelines."""
    compare(1, 5_000)


@pytest.mark.parametrize("stages", [1, 2, 3, 5, 8, 16])
@pytest.mark.parametrize("num_microbatches", [1, 2, 4, 7, 32])
def test_equal_stages(stages: int, num_microbatches: int) -> None:
    """Equal stages without hops end after (m + p - 1)(F + B), and each stage a backward before the one above it."""
    forward, backward = 0.7, 1.9
    ends = stage_ends(
        "1f1b",
        np.full((1, stages), forward),
        np.full((1, stages), backward),
        np.zeros((1, stages - 1)),
        num_microbatches,
    )
    total = (num_microbatches + stages - 1) * (forward + backward)
    assert ends[0].tolist() == pytest.approx([total - j * backward for j in range(stages)], rel=1e-12)


def test_one_microbatch() -> None:
    """One micro-batch passes every stage and hop once each way."""
    forward, backward, hop = np.array([[1.0, 2.0, 4.0]]), np.array([[8.0, 16.0, 32.0]]), np.array([[64.0, 128.0]])
    assert stage_ends("1f1b", forward, backward, hop, 1).tolist() == [[447.0, 375.0, 231.0]]


def test_candidates_do_not_mix() -> None:
    """Candidates timed together take the times they take alone."""
    rng = np.random.default_rng(2)
    forward, backward, hop = rng.random((6, 4)), rng.random((6, 4)), rng.random((6, 3))
    together = stage_ends("1f1b", forward, backward, hop, 9)
    for k in range(6):
        alone = stage_ends("1f1b", forward[k : k + 1], backward[k : k + 1], hop[k : k + 1], 9)
        assert alone[0].tolist() == together[k].tolist()
