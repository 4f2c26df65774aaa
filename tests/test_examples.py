"""The examples that the README plans, end to end through the library and the command line."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hetplan.plan import Plan
from hetplan.predict import predict
from hetplan.search.options import SearchOptions
from hetplan.search.planner import search
from hetplan.search.result import Limits, SearchResult
from hetplan.specs.files import load_inputs

ROOT = Path(__file__).parent.parent


def run_search(cluster: str, model: str, options: SearchOptions) -> SearchResult:
    """Search an example cluster for an example model or a config.json."""
    inputs = load_inputs(ROOT / "clusters" / f"{cluster}.yaml", ROOT / model, {})
    return search(inputs.cluster, inputs.model, inputs.training, search_options=options)


def layers_of(plan: Plan) -> int:
    """Blocks of all stages."""
    return sum(stage.layers for stage in plan.stages)


@pytest.fixture(scope="module")
def hethub() -> SearchResult:
    """The 768-accelerator example, once."""
    return run_search("hethub-768", "models/llama-140b.yaml", SearchOptions())


def test_hethub_is_proved(hethub: SearchResult) -> None:
    """Llama-140B on 128 + 640 accelerators of two types is planned to a gap of 0.1 %, with both types in use."""
    assert (hethub.status, hethub.stopped_by) == ("optimal", "gap")
    assert hethub.gap <= 0.001
    best = hethub.plans[0]
    assert hethub.bound_s <= best.prediction.iteration_time_s
    assert {stage.group for stage in best.plan.stages} == {"mi300x", "a100"}


def test_hethub_plans_are_sound(hethub: SearchResult) -> None:
    """Every ranked plan fits, holds all layers, is distinct, and is no faster than the one before it."""
    times = [entry.prediction.iteration_time_s for entry in hethub.plans]
    assert times == sorted(times)
    assert len({entry.plan.model_dump_json() for entry in hethub.plans}) == len(hethub.plans)
    for entry in hethub.plans:
        assert entry.prediction.fits
        assert layers_of(entry.plan) == 160
        assert all(s.memory.total_bytes <= s.memory_capacity_bytes for s in entry.prediction.stages)


def test_mixing_helps_on_hethub(hethub: SearchResult) -> None:
    """The mixed plan beats both types alone and stays below the roofline."""
    prediction = hethub.plans[0].prediction
    assert prediction.best_single_type_ratio is not None
    assert prediction.best_single_type_ratio > 1
    assert 0 < prediction.roofline_ratio < 1


def test_config_json_as_model() -> None:
    """A Hugging Face config.json of Llama-3-70B plans like a model.yaml."""
    result = run_search("h100-a100", "tests/data/huggingface/llama-3-70b.json", SearchOptions())
    assert result.status == "optimal"
    assert layers_of(result.plans[0].plan) == 80


def test_same_bytes_for_any_hash_seed() -> None:
    """The record is the same whatever PYTHONHASHSEED, but for what stands under `run`."""
    command = [sys.executable, "-m", "hetplan", "search", "clusters/tiny-16.yaml", "models/gpt2-small.yaml", "--json"]
    records = []
    for seed in ("0", "1", "4242"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
        record = json.loads(done.stdout)
        del record["run"]
        records.append(json.dumps(record))
    assert len(set(records)) == 1


def test_prediction_of_a_found_plan_is_the_same(hethub: SearchResult) -> None:
    """`predict` times each plan of a result exactly as the search did."""
    inputs = load_inputs(ROOT / "clusters" / "hethub-768.yaml", ROOT / "models" / "llama-140b.yaml", {})
    for entry in hethub.plans:
        again = predict(inputs.cluster, inputs.model, entry.plan, inputs.training, single_types=hethub.single_types)
        assert again == entry.prediction


def test_slow_link_wants_another_order_of_work() -> None:
    """Over the slow link the best plan beats all of plain 1F1B by more than its proof is open, and says why."""
    inputs = load_inputs(
        ROOT / "clusters" / "slow-link.yaml", ROOT / "models" / "llama-2-7b.yaml", {"global_batch_size": 512}
    )
    limits = Limits(max_tp=1, max_stages=4, max_microbatch_size=2)
    options = SearchOptions(gap=0.01, limits=limits)
    result = search(inputs.cluster, inputs.model, inputs.training, search_options=options)
    best, plain = result.plans[0], result.plain
    assert plain is not None
    assert plain.iteration_time_s * (1 - plain.gap) > 1.05 * best.prediction.iteration_time_s
    assert {stage.group for stage in best.plan.stages} == {"h100", "a100"}
    assert best.plan.schedule.warmup is not None
    assert "hop" in plain.why
    assert plain.plan.schedule.warmup is None
    again = predict(inputs.cluster, inputs.model, plain.plan, inputs.training)
    assert again.iteration_time_s == pytest.approx(plain.iteration_time_s, rel=1e-12)


@pytest.mark.proof
@pytest.mark.parametrize(
    ("cluster", "model"),
    [
        ("a100-v100", "models/llama-2-13b.yaml"),
        ("ascend-nvidia", "models/llama-2-13b.yaml"),
        ("gb200-h100", "models/llama-3-405b.yaml"),
        ("mi300x-h100", "models/mixtral-8x7b.yaml"),
        ("two-islands", "models/llama-3-70b.yaml"),
        ("mix-1000", "models/gpt3-175b.yaml"),
        ("mix-10000", "models/llama-3-405b.yaml"),
    ],
)
def test_examples_close_their_gap(cluster: str, model: str) -> None:
    """Example clusters with a model of their size are proved to 1 %."""
    inputs = load_inputs(ROOT / "clusters" / f"{cluster}.yaml", ROOT / model, {"precision": "fp16"})
    result = search(inputs.cluster, inputs.model, inputs.training, search_options=SearchOptions(gap=0.01))
    assert result.gap <= 0.01
    assert result.plans[0].prediction.fits
