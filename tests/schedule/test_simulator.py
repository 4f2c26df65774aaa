"""The recurrence against an event simulation written on its own, against physics and against closed forms."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from hetplan.plan import ScheduleName
from hetplan.schedule import simulator
from hetplan.schedule.schedules import SCHEDULES
from hetplan.schedule.simulator import Floats, Program, Shape, barrier, compile_shape, step_s
from tests.schedule.events import Item, Network, Operation, Run, Transfer
from tests.schedule.shapes import SEMANTICS, Pipeline, random_pipeline, random_shape, random_times, uniform

NAMES = [schedule.name for schedule in SCHEDULES]


def index(program: Program, operation: Operation) -> int:
    """Where the simulator keeps an operation's end."""
    v, m = program.shape.virtual_stages, program.shape.num_microbatches
    number = ("FBW".index(operation.kind) * v + operation.chunk) * m + operation.microbatch
    return operation.stage * program.numbers + number


def ends_by_item(program: Program, net: Network, ends: Floats) -> dict[Item, float]:
    """Ends of all operations, and of all transfers that keep someone busy, of one candidate."""
    found: dict[Item, float] = {o: float(ends[index(program, o)]) for row in net.agendas for o in row}
    if len(program.transfers):
        by_producer = {index(program, producer): transfer for producer, transfer in net.sent.items()}
        for own, producer in zip(program.transfers.tolist(), program.crossings[1].tolist(), strict=True):
            found[by_producer[producer]] = float(ends[own])
    return found


def compare(seed: int, cases: int) -> None:
    """Both simulations of random pipelines: every operation, every transfer, every stage's last gradient."""
    rng = np.random.default_rng(seed)
    for _ in range(cases):
        pipeline = random_pipeline(rng)
        program, run = pipeline.program, Run(pipeline.shape, *pipeline.one)
        ends = program.ends(pipeline.work_s, pipeline.hop_s)
        items = ends_by_item(program, run.net, ends[:, 0])
        assert items.keys() == run.end_s.keys(), pipeline.shape
        theirs = np.array([run.end_s[item] for item in items])
        np.testing.assert_allclose(np.array([*items.values()]), theirs, rtol=1e-12, err_msg=str(pipeline.shape))
        finish = program.finishes(ends, pipeline.after_s)
        np.testing.assert_allclose(finish, [run.finish_s], rtol=1e-12, err_msg=str(pipeline.shape))


def test_equals_event_simulation() -> None:
    """500 random pipelines of all schedules, transfers, uneven times and hops."""
    compare(0, 500)


@pytest.mark.proof
def test_equals_event_simulation_widely() -> None:
    """5,000 of them."""
    compare(1, 5_000)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("transfers", SEMANTICS)
def test_obeys_physics(name: ScheduleName, transfers: simulator.Transfers) -> None:
    """No stage does two things at once, nothing starts before its input is there, queues send one by one."""
    rng = np.random.default_rng(2)
    for _ in range(6):
        pipeline = random_pipeline(rng, name, transfers)
        work_s, hop_s, _ = pipeline.one
        net = Network(pipeline.shape)
        ends = ends_by_item(pipeline.program, net, pipeline.program.ends(pipeline.work_s, pipeline.hop_s)[:, 0])
        units = {kind: k for k, kind in enumerate("FBW")}
        lasts = {
            item: float(
                hop_s[item.hop]
                if isinstance(item, Transfer)
                else work_s[item.stage, units[item.kind] * pipeline.shape.virtual_stages + item.chunk]
            )
            for item in ends
        }
        slack = 1e-12 * max(ends.values())
        start = {item: ends[item] - lasts[item] for item in ends}
        occupied: dict[tuple[str, int], list[Item]] = {}
        for item in ends:
            if isinstance(item, Operation):
                occupied.setdefault(("stage", item.stage), []).append(item)
            elif transfers == "eager":
                occupied.setdefault(("queue", item.producer.stage), []).append(item)
            else:
                for stage in item.parties:
                    occupied.setdefault(("stage", stage), []).append(item)
        for items in occupied.values():
            items.sort(key=lambda item: (ends[item], start[item]))
            for before, after in itertools.pairwise(items):
                assert start[after] >= ends[before] - slack
        for operation, source in net.source.items():
            if source is None:
                continue
            transfer = net.sent.get(source)
            if transfer is None or transfer.consumer != operation:
                assert start[operation] >= ends[source] - slack
            elif transfers == "overlapped":
                assert start[operation] >= ends[source] + hop_s[transfer.hop] - slack
            else:
                assert start[transfer] >= ends[source] - slack
                assert start[operation] >= ends[transfer] - slack


