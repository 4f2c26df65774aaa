"""Plan -> Trace: what every stage does when, for pictures of an iteration."""

import numpy as np

from hetplan.plan import Plan
from hetplan.predict.setting import Setting
from hetplan.predict.timing import Timing, timing
from hetplan.prediction import TRACE_KINDS, Trace
from hetplan.schedule.base import BACKWARD
from hetplan.schedule.simulator import Floats, Ints, Program, compile_shape, order_of

Columns = tuple[Ints, Ints, Ints, Ints, Ints, Floats, Floats]
"""Kind, stage, chunk, micro-batch, sender, start, end."""


def trace(setting: Setting, plan: Plan) -> Trace:
    """Every operation, transfer, reduction and optimizer step of a plan that belongs to the setting."""
    timed = timing(setting, plan)
    program = compile_shape(timed.shape)
    ends = program.ends(timed.work_s[None], timed.hop_s[None])[:, 0]
    parts = [*_work(timed, program, ends), _transfers(timed, program, ends), *_after(timed, program, ends)]
    columns = [np.concatenate([part[i] for part in parts]) for i in range(7)]
    kept = columns[6] > columns[5]
    columns = [column[kept] for column in columns]
    by_start = np.lexsort((columns[6], columns[5], columns[1]))
    kind, stage, chunk, microbatch, sender, start, end = (column[by_start] for column in columns)
    return Trace(
        iteration_time_s=float(timed.finishes().max()) + setting.stack.step_fixed_s,
        kind=kind,
        stage=stage,
        chunk=chunk,
        microbatch=microbatch,
        sender=sender,
        start_s=start,
        end_s=end,
    )


def _code(name: str) -> int:
    return [str(kind) for kind in TRACE_KINDS].index(name)


def _work(timed: Timing, program: Program, ends: Floats) -> list[Columns]:
    """Forwards, backwards with their recomputation first, weight gradients."""
    shape = timed.shape
    v, m = shape.virtual_stages, shape.num_microbatches
    order = order_of(shape)
    stage = np.broadcast_to(np.arange(shape.stages)[:, None], order.shape).ravel()
    number = order.ravel()
    operation, chunk, microbatch = number // m // v, number // m % v, number % m
    end = ends[stage * program.numbers + number]
    start = end - timed.work_s[stage, number // m]
    none = np.full(len(number), -1, dtype=np.int64)
    recompute = np.array([[part.recompute_s for part in s.times] for s in timed.stages])[stage, chunk]
    again = np.where(operation == BACKWARD, recompute, 0.0)
    kinds = np.array([_code("forward"), _code("backward"), _code("weight")])[operation]
    begin = start + again
    redone = again > 0
    recomputed = np.full(int(redone.sum()), _code("recompute"), dtype=np.int64)
    return [
        (kinds, stage, chunk, microbatch, none, begin, end),
        (
            recomputed,
            stage[redone],
            chunk[redone],
            microbatch[redone],
            none[redone],
            start[redone],
            begin[redone],
        ),
    ]


def _transfers(timed: Timing, program: Program, ends: Floats) -> Columns:
    """Activations and gradients between stages."""
    m, v = timed.shape.num_microbatches, timed.shape.virtual_stages
    operation, waited, hop = program.crossings
    stage, sender = operation // program.numbers, waited // program.numbers
    number = operation % program.numbers
    end = ends[program.transfers] if len(program.transfers) else ends[waited] + timed.hop_s[hop]
    start = end - timed.hop_s[hop]
    kind = np.full(len(operation), _code("transfer"), dtype=np.int64)
    return kind, stage, number // m % v, number % m, sender, start, end


def _after(timed: Timing, program: Program, ends: Floats) -> list[Columns]:
    """Gradient reductions, chunk by chunk as they are complete, and the optimizer."""
    p = timed.shape.stages
    stage, none = np.arange(p), np.full(p, -1, dtype=np.int64)
    finish, found = np.zeros(p), []
    for chunk in program.completion.T:
        start = np.maximum(finish, ends[program.last[stage, chunk]])
        finish = start + timed.sync_s[stage, chunk]
        found.append((np.full(p, _code("gradient_sync"), dtype=np.int64), stage, chunk, none, none, start, finish))
    optimizer = np.full(p, _code("optimizer"), dtype=np.int64)
    found.append((optimizer, stage, none, none, none, finish, finish + timed.optimizer_s))
    return found
