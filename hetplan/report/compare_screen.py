"""The screen of `compare`: the deciding measure first, then the plan, then the inputs, which usually explain it."""

from rich.text import Text

from hetplan.report import numbers
from hetplan.report.compare import PLAN_WORDS, compare_record
from hetplan.report.layout import BLANK, Column, flow, table, wrapped
from hetplan.report.records import ChangeRecord, CompareRecord, MeasureRecord, ResultRecord
from hetplan.report.style import BAD, GOOD, QUIET, Terminal

MOST_CHANGES = 12
"""More differences between the inputs than these are only counted; the record has all."""

_NO_PLAN = {"infeasible": "no plan fits", "unknown": "no plan found"}


def compare_screen(
    before: ResultRecord,
    after: ResultRecord,
    terminal: Terminal,
    *,
    record: CompareRecord | None = None,
    names: tuple[str, str] = ("before", "after"),
) -> list[Text]:
    """What goes to stdout. `names` are the two files."""
    record = compare_record(before, after) if record is None else record
    lines = [line for which, r, name in zip(("before", "after"), (before, after), names, strict=True)
             for line in _what(which, r, name, terminal)]  # fmt: skip
    lines += [BLANK, *_measures(record, terminal)]
    if before.plans and after.plans:
        lines += [BLANK, *_plan(before, after, terminal)]
    lines += [BLANK, *_inputs(record.input_changes, terminal), BLANK]
    return lines + _verdict(record, terminal)


def _what(which: str, record: ResultRecord, name: str, terminal: Terminal) -> list[Text]:
    state = record.status if record.plans else _NO_PLAN.get(record.status, record.status)
    parts = [terminal.text(f"{record.model.name} on {record.cluster.name}"), terminal.text(state)]
    if name != which:
        parts.append(terminal.text(name, QUIET))
    return flow(parts, terminal, prefix=terminal.join((which.ljust(8), "bold")))


def _value(measure: MeasureRecord, value: float | None, digits: int) -> str:
    if value is None:
        return numbers.MISSING
    match measure.unit:
        case "s":
            return numbers.seconds(value, digits)
        case "tokens/s":
            return numbers.rate(value, digits)
        case "USD":
            return numbers.money(value)
        case _:
            return numbers.percent(value)


def _change(measure: MeasureRecord) -> str:
    if measure.before is None or measure.after is None:
        return numbers.MISSING
    if measure.unit == "1":
        return numbers.points(measure.before, measure.after)
    return numbers.change(measure.before, measure.after)


def _measures(record: CompareRecord, terminal: Terminal) -> list[Text]:
    """Better and worse in words; red only on what breaks the limit."""
    shown = [m for m in record.measures if m.before is not None or m.after is not None]
    if not shown:
        return [terminal.text("neither result has a plan")]
    digits = [numbers.digits_apart([v for v in (m.before, m.after) if v is not None and v > 0]) for m in shown]
    words = {"better": ("better", GOOD), "worse": ("worse", ""), "same": ("=", QUIET), "unknown": ("", "")}
    styled = [words[m.verdict] for m in shown]
    if record.regression:
        styled[0] = (styled[0][0], BAD)
    changes = [(_change(m), QUIET if m.verdict == "same" else "") for m in shown]
    columns = [
        Column(header="plan 1", cells=tuple(terminal.text(m.name) for m in shown), align="left"),
        Column(
            header="before",
            cells=tuple(terminal.text(_value(m, m.before, d)) for m, d in zip(shown, digits, strict=True)),
        ),
        Column(
            header="after",
            cells=tuple(terminal.text(_value(m, m.after, d)) for m, d in zip(shown, digits, strict=True)),
        ),
        Column(header="change", cells=tuple(terminal.text(*change) for change in changes)),
        Column(header="", cells=tuple(terminal.text(*word) for word in styled), align="left"),
    ]
    return table(columns, terminal, marks=["bold", *([""] * (len(shown) - 1))])


def _plan(before: ResultRecord, after: ResultRecord, terminal: Terminal) -> list[Text]:
    """Old and new side by side, or one below the other where they are too wide."""
    a, b = before.plans[0].plan, after.plans[0].plan
    rows = [(name, words(a), words(b)) for name, always, words in PLAN_WORDS if always or words(a) != words(b)]
    states = [("=", QUIET) if old == new else ("changed", "") for _, old, new in rows]
    columns = [
        Column(header="", cells=tuple(terminal.text(name) for name, _, _ in rows), align="left"),
        Column(header="before", cells=tuple(terminal.text(old) for _, old, _ in rows), align="left"),
        Column(header="after", cells=tuple(terminal.text(new) for _, _, new in rows), align="left"),
        Column(header="", cells=tuple(terminal.text(*state) for state in states), align="left"),
    ]
    widths = sum(column.width(terminal) for column in columns) + 2 * len(columns)
    heading = terminal.join(("Plan", "bold"), "   ", "what changed" if a != b else "the same")
    if widths <= terminal.width:
        return [heading, *table(columns, terminal)]
    lines = [heading]
    for (name, old, new), (state, style) in zip(rows, states, strict=True):
        lines += wrapped(terminal.text(old), terminal, prefix=terminal.text(f" {name:17}  "))
        if old != new:
            lines += wrapped(terminal.text(f"→ {new}"), terminal, prefix=Text(" " * 18, end=""))
        elif state:
            lines[-1].append_text(terminal.text("", style))
    return lines


def _inputs(changes: tuple[ChangeRecord, ...], terminal: Terminal) -> list[Text]:
    heading = terminal.join(("Inputs", "bold"), "   ")
    if not changes:
        return [terminal.join(heading, "the same")]
    parts = [
        terminal.text(f"{change.key}  {change.before or 'none'} → {change.after or 'none'}")
        for change in changes[:MOST_CHANGES]
    ]
    rest = len(changes) - len(parts)
    end = f"and {rest} more (--json lists all)" if rest else "nothing else differs"
    if len(parts) == 1:
        return flow([*parts, terminal.text(end)], terminal, prefix=heading, separator="; ")
    indent = Text(" " * heading.cell_len, end="")
    lines = wrapped(parts[0], terminal, prefix=heading)
    for part in (*parts[1:], terminal.text(end)):
        lines += wrapped(part, terminal, prefix=indent)
    return lines


def _verdict(record: CompareRecord, terminal: Terminal) -> list[Text]:
    allowed = f"{numbers.trimmed(record.fail_above_pct)}%"
    step = record.slowdown_pct
    size = "" if step is None else numbers.change(1, 1 + step / 100).lstrip("+−")
    match record.verdict:
        case "lost":
            why = "the first has a plan, the second has none"
        case "found":
            why = "the second has a plan, the first had none"
        case "none":
            why = "neither has a plan"
        case "same":
            why = "the same time"
        case "faster":
            why = f"{size} less time"
        case "slower" if record.regression:
            why = f"{size} slower" + (f", more than the {allowed} allowed" if record.fail_above_pct else "")
        case _:
            why = f"{size} slower, within the {allowed} allowed"
    word, style = ("✗ regression", BAD) if record.regression else ("✓ no regression", GOOD)
    return wrapped(terminal.text(why), terminal, prefix=terminal.join((word, f"bold {style}"), "   "))
