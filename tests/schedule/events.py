"""An event simulation of a training step, written on its own from the definitions of schedules and transfers.

The order of work on every stage is the definition of a schedule and comes from the package; who waits for whom and how
transfers behave does not. Stages are workers with an agenda. A clock jumps from event to event: an operation ends, a
transfer ends, an input arrives, a gradient has been reduced. After each event the workers concerned look whether they
can start what is next on their agenda.

An overlapped transfer is a message that travels for a while. An eager one stands in its stage's one outgoing queue, in
the order in which outputs are produced. For rendezvous both stages have the transfer on their agendas and start it
together. Those agendas are sorted by when operations end if each takes one unit of time and transfers none; a
transfer follows the operation that produces it: downwards before upwards, of even stages before odd ones, between the
last stage and the first after both.

The workers refuse to do two things at a time or to start without their input.
"""

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from hetplan.schedule.schedules import schedule
from hetplan.schedule.simulator import Floats, Shape

LOOPED = ("interleaved-1f1b", "breadth-first")


class Operation(NamedTuple):
    """F, B or W of a micro-batch on a part of the model that a stage holds."""

    kind: str
    stage: int
    chunk: int
    microbatch: int


class Transfer(NamedTuple):
    """The output of an operation on its way to another stage."""

    producer: Operation
    consumer: Operation
    hop: int

    @property
    def parties(self) -> tuple[int, int]:
        """Who sends and who receives."""
        return self.producer.stage, self.consumer.stage


Item = Operation | Transfer


def path_of(shape: Shape, microbatch: int) -> list[tuple[int, int]]:
    """Stage and chunk of the parts of the model in the order in which a micro-batch passes them forward."""
    down, up = range(shape.stages), range(shape.stages - 1, -1, -1)
    if shape.schedule in LOOPED:
        return [(j, c) for c in range(shape.virtual_stages) for j in down]
    if shape.schedule == "zb-v":
        return [(j, 0) for j in down] + [(j, 1) for j in up]
    if shape.schedule == "dualpipe" and microbatch >= shape.num_microbatches // 2:
        return [(j, 1) for j in up]
    return [(j, 0) for j in down]