@pytest.mark.parametrize("name", NAMES)
def test_busier_transfers_take_longer(name: ScheduleName) -> None:
    """No operation ends later where transfers are eager than for rendezvous, or overlapped than eager."""
    rng = np.random.default_rng(3)
    for _ in range(10):
        pipeline = random_pipeline(rng, name, candidates=6)
        ends, steps = [], []
        for transfers in SEMANTICS:
            same = pipeline.with_transfers(transfers)
            operations = same.shape.stages * same.program.numbers
            ends.append(same.program.ends(same.work_s, same.hop_s)[:operations])
            steps.append(step_s(same.shape, *same.times))
        for quick, slow in zip([*ends[:2], *steps[:2]], [*ends[1:], *steps[1:]], strict=True):
            assert (quick <= slow * (1 + 1e-12)).all()


@pytest.mark.parametrize("name", NAMES)
def test_queues_without_duration_are_none(name: ScheduleName) -> None:
    """Eager hops of no time cost nothing; a rendezvous is a meeting, for which stages wait however short it is."""
    pipeline = random_pipeline(np.random.default_rng(4), name, "eager")
    pipeline = replace(pipeline, hop_s=0 * pipeline.hop_s)
    overlapped = pipeline.with_transfers("overlapped")
    assert step_s(pipeline.shape, *pipeline.times).tolist() == step_s(overlapped.shape, *overlapped.times).tolist()


@pytest.mark.parametrize("name", ["1f1b", "gpipe"])
@pytest.mark.parametrize("stages", [1, 2, 3, 5, 8, 16])
@pytest.mark.parametrize("num_microbatches", [1, 2, 4, 7, 32])
def test_equal_stages(name: ScheduleName, stages: int, num_microbatches: int) -> None:
    """Equal stages without hops end after (m + p - 1)(F + B), and each stage a backward before the one above it."""
    forward, backward = 0.7, 1.9
    pipeline = uniform(Shape(schedule=name, stages=stages, num_microbatches=num_microbatches), forward, backward)
    total = (num_microbatches + stages - 1) * (forward + backward)
    expected = [total - j * backward for j in range(stages)]
    assert step_s(pipeline.shape, *pipeline.times)[0].tolist() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("transfers", SEMANTICS)
def test_one_microbatch(transfers: simulator.Transfers) -> None:
    """One micro-batch passes every stage and hop once each way; the wire to the first stage is not used."""
    shape = Shape(stages=3, num_microbatches=1, transfers=transfers)
    work = np.array([[[1.0, 8.0], [2.0, 16.0], [4.0, 32.0]]])
    hop = np.array([[64.0, 128.0, 1e6]])
    assert step_s(shape, work, hop, np.zeros((1, 3, 1))).tolist() == [[447.0, 375.0, 231.0]]


def test_loops_use_the_wire_back() -> None:
    """Between two chunks micro-batches go from the last stage to the first, both ways over the last hop."""
    shape = Shape(schedule="breadth-first", stages=3, num_microbatches=1, virtual_stages=2)
    pipeline = uniform(shape, 1.0, 1.0)
    hop = np.array([[10.0, 100.0, 1000.0]])
    assert step_s(shape, pipeline.work_s, hop, pipeline.after_s)[0].max() == 12 + 4 * 110 + 2 * 1000


