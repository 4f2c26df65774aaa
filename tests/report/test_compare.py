"""Comparing two results: the verdict, what changed, and when it is a regression."""

import pytest

from hetplan.plan import Recompute
from hetplan.report.build import search_record
from hetplan.report.compare import compare_record
from hetplan.report.compare_screen import compare_screen
from hetplan.report.input_changes import input_changes
from hetplan.report.records import ResultRecord
from hetplan.specs.training import TrainingSpec
from tests.report import samples

PLAN = samples.plan([("mi300x", [32]), ("a100", [13] * 5)])


def timed(time_s: float) -> ResultRecord:
    """A result whose best plan takes this long."""
    return search_record(
        samples.result([samples.ranked(1, time_s, PLAN)]), samples.inputs(samples.mixed_cluster()), samples.RUN
    )


def changes(before: ResultRecord, after: ResultRecord) -> dict[str, tuple[str | None, str | None]]:
    """Input changes by key."""
    return {c.key: (c.before, c.after) for c in input_changes(before.inputs, after.inputs)}


@pytest.mark.parametrize(
    ("before_s", "after_s", "allowed", "verdict", "regression"),
    [
        (30.0, 30.0, 0.0, "same", False),
        (30.0, 30.0 * (1 + 1e-12), 0.0, "same", False),
        (30.0, 30.001, 0.0, "slower", True),
        (30.0, 30.5, 2.0, "slower", False),
        (30.0, 30.7, 2.0, "slower", True),
        (30.0, 29.0, 0.0, "faster", False),
        (30.0, 29.0, 5.0, "faster", False),
    ],
)
def test_verdicts(before_s: float, after_s: float, allowed: float, verdict: str, regression: bool) -> None:
    """Slower by more than is allowed is a regression, and nothing else."""
    record = compare_record(timed(before_s), timed(after_s), fail_above_pct=allowed)
    assert (record.verdict, record.regression) == (verdict, regression)
    assert record.slowdown_pct == pytest.approx((after_s / before_s - 1) * 100, abs=1e-9)


@pytest.mark.parametrize("name", ["optimal", "many_stages", "infeasible", "unknown"])
def test_a_result_with_itself(name: str) -> None:
    """Nothing differs and nothing is worse."""
    make = getattr(samples, name)
    record = compare_record(make(), make())
    assert not record.regression
    assert record.verdict in ("same", "none")
    assert record.plan_changes == record.input_changes == ()
    assert {m.verdict for m in record.measures} <= {"same", "unknown"}


@pytest.mark.parametrize("without", [samples.infeasible, samples.unknown])
def test_one_plan_only(without: object) -> None:
    """Losing the plan is a regression whatever is allowed; finding one is not."""
    nothing = without()  # type: ignore[operator]
    lost = compare_record(timed(30), nothing, fail_above_pct=1000)
    assert (lost.verdict, lost.regression, lost.slowdown_pct) == ("lost", True, None)
    found = compare_record(nothing, timed(30))
    assert (found.verdict, found.regression) == ("found", False)
    assert lost.plan_changes == ()


def test_unlike_batches_are_compared_by_tokens() -> None:
    """Twice the batch in less than twice the time is faster, and the time per iteration decides nothing."""
    small = timed(30.0)
    training = TrainingSpec(global_batch_size=3072, sequence_length=4096)
    entry = samples.ranked(1, 50.0, PLAN, tokens=3072 * 4096)
    asked = samples.inputs(samples.mixed_cluster())
    asked = type(asked)(cluster=asked.cluster, model=asked.model, training=training, stack=asked.stack)
    large = search_record(samples.result([entry]), asked, samples.RUN)
    record = compare_record(small, large)
    assert record.verdict == "faster"
    assert [m.name for m in record.measures[:2]] == ["tokens/s", "time per iteration"]
    assert record.measures[1].verdict == "unknown"
    assert changes(small, large)["training.global_batch_size"] == ("1,536", "3,072")


def test_measures_say_which_way() -> None:
    """Less time and money are better, more tokens, MFU and headroom are."""
    record = compare_record(timed(30.0), timed(31.0))
    assert {m.name: m.verdict for m in record.measures} == {
        "time per iteration": "worse",
        "tokens/s": "worse",
        "MFU": "worse",
        "memory headroom": "same",
        "$/Mtok": "worse",
    }


