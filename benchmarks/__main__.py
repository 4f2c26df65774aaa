"""Times `hetplan search` on the example clusters, each run a whole process, start-up included.

python -m benchmarks [CLUSTER ...] [--model MODEL] [--runs N]
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hetplan import load_cluster

ROOT = Path(__file__).parents[1]
MODELS = {
    0: "llama-2-7b",
    128: "llama-140b",
    5_000: "llama-3-405b",
    50_000: "llama-3-405b-large-batch",
}
"""Model by the least number of accelerators that it is meant for, where none is named."""


def model_for(accelerators: int) -> Path:
    """The example model whose batch keeps a cluster of this size busy."""
    name = MODELS[max(least for least in MODELS if least <= accelerators)]
    return ROOT / "models" / f"{name}.yaml"


def run_search(cluster: Path, model: Path) -> tuple[float, dict[str, Any]]:
    """Seconds of wall time of one search, and its record."""
    command = [sys.executable, "-m", "hetplan", "search", str(cluster), str(model), "--json"]
    command += ["--precision", "fp16"]  # the format that every accelerator of the examples supports
    start = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    elapsed_s = time.perf_counter() - start
    if not done.stdout:
        raise SystemExit(f"{cluster.name}: exit {done.returncode}\n{done.stderr}")
    record: dict[str, Any] = json.loads(done.stdout)
    return elapsed_s, record


def outcome(record: dict[str, Any]) -> str:
    """Status, gap and iteration time of a record, or its first error."""
    if "errors" in record:
        return f"error: {record['errors'][0]['message']}"
    if not record["plans"]:
        return str(record["status"])
    iteration_time_s = record["plans"][0]["prediction"]["iteration_time_s"]
    return f"{record['status']:<10} {100 * record['bound']['gap']:>8.4f} {iteration_time_s:>11.4g}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Print one line for each cluster."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Time whole searches.")
    parser.add_argument("clusters", nargs="*", type=Path, help="default: all of clusters/")
    parser.add_argument("--model", type=Path, help="default: by the size of the cluster")
    parser.add_argument("--runs", type=int, default=5, help="runs of each search (default: 5)")
    options = parser.parse_args(arguments)
    clusters = [path.resolve() for path in options.clusters] or sorted((ROOT / "clusters").glob("*.yaml"))
    sizes = {path: load_cluster(path).accelerators for path in clusters}

    print(f"{options.runs} runs each, {os.cpu_count()} cores")
    left = f"{'cluster':<24} {'accel.':>7} {'model':<24} {'min s':>7} {'median s':>8}"
    print(f"{left}  {'status':<10} {'gap %':>8} {'step s':>11}")
    for path in sorted(clusters, key=lambda p: (sizes[p], p.name)):
        model = options.model.resolve() if options.model else model_for(sizes[path])
        runs = [run_search(path, model) for _ in range(max(1, options.runs))]
        times_s = [elapsed_s for elapsed_s, _ in runs]
        print(
            f"{path.stem:<24} {sizes[path]:>7} {model.stem:<24} {min(times_s):>7.2f} {statistics.median(times_s):>8.2f}"
            f"  {outcome(runs[-1][1])}",
            flush=True,
        )


if __name__ == "__main__":
    main()
