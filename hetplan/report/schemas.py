"""JSON Schemas of everything users write and of every record that commands print."""

from typing import Any, Literal, get_args

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema

from hetplan.plan import Plan
from hetplan.report.records import (
    CompareRecord,
    ErrorRecord,
    PredictRecord,
    ResultRecord,
    ShowRecord,
)
from hetplan.report.timeline_record import TimelineRecord
from hetplan.specs.catalog import names
from hetplan.specs.cluster import ClusterSpec
from hetplan.specs.model import ModelFile

SchemaKind = Literal["cluster", "model", "plan", "result", "predict", "compare", "timeline", "show", "error"]
SCHEMA_KINDS: tuple[SchemaKind, ...] = get_args(SchemaKind)

DIALECT = "https://json-schema.org/draft/2020-12/schema"

_WRITTEN: dict[str, tuple[Any, str]] = {
    "cluster": (ClusterSpec, "hetplan cluster file"),
    "model": (ModelFile, "hetplan model file"),
    "plan": (Plan, "hetplan plan"),
}
_PRINTED: dict[str, tuple[Any, str]] = {
    "result": (ResultRecord, "hetplan search result"),
    "predict": (PredictRecord, "hetplan prediction"),
    "compare": (CompareRecord, "hetplan comparison"),
    "timeline": (TimelineRecord, "hetplan timeline"),
    "show": (ShowRecord, "hetplan listing"),
    "error": (ErrorRecord, "hetplan errors"),
}


class _WithoutTitles(GenerateJsonSchema):
    """Leaves out the titles that only repeat field names."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        """Never."""
        return False


def json_schema(kind: SchemaKind) -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of a file that users write, or of a record that a command prints.

    Files are described by their written keys, with units; records by their field names, all of them present.
    """
    if kind in _WRITTEN:
        model, title = _WRITTEN[kind]
        schema = TypeAdapter(model).json_schema(by_alias=True, mode="validation", schema_generator=_WithoutTitles)
    else:
        model, title = _PRINTED[kind]
        schema = TypeAdapter(model).json_schema(by_alias=False, mode="serialization", schema_generator=_WithoutTitles)
    if kind == "cluster":
        _allow_names(schema)
    schema.pop("title", None)
    for part in schema.get("$defs", {}).values():
        part.pop("title", None)
    return {"$schema": DIALECT, "title": title, **schema}


def _allow_names(schema: dict[str, Any]) -> None:
    """A cluster file may name an accelerator of the catalogue where the resolved spec holds its datasheet."""
    group = schema["$defs"]["GroupSpec"]["properties"]
    datasheet = {"$ref": "#/$defs/AcceleratorSpec"}
    group["accelerator"] = {
        "description": group["accelerator"].get("description", ""),
        "anyOf": [{"enum": list(names())}, {"type": "string", "description": "a name as drivers print it"}, datasheet],
    }
