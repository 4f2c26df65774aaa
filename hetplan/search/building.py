"""From choices to a `Plan`: stages, their chunks, and where each of them begins."""

import numpy as np

from hetplan.plan import Chunk, Plan, Recompute, Schedule, Stage
from hetplan.predict.setting import Setting
from hetplan.schedule.simulator import Shape
from hetplan.search.space import Option
from hetplan.search.tables import Layout


def build_plan(
    setting: Setting,
    shape: Shape,
    owners: list[Option],
    layouts: list[Layout],
    split: list[int],
    ways: list[tuple[int, int]],
) -> Plan:
    """The plan of a split with so many selectively and fully recomputed blocks of every stage."""
    total, v = shape.stages, shape.virtual_stages
    # Blocks, selective and full ones of every chunk.
    parts = np.zeros((total, v, 3), dtype=np.int64)
    for at, (layout, n) in enumerate(zip(layouts, split, strict=True)):
        sizes = np.array([run.stop[n] - run.start[n] for run in layout.runs])
        parts[at, :, 0] = sizes
        for i, blocks in enumerate(ways[at]):
            parts[at, :, i + 1] = blocks if v == 1 else sizes * (blocks > 0)
    starts = np.zeros((total, v), dtype=np.int64)
    for route in shape.routes:
        layer = 0
        for j, c in zip(route.stage, route.chunk, strict=True):
            starts[j, c] = layer
            layer += int(parts[j, c, 0])
    return Plan(
        schedule=Schedule(name=shape.schedule, virtual_stages=v, warmup=shape.warmup or None),
        global_batch_size=setting.training.global_batch_size,
        num_microbatches=shape.num_microbatches,
        sequence_parallel=True,
        stages=tuple(_stage(owners[j], parts[j].tolist(), starts[j].tolist()) for j in range(total)),
    )


def _recompute(blocks: int, selective: int, full: int) -> Recompute:
    return Recompute(none=blocks - selective - full, selective=selective, full=full)


def _stage(option: Option, parts: list[list[int]], starts: list[int]) -> Stage:
    """One stage of a plan from blocks, selective and full ones of each chunk."""
    blocks, selective, full = (sum(part[i] for part in parts) for i in range(3))
    chunks = None
    if len(parts) > 1:
        chunks = tuple(
            Chunk(first_layer=start, layers=part[0], recompute=_recompute(*part))
            for part, start in zip(parts, starts, strict=True)
        )
    return Stage(
        group=option.name,
        first_layer=starts[0],
        layers=blocks,
        tp=option.tp,
        dp=option.dp,
        microbatch_size=option.microbatch_size,
        recompute=_recompute(blocks, selective, full),
        zero=option.zero,  # type: ignore[arg-type]
        chunks=chunks,
    )
