"""What `show` lists: accelerators as a table or one in detail, and pipeline schedules."""

from collections.abc import Callable, Sequence
from typing import Literal, TypeVar, get_args

from rich.text import Text

from hetplan.errors import Mistake, SpecError
from hetplan.report import numbers
from hetplan.report.layout import BLANK, Column, flow, table, wrapped
from hetplan.report.records import ScheduleRecord, ShowAcceleratorsRecord, ShowSchedulesRecord
from hetplan.report.style import QUIET, WATCH, Terminal
from hetplan.schedule.schedules import SCHEDULES
from hetplan.specs.accelerator import AcceleratorSpec, Format
from hetplan.specs.wording import did_you_mean, either

T = TypeVar("T", bound=str)

SortKey = Literal["achievable", "peak", "memory", "bandwidth", "link", "price", "name"]
SORT_KEYS: tuple[SortKey, ...] = get_args(SortKey)
FORMATS: tuple[Format, ...] = get_args(Format)
DEFAULT_FORMAT: Format = "bf16"
_NARROW_FORMATS: tuple[Format, ...] = ("nvfp4", "mxfp8", "fp8", "bf16", "fp16")


def achievable(spec: AcceleratorSpec, number_format: Format) -> float | None:
    """FLOP/s that training can count on in a format; None where it cannot run in it."""
    if not spec.supports(number_format) or spec.peak.rate(number_format) is None:
        return None
    return spec.achievable_flops_per_s(number_format)


def select_accelerators(
    specs: Sequence[AcceleratorSpec], *, supports: str | None = None, sort: str = "achievable"
) -> tuple[AcceleratorSpec, ...]:
    """Those that train in a format (all of them without one), largest first, or by name; equal ones by name.

    Raises SpecError for a format or sort key that does not exist.
    """
    number_format = _choice("--supports", supports, FORMATS) or DEFAULT_FORMAT
    key = _choice("--sort", sort, SORT_KEYS)
    kept = [spec for spec in specs if supports is None or spec.supports(number_format)]
    kept.sort(key=lambda spec: spec.name)
    if key == "name":
        return tuple(kept)
    values: dict[str, Callable[[AcceleratorSpec], float | None]] = {
        "achievable": lambda spec: achievable(spec, number_format),
        "peak": lambda spec: spec.peak.rate(number_format),
        "memory": lambda spec: spec.memory_size_bytes,
        "bandwidth": lambda spec: spec.memory_bandwidth_bytes_per_s,
        "link": lambda spec: spec.link_bytes_per_s,
        "price": lambda spec: spec.price_per_hour,
    }
    value = values[key or "achievable"]
    kept.sort(key=lambda spec: -(value(spec) or 0.0))
    return tuple(kept)


def _choice(flag: str, value: str | None, choices: tuple[T, ...]) -> T | None:
    if value is None:
        return None
    for choice in choices:
        if value == choice:
            return choice
    hint = did_you_mean(value, choices) or f"one of {either(choices)}"
    raise SpecError(Mistake(kind="option", message=f'"{value}" is not known', hint=hint, file="command line", key=flag))


def accelerators_record(specs: Sequence[AcceleratorSpec]) -> ShowAcceleratorsRecord:
    """The record of `show accelerators`."""
    return ShowAcceleratorsRecord(accelerators=tuple(specs))


def schedules_record() -> ShowSchedulesRecord:
    """The record of `show schedules`."""
    return ShowSchedulesRecord(
        schedules=tuple(
            ScheduleRecord(
                name=s.name,
                description=s.description,
                bubble=s.bubble,
                splits_backward=s.splits_backward,
                weight_copies=s.copies,
                zero_2_and_3=s.once,
                frameworks=s.frameworks,
                source=s.source,
            )
            for s in SCHEDULES
        )
    )


def schedules_screen(record: ShowSchedulesRecord, terminal: Terminal) -> list[Text]:
    """For each schedule what it does, its bubble, who runs it and where it was published."""
    lines: list[Text] = []
    for row in record.schedules:
        if lines:
            lines.append(BLANK)
        lines += wrapped(terminal.text(row.description), terminal, prefix=terminal.join((f"{row.name:<18}", "bold")))
        for label, text in (
            ("bubble", row.bubble),
            ("runs on", "; ".join(row.frameworks)),
            ("source", row.source),
        ):
            lines += wrapped(terminal.text(text), terminal, prefix=terminal.join(f"{'':<18}", (f"{label:<8}", QUIET)))
    return lines


