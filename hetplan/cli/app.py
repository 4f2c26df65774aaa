"""The command line: `hetplan COMMAND`.

Commands are loaded when they are asked for, so that `hetplan --help` loads neither specs nor a solver.
"""

import io
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Annotated, Any

import typer
import typer.core
import typer.main

from hetplan import __version__
from hetplan.cli.commands import CONTEXT_SETTINGS
from hetplan.cli.kinds import option_error
from hetplan.cli.output import Output, failed
from hetplan.errors import ExitCode, SpecError
from hetplan.specs.wording import did_you_mean

COMMANDS = {
    "search": "Find the fastest plans for a cluster and a model, and prove how good they are.",
    "predict": "Predict the iteration time and memory of one plan.",
    "compare": "Compare two results; fail where the second is slower.",
    "timeline": "Draw what every stage does when in one iteration.",
    "show": "List accelerators, software stacks or pipeline schedules.",
    "schema": "Print the JSON Schema of a file or a record.",
}
"""Command to the first line of its help. Each is a module of this folder."""

EPILOG = "hetplan COMMAND --help describes a command. Exit codes: 0 ok, 1 bug, 2 bad input, 3 no plan fits, \
4 stopped without a plan, 5 regression, 130 interrupted."


class Commands(typer.core.TyperGroup):
    """Loads a command's module when the command is run, completed or described."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Names in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of this name, or None."""
        if cmd_name not in COMMANDS:
            return None
        loaded = typer.main.get_command(import_module(f"hetplan.cli.{cmd_name}").app)
        loaded.name = cmd_name
        return loaded

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Commands with their first lines, from the table: nothing is loaded to list them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


app = typer.Typer(cls=Commands, rich_markup_mode=None, pretty_exceptions_enable=False, suggest_commands=False)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"hetplan {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True, epilog=EPILOG, context_settings=CONTEXT_SETTINGS)
def hetplan(
    ctx: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Plan the training of large language models on clusters of mixed accelerators, with a proven gap."""
    if ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help(), err=True)
        raise typer.Exit(ExitCode.BAD_INPUT)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line (that of the process, if none is given) and return the exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by whoever started us
            setattr(sys, name, io.StringIO())
    words = given[: given.index("--")] if "--" in given else given
    # What options say is known only once they are read; this is for mistakes that keep them from being read.
    out = Output(
        command=next((word for word in words if word in COMMANDS), "hetplan"),
        json="--json" in words,
        verbose="--verbose" in words or "-v" in words,
    )
    try:
        code = app(given, prog_name="hetplan", standalone_mode=False) or ExitCode.OK
        if code == ExitCode.INTERRUPTED and not isinstance(code, ExitCode):
            return failed(KeyboardInterrupt(), out)  # by typer, while the command was being loaded
        return int(code)
    except typer.TyperException as error:
        return failed(_usage_error(error, out.command), out)
    except KeyboardInterrupt as error:  # while the interpreter was loading a module
        return failed(error, out)
    except SystemExit:  # shell completion, or a reader of the help that has seen enough
        return ExitCode.OK
    except Exception as error:  # noqa: BLE001 - reported as a bug, with exit code 1
        return failed(error, out)


def _usage_error(error: typer.TyperException, command: str) -> SpecError:
    """What typer says of a command line, in our words. Its errors are told apart by what they carry and say."""
    ctx, param = getattr(error, "ctx", None), getattr(error, "param", None)
    path = ctx.command_path if ctx is not None else f"hetplan {command}" if command in COMMANDS else "hetplan"
    hint = f"see {path} --help"
    if not error.message and param is not None:
        return option_error(param.metavar, "is missing", hint, kind="usage")
    message = error.message.rstrip(".")
    word, names = getattr(error, "option_name", ""), []
    if ctx is not None and message.startswith("No such option"):
        names = [name for known in ctx.command.params for name in known.opts]
    elif ctx is not None and message.startswith("No such command"):
        word, names = message.split("'")[1], ctx.command.list_commands(ctx)
    elif message.startswith("Got unexpected extra"):
        message = f"more arguments than {path} takes: {message.partition('(s) (')[2].removesuffix(')')}"
    return option_error(None, message[:1].lower() + message[1:], did_you_mean(word, names) or hint, kind="usage")
