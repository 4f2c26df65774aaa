"""`hetplan compare`: two results side by side."""

from typing import Annotated

import typer

from hetplan.cli.commands import command
from hetplan.cli.inputs import at_most_one_stdin, collected
from hetplan.cli.kinds import Number
from hetplan.cli.options import FILE, Arg, Flag
from hetplan.cli.output import Output
from hetplan.errors import ExitCode, Mistake, SpecError

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@command(app, "compare")
def compare(
    *,
    out: Output,
    before: Annotated[str, Arg("BEFORE", FILE, "result of hetplan search; - for stdin")],
    after: Annotated[str, Arg("AFTER", FILE, "result to compare with it; - for stdin")],
    fail_above: Annotated[
        float,
        Flag("--fail-above", Number(below=1e6, metavar="PERCENT"), "slowdown that is allowed, in percent of the time"),
    ] = 0.0,
) -> ExitCode:
    """Compare two results; fail where the second is slower.

    By their best plans. The exit code is 5 where the second takes more time for a token, or has no plan any more.
    """
    from hetplan.report.build import to_json
    from hetplan.report.compare import compare_record
    from hetplan.report.compare_screen import compare_screen
    from hetplan.report.files import read_text, shown_name
    from hetplan.report.reading import read_record

    at_most_one_stdin(before, after)
    mistakes: list[Mistake] = []
    first = collected(lambda: read_record(read_text(before), shown_name(before)), mistakes)
    second = collected(lambda: read_record(read_text(after), shown_name(after)), mistakes)
    if first is None or second is None:
        raise SpecError(*mistakes)
    record = compare_record(first, second, fail_above_pct=fail_above)
    shown_names = (shown_name(before), shown_name(after))
    out.show(to_json(record), lambda to: compare_screen(first, second, to, record=record, names=shown_names))
    return ExitCode.REGRESSION if record.regression else ExitCode.OK