def accelerators_screen(
    specs: Sequence[AcceleratorSpec], terminal: Terminal, *, total: int, supports: Format | None = None
) -> list[Text]:
    """A table of datasheets in the order given; `total` is the size of the catalogue."""
    number_format = supports or DEFAULT_FORMAT
    lines = [terminal.join((number_format, "bold"), ", dense, TFLOP/s per accelerator")]
    if specs:
        lines += table(_columns(specs, number_format, terminal), terminal)
    notes = (
        f"{len(specs)} of {total}. achievable: best measured matrix product; ~ estimated as a share of peak. "
        "Sources: hetplan show accelerators NAME. Plans are balanced by achievable rates, never by peaks."
    )
    return [*lines, *wrapped(terminal.text(notes, QUIET), terminal, prefix=Text("  ", end=""))]


def _columns(specs: Sequence[AcceleratorSpec], number_format: Format, terminal: Terminal) -> list[Column]:
    largest = max((achievable(spec, number_format) or 0.0 for spec in specs), default=0.0)

    def cells(make: Callable[[AcceleratorSpec], str | Text | None]) -> tuple[Text, ...]:
        made = (make(spec) for spec in specs)
        return tuple(cell if isinstance(cell, Text) else terminal.text(cell or numbers.MISSING) for cell in made)

    def best(spec: AcceleratorSpec) -> Text | None:
        rate = achievable(spec, number_format)
        if rate is None:
            return None
        text = _tera(rate)
        return terminal.text(text) if spec.is_measured(number_format) else terminal.text(f"~{text}", WATCH)

    def peak(spec: AcceleratorSpec) -> str | None:
        rate = spec.peak.rate(number_format)
        return None if rate is None or not spec.supports(number_format) else _tera(rate)

    def ratio(spec: AcceleratorSpec) -> str | None:
        rate, most = achievable(spec, number_format), spec.peak.rate(number_format)
        return None if rate is None or not most else numbers.percent(rate / most, 0)

    def bar(spec: AcceleratorSpec) -> Text:
        rate = achievable(spec, number_format)
        return terminal.bar((rate or 0.0) / largest if largest else 0.0, 10, track=False)

    return [
        Column(header="accelerator", cells=cells(lambda s: s.name), align="left"),
        Column(header="vendor", cells=cells(lambda s: s.vendor), align="left", drop=6),
        Column(header="achievable", cells=cells(best)),
        Column(header="", cells=cells(bar), align="left", drop=5),
        Column(header="peak", cells=cells(peak), drop=2),
        Column(header="ratio", cells=cells(ratio), drop=3),
        Column(header="memory GB", cells=cells(lambda s: numbers.trimmed(s.memory_size_bytes / 1e9))),
        Column(header="TB/s", cells=cells(lambda s: f"{s.memory_bandwidth_bytes_per_s / 1e12:,.2f}")),
        Column(header="link GB/s", cells=cells(lambda s: numbers.trimmed(s.link_bytes_per_s / 1e9, 3))),
        Column(header="formats", cells=cells(lambda s: _formats(s, terminal)), align="left", drop=1),
        Column(
            header="$/h",
            cells=cells(lambda s: None if s.price_per_hour is None else numbers.money(s.price_per_hour)),
            drop=4,
        ),
        Column(
            header="TDP W",
            cells=cells(lambda s: None if s.tdp_watts is None else numbers.trimmed(s.tdp_watts)),
            drop=7,
        ),
    ]


def _tera(rate: float) -> str:
    return numbers.count(rate / 1e12) if rate >= 10e12 else numbers.significant(rate / 1e12, 2)


def _formats(spec: AcceleratorSpec, terminal: Terminal) -> str:
    """Formats of 16 bits and less; mxfp8 runs at the rate of fp8 and is named where there is room."""
    shown = [f for f in _NARROW_FORMATS if f in spec.formats and (f != "mxfp8" or terminal.wide)]
    return " ".join(shown or spec.formats)


