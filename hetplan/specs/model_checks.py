"""What a model file must fulfil beyond the types of its fields: shapes that belong together.

The checks run on data as read, so that all mistakes of a file are reported together; whatever has a wrong type is
left to validation.
"""

from collections.abc import Iterator, Mapping
from math import isqrt

from hetplan.specs.cluster_checks import name_problems
from hetplan.specs.document import Problem
from hetplan.specs.wording import KeyPath, either, nearest, number_text

LARGEST_MODEL = 10**15
"""Parameters above which sizes are taken for a typing mistake: a thousand times the largest published models."""

_NEEDS_EXPERTS = (
    "experts_per_token",
    "expert_ffn_hidden_size",
    "expert_bias",
    "router_bias",
    "shared_expert_ffn_hidden_size",
    "shared_expert_gate",
    "dense_layers",
)
_SHAPES = ("architecture", "huggingface")
_NOT_WITH_MLA = {
    "kv_heads": "latent attention has no key-value heads",
    "head_dim": "mla gives the head widths",
    "qk_norm": "latent attention norms its latents",
}


def model_problems(raw: object) -> list[Problem]:
    """Everything wrong with the data of a model file."""
    if not isinstance(raw, Mapping):
        return []
    problems = list(name_problems(raw.get("name"), ("name",)))
    written, linked = raw.get("architecture"), raw.get("huggingface")
    # Validation reports an unknown key with the one that was meant.
    misspelt = any(nearest(str(key), _SHAPES) for key in raw if key not in _SHAPES)
    if written is not None and linked is not None:
        hint = "keep one of the two: the shapes, or the path of a config.json"
        problems.append(Problem(("huggingface",), "given together with architecture", hint, "choice"))
    elif written is None and linked is None and not misspelt:
        hint = "add architecture: with the shapes, or huggingface: with the path of a config.json"
        problems.append(Problem((), "no architecture", hint, "missing-key"))
    if isinstance(written, Mapping):
        problems += architecture_problems(written, ("architecture",))
        problems += _positions(written, raw.get("training"))
    return problems


def architecture_problems(raw: Mapping[str, object], path: KeyPath = ()) -> list[Problem]:
    """Shapes that contradict each other, each at the key that is likeliest wrong; `path` leads to `raw`."""
    found = [*_heads(raw), *_latent(raw), *_experts(raw), *_windows(raw), *_size(raw)]
    return [problem._replace(path=(*path, *problem.path)) for problem in found]


def _count(raw: Mapping[str, object], key: str) -> int:
    """The whole number at a key, or 0."""
    value = raw.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def _given(raw: Mapping[str, object], key: str) -> bool:
    """Whether a key asks for something: neither absent nor nothing nor off."""
    return raw.get(key) not in (None, 0, False)


