"""What the pages show of real runs: screens, a record, a pipe, times. Rewritten by `make docs`."""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from docs.markdown import ROOT, console, fenced

COLUMNS = "100"
HETHUB = ("clusters/hethub-768.yaml", "models/llama-140b.yaml")
"""What `make run` searches."""


def run(*arguments: str, both: bool = True) -> str:
    """What a command prints in 100 columns, stdout before stderr."""
    environment = os.environ | {"COLUMNS": COLUMNS, "NO_COLOR": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "hetplan", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment, check=False)
    lines = (
        done.stdout + ("\n" if done.stdout and done.stderr and both else "") + (done.stderr if both else "")
    ).splitlines()
    return "\n".join(line.rstrip() for line in lines)


BAD_FILE = """\
name: my-cluster
groups:
  - name: old
    accelerator: V100
    nodes: 2
    accelerators_per_node: 8
    inter_node: {bandwidth: 100, latency: 5 us}
"""


def bad_file() -> str:
    """The mistakes of a small cluster file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "cluster.yaml"
        path.write_text(BAD_FILE, "utf-8")
        shown = run("search", str(path), "models/llama-2-7b.yaml").replace(str(path), "cluster.yaml")
    return console("hetplan search cluster.yaml models/llama-2-7b.yaml", shown)


def example() -> str:
    """A result record with its long parts left out."""
    record = json.loads(run("search", "clusters/tiny-16.yaml", "models/gpt2-small.yaml", "--json", both=False))
    record["inputs"] = dict.fromkeys(record["inputs"], "...")
    record["plans"] = record["plans"][:1]
    best = record["plans"][0]
    for stages in (best["plan"]["stages"], best["prediction"]["stages"]):
        del stages[1:]
    if record["plain_1f1b"]:
        record["plain_1f1b"]["plan"] = "..."
    for digest in (record["cluster"], record["model"]):
        digest["digest"] = digest["digest"][:15] + "..."
    record["run"]["elapsed_s"] = round(record["run"]["elapsed_s"], 1)
    text = json.dumps(record, indent=1).replace('"..."', "{...}")
    short = re.compile(r"\{[^{}\[\]]{0,150}\}|\[[^{}\[\]]{0,80}\]")
    return fenced(short.sub(lambda m: re.sub(r"\s+", " ", m[0]), text), "text")


JQ = r""".plans[0].plan.stages[] | "\(.group): \(.layers) layers, tp \(.tp), dp \(.dp)" """.strip()


def jq() -> str | None:
    """A pipe through jq; None where there is none."""
    if shutil.which("jq") is None:
        return None
    files = ("clusters/tiny-16.yaml", "models/llama-3-8b.yaml")
    record = run("search", *files, "--json", both=False)
    done = subprocess.run(["jq", "-r", JQ], input=record, capture_output=True, text=True, check=True)
    return console(f"hetplan search {' '.join(files)} --json | jq -r '{JQ}'", done.stdout)


def timeline() -> str:
    """The best plan of a result, drawn."""
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "result.json")
        run("search", *HETHUB, "-o", path)
        shown = run("timeline", path, both=False)
    return console("hetplan timeline result.json", shown)


BENCHMARKS = {"bench": "benchmarks", "bench-simulation": "benchmarks.simulation"}
SCREENS: dict[str, Callable[[], str | None]] = {
    "make-run": lambda: console("make run", run("search", *HETHUB)),
    "timeline": timeline,
    "slow-link": lambda: console(
        "hetplan search clusters/slow-link.yaml models/llama-2-13b.yaml",
        run("search", "clusters/slow-link.yaml", "models/llama-2-13b.yaml"),
    ),
    "jq": jq,
    "bad-file": bad_file,
    "infeasible": lambda: console(
        "hetplan search clusters/one-node.yaml models/llama-2-70b.yaml",
        run("search", "clusters/one-node.yaml", "models/llama-2-70b.yaml"),
    ),
    "example": example,
}


def timeless(text: str) -> str:
    """Text without what varies from run to run."""
    return re.sub(r'proved in [0-9.]+ m?s|"elapsed_s": [0-9.]+', "", text)


def screens(kept: Mapping[str, str]) -> dict[str, str]:
    """What real runs print; of `kept`, what differs in elapsed time alone stays as it stands."""
    found = {name: made for name, make in SCREENS.items() if (made := make()) is not None}
    return {
        name: kept[name] if timeless(kept.get(name, "")) == timeless(text) else text for name, text in found.items()
    }


def bench(runs: str) -> dict[str, str]:
    """What the benchmarks print."""
    printed = {}
    for name, module in BENCHMARKS.items():
        command = [sys.executable, "-m", module, "--runs", runs]
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True)
        printed[name] = fenced(done.stdout, "text")
    return printed
