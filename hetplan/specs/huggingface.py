"""Reads a Hugging Face config.json as shapes of a transformer.

`from_config` finds the decoder (inside `text_config` of a multimodal model), its family, and the shapes, and says what
it assumed and left out. All mistakes of a file are found together.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from hetplan.errors import HetplanError
from hetplan.specs.accelerator import Format
from hetplan.specs.architecture import ArchitectureSpec
from hetplan.specs.config_reader import ConfigReader
from hetplan.specs.document import Problem
from hetplan.specs.families import NESTED_TYPES, Family, known_types
from hetplan.specs.model_checks import architecture_problems
from hetplan.specs.validation import validate
from hetplan.specs.wording import KeyPath, did_you_mean, found, key_text, quote, shorten

NESTED_KEYS = ("text_config", "language_config", "llm_config")
"""Where multimodal configurations keep their decoder."""
_DTYPES: dict[str, Format] = {"bfloat16": "bf16", "float16": "fp16", "half": "fp16"}

_READ_BY_RULES = {
    "ffn_hidden_size": ("n_inner", "ffn_hidden_size"),
    "kv_heads": ("num_kv_heads",),
    "sliding_window": ("sliding_window", "attention_chunk_size"),
    "shared_expert_ffn_hidden_size": ("n_shared_experts", "intermediate_size"),
    "dense_layers": ("first_k_dense_replace", "mlp_only_layers", "moe_layers"),
    "moe_every": ("moe_layer_freq", "decoder_sparse_step", "interleave_moe_layer_step", "moe_layers"),
    "embedding_size": ("word_embed_proj_dim",),
    "max_positions": ("max_position_embeddings",),
}
"""Keys of ArchitectureSpec that rules give, to the keys of config.json they may come from."""


class ConfigError(HetplanError):
    """A config.json that gives no architecture. The problems have key paths; the reader of the file adds places."""

    def __init__(self, *problems: Problem) -> None:
        self.problems = problems
        super().__init__("\n".join(f"{key_text(p.path)}: {p.message}; {p.hint}" for p in problems))


@dataclass(frozen=True, slots=True, kw_only=True)
class HuggingFaceModel:
    """What a config.json says."""

    model_type: str
    """Family of the decoder."""
    architecture: ArchitectureSpec
    precision: Format | None
    """Number format of the stored weights where it is one to train in."""
    notes: tuple[str, ...]
    """What was assumed and what was left out, for the reader of the plan."""
    sources: Mapping[str, KeyPath]
    """Key of ArchitectureSpec to the key path in config.json that it was read from."""


def from_config(config: object) -> HuggingFaceModel:
    """Shapes from the contents of a config.json. Raises ConfigError with every problem found."""
    if not isinstance(config, Mapping):
        raise ConfigError(Problem((), "must be a JSON object with a model_type", "", "type"))
    path, values = _decoder(config)
    model_type, family = _family(config, path, values)
    reader = ConfigReader(
        values,
        path=path,
        outer=config,
        defaults=family.defaults,
        plain_defaults=family.plain_defaults,
        aliases=family.aliases,
    )
    raw = _shapes(reader, family)
    precision = _precision(reader, config)
    sources = _sources(reader, family, raw)
    architecture, invalid = validate(ArchitectureSpec, raw)
    # A shape is missing only where reading it failed, which is reported already.
    further = [p for p in (*invalid, *architecture_problems(raw)) if p.kind != "missing-key" or not reader.problems]
    problems = [*reader.problems, *(_in_words_of(p, sources, path) for p in further)]
    if problems or architecture is None:
        raise ConfigError(*dict.fromkeys(problems))
    return HuggingFaceModel(
        model_type=model_type,
        architecture=architecture,
        precision=precision,
        notes=(*_assumptions(reader, family, model_type), *reader.notes, *_left_out(reader, config)),
        sources=sources,
    )


def _decoder(config: Mapping[str, object]) -> tuple[KeyPath, Mapping[str, object]]:
    """The mapping with the decoder's keys, and the key path to it."""
    model_type = config.get("model_type")
    if not isinstance(model_type, str) or model_type not in known_types():
        for key in NESTED_KEYS:
            nested = config.get(key)
            if isinstance(nested, Mapping):
                return (key,), nested
    return (), config


