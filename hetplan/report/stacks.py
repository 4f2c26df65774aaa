"""What `show stacks` prints: software stack profiles as a table, or one with all its figures and their sources."""

from collections.abc import Sequence

from rich.text import Text

from hetplan.cost.profiles import StackSpec
from hetplan.report import numbers
from hetplan.report.layout import BLANK, Column, table, wrapped
from hetplan.report.records import ShowStacksRecord
from hetplan.report.style import QUIET, Terminal

_NOT_FIGURES = ("name", "sources")
_PLAIN = ("collective_root_s",)
"""Seconds per something else, written without a unit."""


def stacks_record(stacks: Sequence[StackSpec]) -> ShowStacksRecord:
    """The record of `show stacks`."""
    return ShowStacksRecord(stacks=tuple(stacks))


def stacks_screen(stacks: Sequence[StackSpec], terminal: Terminal) -> list[Text]:
    """One row for each stack, with what differs most between them."""
    columns = [
        Column(header="stack", cells=tuple(terminal.text(s.name) for s in stacks), align="left"),
        Column(header="matrix share", cells=tuple(terminal.text(numbers.percent(s.gemm_share)) for s in stacks)),
        Column(header="attention", cells=tuple(terminal.text(s.attention) for s in stacks), align="left"),
        Column(
            header="host/layer",
            cells=tuple(terminal.text(numbers.seconds(s.host_per_layer_s)) for s in stacks),
            drop=2,
        ),
        Column(header="gradients", cells=tuple(terminal.text(f"{s.gradient_bytes} bytes") for s in stacks), drop=1),
        Column(header="range", cells=tuple(terminal.text(f"±{numbers.percent(s.band, 0)}") for s in stacks)),
    ]
    note = "matrix share: of the achievable rate over a whole step. Figures and sources: hetplan show stacks NAME."
    return [*table(columns, terminal), *wrapped(terminal.text(note, QUIET), terminal, prefix=Text("  ", end=""))]


def stack_screen(stack: StackSpec, terminal: Terminal) -> list[Text]:
    """One stack: every figure, what it is and where it comes from."""
    fields = [(name, info) for name, info in StackSpec.model_fields.items() if name not in _NOT_FIGURES]
    rows = [(info.alias or name, _value(name, getattr(stack, name)), info.description or "") for name, info in fields]
    left = max(len(key) for key, _, _ in rows)
    right = max(terminal.text(value).cell_len for _, value, _ in rows)
    lines = [terminal.text(stack.name, "bold"), BLANK]
    for key, value, description in rows:
        shown = terminal.text(value)
        head = terminal.join(f" {key.ljust(left)}  ", " " * (right - shown.cell_len), shown, "  ")
        lines += wrapped(terminal.text(description), terminal, prefix=head)
        source = stack.sources.get(key, "")
        if source:
            lines += wrapped(terminal.text(source, QUIET), terminal, prefix=Text(" " * head.cell_len, end=""))
    return lines


def _value(name: str, value: object) -> str:
    """A figure with the unit that its name carries."""
    if isinstance(value, tuple):
        return ", ".join(str(part) for part in value)
    if not isinstance(value, int | float):
        return str(value)
    if name.endswith("_bytes_per_s"):
        return numbers.bandwidth(value, bits=False)
    if name.endswith("_s") and name not in _PLAIN:
        return numbers.duration(value) if value else "0 s"
    return numbers.size(value) if name == "workspace_bytes" else f"{value:g}"
