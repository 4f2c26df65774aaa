"""What the pictures say in words."""

from hetplan.prediction import TRACE_KINDS
from hetplan.report import measures, numbers
from hetplan.report.timeline import GRADIENT_SYNC, TRANSFER, Blocks, Timeline, schedule_words, time_unit
from hetplan.report.timeline_style import kind_name


def subtitle(shown: Timeline) -> str:
    """What is drawn, in one line."""
    plan = shown.plan
    schedule, stages, microbatches = schedule_words(shown)
    size = f"{microbatches} of size {measures.microbatch_text(plan)}"
    return f"{schedule}, {stages}, {size}, {measures.plan_parallel_text(plan)}. Predicted, not measured."


def block_words(shown: Timeline, blocks: Blocks, index: int, *, hidden: bool = False) -> str:
    """What one block is: S1 a100: forward of micro-batch 12, 190 ms, 2.871 to 3.061 s."""
    kind, stage = int(blocks.kind[index]), int(blocks.stage[index])
    microbatch, chunk = int(blocks.microbatch[index]), int(blocks.chunk[index])
    what = kind_name(TRACE_KINDS[kind], shown)
    if kind == TRANSFER:
        what = "activations" if blocks.activations[index] else "gradients"
    if microbatch >= 0:
        what += f" of micro-batch {microbatch + 1}"
    if kind == TRANSFER:
        sender = int(blocks.sender[index])
        what += f" from S{sender} {shown.lanes[sender].group}"
    if kind == GRADIENT_SYNC and hidden:
        what += " behind the work"
    if shown.chunks > 1 and chunk >= 0:
        what += f", virtual stage {chunk + 1} of {shown.chunks}"
    start_s, end_s = float(blocks.start_s[index]), float(blocks.end_s[index])
    unit, unit_s = time_unit(shown.iteration_s)
    when = f"{numbers.seconds(end_s - start_s)}, {start_s / unit_s:.3f} to {end_s / unit_s:.3f} {unit}"
    return f"S{stage} {shown.lanes[stage].group}: {what}, {when}"
