"""Reads values of a Hugging Face config.json: types checked, defaults stated, every problem collected."""

from collections.abc import Callable, Iterable, Mapping

from hetplan.specs.document import Problem
from hetplan.specs.wording import KeyPath, either, found, number_text

STATED = frozenset(
    {
        "num_hidden_layers",
        "hidden_size",
        "intermediate_size",
        "num_attention_heads",
        "vocab_size",
        "n_layer",
        "n_embd",
        "n_head",
        "n_positions",
        "ffn_dim",
        "intermediate_size_mlp",
        "num_local_experts",
        "num_experts",
        "n_routed_experts",
        "num_experts_per_tok",
        "moe_intermediate_size",
        "n_shared_experts",
        "shared_expert_intermediate_size",
        "first_k_dense_replace",
        "q_lora_rank",
        "kv_lora_rank",
        "qk_nope_head_dim",
        "qk_rope_head_dim",
        "v_head_dim",
    }
)
"""Keys that a plain config.json has to give. transformers writes every shape into a plain file; into the configuration
nested in a multimodal one it writes only what differs from its defaults, so there an absent key means the default."""
NULLABLE = frozenset({"sliding_window", "q_lora_rank", "attention_chunk_size"})
"""Keys where null is an answer of its own; for others null means absent."""
MOST_LAYERS = 100_000


def _list_of(value: object, of: type) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(v, of) and not isinstance(v, bool) for v in value)


class ConfigReader:
    """One decoder's part of a config.json. Missing or wrong values become problems, and reading goes on.

    Args:
        values: the mapping that holds the decoder's keys.
        path: where that mapping stands in the file; not empty inside a multimodal configuration.
        outer: the whole file, asked for what the nested mapping may leave to it.
        defaults: what the library takes for absent keys; None stands for no value.
        plain_defaults: the same where a plain file means something else.
        aliases: other names of a key.
    """

    def __init__(
        self,
        values: Mapping[str, object],
        *,
        path: KeyPath = (),
        outer: Mapping[str, object] | None = None,
        defaults: Mapping[str, object],
        plain_defaults: Mapping[str, object],
        aliases: Mapping[str, tuple[str, ...]],
    ) -> None:
        self.values, self.path, self.outer = values, path, outer or {}
        self.defaults = dict(defaults) if path else {**defaults, **plain_defaults}
        self.aliases = aliases
        self.problems: list[Problem] = []
        self.notes: list[str] = []
        self.assumed: dict[str, str] = {}
        """Absent keys and what was taken for them, in words."""
        self.places: dict[str, KeyPath] = {}
        """Where each key that was read stands in the file."""

    def problem(self, key: str, message: str, hint: str = "", kind: str = "value") -> None:
        """Note a mistake at a key of the decoder's mapping."""
        self.problems.append(Problem(self.places.get(key, (*self.path, key)), message, hint, kind))

    def count(self, key: str, *, least: int = 1) -> int | None:
        """A whole number of at least `least`; None where there is none or it is wrong."""
        value = self._value(key, lambda v: isinstance(v, int) and not isinstance(v, bool), "a whole number")
        if not isinstance(value, int):
            return None
        if value < least:
            self.problem(key, f"{number_text(value)} is out of range", f"write at least {least}", "range")
            return None
        return value

    def flag(self, key: str) -> bool:
        """True or false; false where it is wrong."""
        return self._value(key, lambda v: isinstance(v, bool), "true or false") is True

    def names(self, key: str) -> tuple[str, ...] | None:
        """A list of names; None where there is none or it is wrong."""
        value = self._value(key, lambda v: _list_of(v, str), "a list of names")
        return tuple(value) if isinstance(value, list | tuple) else None

    def numbers(self, key: str) -> tuple[int, ...] | None:
        """A list of whole numbers; None where there is none or it is wrong."""
        value = self._value(key, lambda v: _list_of(v, int), "a list of whole numbers")
        return tuple(value) if isinstance(value, list | tuple) else None

    def layers(self, key: str) -> int:
        """The number of layers, or 0 where it is wrong; rules that go through the layers then do nothing."""
        value = self.values.get(key)
        if isinstance(value, int) and not isinstance(value, bool):
            return value if 0 < value <= MOST_LAYERS else 0
        default = self.defaults.get(key) if self.path else None
        return default if isinstance(default, int) else 0

    def _value(self, key: str, fits: Callable[[object], bool], wanted: str) -> object:
        given = {name: self.values[name] for name in self._names(key) if self.values.get(name) is not None}
        if not given and key == "tie_word_embeddings" and self.path and self.outer.get(key) is not None:
            self.places[key] = (key,)
            return self._checked(key, self.outer[key], fits, wanted)
        if given:
            name, value = next(iter(given.items()))
            self.places[key] = (*self.path, name)
            others = [n for n, v in given.items() if v != value]
            if others:
                message = f"{name} and {either(others)} are the same setting and disagree"
                self.problem(key, message, "keep one of them", "conflict")
            return self._checked(key, value, fits, wanted)
        if key in NULLABLE and key in self.values:
            return None
        return self._default(key, wanted)

    def _names(self, key: str) -> Iterable[str]:
        return (key, *self.aliases.get(key, ()))

    def _checked(self, key: str, value: object, fits: Callable[[object], bool], wanted: str) -> object:
        if fits(value):
            return value
        hint = f"write {wanted}"
        if isinstance(value, str) and value.isdecimal() and len(value) < 16 and fits(int(value)):
            hint = f"write {int(value)}, without quotes"
        elif isinstance(value, float) and value.is_integer() and fits(int(value)) and abs(value) < 1e15:
            hint = f"write {int(value)}"
        self.problem(key, f"must be {wanted}, not {found(value)}", hint, "type")
        return None

    def _default(self, key: str, wanted: str) -> object:
        """What an absent key means, or a problem where nothing can be assumed."""
        name = next((n for n in self._names(key) if n in self.values), key)
        if key not in self.defaults or (key in STATED and not self.path):
            self.places[key] = (*self.path, name)
            problem = "is null" if name in self.values else "this key is missing"
            self.problem(key, problem, f"add {key}: {wanted}", "missing-key")
            return None
        value = self.defaults[key]
        if value is not None:
            self.assumed[key] = str(value).lower() if isinstance(value, bool) else str(value)
        return value
