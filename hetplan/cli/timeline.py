"""`hetplan timeline`: what every stage does when in one iteration."""

import shlex
from dataclasses import replace
from pathlib import PurePath
from typing import TYPE_CHECKING, Annotated

import typer

from hetplan.cli.commands import command
from hetplan.cli.kinds import Whole, option_error
from hetplan.cli.options import FILE, Arg, Flag, Switch
from hetplan.cli.output import Output
from hetplan.errors import ExitCode, Mistake, SpecError
from hetplan.specs.wording import either, quote

if TYPE_CHECKING:
    from hetplan.report.reading import PlanFile
    from hetplan.report.timeline import Timeline

app = typer.Typer(add_completion=False, rich_markup_mode=None)

PICTURES = {
    ".html": "open it in a browser",
    ".svg": "open it in a browser, or place it in a page",
    ".json": "open it in Perfetto or chrome://tracing",
}
"""What can be written, and what to do with it."""
OUTPUT_HELP = "write a picture instead: FILE ends in .html, .svg, or .json for a Chrome trace"


@command(app, "timeline", output=OUTPUT_HELP)
def timeline(
    *,
    out: Output,
    result: Annotated[str, Arg("RESULT", FILE, "result of hetplan search or predict; - for stdin")],
    rank: Annotated[int, Flag("--rank", Whole(least=1, most=1000), "which plan of a result")] = 1,
    stages: Annotated[bool, Switch("--stages", "show every stage where like ones would be folded")] = False,
) -> ExitCode:
    """Draw what every stage does when in one iteration.

    In the terminal, or with -o as a picture: a page to zoom into, an SVG for papers, or a trace for Perfetto.
    The cluster and the model are those of RESULT.
    """
    from hetplan.report.files import read_text, shown_name, write_text_atomically
    from hetplan.report.reading import read_plan_file
    from hetplan.report.timeline_record import timeline_json, timeline_record
    from hetplan.report.timeline_screen import timeline_notes, timeline_screen

    suffix = _suffix(out.path)
    name = shown_name(result)
    shown = _timeline(read_plan_file(read_text(result), rank, name), name)
    if out.path is not None:
        write_text_atomically(out.path, _picture(shown, suffix))
    record = timeline_json(timeline_record(shown)) if out.json else ""
    if out.json or out.path is None:
        replace(out, path=None).show(record, lambda to: timeline_screen(shown, to, stages=stages))
    if not out.json:
        steps = _next_steps(shown, result, out) if out.hints else []
        out.tell(lambda to: timeline_notes(shown, to, steps=steps))
    return ExitCode.OK


def _next_steps(shown: "Timeline", result: str, out: Output) -> list[tuple[str, str]]:
    """What to do with a picture, or how to get one; what came from stdin cannot be pasted."""
    if out.path is not None:
        return [(shlex.quote(out.path), PICTURES[_suffix(out.path)])]
    if result == "-":
        return []
    rank = f" --rank {shown.rank}" if shown.rank not in (None, 1) else ""
    return [(f"hetplan timeline {shlex.quote(result)}{rank} -o t.html", "zoom, every transfer, exact times")]


def _suffix(path: str | None) -> str:
    """How the picture's file ends. Raises SpecError where that names no picture."""
    suffix = "" if path is None else PurePath(path).suffix.lower()
    if path is not None and suffix not in PICTURES:
        what = f"{quote(suffix)} names no picture that can be written" if suffix else f"{quote(path)} has no suffix"
        raise option_error("--output", what, f"name a file that ends in {either(tuple(PICTURES))}")
    return suffix


def _timeline(file: "PlanFile", name: str) -> "Timeline":
    """The timeline of a plan and of what its result was made from."""
    from hetplan.predict import Setting, plan_mistakes, predict_in, trace
    from hetplan.report.timeline import timeline as made

    if file.inputs is None or file.stack is None:
        message = "is a plan by itself, without the cluster and the model that it is for"
        hint = "hetplan predict CLUSTER MODEL PLAN -o r.json writes a result that has them"
        raise SpecError(Mistake(kind="record", message=message, hint=hint, file=name))
    inputs = file.inputs
    mistakes = plan_mistakes(file.plan, inputs.cluster, inputs.model, inputs.training)
    if mistakes:
        raise SpecError(*(replace(mistake, file=mistake.file or name) for mistake in mistakes))
    setting = Setting(cluster=inputs.cluster, model=inputs.model, training=inputs.training, stack=file.stack)
    return made(
        plan=file.plan,
        prediction=predict_in(setting, file.plan),
        trace=trace(setting, file.plan),
        cluster=inputs.cluster,
        model=inputs.model,
        rank=file.rank,
    )


def _picture(shown: "Timeline", suffix: str) -> str:
    from hetplan.report.timeline_chrome import chrome_trace
    from hetplan.report.timeline_html import timeline_html
    from hetplan.report.timeline_svg import timeline_svg

    return {".html": timeline_html, ".svg": timeline_svg, ".json": chrome_trace}[suffix](shown)