def test_input_changes_name_keys_and_units() -> None:
    """Written keys, written units: network in bits, devices in bytes."""
    before = samples.optimal()
    cluster = before.inputs.cluster
    group = cluster.groups[0]
    sheet = group.accelerator.model_copy(update={"memory_bandwidth_bytes_per_s": 1.9e12})
    inter = group.inter_node
    assert inter is not None
    group = group.model_copy(
        update={
            "accelerator": sheet,
            "nodes": 70,
            "usable_memory_bytes": None,
            "inter_node": inter.model_copy(update={"latency_s": 1e-5}),
        }
    )
    link = cluster.links[0].model_copy(update={"bandwidth_bytes_per_s": 25e9 / 8, "path": "tcp-host"})
    cluster = cluster.model_copy(update={"groups": (group, *cluster.groups[1:]), "links": (link,)})
    stack = {**before.inputs.stack, "gemm_share": 0.8}
    options = {**before.inputs.options, "time_limit_s": 10.0, "seed": 1}
    after = before.model_copy(
        update={"inputs": before.inputs.model_copy(update={"cluster": cluster, "stack": stack, "options": options})}
    )
    assert changes(before, after) == {
        "groups[0].accelerator.memory_bandwidth": ("2,000 GB/s", "1,900 GB/s"),
        "groups[0].nodes": ("80", "70"),
        "groups[0].usable_memory": ("76 GiB", None),
        "groups[0].inter_node.latency": ("5 us", "10 us"),
        "links[0].bandwidth": ("100 Gbit/s", "25 Gbit/s"),
        "links[0].path": ("rdma-direct", "tcp-host"),
        "stack.gemm_share": ("0.9", "0.8"),
        "options.time_limit_s": ("60 s", "10 s"),
        "options.seed": (None, "1"),
    }


def test_groups_are_matched_by_name() -> None:
    """Another order is one change; a swapped accelerator is named, not spelt out; links match either way round."""
    before = samples.optimal()
    cluster = before.inputs.cluster
    link = cluster.links[0].model_copy(update={"between": ("mi300x", "a100")})
    turned = cluster.model_copy(update={"groups": cluster.groups[::-1], "links": (link,)})
    after = before.model_copy(update={"inputs": before.inputs.model_copy(update={"cluster": turned})})
    found = changes(before, after)
    assert found["groups"] == ("a100, mi300x", "mi300x, a100")
    assert set(found) == {"groups", "links[0].between"}
    other = cluster.groups[0].model_copy(update={"accelerator": samples.spec(samples.A30)})
    swapped = cluster.model_copy(update={"groups": (other, cluster.groups[1])})
    after = before.model_copy(update={"inputs": before.inputs.model_copy(update={"cluster": swapped})})
    assert changes(before, after) == {"groups[0].accelerator": ("a100-sxm4-80gb", "a30")}


def test_another_stack_is_named() -> None:
    """A profile of another name is one change."""
    before = samples.optimal()
    stack = {"name": "other", "gemm_share": 0.5}
    after = before.model_copy(update={"inputs": before.inputs.model_copy(update={"stack": stack})})
    assert changes(before, after) == {"stack": ("sample-stack", "other")}


def test_plan_changes() -> None:
    """What differs between the plans, in words."""
    before = timed(30)
    other = samples.plan([("mi300x", [32]), ("a100", [13] * 5)], microbatches=24, tp=8, microbatch_size=2)
    entry = samples.ranked(1, 30.0, other)
    after = search_record(samples.result([entry]), samples.inputs(samples.mixed_cluster()), samples.RUN)
    found = {c.key: (c.before, c.after) for c in compare_record(before, after).plan_changes}
    assert found == {"parallel": ("tp4 dp32", "tp8 dp32"), "micro-batches": ("48 of 1", "24 of 2")}


def test_plans_that_differ_in_which_layers_recompute() -> None:
    """The same counts on other stages are a change too."""
    a = samples.plan([("a100", [4, 4])], dp=2)
    half = Recompute(none=2, full=2)
    first = a.model_copy(update={"stages": (a.stages[0].model_copy(update={"recompute": half}), a.stages[1])})
    second = a.model_copy(update={"stages": (a.stages[0], a.stages[1].model_copy(update={"recompute": half}))})
    records = [
        search_record(
            samples.result([samples.ranked(1, 30.0, p)]), samples.inputs(samples.mixed_cluster()), samples.RUN
        )
        for p in (first, second)
    ]
    assert [c.key for c in compare_record(*records).plan_changes] == ["recompute"]


def test_close_times_print_apart() -> None:
    """Before and after never look the same while the verdict says slower."""
    a, b = timed(31.800), timed(31.803)
    text = samples.plain(compare_screen(a, b, samples.stream(80)))
    assert "+0.009%" in text or "+0.01%" in text
    times = next(line for line in text.splitlines() if "time per iteration" in line).split()
    assert times[3] != times[5]
    assert "✗ regression" in text


def test_many_changes_are_counted() -> None:
    """The screen lists a dozen, the record all."""
    a, b = samples.many_stages(), samples.optimal()
    text = samples.plain(compare_screen(a, b, samples.stream(100)))
    total = len(compare_record(a, b).input_changes)
    assert total > 12
    assert f"and {total - 12} more" in text
