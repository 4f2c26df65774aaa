"""The inputs of a command: files and flags read together, so that all mistakes are reported at once."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from hetplan.cli.kinds import option_error
from hetplan.errors import Mistake, SpecError

if TYPE_CHECKING:
    from hetplan.cost.profiles import StackSpec
    from hetplan.report.build import Inputs
    from hetplan.report.reading import PlanFile
    from hetplan.report.records import InputsRecord
    from hetplan.specs.cluster import ClusterSpec
    from hetplan.specs.model import ModelSpec
    from hetplan.specs.training import TrainingSpec

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """What a search or a prediction works on."""

    cluster: "ClusterSpec"
    model: "ModelSpec"
    training: "TrainingSpec"
    stack: "StackSpec"
    assumed: tuple[str, ...]
    """What no file and no flag says, for the reader of the result."""
    from_record: tuple[str, ...] = ()
    """Values that the record of a plan gave where the model file says otherwise."""

    def recorded(self, options: Mapping[str, Any]) -> "Inputs":
        """For the record, with the command's options."""
        from hetplan.report.build import Inputs

        plain = {key: list(value) if isinstance(value, tuple) else value for key, value in options.items()}
        return Inputs(cluster=self.cluster, model=self.model, training=self.training, stack=self.stack, options=plain)


def at_most_one_stdin(*paths: str) -> None:
    """Refuse a second file from stdin: there is one stdin, and the first reader empties it."""
    if paths.count("-") > 1:
        raise option_error(None, "only one file can come from stdin", "write one of them to a file first", kind="usage")


def collected(read: Callable[[], T], mistakes: list[Mistake]) -> T | None:
    """What `read` gives; where it raises SpecError, None, and its mistakes join the others."""
    try:
        return read()
    except SpecError as error:
        mistakes += error.mistakes
        return None


def resolve(
    cluster: str, model: str, flags: Mapping[str, Any], stack: str | None, plan: "PlanFile | None" = None
) -> Resolved:
    """Read the files.

    Training values and the stack are those of the flags, else of the plan's record, else of the model file.
    """
    from hetplan.cost.profiles import DEFAULT_STACK, load_stack
    from hetplan.specs.files import load_inputs

    at_most_one_stdin(cluster, model)
    given = {key: value for key, value in flags.items() if value is not None}
    record = {} if plan is None or plan.inputs is None else plan.inputs.training.model_dump()
    kept = {key: value for key, value in record.items() if key not in given}
    recorded_stack = None if plan is None or stack is not None else plan.stack
    mistakes: list[Mistake] = []
    files = collected(lambda: load_inputs(cluster, model, kept | given), mistakes)
    profile = recorded_stack or collected(lambda: load_stack(stack or DEFAULT_STACK), mistakes)
    if files is None or profile is None:
        raise SpecError(*mistakes)
    return Resolved(
        cluster=files.cluster,
        model=files.model,
        training=files.training,
        stack=profile,
        assumed=files.notes,
        from_record=_differing(model, kept, recorded_stack),
    )


def _differing(model: str, kept: Mapping[str, Any], stack: "StackSpec | None") -> tuple[str, ...]:
    """Values of a record, in words, that differ from what would hold without it."""
    from hetplan.cost.profiles import load_stack
    from hetplan.specs.files import load_model

    own: dict[str, Any] = {}
    # stdin is read already; a file may be wrong but for the record's values.
    if kept and model != "-":
        with suppress(SpecError):
            own = load_model(model).training.model_dump()
    words = [f"{key.replace('_', ' ')} {value}" for key, value in kept.items() if own.get(key) != value]
    if stack is not None and stack != load_stack():
        words.append(f"stack {stack.name}")
    return tuple(words)


def same_inputs(inputs: Resolved, record: "InputsRecord | None") -> bool:
    """Whether a record was made from these inputs, so that what it found besides its plans holds here too."""
    if record is None:
        return False
    made_from = (record.cluster, record.model, record.training, record.stack)
    return made_from == (inputs.cluster, inputs.model, inputs.training, inputs.stack.model_dump(mode="json"))
