"""The screen of `predict`: one plan and what is predicted of it."""

from rich.text import Text

from hetplan.report import measures, numbers
from hetplan.report.layout import BLANK, flow
from hetplan.report.records import PredictRecord
from hetplan.report.search_screen import inputs_lines, speed_parts, warning_lines
from hetplan.report.stages import Shown, plan_lines
from hetplan.report.style import BAD, GOOD, Terminal


def predict_screen(record: PredictRecord, terminal: Terminal, *, stages: bool = False) -> list[Text]:
    """What goes to stdout. `stages` prints every stage where more than 12 would be folded."""
    shown = Shown(title="Plan", plan=record.plan, prediction=record.prediction, idle=record.idle, inputs=record.inputs)
    return [
        *inputs_lines(record.inputs, record.model, terminal),
        BLANK,
        *_status(record, terminal),
        BLANK,
        *plan_lines(shown, terminal, all_stages=stages, degrees=True),
    ]


def predict_notes(record: PredictRecord, terminal: Terminal) -> list[Text]:
    """What goes to stderr: warnings."""
    return [line for text in record.warnings for line in warning_lines(text, terminal)]


def _status(record: PredictRecord, terminal: Terminal) -> list[Text]:
    prediction = record.prediction
    failed = [(i, stage) for i, stage in enumerate(prediction.stages) if stage.verdict in ("oom", "illegal")]
    if not failed:
        head = terminal.join(("✓ fits", f"bold {GOOD}"), "   ")
        return flow(speed_parts(prediction, terminal), terminal, prefix=head)
    index, worst = min(failed, key=lambda entry: measures.stage_headroom(entry[1]))
    if worst.verdict == "oom":
        word = "✗ does not fit"
        need, usable = numbers.gib(worst.memory_bytes), numbers.gib(worst.memory_capacity_bytes)
        why = f"stage {index} needs {need} of {usable} on {worst.group}"
    else:
        word = "✗ illegal"
        why = f"stage {index} on {worst.group} cannot run as written"
    head = terminal.join((word, f"bold {BAD}"), "   ")
    others = len(failed) - 1
    parts = [terminal.text(why)]
    if others:
        parts.append(terminal.text(f"{measures.plural(others, 'more stage')} too"))
    indent = Text(" " * head.cell_len, end="")
    if worst.verdict == "illegal":
        return flow(parts, terminal, prefix=head)
    time, *others_of_speed = speed_parts(prediction, terminal)
    speed = [terminal.join("would take ", time), *others_of_speed]
    return flow(parts, terminal, prefix=head) + flow(speed, terminal, prefix=indent)
