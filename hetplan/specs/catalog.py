"""The accelerator catalogue: one datasheet per file, found by catalogue name or by the name a driver prints.

Names are compared whole: "NVIDIA H20" is never an H200, "B200" never a GB200. Case, separators and vendor words
("NVIDIA", "Tesla", "GeForce", ...) do not count. A name that fits several datasheets, such as "A100", is not guessed:
`accelerator` gives None and `suggestions` lists them.
"""

import difflib
import re
from functools import cache, lru_cache
from math import inf
from pathlib import Path

from hetplan.specs.accelerator import AcceleratorSpec
from hetplan.specs.loader import load_spec

_FOLDER = Path(__file__).resolve().parent.parent / "catalog" / "accelerators"
_VENDOR_WORDS = frozenset({"nvidia", "amd", "intel", "huawei", "google", "aws", "tesla", "geforce", "instinct"})
_LONGEST_NAME = 100
_MOST_SUGGESTIONS = 3
_NEAR = 0.75
"""Least similarity (difflib ratio) at which a misspelt name is suggested."""
_VARIANT, _ALIKE, _FAR = (2, -inf), (3, -inf), (4, -inf)
"""Where these kinds of nearness begin; see `_nearness`."""
_CONFIDENCE = ("high", "medium", "low", "unknown")


@cache
def names() -> tuple[str, ...]:
    """Catalogue names, sorted. Reads file names only."""
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.yaml")))


@lru_cache(maxsize=1024)
def accelerator(name: str, *, reported_bytes: float | None = None) -> AcceleratorSpec | None:
    """The datasheet of this catalogue name or driver name; None where none or more than one fits.

    Some consumer cards share one driver name between several memory sizes; `reported_bytes`, the memory that the
    driver reports, tells those apart.
    """
    if name in names():
        return _load(name)
    found = _by_alias(_squeeze(name))
    if not found and reported_bytes is not None:
        found = _by_alias(_squeeze(f"{name} {reported_bytes / 2**30:.0f}GB"))
    return found[0] if len(found) == 1 else None


def suggestions(name: str) -> tuple[str, ...]:
    """Up to three catalogue names that may be meant, best first; empty where none is near.

    Datasheets that the name fits but does not single out come first ("A100"), then those that it is a variant of
    ("H200 NVL"), then those spelt alike.
    """
    if not _tokens(name) or len(name) > _LONGEST_NAME:
        return ()
    ranked = []
    for sheet in all_accelerators():
        nearness = min(_nearness(name, spelling) for spelling in (sheet.name, *sheet.aliases))
        if nearness < _FAR:
            well_sourced = (not sheet.is_measured("bf16"), _CONFIDENCE.index(sheet.confidence))
            ranked.append((nearness, well_sourced, sheet.name))
    ranked.sort()
    fits = bool(ranked) and ranked[0][0] < _VARIANT
    near = [key for nearness, _, key in ranked if nearness < _ALIKE or not fits]
    return tuple(near[:_MOST_SUGGESTIONS])


@cache
def all_accelerators() -> tuple[AcceleratorSpec, ...]:
    """Every datasheet, by catalogue name."""
    return tuple(_load(name) for name in names())


@cache
def _load(name: str) -> AcceleratorSpec:
    return load_spec(_FOLDER / f"{name}.yaml", AcceleratorSpec)


@cache
def _texts() -> tuple[tuple[str, str], ...]:
    """(catalogue name, letters and digits of the file) of every datasheet, without parsing."""
    return tuple((name, _joined((_FOLDER / f"{name}.yaml").read_text(encoding="utf-8"))) for name in names())


def _by_alias(wanted: str) -> tuple[AcceleratorSpec, ...]:
    """Datasheets whose name or one of whose aliases is `wanted`, a squeezed name."""
    if not wanted or len(wanted) > _LONGEST_NAME:
        return ()
    # Parsing is what costs time, so only files that contain the name at all are parsed.
    sheets = (_load(name) for name, text in _texts() if wanted in text)
    return tuple(sheet for sheet in sheets if wanted in {_squeeze(s) for s in (sheet.name, *sheet.aliases)})


def _joined(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "", text.lower())


def _tokens(name: str) -> list[str]:
    """The words of a name in lower case, vendor words left out."""
    return [token for token in re.findall(r"[a-z0-9]+", name.lower()) if token not in _VENDOR_WORDS]


def _squeeze(name: str) -> str:
    """What names are compared by: "NVIDIA A100-SXM4-80GB" is a100sxm480gb."""
    return "".join(_tokens(name))


def _parts(name: str) -> frozenset[str]:
    """Runs of letters and runs of digits: "H100 NVL" is h, 100, nvl."""
    return frozenset(part for token in _tokens(name) for part in re.findall(r"[a-z]+|[0-9]+", token))


def _nearness(name: str, spelling: str) -> tuple[int, float]:
    """How near two names are, a sort key.

    0: the same. 1: `name` fits `spelling`. 2: `name` is a variant of `spelling`. 3: spelt alike. 4: far.
    """
    wanted, spelt = _squeeze(name), _squeeze(spelling)
    if wanted == spelt:
        return (0, 0.0)
    parts, words = _parts(name), set(_tokens(spelling))
    # A number is what tells models apart; letters alone ("x") would fit half the catalogue.
    if parts <= _parts(spelling) and any(part.isdigit() for part in parts):
        return (1, 0.0)
    if words <= set(_tokens(name)):
        return (2, -len(words))
    ratio = difflib.SequenceMatcher(None, wanted, spelt, autojunk=False).ratio()
    return (3, -ratio) if ratio >= _NEAR else _FAR