def _near_divisors(number: int, value: int) -> list[str]:
    """The divisors of `number` just below and just above `value`."""
    small = [d for d in range(1, isqrt(min(number, 10**10)) + 1) if number % d == 0]
    divisors = {*small, *(number // d for d in small)}
    below = max((d for d in divisors if d < value), default=None)
    above = min((d for d in divisors if d > value), default=None)
    return [number_text(d) for d in (below, above) if d is not None]


def _near_multiples(number: int, step: int) -> str:
    """The multiples of `step` just below and just above `number`."""
    below = number // step * step
    return either(number_text(m) for m in (below, below + step) if m)


def _heads(raw: Mapping[str, object]) -> Iterator[Problem]:
    hidden, heads, kv = _count(raw, "hidden_size"), _count(raw, "attention_heads"), _count(raw, "kv_heads")
    if hidden and heads and hidden % heads and raw.get("head_dim") is None and raw.get("mla") is None:
        yield Problem(
            ("hidden_size",),
            f"{number_text(hidden)} is not a multiple of attention_heads ({number_text(heads)})",
            f"write {_near_multiples(hidden, heads)}, or give head_dim",
            "divisibility",
        )
    if heads and kv and heads % kv:
        yield Problem(
            ("kv_heads",),
            f"attention_heads ({number_text(heads)}) is not a multiple of {number_text(kv)}",
            f"write {either(_near_divisors(heads, kv))}" if heads > 1 else "write 1",
            "divisibility",
        )


def _latent(raw: Mapping[str, object]) -> Iterator[Problem]:
    if raw.get("mla") is None:
        return
    for key, reason in _NOT_WITH_MLA.items():
        if _given(raw, key):
            yield Problem((key,), f"{key} together with mla", f"remove one of the two: {reason}", "conflict")


def _experts(raw: Mapping[str, object]) -> Iterator[Problem]:
    experts, visited = _count(raw, "experts"), _count(raw, "experts_per_token")
    if not _given(raw, "experts"):
        for key in _NEEDS_EXPERTS:
            if _given(raw, key):
                yield Problem((key,), f"{key} without experts", "add experts, or remove this", "missing-key")
        return
    if experts and not _given(raw, "experts_per_token"):
        yield Problem(
            ("experts",),
            "experts without experts_per_token",
            "add experts_per_token, how many of them one token visits",
            "missing-key",
        )
    if experts and visited > experts:
        yield Problem(
            ("experts_per_token",),
            f"{number_text(visited)} of {number_text(experts)} experts",
            f"write at most {number_text(experts)}",
            "range",
        )
    if _given(raw, "shared_expert_gate") and not _given(raw, "shared_expert_ffn_hidden_size"):
        hint = "add shared_expert_ffn_hidden_size, or remove this"
        yield Problem(("shared_expert_gate",), "a gate without a shared expert", hint, "missing-key")
    layers, leading, every = _count(raw, "layers"), _count(raw, "dense_layers"), _count(raw, "moe_every")
    if layers and leading >= layers:
        yield Problem(
            ("dense_layers",),
            f"{number_text(leading)} of {number_text(layers)} layers: none is left for experts",
            f"write at most {number_text(layers - 1)}, or experts: 0" if layers > 1 else "write experts: 0",
            "range",
        )
    elif layers and every > 1 and layers // every * every <= leading:
        yield Problem(
            ("moe_every",),
            f"every {number_text(every)}th of {number_text(layers)} layers: none has experts",
            f"write at most {number_text(layers)}, or experts: 0" if leading == 0 else "write 1",
            "range",
        )


def _windows(raw: Mapping[str, object]) -> Iterator[Problem]:
    if _given(raw, "full_attention_every") and not _given(raw, "sliding_window"):
        hint = "add sliding_window, or remove this"
        yield Problem(("full_attention_every",), "full_attention_every without sliding_window", hint, "missing-key")


def _positions(raw: Mapping[str, object], training: object) -> Iterator[Problem]:
    """A table of positions ends somewhere; rotary positions do not."""
    table = _count(raw, "max_positions")
    length = _count(training, "sequence_length") if isinstance(training, Mapping) else 0
    if raw.get("position") == "learned" and table and length > table:
        message = f"{number_text(length)} tokens, and the model has {number_text(table)} learned positions"
        yield Problem(("training", "sequence_length"), message, f"write at most {number_text(table)}", "range")


def _size(raw: Mapping[str, object]) -> Iterator[Problem]:
    """Each width by itself may be possible and the model still be larger than anyone could mean."""
    layers, hidden, ffn = _count(raw, "layers"), _count(raw, "hidden_size"), _count(raw, "ffn_hidden_size")
    routed = _count(raw, "experts") * (_count(raw, "expert_ffn_hidden_size") or ffn)
    if layers * hidden * max(ffn, hidden, routed) > LARGEST_MODEL:
        hint = "check layers, hidden_size, ffn_hidden_size and experts"
        yield Problem(("hidden_size",), "a model of more than 10^15 parameters", hint, "range")
