"""What makes a plan meaningless, with the key of every mistake, and what makes a stage illegal."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from pydantic import ValidationError

from hetplan.errors import Mistake, SpecError
from hetplan.plan import Plan, Recompute, Schedule
from hetplan.predict import Setting, plan_mistakes, predict, predict_in, rules_broken
from hetplan.specs.cluster import ClusterSpec, LinkSpec
from hetplan.specs.model import ModelSpec
from hetplan.specs.training import TrainingSpec
from tests.cost.builders import group
from tests.predict.builders import (
    A100,
    DENSE,
    H100,
    MOE,
    NAMES,
    Split,
    plan_of,
    plans,
    setting_of,
    simple_plan,
    training_of,
    two_groups,
)

MODEL = ModelSpec(name="small", architecture=DENSE)
Change = Callable[[Plan], Plan]


def mistakes(plan: Plan, cluster: ClusterSpec | None = None, training: TrainingSpec | None = None) -> list[Mistake]:
    """What is wrong with a plan for the small model."""
    return plan_mistakes(plan, cluster or two_groups(), MODEL, training or training_of(plan))


def told(found: list[Mistake]) -> list[tuple[str | None, str, str]]:
    """Keys, messages and hints."""
    return [(mistake.key, mistake.message, mistake.hint) for mistake in found]


def scheduled(**change: Any) -> Change:
    """Another schedule entry."""
    return lambda plan: plan.model_copy(update={"schedule": plan.schedule.model_copy(update=change)})


def staged(index: int, **change: Any) -> Change:
    """One stage changed."""

    def changed(plan: Plan) -> Plan:
        stages = list(plan.stages)
        stages[index] = stages[index].model_copy(update=change)
        return plan.model_copy(update={"stages": tuple(stages)})

    return changed


def chunked(index: int, chunk: int, **change: Any) -> Change:
    """One chunk changed."""

    def changed(plan: Plan) -> Plan:
        chunks = list(plan.stages[index].parts)
        chunks[chunk] = chunks[chunk].model_copy(update=change)
        return staged(index, chunks=tuple(chunks))(plan)

    return changed


def both(*changes: Change) -> Change:
    """Changes one after the other."""

    def changed(plan: Plan) -> Plan:
        for change in changes:
            plan = change(plan)
        return plan

    return changed


@given(plan=plans())
@settings(max_examples=40)
def test_plans_of_every_schedule_are_accepted(plan: Plan) -> None:
    """Chunks, warm-up and degrees that belong together hold no mistake."""
    assert mistakes(plan) == []


SCHEDULE_MISTAKES: dict[str, tuple[str, dict[str, Any], Change, tuple[str, str, str]]] = {
    "one chunk": (
        "zb-h1", {}, scheduled(virtual_stages=2),
        ("schedule.virtual_stages", "is 2", "zb-h1 takes 1 chunk per stage"),
    ),
    "two chunks": (
        "zb-v", {}, scheduled(virtual_stages=1),
        ("schedule.virtual_stages", "is 1", "zb-v takes 2 chunks per stage"),
    ),
    "two chunks of copies": (
        "dualpipe", {}, scheduled(virtual_stages=4),
        ("schedule.virtual_stages", "is 4", "dualpipe takes 2 chunks per stage"),
    ),
    "many chunks": (
        "interleaved-1f1b", {}, scheduled(virtual_stages=1),
        ("schedule.virtual_stages", "is 1", "interleaved-1f1b takes 2 or more chunks per stage"),
    ),
    "groups of p": (
        "interleaved-1f1b", {"num_microbatches": 7}, both(),
        ("schedule.name", "interleaved-1f1b needs micro-batches in whole groups of the 2 stages", ""),
    ),
    "even stages": (
        "dualpipe", {"stages": 3, "num_microbatches": 12}, both(),
        ("schedule.name", "dualpipe needs an even number of stages", ""),
    ),
    "even micro-batches": (
        "dualpipe", {"num_microbatches": 9}, both(),
        ("schedule.name", "dualpipe needs an even number of micro-batches, 4 or more", ""),
    ),
    "few micro-batches": (
        "dualpipe", {"stages": 4, "num_microbatches": 6}, both(),
        ("schedule.name", "dualpipe needs an even number of micro-batches, 8 or more", ""),
    ),
    "warm-up elsewhere": (
        "gpipe", {"warmup": (1, 0)}, both(),
        ("schedule.warmup", "gpipe has no further warm-up", "write null"),
    ),
    "warm-up of some": (
        "1f1b", {"warmup": (1, 1, 0)}, both(),
        ("schedule.warmup", "has 3 numbers for 2 stages", "one number per stage"),
    ),
    "warm-up upside down": (
        "1f1b", {"warmup": (0, 1)}, both(),
        ("schedule.warmup", "grows from a stage to the next", "a stage warms up at least as deep as the one below"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", SCHEDULE_MISTAKES)
def test_schedules_that_do_not_exist(case: str) -> None:
    """Chunks, stages, micro-batches and warm-up that a schedule cannot have, each told once."""
    name, shape, change, expected = SCHEDULE_MISTAKES[case]
    assert told(mistakes(change(simple_plan(name, **shape)))) == [expected]


CHUNK_MISTAKES: dict[str, tuple[str, Change, tuple[str, str, str]]] = {
    "missing": (
        "zb-v", staged(1, chunks=None),
        ("stages[1].chunks", "is missing", "list the 2 chunks of the stage"),
    ),
    "too few": (
        "interleaved-1f1b", lambda plan: staged(0, chunks=plan.stages[0].parts[:1])(plan),
        ("stages[0].chunks", "lists 1 chunks", "the schedule has 2 chunks per stage"),
    ),
    "too many": (
        "zb-v", lambda plan: staged(0, chunks=plan.stages[0].parts * 2)(plan),
        ("stages[0].chunks", "lists 4 chunks", "the schedule has 2 chunks per stage"),
    ),
    "not asked for": (
        "1f1b", lambda plan: staged(0, chunks=plan.stages[0].parts)(plan),
        ("stages[0].chunks", "lists 1 chunks", "write null"),
    ),
    "layers": (
        "breadth-first", staged(0, layers=7),
        ("stages[0].layers", "is 7, but the chunks have 6 in all", ""),
    ),
    "recompute": (
        "breadth-first", staged(1, recompute=Recompute(none=6, full=1)),
        ("stages[1].recompute.full", "is 1, but the chunks have 0 in all", ""),
    ),
    "first layer": (
        "zb-v", staged(1, first_layer=6),
        ("stages[1].first_layer", "is 6", "it is the first chunk's"),
    ),
    "chunk's first layer": (
        "zb-v", chunked(0, 1, first_layer=8),
        ("stages[0].chunks[1].first_layer", "is 8, but the chunk begins at 9", ""),
    ),
    "second direction": (
        "dualpipe", chunked(0, 1, first_layer=5),
        ("stages[0].chunks[1].first_layer", "is 5, but the chunk begins at 6", ""),
    ),
    "chunk's recompute": (
        "interleaved-1f1b",
        both(chunked(1, 0, recompute=Recompute(none=2)), staged(1, recompute=Recompute(none=5))),
        (
            "stages[1].chunks[0].recompute", "recompute counts 2 layers, the chunk has 3",
            "none + selective + full = layers",
        ),
    ),
    "stage's first layer": (
        "1f1b", staged(1, first_layer=7),
        ("stages[1].first_layer", "is 7, but the stage begins at 6", ""),
    ),
    "stage's recompute": (
        "1f1b", staged(1, recompute=Recompute(none=5)),
        ("stages[1].recompute", "recompute counts 5 layers, the stage has 6", "none + selective + full = layers"),
    ),
    "all layers": (
        "1f1b", staged(1, layers=5, recompute=Recompute(none=5)),
        ("stages", "the stages hold 11 layers in all", "the model has 12"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CHUNK_MISTAKES)
def test_layers_that_do_not_add_up(case: str) -> None:
    """Chunks that are not the schedule's or not their stage's, layers lost or held twice: each told once."""
    name, change, expected = CHUNK_MISTAKES[case]
    assert told(mistakes(change(simple_plan(name)))) == [expected]


def test_recomputation_is_counted_chunk_by_chunk() -> None:
    """All three counts of a stage are compared with those of its chunks."""
    plan = staged(0, recompute=Recompute(none=4, selective=1, full=1))(simple_plan("zb-v"))
    assert [mistake.key for mistake in mistakes(plan)] == [
        "stages[0].recompute.none", "stages[0].recompute.selective", "stages[0].recompute.full",
    ]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_layers_of_another_model(name: str) -> None:
    """A model with a layer more: the plan holds too few."""
    plan = simple_plan(name)
    larger = ModelSpec(name="larger", architecture=DENSE.model_copy(update={"layers": 13}))
    found = told(plan_mistakes(plan, two_groups(), larger, training_of(plan)))
    assert set(found) == {("stages", "the stages hold 12 layers in all", "the model has 13")}


def test_batches_and_accelerators() -> None:
    """Groups, global batches and accelerators that there are not."""
    plan = simple_plan("1f1b")
    (found,) = told(mistakes(staged(1, group="tpu")(plan)))
    assert found == ("stages[1].group", 'no group "tpu" in the cluster', f"groups: {H100}, {A100}")
    (found,) = told(mistakes(staged(0, dp=2)(plan)))
    assert found == ("stages[0]", "dp 2 x microbatch 1 x 8 micro-batches is 16, not the global batch of 8", "")
    (found,) = told(mistakes(plan, training=TrainingSpec(global_batch_size=16, sequence_length=1024)))
    assert found == ("global_batch_size", "is 8", "the training block says 16")
    (found,) = told(mistakes(staged(1, tp=32)(plan)))
    assert found == ("stages", f"uses 32 accelerators of group {A100}, which has 16", "")


def three_groups(*linked: tuple[str, str]) -> ClusterSpec:
    """A group of H100 and two of A100, some of them linked."""
    groups = tuple(
        group(sheet).model_copy(update={"name": name}) for name, sheet in (("a", H100), ("b", A100), ("c", A100))
    )
    links = tuple(
        LinkSpec(
            between=pair,
            bandwidth_bytes_per_s=25e9,
            total_bandwidth_bytes_per_s=40e9,
            latency_s=1e-5,
            path="rdma-host-staged",
        )
        for pair in linked
    )
    return ClusterSpec(name="three", groups=groups, links=links)


def test_groups_without_a_link() -> None:
    """Neighbours need a link; so do the last and the first group where micro-batches go round, and only there."""
    cluster = three_groups(("a", "b"), ("c", "b"))
    round_trip = plan_of("interleaved-1f1b", [2] * 6, on=["a", "b", "c"], num_microbatches=6)
    (found,) = told(mistakes(round_trip, cluster))
    assert found == ("stages", "neighbouring stages on c and a, which have no link", "")
    assert mistakes(round_trip, three_groups(("a", "b"), ("c", "b"), ("a", "c"))) == []
    for name, layers in (("1f1b", [4] * 3), ("zb-v", [2] * 6)):
        assert mistakes(plan_of(name, layers, on=["a", "b", "c"], num_microbatches=6), cluster) == []
        (found,) = told(mistakes(plan_of(name, layers, on=["a", "c", "b"], num_microbatches=6), cluster))
        assert found[1] == "neighbouring stages on a and c, which have no link"


def test_all_mistakes_at_once() -> None:
    """`predict` raises with every mistake, of kind plan."""
    plan = both(scheduled(warmup=(1, 0)), chunked(1, 0, first_layer=4), staged(0, tp=64))(simple_plan("zb-v"))
    with pytest.raises(SpecError) as caught:
        predict(two_groups(), MODEL, plan, training_of(plan))
    assert {mistake.kind for mistake in caught.value.mistakes} == {"plan"}
    assert [mistake.key for mistake in caught.value.mistakes] == [
        "schedule.warmup", "stages[1].first_layer", "stages",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "entry",
    [
        {"warmup": (-1, 0)},
        {"virtual_stages": 0},
        {"virtual_stages": 65},
        {"name": "zb-h2"},
        {"name": "interleaved"},
        {"depth": 2},
    ],
)
def test_entries_that_no_plan_file_holds(entry: dict[str, Any]) -> None:
    """Negative warm-up, no or too many chunks, unknown names and keys are refused where a plan is read."""
    with pytest.raises(ValidationError):
        Schedule.model_validate(entry)


@pytest.mark.parametrize(
    ("name", "chunks", "legal"),
    [
        ("gpipe", 1, True),
        ("breadth-first", 2, True),
        ("1f1b", 1, False),
        ("interleaved-1f1b", 2, False),
        ("zb-h1", 1, False),
        ("zb-v", 2, False),
        ("dualpipe", 2, False),
    ],
)
@pytest.mark.parametrize("zero", [1, 2, 3])
def test_zero_by_schedule(name: str, chunks: int, legal: bool, zero: int) -> None:
    """ZeRO-2 and ZeRO-3 stand with a pipeline only where all micro-batches pass a chunk before the next."""
    splits = {group_name: Split(dp=2, zero=zero) for group_name in (H100, A100)}
    plan = simple_plan(name, chunks=chunks, splits=splits)
    predicted = predict_in(setting_of(plan), plan)
    fine = legal or zero == 1
    assert {stage.verdict for stage in predicted.stages} == {"fits" if fine else "illegal"}
    reason = f"ZeRO-{zero} with a pipeline needs a schedule that passes a chunk once, as breadth-first"
    assert [warning for warning in predicted.warnings if "ZeRO" in warning] == (
        [] if fine else [f"stage 0: {reason}", f"stage 1: {reason}"]
    )


@pytest.mark.parametrize("name", ["1f1b", "interleaved-1f1b", "zb-v"])
def test_one_stage_takes_any_zero(name: str) -> None:
    """Without a pipeline ZeRO-3 stands with every order of work."""
    runs = 1 if name == "1f1b" else 2
    plan = plan_of(name, [12 // runs] * runs, on=[A100], num_microbatches=4, splits={A100: Split(dp=2, zero=3)})
    assert predict_in(setting_of(plan), plan).stages[0].verdict == "fits"


@pytest.mark.parametrize(
    ("change", "precision", "reason"),
    [
        ({"tp": 3}, "bf16", "16 attention heads cannot be split over tp 3"),
        ({"tp": 8, "cp": 2}, "bf16", "tp 8 x cp 2 spans more than the 8 accelerators of a domain"),
        ({"ep": 3, "dp": 3}, "bf16", "ep 3 must divide 8 experts and dp x cp = 3"),
        ({"ep": 4, "dp": 2}, "bf16", "ep 4 must divide 8 experts and dp x cp = 2"),
        ({"cp": 3}, "bf16", "cp 3 must divide the sequence of 1024"),
        ({}, "mxfp8", "a100-sxm4-80gb cannot train in mxfp8"),
    ],
)
def test_stages_that_cannot_run(change: dict[str, int], precision: str, reason: str) -> None:
    """Degrees and formats that no software can run, stage by stage."""
    plan = staged(1, **change)(simple_plan("1f1b"))
    setting = setting_of(plan, MOE)
    training = setting.training.model_copy(update={"precision": precision})
    changed = Setting(cluster=setting.cluster, model=setting.model, training=training, stack=setting.stack)
    assert reason in rules_broken(changed, plan, 1)
    assert reason not in rules_broken(setting, simple_plan("1f1b"), 1)


def test_experts_of_a_dense_model() -> None:
    """Expert parallelism needs experts."""
    plan = staged(1, ep=2, dp=2)(simple_plan("1f1b"))
    assert rules_broken(setting_of(plan), plan, 1) == ["ep 2 must divide 0 experts and dp x cp = 2"]