def _family(config: Mapping[str, object], path: KeyPath, values: Mapping[str, object]) -> tuple[str, Family]:
    """The decoder's model_type and family."""
    families = known_types()
    known = ", ".join(families)
    model_type = values.get("model_type")
    if model_type is None and path:
        model_type = NESTED_TYPES.get(str(config.get("model_type")))
    if model_type is None:
        raise ConfigError(Problem((*path, "model_type"), "this key is missing", f"known: {known}", "missing-key"))
    if not isinstance(model_type, str):
        message = f"must be the name of a model family, not {found(model_type)}"
        raise ConfigError(Problem((*path, "model_type"), message, f"known: {known}", "type"))
    if model_type not in families:
        near = did_you_mean(model_type, families)
        if not path and model_type in NESTED_TYPES:
            near = "the decoder's keys should stand in text_config"
        hint = f"{near}  Known: {known}" if near else f"known: {known}; or write the shapes in a model.yaml"
        raise ConfigError(Problem((*path, "model_type"), f"unknown model family {quote(model_type)}", hint, "choice"))
    return model_type, families[model_type]


def _shapes(reader: ConfigReader, family: Family) -> dict[str, object]:
    """Keys of ArchitectureSpec that have a value."""
    raw: dict[str, object] = {}
    for key, name in family.keys.items():
        if isinstance(ArchitectureSpec.model_fields[key].default, bool):
            raw[key] = reader.flag(name)
        else:
            raw[key] = reader.count(name, least=0 if key == "mtp_layers" else 1)
    raw |= family.fixed
    for rule in family.rules:
        raw |= rule(reader)
    return {key: value for key, value in raw.items() if value is not None}


def _sources(reader: ConfigReader, family: Family, raw: Mapping[str, object]) -> dict[str, KeyPath]:
    """Key of ArchitectureSpec, those of mla dotted, to the place in the file that gave it its value."""
    latent = raw.get("mla")
    nested = {f"mla.{key}": (key,) for key in latent} if isinstance(latent, Mapping) else {}
    names = {**_READ_BY_RULES, **{key: (name,) for key, name in family.keys.items()}, **nested}
    places = {key: next((reader.places[n] for n in tried if n in reader.places), None) for key, tried in names.items()}
    return {key: place for key, place in places.items() if place is not None}


def _in_words_of(problem: Problem, sources: Mapping[str, KeyPath], path: KeyPath) -> Problem:
    """The problem at the place in config.json that its value came from, keys named as there.

    Keys without an underscore, such as experts, are words of the message as well and stay.
    """
    words = {key.removeprefix("mla."): str(place[-1]) for key, place in sources.items() if "_" in key}
    if not words:
        return problem._replace(path=path)
    pattern = re.compile(rf"\b({'|'.join(words)})\b")
    message, hint = (pattern.sub(lambda m: words[m[0]], text) for text in (problem.message, problem.hint))
    return problem._replace(path=sources.get(key_text(problem.path), path), message=message, hint=hint)


def _precision(reader: ConfigReader, config: Mapping[str, object]) -> Format | None:
    """The format of the stored weights, where it is one that training runs in."""
    for path, values in ((reader.path, reader.values), ((), config)):
        for key in ("dtype", "torch_dtype"):
            value = values.get(key)
            if isinstance(value, str):
                precision = _DTYPES.get(value.removeprefix("torch."))
                if precision is None:
                    reader.notes.append(f"{key} {shorten(value)} is how weights are stored, not how they are trained")
                return precision
            if value is not None:
                reader.problems.append(Problem((*path, key), f"must be text, not {found(value)}", "", "type"))
                return None
    return None


def _assumptions(reader: ConfigReader, family: Family, model_type: str) -> list[str]:
    """What was taken for keys that the file does not have."""
    notes = []
    if reader.assumed:
        taken = ", ".join(f"{key} {value}" for key, value in reader.assumed.items())
        notes.append(f"not in {key_text(reader.path) or 'the file'}, so as {model_type} has it by default: {taken}")
    heads = family.keys.get("kv_heads")
    if heads and heads not in reader.places and heads not in reader.assumed:
        notes.append(f"no {heads}: one per attention head")
    return notes


def _left_out(reader: ConfigReader, config: Mapping[str, object]) -> list[str]:
    """What the file says and a plan does not use."""
    notes = []
    if reader.path:
        notes.append(f"only the decoder in {key_text(reader.path)} is planned; what else the model has is left out")
    if any(values.get("quantization_config") for values in (reader.values, config)):
        notes.append("quantization_config is ignored: training holds whole weights")
    return notes
