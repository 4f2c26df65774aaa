"""Loads what the user names on the command line: a cluster file, a model file or config.json, and training values.

Every mistake of all files and options is found before anything is refused.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from hetplan.errors import Mistake, SpecError
from hetplan.specs import catalog
from hetplan.specs.accelerator import Format
from hetplan.specs.cluster import ClusterSpec, GroupSpec
from hetplan.specs.cluster_checks import cluster_problems, unknown_accelerator
from hetplan.specs.document import Document, Problem, in_file_order, problems_to_mistakes
from hetplan.specs.huggingface import ConfigError, HuggingFaceModel, from_config
from hetplan.specs.loader import STDIN, scan_document
from hetplan.specs.model import ModelFile, ModelSpec
from hetplan.specs.model_checks import model_problems
from hetplan.specs.training import TrainingSpec
from hetplan.specs.validation import validate
from hetplan.specs.wording import COMMAND_LINE, KeyPath, shorten

DEFAULT_SEQUENCE_LENGTH = 4096
"""Tokens per sequence where neither file nor command line says, or the model's positions where those are fewer."""

_CONFIG_KEYS = ("model_type", "architectures", "num_hidden_layers", "n_layer")
_FORMAT_ORDER: tuple[Format, ...] = ("bf16", "fp16", "tf32", "fp32", "fp8", "mxfp8", "nvfp4")
_NO_OVERRIDES: Mapping[str, object] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A model and how it is trained; `notes` say what was assumed."""

    model: ModelSpec
    training: TrainingSpec
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """What a plan is made for; `notes` say what was assumed."""

    cluster: ClusterSpec
    model: ModelSpec
    training: TrainingSpec
    notes: tuple[str, ...]


def load_cluster(path: str | Path) -> ClusterSpec:
    """Read a cluster file, or stdin for "-". Raises SpecError with every mistake in it."""
    cluster, mistakes = _read_cluster(path)
    if mistakes or cluster is None:
        raise SpecError(*mistakes)
    return cluster


def load_model(path: str | Path, overrides: Mapping[str, object] = _NO_OVERRIDES) -> LoadedModel:
    """Read a model file or a Hugging Face config.json, or stdin for "-".

    Args:
        path: the file.
        overrides: training values of the command line, which win; None stands for one that is not given.

    Raises:
        SpecError: with every mistake of the file, of a config.json it names, and of the overrides.
    """
    reading = _ModelReading(path, overrides)
    if reading.mistakes or reading.loaded is None:
        raise SpecError(*reading.mistakes)
    return reading.loaded


def load_inputs(
    cluster_path: str | Path, model_path: str | Path, overrides: Mapping[str, object] = _NO_OVERRIDES
) -> Inputs:
    """Read a cluster and a model that is to be trained on it. Raises SpecError with the mistakes of both."""
    if str(cluster_path) == str(model_path) == "-":
        message, hint = "named for both the cluster and the model", "read one of the two from a file"
        raise SpecError(Mistake(kind="file", message=message, hint=hint, file=STDIN))
    cluster, mistakes = _read_cluster(cluster_path)
    reading = _ModelReading(model_path, overrides)
    if cluster is not None and reading.loaded is not None and not mistakes and not reading.mistakes:
        mistakes += reading.precision_mistakes(cluster)
    mistakes += reading.mistakes
    if mistakes or cluster is None or reading.loaded is None:
        raise SpecError(*mistakes)
    loaded = reading.loaded
    return Inputs(cluster=cluster, model=loaded.model, training=loaded.training, notes=loaded.notes)


def _read_cluster(path: str | Path) -> tuple[ClusterSpec | None, list[Mistake]]:
    try:
        document = scan_document(path)
    except SpecError as error:
        return None, list(error.mistakes)
    if _looks_like(document, ("architecture", "huggingface", *_CONFIG_KEYS), but_not="groups"):
        return None, [_swapped(document, "holds a model, not a cluster")]
    data, unresolved = resolve_accelerators(document.data)
    cluster, problems = validate(ClusterSpec, data)
    unknown = {problem.path for problem in unresolved}
    problems = [*unresolved, *(p for p in problems if p.path not in unknown), *cluster_problems(data)]
    return cluster, [*in_file_order((*document.mistakes, *problems_to_mistakes(document, problems)))]


def resolve_accelerators(raw: object) -> tuple[object, list[Problem]]:
    """Cluster data with the names of accelerators replaced by their datasheets, and the names that have none."""
    groups = raw.get("groups") if isinstance(raw, Mapping) else None
    if not isinstance(raw, Mapping) or not isinstance(groups, tuple):
        return raw, []
    problems: list[Problem] = []
    resolved = []
    for index, group in enumerate(groups):
        value = group.get("accelerator") if isinstance(group, Mapping) else None
        sheet = catalog.accelerator(value) if isinstance(value, str) else None
        if sheet is not None:
            resolved.append({**group, "accelerator": sheet})
            continue
        resolved.append(group)
        if isinstance(group, Mapping) and "accelerator" in group and not isinstance(value, Mapping):
            near = catalog.suggestions(value) if isinstance(value, str) else ()
            path = ("groups", index, "accelerator")
            problems.append(unknown_accelerator(value, path, near, len(catalog.names())))
    return {**raw, "groups": tuple(resolved)}, problems


def _looks_like(document: Document, keys: Iterable[str], *, but_not: str) -> bool:
    data = document.data
    return isinstance(data, Mapping) and but_not not in data and any(key in data for key in keys)


def _swapped(document: Document, message: str) -> Mistake:
    problem = Problem((), message, "the cluster comes first, then the model", "file", at_key=True)
    return document.mistake_at(document.locate(()), (), problem)


class _ModelReading:
    """A model file while it is read: `loaded` where nothing is wrong, and all `mistakes`."""

    def __init__(self, path: str | Path, overrides: Mapping[str, object]) -> None:
        self.path = path
        self.overrides = {name: value for name, value in overrides.items() if value is not None}
        self.mistakes: list[Mistake] = []
        self.loaded: LoadedModel | None = None
        self.document: Document | None = None
        self.config_document: Document | None = None
        self.training: dict[str, Any] = {}
        self.config: HuggingFaceModel | None = None
        _, problems = validate(TrainingSpec, self.overrides)
        model = self._read()
        self.mistakes += [_on_command_line(problem) for problem in problems]
        if model is not None and not self.mistakes:
            self.loaded = self._load(model)

    def _read(self) -> ModelSpec | None:
        """The model, where the file gives one."""
        try:
            self.document = document = scan_document(self.path)
        except SpecError as error:
            self.mistakes += error.mistakes
            return None
        if _looks_like(document, ("groups", "links"), but_not="architecture"):
            self.mistakes.append(_swapped(document, "holds a cluster, not a model"))
            return None
        if _looks_like(document, _CONFIG_KEYS, but_not="architecture"):
            return self._read_config(document, _name_of(self.path))
        file, problems = validate(ModelFile, document.data)
        problems += [p for p in model_problems(document.data) if not self._is_overridden(p.path)]
        self.mistakes += in_file_order((*document.mistakes, *problems_to_mistakes(document, problems)))
        if isinstance(document.data, Mapping):
            given = document.data.get("training")
            self.training = dict(given) if isinstance(given, Mapping) else {}
            linked = document.data.get("huggingface")
            if isinstance(linked, str) and linked and document.data.get("architecture") is None:
                name = file.name if file is not None else "model"
                return self._read_linked(document, linked, name)
        if file is None or file.architecture is None:
            return None
        return ModelSpec(name=file.name, architecture=file.architecture)

    def _is_overridden(self, path: KeyPath) -> bool:
        return len(path) == 2 and path[0] == "training" and path[1] in self.overrides

    def _read_linked(self, document: Document, linked: str, name: str) -> ModelSpec | None:
        """The model of a config.json that a model file names, seen from the folder of that file."""
        folder = Path() if document.file == STDIN else Path(self.path).parent
        try:
            # Absolute, so that a file called "-" is not taken for stdin.
            target = scan_document((folder / linked).absolute() if linked == "-" else folder / linked)
        except SpecError as error:
            # A file that cannot be opened is a mistake where it is named.
            at = ("huggingface",)
            for found in error.mistakes:
                problem = Problem(at, f"{found.file}: {found.message}", found.hint, found.kind)
                named = document.mistake_at(document.locate(at), at, problem)
                self.mistakes.append(named if found.line is None else found)
            return None
        return self._read_config(target, name)

    def _read_config(self, document: Document, name: str) -> ModelSpec | None:
        self.config_document = document
        try:
            self.config = from_config(document.data)
        except ConfigError as error:
            found = problems_to_mistakes(document, error.problems)
            self.mistakes += in_file_order((*document.mistakes, *found))
            return None
        self.mistakes += document.mistakes
        return ModelSpec(name=name, architecture=self.config.architecture)

    def _load(self, model: ModelSpec) -> LoadedModel | None:
        """Put the training values together: command line before file before defaults."""
        architecture = model.architecture
        defaults = {name: info.default for name, info in TrainingSpec.model_fields.items()}
        defaults["sequence_length"] = min(DEFAULT_SEQUENCE_LENGTH, architecture.max_positions)
        notes = list(self.config.notes) if self.config is not None else []
        if self.config is not None and self.config.precision is not None:
            defaults["precision"] = self.config.precision
        given = {**self.training, **self.overrides}
        assumed = [f"{name} {value}" for name, value in defaults.items() if name not in given]
        if assumed:
            notes.append(f"training values taken by default: {', '.join(assumed)}")
        training = TrainingSpec(**{**defaults, **given})
        if architecture.position != "learned" and training.sequence_length > architecture.max_positions:
            notes.append(
                f"{training.sequence_length:,} tokens are more than the {architecture.max_positions:,} positions"
                " that the model states"
            )
        if architecture.position == "learned" and training.sequence_length > architecture.max_positions:
            message = f"{training.sequence_length:,} tokens, and the model has {architecture.max_positions:,} positions"
            hint = f"write at most {architecture.max_positions:,}"
            self.mistakes.append(self._at_training("sequence_length", Problem((), message, hint, "range")))
            return None
        return LoadedModel(model=model, training=training, notes=tuple(notes))

    def precision_mistakes(self, cluster: ClusterSpec) -> list[Mistake]:
        """Groups whose accelerators cannot train in the format that is asked for."""
        loaded = self.loaded
        if loaded is None:
            return []
        wanted = loaded.training.precision
        refusing = [group for group in cluster.groups if not group.accelerator.supports(wanted)]
        if not refusing:
            return []
        who = " and ".join(_in_words(group) for group in refusing)
        given = "precision" in self.training or "precision" in self.overrides
        message = f"{who} cannot train in {wanted}{'' if given else ', the default'}"
        problem = Problem((), message, _alternatives(cluster, wanted), "precision", "not on every accelerator")
        return [self._at_training("precision", problem)]

    def _at_training(self, name: str, problem: Problem) -> Mistake:
        """A problem with a training value, at the place that gives the value."""
        if name in self.overrides:
            return _on_command_line(problem._replace(path=(name,), note=""))
        document = self.document
        path: KeyPath = ("training", name)
        if name == "precision" and name not in self.training and self.config_document is not None:
            places = self.config_document.values
            stored = [p for p in places if p[-1:] in (("torch_dtype",), ("dtype",))]
            if stored:
                document, path = self.config_document, min(stored, key=len)
        problem = problem._replace(path=path)
        if document is None:
            return _on_command_line(problem)
        return document.mistake_at(document.locate(path), path, problem)


def _in_words(group: GroupSpec) -> str:
    return f"{group.accelerator.name} (group {shorten(group.name)})"


def _alternatives(cluster: ClusterSpec, wanted: Format) -> str:
    """The formats that every group has, or which groups to leave out."""
    everywhere = [f for f in _FORMAT_ORDER if all(group.accelerator.supports(f) for group in cluster.groups)]
    if everywhere:
        best, *others = everywhere
        also = f"; so {'does' if len(others) == 1 else 'do'} {' and '.join(others)}" if others else ""
        return f"{best} runs on every group{also}"
    able = [shorten(group.name) for group in cluster.groups if group.accelerator.supports(wanted)]
    return f"no format runs on every group; {wanted} runs on {', '.join(able) or 'none of them'}"


def _on_command_line(problem: Problem) -> Mistake:
    option = "--" + "-".join(str(part).replace("_", "-") for part in problem.path)
    return Mistake(kind=problem.kind, message=problem.message, hint=problem.hint, file=COMMAND_LINE, key=option)


def _name_of(path: str | Path) -> str:
    """A name for a bare config.json: its folder's where that says more than its own."""
    if str(path) == "-":
        return "model"
    file = Path(path)
    name = file.resolve().parent.name if file.stem == "config" else file.stem
    printable = "".join(c for c in name if c.isprintable()).strip()
    return shorten(printable, 100) or "model"