def test_transfers_by_hand() -> None:
    """Two stages, two micro-batches, all forwards first, F = B = 1, a hop of 3.

    Overlapped: forwards arrive at 4 and 5; stage 1 computes 4-5, 5-6, then backwards 6-7, 7-8, which arrive at 10, 11;
    the last one ends at 12. Eager: they arrive at 4 and 7 (one at a time) and are over at 5 and 8; backwards 8-9,
    9-10 arrive at 12 and 15; the end is 16. Rendezvous: 0-1 F, 1-4 sent, 4-5 both compute, 5-8 sent, 8-9 F, 9-10 B,
    10-13 sent, 13-14 both compute B, 14-17 sent, the last B at 18.
    """
    ends = {}
    for transfers in SEMANTICS:
        pipeline = uniform(
            Shape(schedule="gpipe", stages=2, num_microbatches=2, transfers=transfers), 1.0, 1.0, hop_s=3.0
        )
        ends[transfers] = step_s(pipeline.shape, *pipeline.times)[0].tolist()
    assert ends == {"overlapped": [12.0, 8.0], "eager": [16.0, 10.0], "rendezvous": [18.0, 14.0]}


@pytest.mark.parametrize("warmup", [(0, 0), (1, 0), (2, 0), (2, 1), (3, 0)])
def test_turn_of_transfers_does_not_depend_on_how_levels_are_found(warmup: tuple[int, ...]) -> None:
    """For rendezvous a closed form of levels orders transfers as unit times do: two equal stages with F = B = x = 1."""
    shape = Shape(stages=2, num_microbatches=5, warmup=warmup, transfers="rendezvous")
    pipeline = uniform(shape, 1.0, 1.0, hop_s=1.0)
    assert step_s(shape, *pipeline.times)[0].tolist() == Run(shape, *pipeline.one).finish_s


def test_gradients_are_reduced_one_after_another() -> None:
    """A chunk's reduction waits for its last backward and for the reductions before it.

    Two chunks on one stage, F = B = 1, two micro-batches: chunk 1 is complete at 6, chunk 0 at 8.
    """
    pipeline = uniform(Shape(schedule="breadth-first", stages=1, num_microbatches=2, virtual_stages=2), 1.0, 1.0)
    for chunk_0, chunk_1, finish in ((0.0, 0.0, 8.0), (5.0, 0.0, 13.0), (5.0, 1.0, 13.0), (5.0, 4.0, 15.0)):
        after = np.array([[[chunk_0, chunk_1]]])
        assert step_s(pipeline.shape, pipeline.work_s, pipeline.hop_s, after).tolist() == [[finish]]
    assert pipeline.program.completion.tolist() == [[1, 0]]


def test_barrier_waits_for_the_slowest_replica() -> None:
    """Replicas of a stage end together, and each one's wait is told apart."""
    end, wait = barrier(np.array([[3.0, 7.0], [5.0, 6.0]]))
    assert end.tolist() == [5.0, 7.0]
    assert wait.tolist() == [[2.0, 0.0], [0.0, 1.0]]


@pytest.mark.parametrize("name", NAMES)
def test_candidates_do_not_mix(name: ScheduleName) -> None:
    """Candidates timed together take the times they take alone."""
    pipeline = random_pipeline(np.random.default_rng(5), name, candidates=6)
    together = step_s(pipeline.shape, *pipeline.times)
    for k in range(6):
        alone = step_s(pipeline.shape, *(array[k : k + 1] for array in pipeline.times))
        assert alone[0].tolist() == together[k].tolist()


def test_candidates_are_timed_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """However few operation ends may be held at once, the times are the same."""
    shape = random_shape(np.random.default_rng(6), "zb-v")
    pipeline = random_times(np.random.default_rng(7), shape, 5)
    program = compile_shape(shape)
    whole = step_s(shape, *pipeline.times)
    assert whole.tolist() == program.finishes(program.ends(*pipeline.times[:2]), pipeline.after_s).tolist()
    for held in (1, 2 * program.size, 3 * program.size):
        monkeypatch.setattr(simulator, "HELD", held)
        assert step_s(shape, *pipeline.times).tolist() == whole.tolist()
    nobody = Pipeline(shape=shape, work_s=pipeline.work_s[:0], hop_s=pipeline.hop_s[:0], after_s=pipeline.after_s[:0])
    assert step_s(shape, *nobody.times).shape == (0, shape.stages)


@pytest.mark.parametrize("transfers", SEMANTICS)
def test_deadlock_is_an_error(transfers: simulator.Transfers) -> None:
    """A stage that wants more forwards before its first backward than the one above sends it waits forever."""
    with pytest.raises(ValueError, match="waits for itself"):
        compile_shape(Shape(stages=3, num_microbatches=8, warmup=(0, 0, 3), transfers=transfers))
