"""`hetplan predict`: the iteration time and memory of one plan."""

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hetplan.cli.commands import command
from hetplan.cli.inputs import at_most_one_stdin, resolve, same_inputs
from hetplan.cli.kinds import Whole
from hetplan.cli.options import FILE, Arg, Cluster, Flag, Model, Stack, Switch
from hetplan.cli.output import Output
from hetplan.errors import ExitCode, Mistake, SpecError

if TYPE_CHECKING:
    from hetplan.plan import Plan

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@command(app, "predict", training=True)
def predict(
    *,
    out: Output,
    cluster: Cluster,
    model: Model,
    plan: Annotated[str, Arg("PLAN", FILE, "plan, or the result of hetplan search or predict; - for stdin")],
    training: dict[str, Any],
    rank: Annotated[int, Flag("--rank", Whole(least=1, most=1000), "which plan of a result")] = 1,
    stack: Stack = None,
    stages: Annotated[bool, Switch("--stages", "show every stage where like ones would be folded")] = False,
) -> ExitCode:
    """Predict the iteration time and memory of one plan.

    The exit code is 3 where it does not fit. Training values and the stack, where no option gives them, are those
    that PLAN was made with if it is a result, and otherwise those of the model file.
    """
    from hetplan.predict import predict as predicted
    from hetplan.report.build import predict_record, run_record, to_json
    from hetplan.report.files import read_text, shown_name
    from hetplan.report.predict_screen import predict_notes, predict_screen
    from hetplan.report.reading import read_plan_file

    started = time.monotonic()
    at_most_one_stdin(cluster, model, plan)
    name = shown_name(plan)
    file = read_plan_file(read_text(plan), rank, name)
    inputs = resolve(cluster, model, training, stack, file)
    singles = file.single_types if same_inputs(inputs, file.inputs) else None
    try:
        prediction = predicted(inputs.cluster, inputs.model, file.plan, inputs.training, inputs.stack, singles)
    except SpecError as error:
        raise SpecError(*(_of_plan(mistake, name, file.plan) for mistake in error.mistakes)) from None
    prediction = replace(prediction, warnings=(*inputs.assumed, *prediction.warnings))
    run = run_record(time.monotonic() - started)
    record = predict_record(file.plan, prediction, inputs.recorded({"rank": rank}), run, singles)
    out.show(to_json(record), lambda to: predict_screen(record, to, stages=stages))
    if not out.json:
        taken = f"taken from {name}: {', '.join(inputs.from_record)}" if inputs.from_record else ""
        out.tell(lambda to: [*([] if out.quiet or not taken else [to.text(taken)]), *predict_notes(record, to)])
    return ExitCode.OK if prediction.fits else ExitCode.INFEASIBLE


def _of_plan(mistake: Mistake, file: str, plan: "Plan") -> Mistake:
    """A mistake of a plan with the file it is in, and with what to do about another global batch."""
    if mistake.key == "global_batch_size":
        hint = f"{mistake.hint}; --global-batch-size {plan.global_batch_size} takes the plan's"
        mistake = replace(mistake, hint=hint)
    return replace(mistake, file=mistake.file or file)