def accelerator_screen(spec: AcceleratorSpec, terminal: Terminal) -> list[Text]:
    """One datasheet: every figure with its source."""
    about = [f"{spec.vendor} {spec.architecture}"]
    if spec.compute_capability:
        about.append(f"compute capability {spec.compute_capability}")
    about.append(f"confidence {spec.confidence}")
    lines = flow([terminal.text(part) for part in about], terminal, prefix=terminal.join((spec.name, "bold"), "   "))
    if spec.aliases:
        names = [terminal.text(alias) for alias in spec.aliases]
        lines += flow(names, terminal, prefix=terminal.text(" also called  ", QUIET))
    if spec.notes:
        lines += wrapped(terminal.text(spec.notes), terminal, prefix=Text(" ", end=""))
    lines += [BLANK, *_rates_table(spec, terminal), BLANK, *_figures(spec, terminal)]
    return lines


def _rates_table(spec: AcceleratorSpec, terminal: Terminal) -> list[Text]:
    """Achievable and peak rate of every format that training can run in."""
    formats = [f for f in FORMATS if spec.supports(f) and spec.peak.rate(f) is not None]
    rates = [(f, spec.achievable_flops_per_s(f), spec.peak_flops_per_s(f)) for f in formats]
    best = [
        terminal.text(_tera(rate)) if spec.is_measured(f) else terminal.text(f"~{_tera(rate)}", WATCH)
        for f, rate, _ in rates
    ]
    states = ["measured" if spec.is_measured(f) else "estimated" for f in formats]
    columns = [
        Column(header="TFLOP/s, dense", cells=tuple(terminal.text(f) for f in formats), align="left"),
        Column(header="achievable", cells=tuple(best)),
        Column(header="peak", cells=tuple(terminal.text(_tera(peak)) for _, _, peak in rates)),
        Column(header="ratio", cells=tuple(terminal.text(numbers.percent(rate / peak, 0)) for _, rate, peak in rates)),
        Column(header="", cells=tuple(terminal.text(state, QUIET) for state in states), align="left"),
    ]
    return table(columns, terminal) if formats else []


def _figures(spec: AcceleratorSpec, terminal: Terminal) -> list[Text]:
    """The other figures, and where each comes from."""

    def gigabytes(value: float) -> str:
        return f"{numbers.trimmed(value / 1e9)} GB"

    figures: list[tuple[str, str, str]] = [("memory", gigabytes(spec.memory_size_bytes), "memory_size")]
    if spec.memory_reported_bytes is not None:
        figures.append(("driver reports", numbers.gib(spec.memory_reported_bytes), "memory_reported"))
    figures.append(("memory rate", f"{gigabytes(spec.memory_bandwidth_bytes_per_s)}/s", "memory_bandwidth"))
    figures.append((f"link, {spec.link_kind}", f"{gigabytes(spec.link_bytes_per_s)}/s", "link"))
    if spec.link_per_peer_bytes_per_s is not None:
        figures.append(("link, one peer", f"{gigabytes(spec.link_per_peer_bytes_per_s)}/s", "link_per_peer"))
    if spec.tdp_watts is not None:
        figures.append(("TDP", f"{numbers.trimmed(spec.tdp_watts)} W", "tdp"))
    if spec.price_per_hour is not None:
        figures.append(("price", f"${numbers.money(spec.price_per_hour)}/h", "price_per_hour"))
    figures.append(("flash attention", "yes" if spec.flash_attention else "no", "flash_attention"))
    sources = dict(spec.sources)
    rows = [(name, value, sources.pop(key, "")) for name, value, key in figures]
    of_rates = [(name, "", source) for name, source in sources.items()]
    left = max(len(name) for name, _, _ in (*rows, *of_rates))
    right = max(len(value) for _, value, _ in rows)
    lines = []
    for name, value, source in (*rows, *of_rates):
        head = terminal.join(f" {name.ljust(left)}  {value.rjust(right)}  ")
        lines += wrapped(terminal.text(source, QUIET), terminal, prefix=head)
    return lines