def agendas_of(shape: Shape) -> list[list[Operation]]:
    """Every stage's operations in order."""
    v, m = shape.virtual_stages, shape.num_microbatches
    rows = schedule(shape.schedule).order(shape.stages, m, v, shape.warmup)
    return [
        [Operation("FBW"[number // m // v], j, number // m % v, number % m) for number in row.tolist()]
        for j, row in enumerate(rows)
    ]


class Network:
    """Who waits for whom: every operation's input, and the transfers between stages."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.agendas = agendas_of(shape)
        self.source: dict[Operation, Operation | None] = {}
        self.consumers: dict[Operation, list[Operation]] = {}
        self.sent: dict[Operation, Transfer] = {}
        for i in range(shape.num_microbatches):
            self._add(i, path_of(shape, i))

    def _add(self, i: int, path: list[tuple[int, int]]) -> None:
        """A micro-batch runs down its path as F and back as B; each W waits for its own B."""
        down = [Operation("F", j, c, i) for j, c in path]
        back = [Operation("B", j, c, i) for j, c in reversed(path)]
        chain = down + back
        for before, after in zip([None, *chain], chain, strict=False):
            self._join(before, after)
        if schedule(self.shape.schedule).splits_backward:
            for operation in back:
                self._join(operation, operation._replace(kind="W"))

    def _join(self, before: Operation | None, after: Operation) -> None:
        self.source[after] = before
        if before is None:
            return
        self.consumers.setdefault(before, []).append(after)
        a, b = before.stage, after.stage
        if a != b:
            looping = self.shape.schedule in LOOPED and before.chunk != after.chunk
            self.sent[before] = Transfer(before, after, self.shape.stages - 1 if looping else min(a, b))

    def unit_time(self) -> dict[Operation, int]:
        """When every operation ends where each takes one unit of time and transfers none."""
        ended: dict[Operation, int] = {}
        at, clock, some = [0] * self.shape.stages, 0, True
        while some:
            clock += 1
            able = [
                row[k]
                for row, k in zip(self.agendas, at, strict=True)
                if k < len(row) and (self.source[row[k]] is None or self.source[row[k]] in ended)
            ]
            some = bool(able)
            for operation in able:
                ended[operation] = clock
                at[operation.stage] += 1
        assert at == [len(row) for row in self.agendas], "the order of work waits for itself"
        return ended

    def turn(self, transfer: Transfer) -> tuple[bool, int]:
        """Which of the transfers whose operations end together goes first."""
        sender, receiver = transfer.parties
        around = self.shape.schedule in LOOPED and abs(sender - receiver) == self.shape.stages - 1
        upwards = sender < receiver if around else sender > receiver
        return upwards, 2 if around else sender % 2

    def with_transfers(self) -> list[list[Item]]:
        """Agendas that hold the transfers in which a stage takes part."""
        clock = self.unit_time()
        agendas: list[list[Item]] = [[*row] for row in self.agendas]
        for transfer in self.sent.values():
            for stage in transfer.parties:
                agendas[stage].append(transfer)

        def place(item: Item) -> tuple[int, bool, bool, int]:
            if isinstance(item, Operation):
                return clock[item], False, False, 0
            return clock[item.producer], True, *self.turn(item)

        return [sorted(agenda, key=place) for agenda in agendas]


@dataclass(slots=True)
class Worker:
    """A stage at work."""

    agenda: list[Item]
    inputs: set[Operation] = field(default_factory=set)
    """Operations whose input is here."""
    at: int = 0
    busy: bool = False
    outgoing: deque[Transfer] = field(default_factory=deque)
    sending: bool = False
    left: dict[int, int] = field(default_factory=dict)
    """Operations that are left of each chunk."""
    complete: deque[int] = field(default_factory=deque)
    """Chunks whose gradients wait for their reduction."""
    reducing: bool = False
    finish_s: float = 0.0

    @property
    def next(self) -> Item | None:
        """What is next on the agenda, None where the worker has its hands full or nothing left."""
        return None if self.busy or self.at == len(self.agenda) else self.agenda[self.at]


class Run:
    """One step; arguments are those of one candidate of `step_s`."""

    def __init__(self, shape: Shape, work_s: Floats, hop_s: Floats, after_s: Floats) -> None:
        self.transfers = shape.transfers
        self.net = Network(shape)
        v = shape.virtual_stages
        self.work_s = {
            (kind, j, c): float(work_s[j, k * v + c])
            for j in range(shape.stages)
            for k, kind in enumerate("FBW"[: work_s.shape[1] // v])
            for c in range(v)
        }
        self.hop_s, self.after_s = hop_s.tolist(), after_s.tolist()
        agendas: list[list[Item]] = [[*row] for row in self.net.agendas]
        if shape.transfers == "rendezvous":
            agendas = self.net.with_transfers()
        self.workers = [Worker(agenda) for agenda in agendas]
        self.start_s: dict[Item, float] = {}
        self.end_s: dict[Item, float] = {}
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[..., None], tuple[object, ...]]] = []
        self._number = 0
        self._run()

    @property
    def finish_s(self) -> list[float]:
        """When each stage has reduced all its gradients."""
        return [worker.finish_s for worker in self.workers]

    def _run(self) -> None:
        for row in self.net.agendas:
            for operation in row:
                worker = self.workers[operation.stage]
                worker.left[operation.chunk] = worker.left.get(operation.chunk, 0) + 1
                if self.net.source[operation] is None:
                    worker.inputs.add(operation)
        for j in range(len(self.workers)):
            self._look(j)
        while self._events:
            time, _, event, about = heapq.heappop(self._events)
            assert time >= self.now
            self.now = time
            event(*about)
        for worker in self.workers:
            assert worker.at == len(worker.agenda), "the workers wait for each other"
            assert not worker.inputs
            assert not worker.outgoing
            assert not worker.complete

    def _after(self, seconds: float, event: Callable[..., None], *about: object) -> None:
        self._number += 1
        heapq.heappush(self._events, (self.now + seconds, self._number, event, about))

    def _look(self, j: int) -> None:
        """Start what stage j can start."""
        item = self.workers[j].next
        if isinstance(item, Operation) and item in self.workers[j].inputs:
            self.workers[j].inputs.remove(item)
            self._start([j], item)
            self._after(self.work_s[item[:3]], self._worked, item)
        elif isinstance(item, Transfer) and all(self.workers[k].next == item for k in item.parties):
            assert item.producer in self.end_s
            self._start(item.parties, item)
            self._after(self.hop_s[item.hop], self._met, item)

    def _start(self, stages: list[int] | tuple[int, ...], item: Item) -> None:
        for k in stages:
            assert not self.workers[k].busy
            self.workers[k].busy = True
        assert item not in self.start_s
        self.start_s[item] = self.now

    def _end(self, stages: list[int] | tuple[int, ...], item: Item) -> None:
        self.end_s[item] = self.now
        for k in stages:
            self.workers[k].busy = False
            self.workers[k].at += 1

    def _worked(self, operation: Operation) -> None:
        worker = self.workers[operation.stage]
        self._end([operation.stage], operation)
        transfer = self.net.sent.get(operation)
        if transfer and self.transfers == "overlapped":
            self._after(self.hop_s[transfer.hop], self._arrived, transfer.consumer)
        elif transfer and self.transfers == "eager":
            worker.outgoing.append(transfer)
            self._send(operation.stage)
        for consumer in self.net.consumers.get(operation, []):
            if consumer.stage == operation.stage:
                worker.inputs.add(consumer)
        worker.left[operation.chunk] -= 1
        if not worker.left[operation.chunk]:
            worker.complete.append(operation.chunk)
            self._reduce(operation.stage)
        self._look(operation.stage)
        if isinstance(worker.next, Transfer):
            for k in worker.next.parties:
                self._look(k)

    def _arrived(self, consumer: Operation) -> None:
        self.workers[consumer.stage].inputs.add(consumer)
        self._look(consumer.stage)

    def _met(self, transfer: Transfer) -> None:
        self._end(transfer.parties, transfer)
        self.workers[transfer.consumer.stage].inputs.add(transfer.consumer)
        for k in transfer.parties:
            self._look(k)

    def _send(self, j: int) -> None:
        """Take the next transfer from stage j's outgoing queue."""
        worker = self.workers[j]
        if worker.outgoing and not worker.sending:
            worker.sending = True
            transfer = worker.outgoing.popleft()
            self.start_s[transfer] = self.now
            self._after(self.hop_s[transfer.hop], self._sent, transfer)

    def _sent(self, transfer: Transfer) -> None:
        self.end_s[transfer] = self.now
        self.workers[transfer.producer.stage].sending = False
        self._send(transfer.producer.stage)
        self._arrived(transfer.consumer)

    def _reduce(self, j: int) -> None:
        """Reduce the next gradient of stage j."""
        worker = self.workers[j]
        if worker.complete and not worker.reducing:
            worker.reducing = True
            self._after(self.after_s[j][worker.complete.popleft()], self._reduced, j)

    def _reduced(self, j: int) -> None:
        self.workers[j].reducing = False
        self.workers[j].finish_s = self.now
        self._reduce(j)
