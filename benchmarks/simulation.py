"""Times the simulation of plans in batches: plans per second on one core.

python -m benchmarks.simulation [--batch K] [--runs N]
"""

import argparse
import os
import time
from collections.abc import Sequence

# One core is measured; numpy reads these when it is loaded.
os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"))

import numpy as np

from hetplan.schedule.schedules import SCHEDULES
from hetplan.schedule.simulator import Shape, Transfers, compile_shape, step_s

GOALS = {(8, 64): 50_000, (16, 128): 10_000}
"""Plans per second of 1F1B with overlapped transfers, by stages and micro-batches."""


def shapes() -> list[Shape]:
    """1F1B in two sizes, then every other schedule and the other transfers in the smaller one."""
    found = [Shape(stages=stages, num_microbatches=num_microbatches) for stages, num_microbatches in GOALS]
    for schedule in SCHEDULES[1:]:
        virtual_stages = next(v for v in (1, 2) if schedule.chunks(v) is None)
        found.append(Shape(schedule=schedule.name, stages=8, num_microbatches=64, virtual_stages=virtual_stages))
    busy: tuple[Transfers, ...] = ("eager", "rendezvous")
    return found + [Shape(stages=8, num_microbatches=64, transfers=transfers) for transfers in busy]


def plans_per_second(shape: Shape, batch: int, runs: int) -> tuple[float, float]:
    """The best of some runs, and the seconds of the first compilation of the shape."""
    rng = np.random.default_rng(0)
    work_s = 1 + rng.random((batch, shape.stages, shape.units))
    hop_s = 0.1 * rng.random((batch, shape.stages))
    after_s = rng.random((batch, shape.stages, shape.virtual_stages))
    compile_shape.cache_clear()
    start = time.perf_counter()
    compile_shape(shape)
    compiled_s = time.perf_counter() - start
    best_s = float("inf")
    for _ in range(runs):
        start = time.perf_counter()
        step_s(shape, work_s, hop_s, after_s)
        best_s = min(best_s, time.perf_counter() - start)
    return batch / best_s, compiled_s


def main(arguments: Sequence[str] | None = None) -> None:
    """Print one line for each shape."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.simulation", description="Time batched simulation.")
    parser.add_argument("--batch", type=int, default=2_000, help="plans at once (default: 2000)")
    parser.add_argument("--runs", type=int, default=5, help="runs, the best counts (default: 5)")
    options = parser.parse_args(arguments)
    print(f"{options.batch} plans at once, best of {options.runs} runs, one core")
    left = f"{'schedule':<18} {'transfers':<11} {'p':>3} {'m':>4} {'v':>2} {'operations':>10}"
    print(f"{left} {'plans/s':>9} {'goal':>7} {'ns/op.':>7} {'compile ms':>10}")
    for shape in shapes():
        speed, compiled_s = plans_per_second(shape, max(1, options.batch), max(1, options.runs))
        goal = GOALS.get((shape.stages, shape.num_microbatches)) if shape.schedule == "1f1b" else None
        goal = goal if shape.transfers == "overlapped" else None
        operations = sum(len(level.operation) for level in compile_shape(shape).levels)
        print(
            f"{shape.schedule:<18} {shape.transfers:<11} {shape.stages:>3} {shape.num_microbatches:>4}"
            f" {shape.virtual_stages:>2} {operations:>10} {speed:>9,.0f} {f'{goal:,}' if goal else '':>7}"
            f" {1e9 / speed / operations:>7.2f} {1e3 * compiled_s:>10.1f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
