"""The example with a slow link: another order of work wins, the result says by how much; a fast link is not blamed."""

from functools import cache
from pathlib import Path

import pytest

from hetplan.predict import predict
from hetplan.search.options import SearchOptions
from hetplan.search.planner import search
from hetplan.search.result import Limits, SearchResult
from hetplan.specs.files import load_cluster, load_model

ROOT = Path(__file__).parents[2]
LIMITS = Limits(max_stages=8, max_stages_per_group=4, max_tp=4)
"""A part of the space, so that the test is short."""


@cache
def found(rate: float) -> SearchResult:
    """What is found where the link is so many times as fast and near."""
    cluster, model = load_cluster(ROOT / "clusters/slow-link.yaml"), load_model(ROOT / "models/llama-2-13b.yaml")
    link = cluster.links[0]
    faster = link.model_copy(
        update={
            "bandwidth_bytes_per_s": link.bandwidth_bytes_per_s * rate,
            "total_bandwidth_bytes_per_s": (link.total_bandwidth_bytes_per_s or 0.0) * rate,
            "latency_s": link.latency_s / rate,
            "path": link.path if rate == 1 else "rdma-direct",
        }
    )
    cluster = cluster.model_copy(update={"links": (faster,)})
    return search(cluster, model.model, model.training, search_options=SearchOptions(limits=LIMITS))


def test_deeper_warmup_beats_plain_1f1b() -> None:
    """Both are proved: plain 1F1B takes at least a tenth longer, and the reason names the hop."""
    result = found(1)
    assert (result.status, result.plans[0].plan.schedule.name) == ("optimal", "1f1b")
    assert result.plans[0].plan.schedule.warmup is not None
    plain = result.plain
    assert plain is not None
    assert plain.gap <= 0.001
    assert plain.iteration_time_s > 1.1 * result.plans[0].prediction.iteration_time_s
    assert plain.plan.schedule.warmup is None
    assert "hop from" in plain.why


def test_plain_plan_is_predicted_alike() -> None:
    """The time that is printed for plain 1F1B is the prediction of its plan."""
    plain = found(1).plain
    assert plain is not None
    cluster, model = load_cluster(ROOT / "clusters/slow-link.yaml"), load_model(ROOT / "models/llama-2-13b.yaml")
    again = predict(cluster, model.model, plain.plan, model.training)
    assert again.iteration_time_s == pytest.approx(plain.iteration_time_s, rel=1e-12)


def test_fast_link_is_not_blamed() -> None:
    """With a link as fast as the networks the gain is small, and no hop is given as its reason."""
    result, slow = found(1000), found(1)
    assert result.status == "optimal"
    assert result.plain is not None
    assert slow.plain is not None
    longer, slow_longer = (
        entry.plain.iteration_time_s / entry.plans[0].prediction.iteration_time_s - 1  # type: ignore[union-attr]
        for entry in (result, slow)
    )
    assert 0 <= longer < 0.2 * slow_longer
    assert "hop" not in result.plain.why
