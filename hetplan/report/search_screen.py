"""The screen of `search`: inputs, status and proof, ranked plans, the best one in detail; notes for stderr."""

import shlex
from dataclasses import dataclass

from rich.text import Text

from hetplan.report import measures, numbers
from hetplan.report.infeasible import infeasible_lines
from hetplan.report.layout import BLANK, flow, wrapped
from hetplan.report.plans_table import plans_lines
from hetplan.report.records import InputsRecord, ModelSummary, PredictionRecord, ResultRecord
from hetplan.report.stages import Shown, plan_lines
from hetplan.report.style import BAD, GOOD, QUIET, WATCH, Terminal
from hetplan.search.result import OPTIMAL_GAP

MOST_KINDS = 3
"""More accelerator kinds than these are only counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Files:
    """The files of a command as the user named them, for commands to paste."""

    cluster: str
    model: str
    saved: str | None = None
    """Where the record was written."""


def search_screen(record: ResultRecord, terminal: Terminal, *, stages: bool = False) -> list[Text]:
    """What goes to stdout. `stages` prints every stage where more than 12 would be folded."""
    lines = inputs_lines(record.inputs, record.model, terminal, objective=record.objective.name)
    lines.append(BLANK)
    if not record.plans:
        if record.infeasible is not None:
            return lines + infeasible_lines(record, record.infeasible, terminal)
        return lines + _nothing_found(record, terminal)
    lines += _status(record, terminal)
    lines += [BLANK, *plans_lines(record, terminal), BLANK]
    best = record.plans[0]
    shown = Shown(title="Plan 1", plan=best.plan, prediction=best.prediction, idle=best.idle, inputs=record.inputs)
    return lines + plan_lines(shown, terminal, all_stages=stages)


def search_notes(record: ResultRecord, terminal: Terminal, *, files: Files | None = None) -> list[Text]:
    """What goes to stderr: warnings, and with `files` next steps to paste."""
    lines = [line for text in _warnings(record) for line in warning_lines(text, terminal)]
    if files is None:
        return lines
    steps = _next_steps(record, files)
    if steps and lines:
        lines.append(BLANK)
    return lines + next_step_lines(steps, terminal)


def inputs_lines(
    inputs: InputsRecord, model: ModelSummary, terminal: Terminal, *, objective: str | None = None
) -> list[Text]:
    """Model and cluster, and what one iteration is."""
    head = terminal.join(
        (model.name, "bold"),
        f" ({numbers.parameters(model.parameters)} parameters) on ",
        (inputs.cluster.name, "bold"),
    )
    counts = measures.accelerator_counts(inputs.cluster)
    by_kind = " + ".join(f"{numbers.count(number)} {name}" for name, number in counts.items())
    summary = f"{numbers.count(inputs.cluster.accelerators)} accelerators of {len(counts)} kinds"
    what = terminal.text(by_kind if len(counts) <= MOST_KINDS else summary)
    lines = [terminal.join(head, ": ", what)]
    if lines[0].cell_len > terminal.width:
        lines = [*wrapped(head, terminal), *wrapped(what, terminal)]
    training = inputs.training
    parts = [
        f"{numbers.count(training.global_batch_size)} × {numbers.count(training.sequence_length)} tokens per iteration",
        training.precision,
    ]
    if objective is not None:
        parts.append(f"objective: {objective}")
    return lines + flow([terminal.text(part) for part in parts], terminal)


def speed_parts(prediction: PredictionRecord, terminal: Terminal) -> list[Text]:
    """Time with its range, tokens/s, MFU."""
    low, high = prediction.iteration_time_low_s, prediction.iteration_time_high_s
    time = terminal.join(
        (numbers.seconds(prediction.iteration_time_s), "bold"),
        f" per iteration ({numbers.seconds_range(low, high)})",
    )
    rate = f"{numbers.rate(prediction.tokens_per_s)} tokens/s"
    return [time, terminal.text(rate), terminal.text(f"MFU {numbers.percent(prediction.mfu)}")]


def _status(record: ResultRecord, terminal: Terminal) -> list[Text]:
    if record.status == "optimal":
        head = terminal.join(("✓ optimal", f"bold {GOOD}"), "   ")
        proof = _proof(record, terminal)
    else:
        word = "interrupted" if record.stopped_by == "interrupt" else "feasible"
        head = terminal.join((f"~ {word}", f"bold {WATCH}"), "   ")
        proof = _open_proof(record, terminal)
    lines = flow(speed_parts(record.plans[0].prediction, terminal), terminal, prefix=head)
    indent = Text(" " * head.cell_len, end="")
    lines += flow([terminal.text(part) for part in proof], terminal, prefix=indent)
    return lines + _plain(record, terminal, indent)


def _plain(record: ResultRecord, terminal: Terminal, prefix: Text) -> list[Text]:
    """How the best plan compares with the best under plain 1F1B, and why it is faster."""
    plain = record.plain_1f1b
    if plain is None:
        return []
    if not plain.why:
        text = "no other order of work gains over plain 1f1b"
        proved = record.status == "optimal" and plain.longer <= OPTIMAL_GAP
        return flow([terminal.text(text)], terminal, prefix=prefix) if proved else []
    order = measures.schedule_text(record.plans[0].plan.schedule)
    known = "" if plain.gap <= OPTIMAL_GAP else " found"
    text = (
        f"plain 1f1b takes {numbers.seconds(plain.iteration_time_s)} at best{known}, {numbers.percent(plain.longer)} "
    )
    return wrapped(terminal.text(f"{text}longer; {order}: {plain.why}"), terminal, prefix=prefix)


def _proof(record: ResultRecord, terminal: Terminal) -> list[str]:
    gap = record.bound.gap or 0.0
    if gap <= numbers.NO_GAP:
        claim = "no plan in the plan space is faster"
    else:
        claim = f"no plan is more than {numbers.percent_at_most(gap)} faster"
    parts = [f"proved in {numbers.seconds(record.run.elapsed_s, 2)}: {claim}"]
    if not terminal.narrow:
        proof = record.bound.certified_by
        parts.append(measures.plural(proof.nodes, "node"))
        parts.append(measures.plural(proof.programs, "integer program"))
    return parts


def _open_proof(record: ResultRecord, terminal: Terminal) -> list[str]:
    stopped = _stopped(record)
    bound = record.bound
    if bound.iteration_time_s is None or bound.gap is None:
        return ["no bound is proved", stopped]
    least = numbers.seconds_at_least(bound.iteration_time_s)
    gap = f"gap {numbers.gap(bound.gap)}"
    if terminal.narrow:
        return [f"{gap}: none can take less than {least}", stopped]
    return [f"{gap}: the best plan may take {least}, none can take less", stopped]


def _stopped(record: ResultRecord) -> str:
    match record.stopped_by:
        case "nodes" if record.inputs.options.get("node_limit") is None:
            return f"stopped after {numbers.seconds(record.run.elapsed_s, 2)}: what is left is too much to list"
        case "nodes":
            return f"stopped at {measures.plural(record.bound.certified_by.nodes, 'node')}"
        case "time":
            return f"stopped by the time limit after {numbers.seconds(record.run.elapsed_s, 2)}"
        case "interrupt":
            return f"interrupted after {numbers.seconds(record.run.elapsed_s, 2)}"
        case "gap":
            return "within the gap asked for"


def _nothing_found(record: ResultRecord, terminal: Terminal) -> list[Text]:
    """A search that ended before it found a plan or proved that there is none."""
    head = terminal.join(("✗ no plan found", f"bold {BAD}"), "   ")
    parts = [_stopped(record), "whether one fits is not known"]
    if record.bound.iteration_time_s is not None:
        parts.append(f"none can take less than {numbers.seconds_at_least(record.bound.iteration_time_s)}")
    return flow([terminal.text(part) for part in parts], terminal, prefix=head)


def _warnings(record: ResultRecord) -> list[str]:
    """Of the search, of the best plan, and of the others where theirs differ."""
    texts = list(record.warnings)
    for entry in record.plans:
        texts += [
            text if entry.rank == 1 else f"plan {entry.rank}: {text}" for text in entry.warnings if text not in texts
        ]
    return list(dict.fromkeys(texts))


def warning_lines(text: str, terminal: Terminal) -> list[Text]:
    """One warning."""
    return wrapped(terminal.text(text), terminal, prefix=terminal.join(("!", f"bold {WATCH}"), " "))


def next_step_lines(steps: list[tuple[str, str]], terminal: Terminal) -> list[Text]:
    """Commands to paste, each with what it is for, side by side or one below the other."""
    if not steps:
        return []
    arrow = terminal.join(("→", "bold"), " ")
    width = max(terminal.text(command).cell_len for command, _ in steps)
    lines = []
    for command, purpose in steps:
        shown = terminal.text(command)
        line = terminal.join(arrow, shown, " " * (width - shown.cell_len + 2), (purpose, QUIET))
        if line.cell_len <= terminal.width:
            lines.append(line)
        else:
            # A command stays on one line, so that it can be pasted.
            lines.append(terminal.join(arrow, shown))
            lines += wrapped(terminal.text(purpose, QUIET), terminal, prefix=Text(" " * (arrow.cell_len + 2), end=""))
    return lines


def _next_steps(record: ResultRecord, files: Files) -> list[tuple[str, str]]:
    if "-" in (files.cluster, files.model):
        return []  # what came from stdin cannot be pasted
    cluster, model = shlex.quote(files.cluster), shlex.quote(files.model)
    steps = []
    if record.status in ("feasible", "unknown"):
        purpose = "close the gap" if record.plans else "give it longer"
        limits = {"time": ("--time-limit", "time_limit_s"), "nodes": ("--node-limit", "node_limit")}
        flag, option = limits.get(record.stopped_by, ("", ""))
        value = record.inputs.options.get(option)
        if isinstance(value, int | float):
            more = numbers.trimmed(4 * value).replace(",", "") if value else "N"
            steps.append((f"hetplan search {cluster} {model} {flag} {more}", purpose))
    if not record.plans:
        return steps
    if files.saved is None:
        steps.append((f"hetplan search {cluster} {model} -o r.json", "keep the result"))
    else:
        saved = shlex.quote(files.saved)
        steps.append((f"hetplan predict {cluster} {model} {saved}", "one plan by itself; others with --rank"))
        steps.append((f"hetplan timeline {saved}", "what every stage does when; -o t.html to look closer"))
        steps.append((f"hetplan compare {saved} other.json", "what another cluster or model changes"))
    return steps
