"""Running command lines in this process, and the small inputs that the tests of commands share."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
CLUSTER = ROOT / "clusters" / "tiny-16.yaml"

SMALL_MODEL = """\
name: small
architecture:
  layers: 8
  hidden_size: 1024
  ffn_hidden_size: 4096
  attention_heads: 16
  vocab_size: 32000
training:
  global_batch_size: 64
  sequence_length: 1024
  precision: bf16
  optimizer: adam
"""

TWO_H100 = """\
name: two-h100
groups:
  - name: h100
    accelerator: h100-sxm5-80gb
    nodes: 1
    accelerators_per_node: 2
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """What a command line did."""

    code: int
    out: str
    err: str

    @property
    def record(self) -> dict[str, Any]:
        """The one JSON object on stdout."""
        data = json.loads(self.out, parse_constant=pytest.fail)
        assert isinstance(data, dict)
        assert self.out.endswith("}\n")
        assert data["schema_version"] == 1
        return data

    @property
    def error(self) -> dict[str, Any]:
        """The first error of the JSON object on stdout."""
        first: dict[str, Any] = self.record["errors"][0]
        return first


Run = Callable[..., Ran]


def written(path: Path, data: object) -> Path:
    """The file with this record in it."""
    path.write_text(json.dumps(data), encoding="utf-8")
    return path
