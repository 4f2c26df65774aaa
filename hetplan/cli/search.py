"""`hetplan search`: ranked plans for a cluster and a model, with a proven gap."""

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hetplan.cli.commands import command
from hetplan.cli.inputs import resolve
from hetplan.cli.options import Cluster, Model, Stack, Switch
from hetplan.cli.output import Output
from hetplan.cli.search_flags import SEARCH_FLAGS, search_options
from hetplan.errors import ExitCode
from hetplan.search.result import SearchResult

if TYPE_CHECKING:
    from hetplan.cli.inputs import Resolved
    from hetplan.search.options import SearchOptions

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@command(app, "search", flags=SEARCH_FLAGS, training=True)
def search(
    *,
    out: Output,
    cluster: Cluster,
    model: Model,
    flags: dict[str, Any],
    training: dict[str, Any],
    stack: Stack = None,
    stages: Annotated[bool, Switch("--stages", "show every stage where like ones would be folded")] = False,
) -> ExitCode:
    """Find the fastest plans for a cluster and a model, and prove how good they are.

    Ctrl-C ends the search with the best plan so far and its gap.
    """
    from hetplan.report.build import run_record, search_record, to_json
    from hetplan.report.search_screen import Files, search_notes, search_screen

    inputs = resolve(cluster, model, training, stack)
    result = _searched(inputs, search_options(flags, inputs.stack), out)
    result = replace(result, warnings=(*inputs.assumed, *result.warnings))
    run = run_record(result.elapsed_s, solver=True, threads=1, seed=flags["seed"])
    record = search_record(result, inputs.recorded(flags), run)
    out.show(to_json(record), lambda to: search_screen(record, to, stages=stages))
    if not out.json:
        files = Files(cluster=cluster, model=model, saved=out.path) if out.hints else None
        out.tell(lambda to: search_notes(record, to, files=files))
    return exit_code(result)


def exit_code(result: SearchResult) -> ExitCode:
    """What a search tells its caller."""
    if result.stopped_by == "interrupt":
        return ExitCode.INTERRUPTED
    if result.plans:
        return ExitCode.OK
    return ExitCode.INFEASIBLE if result.status == "infeasible" else ExitCode.STOPPED


def _searched(inputs: "Resolved", options: "SearchOptions", out: Output) -> SearchResult:
    """Search with a progress display on stderr."""
    from hetplan.report.progress import Progress
    from hetplan.report.style import terminal
    from hetplan.search import planner

    with Progress(terminal(sys.stderr), quiet=out.quiet, verbose=out.verbose) as shown:
        result = planner.search(
            inputs.cluster,
            inputs.model,
            inputs.training,
            inputs.stack,
            options,
            lambda now: shown.update(now.best_s, now.bound_s, now.nodes, now.open_nodes),
        )
        shown.done("interrupted" if result.stopped_by == "interrupt" else "done")
    return result
