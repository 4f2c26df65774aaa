"""`hetplan show`: what hetplan knows of accelerators, software stacks and pipeline schedules."""

from dataclasses import replace
from typing import Annotated, cast

import typer

from hetplan.cli.commands import CONTEXT_SETTINGS, command
from hetplan.cli.kinds import Choice, Text, option_error
from hetplan.cli.options import Arg, Flag
from hetplan.cli.output import Output
from hetplan.cost.profiles import load_stack, stack_names
from hetplan.errors import ExitCode, SpecError
from hetplan.report import show as listing
from hetplan.report.build import to_json
from hetplan.report.stacks import stack_screen, stacks_record, stacks_screen
from hetplan.specs.accelerator import Format
from hetplan.specs.catalog import accelerator, all_accelerators, names, suggestions
from hetplan.specs.wording import either

app = typer.Typer(add_completion=False, rich_markup_mode=None, suggest_commands=False)


@app.callback(context_settings=CONTEXT_SETTINGS, no_args_is_help=False)
def show() -> None:
    """List accelerators, software stacks or pipeline schedules."""


@command(app, "accelerators", record="show")
def accelerators(
    *,
    out: Output,
    name: Annotated[str | None, Arg("NAME", Text("NAME"), "one of them in full; as drivers print it will do")] = None,
    supports: Annotated[
        str | None, Flag("--supports", Choice(listing.FORMATS), "only those that train in this number format")
    ] = None,
    sort: Annotated[str | None, Flag("--sort", Choice(listing.SORT_KEYS), "largest first by this, or by name")] = None,
) -> ExitCode:
    """List accelerators, or give the datasheet of one."""
    if name is None:
        specs = listing.select_accelerators(all_accelerators(), supports=supports, sort=sort or listing.SORT_KEYS[0])
        shown = cast(Format | None, supports)
        out.show(
            to_json(listing.accelerators_record(specs)),
            lambda to: listing.accelerators_screen(specs, to, total=len(names()), supports=shown),
        )
        return ExitCode.OK
    given = [flag for flag, value in (("--supports", supports), ("--sort", sort)) if value is not None]
    if given:
        raise option_error(given[0], "is for the list, and NAME asks for one accelerator", "leave one of them out")
    spec = accelerator(name)
    if spec is None:
        near = suggestions(name)
        hint = f"did you mean {either(near)}?" if near else "hetplan show accelerators lists all of them"
        raise option_error("NAME", f'no accelerator called "{name}"', hint, kind="accelerator")
    out.show(to_json(listing.accelerators_record([spec])), lambda to: listing.accelerator_screen(spec, to))
    return ExitCode.OK


@command(app, "stacks", record="show")
def stacks(
    *,
    out: Output,
    name: Annotated[str | None, Arg("NAME", Text("NAME"), "one of them in full, by its name or file")] = None,
) -> ExitCode:
    """List software stacks, or give the profile of one."""
    if name is None:
        profiles = [load_stack(known) for known in stack_names()]
        out.show(to_json(stacks_record(profiles)), lambda to: stacks_screen(profiles, to))
        return ExitCode.OK
    try:
        profile = load_stack(name)
    except SpecError as error:
        # There the name stands in an option.
        raise SpecError(*(replace(m, key="NAME") if m.key == "--stack" else m for m in error.mistakes)) from None
    out.show(to_json(stacks_record([profile])), lambda to: stack_screen(profile, to))
    return ExitCode.OK


@command(app, "schedules", record="show")
def schedules(out: Output) -> ExitCode:
    """List the pipeline schedules."""
    record = listing.schedules_record()
    out.show(to_json(record), lambda to: listing.schedules_screen(record, to))
    return ExitCode.OK
