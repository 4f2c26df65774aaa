"""How an option is declared, and the options that commands share.

A parameter of a command is declared as `Annotated[int, Flag("--top", Whole(least=1, most=100), "plans to keep")]`, or
as an `Arg` or a `Switch`; see `hetplan.cli.commands`.
"""

from dataclasses import dataclass
from typing import Annotated, Any, get_args

from hetplan.cli.kinds import Choice, Kind, Text, Whole

OPTIONS, OUTPUT, TRAINING = "Options", "Output", "Training values, instead of the model file's"
FILE = Text("FILE")


@dataclass(frozen=True, slots=True)
class Arg:
    """A positional argument."""

    metavar: str
    kind: Kind
    help: str


@dataclass(frozen=True, slots=True)
class Flag:
    """An option with a value; `many` lets it be given several times."""

    flag: str
    kind: Kind
    help: str
    panel: str = OPTIONS
    short: str | None = None
    many: bool = False


@dataclass(frozen=True, slots=True)
class Switch:
    """An option without a value."""

    flag: str
    help: str
    panel: str = OPTIONS
    short: str | None = None


Declared = dict[str, tuple[Arg | Flag | Switch, Any]]
"""Parameter name to its declaration and default."""

Cluster = Annotated[str, Arg("CLUSTER", FILE, "cluster file; - for stdin")]
Model = Annotated[str, Arg("MODEL", FILE, "model file or a Hugging Face config.json; - for stdin")]
Stack = Annotated[str | None, Flag("--stack", Text("NAME"), "software stack: a catalogue name, or a profile file")]

PATH = Flag("--output", FILE, "write the JSON object to a file, whole or not at all", OUTPUT, "-o")
SHARED: Declared = {
    "json": (Switch("--json", "print one JSON object", OUTPUT), False),
    "path": (PATH, None),
    "quiet": (Switch("--quiet", "no progress and no hints", OUTPUT, "-q"), False),
    "verbose": (Switch("--verbose", "progress in a pipe too, and where a bug happened", OUTPUT, "-v"), False),
}


def training_flags() -> Declared:
    """One flag for each training value, under its field's name."""
    from hetplan.specs.training import TrainingSpec

    flags: Declared = {}
    for name, info in TrainingSpec.model_fields.items():
        limits = {key: getattr(rule, key) for rule in info.metadata for key in ("ge", "le") if hasattr(rule, key)}
        kind = Whole(least=limits["ge"], most=limits["le"]) if limits else Choice(get_args(info.annotation))
        flags[name] = (Flag(f"--{name.replace('_', '-')}", kind, info.description or "", TRAINING), None)
    return flags
