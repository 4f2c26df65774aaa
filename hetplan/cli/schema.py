"""`hetplan schema`: the JSON Schema of what users write and of what commands print."""

import json
from typing import Annotated, cast

import typer

from hetplan.cli.commands import command
from hetplan.cli.kinds import Choice
from hetplan.cli.options import Arg
from hetplan.cli.output import Output
from hetplan.errors import ExitCode
from hetplan.report.records import SCHEMA_VERSION
from hetplan.report.schemas import SCHEMA_KINDS, SchemaKind, json_schema

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@command(app, "schema")
def schema(
    out: Output, kind: Annotated[str, Arg("KIND", Choice(SCHEMA_KINDS), f"one of {', '.join(SCHEMA_KINDS)}")]
) -> ExitCode:
    """Print the JSON Schema of a file or a record.

    That is, of what users write or of what commands print, in draft 2020-12. With --json it also has schema_version
    and command, as every record has; validators ignore both.
    """
    document = json_schema(cast(SchemaKind, kind))
    if out.json:
        document = {"schema_version": SCHEMA_VERSION, "command": "schema", **document}
    text = json.dumps(document, indent=2) + "\n"
    out.show(text, lambda to: [to.text(line) for line in text.splitlines()])
    return ExitCode.OK
