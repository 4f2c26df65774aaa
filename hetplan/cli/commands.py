"""From a function with declared parameters to a command of typer.

Values are read here and not by typer, so that all mistakes of a command line are reported at once and in the same
words as the mistakes of a file.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Annotated, Any

import typer
import typer.core

from hetplan.cli.kinds import read_value
from hetplan.cli.options import OUTPUT, PATH, SHARED, Arg, Declared, Flag, Switch, training_flags
from hetplan.cli.output import Output, failed
from hetplan.errors import ExitCode, Mistake, SpecError

Function = Callable[..., ExitCode]
CONTEXT_SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


def command(
    app: typer.Typer,
    name: str,
    *,
    record: str | None = None,
    flags: Declared | None = None,
    training: bool = False,
    output: str | None = None,
) -> Callable[[Function], Function]:
    """Make a function a command of `app`; `record` is what records call the command, where that is not its name.

    The function gets an `Output` as `out` and its declared parameters; as `flags` the values of these flags, and with
    `training` as `training` the training values, None where not given. `output` is the help of -o where the function
    writes that file itself. It returns the exit code, and raises SpecError for mistakes of the user.
    """
    groups = {"flags": flags or {}, "training": training_flags() if training else {}}

    def register(function: Function) -> Function:
        own = _own(function)
        declared = own | groups["flags"] | groups["training"]
        shared = SHARED | ({"path": (replace(PATH, help=output), None)} if output else {})

        def run(**given: Any) -> None:
            path = None if given["path"] == "-" else given["path"]
            json = given["json"] or given["path"] == "-"
            out = Output(command=record or name, json=json, path=path, quiet=given["quiet"], verbose=given["verbose"])
            try:
                values = _read(declared, given)
                for key, group in groups.items():
                    if group:
                        values[key] = {part: values.pop(part) for part in group}
                out.check()
                code = function(out=out, **values)
            except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - reported as a bug, with exit code 1
                code = failed(error, out)
            raise typer.Exit(code)

        parameters = [_parameter(key, *entry) for key, entry in (declared | shared).items()]
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        run.__doc__ = function.__doc__
        app.command(name, cls=Command, context_settings=CONTEXT_SETTINGS)(run)
        return function

    return register


def _own(function: Function) -> Declared:
    found: Declared = {}
    for name, parameter in inspect.signature(function, eval_str=True).parameters.items():
        declaration = next((part for part in getattr(parameter.annotation, "__metadata__", ())), None)
        if isinstance(declaration, Arg | Flag | Switch):
            found[name] = (declaration, parameter.default)
    return found


def _parameter(name: str, declaration: Arg | Flag | Switch, default: Any) -> inspect.Parameter:
    """The parameter as typer wants it: text, or a switch."""
    annotation: Any
    if isinstance(declaration, Arg):
        required = default is inspect.Parameter.empty
        info = typer.Argument(metavar=declaration.metavar, help=declaration.help, show_default=False)
        annotation = Annotated[str if required else str | None, info]
        default = default if required else None
    else:
        flags = [f for f in (declaration.short, declaration.flag) if f]
        metavar = declaration.kind.metavar if isinstance(declaration, Flag) else None
        about = declaration.help + _default_text(default)
        info = typer.Option(*flags, metavar=metavar, help=about, show_default=False, rich_help_panel=declaration.panel)
        if isinstance(declaration, Switch):
            annotation, default = Annotated[bool, info], False
        else:
            annotation, default = Annotated[list[str] | None if declaration.many else str | None, info], None
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _default_text(default: Any) -> str:
    """A default as the help shows it; nothing where there is none to show."""
    if default is None or isinstance(default, bool):
        return ""
    if isinstance(default, tuple):
        return f"  [default: {', '.join(default)}]"
    return f"  [default: {default:g}]" if isinstance(default, float) else f"  [default: {default}]"


def _read(declared: Declared, given: Mapping[str, Any]) -> dict[str, Any]:
    """Values by parameter name. Raises SpecError with every one that cannot be read."""
    values: dict[str, Any] = {}
    mistakes: list[Mistake] = []
    for name, (declaration, default) in declared.items():
        text = given[name]
        if isinstance(declaration, Switch):
            values[name] = text
        elif text is None:
            values[name] = default
        else:
            key = declaration.metavar if isinstance(declaration, Arg) else declaration.flag
            try:
                read = [read_value(key, declaration.kind, t) for t in (text if isinstance(text, list) else [text])]
                values[name] = tuple(read) if isinstance(text, list) else read[0]
            except SpecError as error:
                mistakes += error.mistakes
    if mistakes:
        raise SpecError(*mistakes)
    return values


class Command(typer.core.TyperCommand):
    """A command whose help lists its options under the headings of their panels."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Arguments by their names, in brackets where they may be left out."""
        arguments = [param for param in self.get_params(ctx) if param.param_type_name == "argument"]
        return ["[OPTIONS]", *(str(a.metavar) if a.required else f"[{a.metavar}]" for a in arguments)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Arguments first; --help stands with the output options, which come last."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            if param.param_type_name == "argument":
                sections.setdefault("Arguments", []).append((str(param.metavar), getattr(param, "help", None) or ""))
            elif record := param.get_help_record(ctx):
                sections.setdefault(getattr(param, "rich_help_panel", None) or OUTPUT, []).append(record)
        for heading, records in sections.items():
            with formatter.section(heading):
                formatter.write_dl(records)
