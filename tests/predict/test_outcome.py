"""Predictions of whole plans: published anchors, sums, and what faster hardware may do."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetplan.cost.layers import model_flops_per_token
from hetplan.cost.profiles import load_stack
from hetplan.cost.stages import Degrees
from hetplan.errors import SpecError
from hetplan.plan import Plan, Recompute
from hetplan.predict import Setting, predict, predict_in
from hetplan.prediction import Prediction
from hetplan.schedule.schedules import schedule
from hetplan.schedule.simulator import Transfers
from hetplan.specs.architecture import ArchitectureSpec
from hetplan.specs.cluster import ClusterSpec, GroupSpec
from hetplan.specs.model import ModelSpec
from hetplan.specs.training import TrainingSpec
from tests.cost.builders import even_plan, example, group, one_group
from tests.predict import builders
from tests.predict.builders import A100, H100, MOE, NAMES, Split, plan_of, setting_of, simple_plan, two_groups

SMALL = {
    "dense": ArchitectureSpec(
        layers=6,
        hidden_size=1024,
        ffn_hidden_size=2816,
        attention_heads=16,
        kv_heads=4,
        vocab_size=50257,
        tied_embeddings=True,
    ),
    "moe": ArchitectureSpec(
        layers=6,
        hidden_size=1024,
        ffn_hidden_size=2816,
        attention_heads=16,
        vocab_size=32000,
        experts=8,
        experts_per_token=2,
        dense_layers=1,
    ),
}
TRAINING = TrainingSpec(global_batch_size=16, sequence_length=1024)
STACK = load_stack()
STAGES = ("h100-sxm5-80gb", "h100-sxm5-80gb", "a100-sxm4-80gb")


def states_gb(prediction: Prediction, stage: int = 0) -> float:
    """Weights, gradients and optimizer of a stage, in GB."""
    use = prediction.stages[stage].memory
    return (use.weights_bytes + use.gradients_bytes + use.optimizer_bytes) / 1e9


@pytest.mark.parametrize(
    ("degrees", "states", "verdict"),
    [
        (Degrees(tp=1, dp=1), 121.3, "oom"),
        (Degrees(tp=1, dp=8, zero=1), 50.5, "oom"),
        (Degrees(tp=2, dp=4, zero=1), 30.3, "fits"),
    ],
)
def test_llama_2_7b_on_eight_40_gb(degrees: Degrees, states: float, verdict: str) -> None:
    """18 bytes per parameter, 6 + 12 / 8, and half of 6 + 12 / 4 (NVIDIA/Megatron-LM issue 606)."""
    model, training = example("llama-2-7b"), TrainingSpec(global_batch_size=8, sequence_length=64)
    cluster = one_group("a100-sxm4-40gb")
    plan = even_plan(model, ("a100-sxm4-40gb",), training, degrees)
    predicted = predict(cluster, model, plan, training)
    assert states_gb(predicted) == pytest.approx(states, abs=0.1)
    assert predicted.stages[0].verdict == verdict


def test_qwen_72b_does_not_fit_one_node() -> None:
    """ZeRO-3 over eight 80 GB: 145 GB of states at 16 bytes per parameter, 164 at 18 (QwenLM/Qwen issue 755)."""
    model, training = example("qwen2.5-72b"), TrainingSpec(global_batch_size=8, sequence_length=2048)
    plan = even_plan(model, ("a100-sxm4-80gb",), training, Degrees(tp=1, dp=8, zero=3), "full")
    eighteen = predict(one_group(), model, plan, training)
    sixteen = predict(one_group(), model, plan, training, STACK.model_copy(update={"gradient_bytes": 2}))
    assert states_gb(eighteen) == pytest.approx(163.6, abs=0.1)
    assert states_gb(sixteen) == pytest.approx(145.4, abs=0.1)
    assert eighteen.stages[0].verdict == sixteen.stages[0].verdict == "oom"


def test_mfu_is_over_the_dense_peak() -> None:
    """420 TFLOP/s on H200 is 42.5 % of 989, not 21 % of the sparse 1,979 (NVIDIA/Megatron-LM issues 1565, 1276)."""
    cluster, model = one_group("h200-sxm-141gb"), example("llama-3-8b")
    training = TrainingSpec(global_batch_size=64, sequence_length=8192)
    plan = even_plan(model, ("h200-sxm-141gb",), training, Degrees(tp=2, dp=4, zero=1))
    predicted = predict(cluster, model, plan, training)
    per_device = predicted.tokens_per_s / 8 * model_flops_per_token(model.architecture, 8192)
    assert predicted.mfu * 420e12 / per_device == pytest.approx(0.425, abs=5e-4)


def test_korthikanti_steps() -> None:
    """GPT 22B and 1T on A100 as timed in Korthikanti et al. 2022, table 5, with unfused attention: within 10 %."""
    stack = STACK.model_copy(update={"attention": "unfused"})
    for shape, pipeline, recompute, batch, seconds in (
        ((48, 6144, 64), 1, "full", 4, 1.42),
        ((48, 6144, 64), 1, "selective", 4, 1.10),
        ((128, 25600, 160), 64, "full", 512, 94.42),
        ((128, 25600, 160), 64, "selective", 512, 71.49),
    ):
        layers, hidden, heads = shape
        architecture = ArchitectureSpec(
            layers=layers,
            hidden_size=hidden,
            ffn_hidden_size=4 * hidden,
            attention_heads=heads,
            vocab_size=51200,
            gated_mlp=False,
            tied_embeddings=True,
        )
        model = ModelSpec(name="gpt", architecture=architecture)
        training = TrainingSpec(global_batch_size=batch, sequence_length=2048, precision="fp16")
        on = group(nodes=pipeline, network=200e9)
        micro = 4 if pipeline == 1 else 1
        plan = even_plan(model, (on.name,) * pipeline, training, Degrees(tp=8, dp=1, microbatch_size=micro), recompute)
        plan = plan.model_copy(update={"sequence_parallel": recompute == "selective"})
        predicted = predict(ClusterSpec(name="selene", groups=(on,)), model, plan, training, stack)
        assert predicted.iteration_time_s == pytest.approx(seconds, rel=0.1)


def test_memory_is_that_of_the_heaviest_stage() -> None:
    """Stages of 1, 2, 2 and 3 blocks: the last is far above the average (NVIDIA-NeMo/Megatron-Bridge PR 5077)."""
    architecture = SMALL["dense"].model_copy(update={"layers": 8, "vocab_size": 128, "tied_embeddings": False})
    model, training = ModelSpec(name="uneven", architecture=architecture), TRAINING
    plan = even_plan(model, ("a100-sxm4-80gb",) * 4, training, Degrees(tp=1, dp=1))
    stages, first = [], 0
    for stage, count in zip(plan.stages, (1, 2, 2, 3), strict=True):
        change = {"first_layer": first, "layers": count, "recompute": Recompute(none=count)}
        stages.append(stage.model_copy(update=change))
        first += count
    predicted = predict(one_group(), model, plan.model_copy(update={"stages": tuple(stages)}), training)
    states = [states_gb(predicted, i) for i in range(4)]
    assert sum(states) / 4 / max(states) == pytest.approx(1 - 0.318, abs=0.02)


def test_ends_hold_more_than_the_middle() -> None:
    """One block per stage: embedding and head make the ends a third larger (deepspeedai/DeepSpeed issue 1378)."""
    model = ModelSpec(name="gpt", architecture=SMALL["dense"])
    plan = even_plan(model, ("a100-sxm4-80gb",) * 6, TRAINING, Degrees(tp=1, dp=1))
    states = [states_gb(predict(one_group(), model, plan, TRAINING), i) for i in range(6)]
    assert min(states[0], states[-1]) > 1.3 * max(states[1:-1])


def some_plan(
    kind: str, *, tp: int, dp: int, zero: int = 0, recompute: str = "none", pipeline: bool = False
) -> tuple[ModelSpec, Plan]:
    """A model and a plan of one stage, or of three on both groups."""
    model = ModelSpec(name=kind, architecture=SMALL[kind])
    ep = dp if kind == "moe" else 1
    degrees = Degrees(tp=tp, dp=dp, ep=ep, zero=min(zero, 1) if pipeline else zero)
    return model, even_plan(model, STAGES if pipeline else STAGES[-1:], TRAINING, degrees, recompute)


@st.composite
def plans(draw: st.DrawFn) -> tuple[ModelSpec, Plan]:
    """Plans of small models, dense or not, with and without a pipeline."""
    return some_plan(
        draw(st.sampled_from(["dense", "moe"])),
        tp=draw(st.sampled_from([1, 2, 4])),
        dp=draw(st.sampled_from([1, 2, 4])),
        zero=draw(st.integers(0, 3)),
        recompute=draw(st.sampled_from(["none", "selective", "full"])),
        pipeline=draw(st.booleans()),
    )


@given(case=plans())
@settings(max_examples=50)
def test_parts_sum(case: tuple[ModelSpec, Plan]) -> None:
    """The breakdown is the iteration, each stage's parts fill it too, and memory terms make the total."""
    model, plan = case
    parts_sum(predict(two_groups(), model, plan, TRAINING), 16 * 1024)


@given(plan=builders.plans(), transfers=st.sampled_from(["overlapped", "eager", "rendezvous"]))
@settings(max_examples=40)
def test_parts_sum_under_every_schedule(plan: Plan, transfers: Transfers) -> None:
    """The same of chunks that reduce their gradients behind other work, of copies and of split backward passes."""
    predicted = predict_in(setting_of(plan, transfers=transfers), plan)
    parts_sum(predicted, plan.global_batch_size * 1024)
    worst = predicted.stages[predicted.bottleneck]
    parts = predicted.breakdown
    assert parts.forward == worst.forward_s
    assert parts.backward + parts.recompute == pytest.approx(worst.backward_s, rel=1e-12)
    assert parts.recompute == worst.recompute_s
    assert parts.gradient_sync == worst.gradient_sync_s
    assert parts.optimizer == worst.optimizer_s
    assert parts.fill_and_drain + parts.exposed_links == pytest.approx(worst.idle_s, rel=1e-9, abs=1e-15)


def parts_sum(predicted: Prediction, tokens: int) -> None:
    """Breakdown, stages and memory of a prediction add up."""
    total = predicted.iteration_time_s
    parts = predicted.breakdown
    assert parts.total_s == pytest.approx(total, rel=1e-9)
    assert min(getattr(parts, name) for name in parts.__dataclass_fields__) >= 0
    for stage in predicted.stages:
        busy = stage.forward_s + stage.backward_s + stage.gradient_sync_s + stage.optimizer_s
        assert busy + stage.idle_s + parts.other == pytest.approx(total, rel=1e-9)
        use = stage.memory
        assert min(getattr(use, name) for name in use.__dataclass_fields__) >= 0
        assert use.total_bytes == pytest.approx(sum(getattr(use, n) for n in use.__dataclass_fields__), rel=1e-12)
    assert predicted.tokens_per_s * total == pytest.approx(tokens)


def scaled(spec: Any, name: str, factor: float) -> Any:
    """A copy of a spec with one of its figures multiplied."""
    return spec.model_copy(update={name: getattr(spec, name) * factor})


def improved(on: GroupSpec, knob: str, factor: float) -> GroupSpec:
    """The group with one figure better by a factor."""
    sheet = on.accelerator
    if knob == "compute":
        better = scaled(sheet.measured, "bf16_flops_per_s", factor)
        return on.model_copy(update={"accelerator": sheet.model_copy(update={"measured": better})})
    if knob in ("memory_bandwidth_bytes_per_s", "link_bytes_per_s"):
        return on.model_copy(update={"accelerator": scaled(sheet, knob, factor)})
    if knob == "network":
        return on.model_copy(update={"inter_node": scaled(on.inter_node, "bandwidth_bytes_per_s", factor)})
    return on.model_copy(update={"inter_node": scaled(on.inter_node, "latency_s", 1 / factor)})


GROUP_KNOBS = ["compute", "memory_bandwidth_bytes_per_s", "link_bytes_per_s", "network", "network_latency"]
LINK_KNOBS = ["bandwidth_bytes_per_s", "total_bandwidth_bytes_per_s", "latency_s"]


@given(case=plans(), knob=st.sampled_from(GROUP_KNOBS + LINK_KNOBS), which=st.integers(0, 1), factor=st.floats(1, 20))
@settings(max_examples=80)
def test_better_hardware_is_never_slower(case: tuple[ModelSpec, Plan], knob: str, which: int, factor: float) -> None:
    """More FLOP/s, memory bandwidth or link bandwidth, or less latency, never lengthen a fixed plan's iteration."""
    model, plan = case
    after = better_cluster(knob, which, factor)
    slow, fast = (predict(cluster, model, plan, TRAINING).iteration_time_s for cluster in (two_groups(), after))
    assert fast <= slow * (1 + 1e-12)


@given(
    plan=builders.plans(),
    knob=st.sampled_from(GROUP_KNOBS + LINK_KNOBS),
    which=st.integers(0, 1),
    factor=st.floats(1, 20),
    transfers=st.sampled_from(["overlapped", "eager", "rendezvous"]),
)
@settings(max_examples=50)
def test_better_hardware_is_never_slower_under_any_schedule(
    plan: Plan, knob: str, which: int, factor: float, transfers: Transfers
) -> None:
    """The order of work is fixed, so this holds with chunks, copies and whatever transfers keep busy."""
    before = setting_of(plan, transfers=transfers)
    after = Setting(
        cluster=better_cluster(knob, which, factor), model=before.model, training=before.training, stack=before.stack
    )
    slow, fast = (predict_in(setting, plan).iteration_time_s for setting in (before, after))
    assert fast <= slow * (1 + 1e-12)


def better_cluster(knob: str, which: int, factor: float) -> ClusterSpec:
    """The two groups with one figure of a group or of the link better by a factor."""
    before = two_groups()
    if knob in GROUP_KNOBS:
        groups = list(before.groups)
        groups[which] = improved(groups[which], knob, factor)
        return before.model_copy(update={"groups": tuple(groups)})
    link = scaled(before.links[0], knob, 1 / factor if knob == "latency_s" else factor)
    return before.model_copy(update={"links": (link,)})


@pytest.mark.parametrize("knob", GROUP_KNOBS + LINK_KNOBS)
def test_every_figure_counts(knob: str) -> None:
    """Each of those figures does shorten the iteration of some plan."""
    # Two replicas share the whole link; one alone is held up by its node's rate.
    dp = 1 if knob == "bandwidth_bytes_per_s" else 2
    model, plan = some_plan("dense", tp=8, dp=dp, zero=1, pipeline=True)
    before = two_groups()
    if knob in GROUP_KNOBS:
        after = before.model_copy(update={"groups": tuple(improved(g, knob, 4) for g in before.groups)})
    else:
        link = scaled(before.links[0], knob, 0.25 if knob == "latency_s" else 4)
        after = before.model_copy(update={"links": (link,)})
    slow, fast = (predict(cluster, model, plan, TRAINING).iteration_time_s for cluster in (before, after))
    assert fast < slow


def test_tied_table_is_exchanged_once() -> None:
    """First and last stage add up the gradient of the shared table: its bytes over the link, on both of them alone."""
    model, plan = some_plan("dense", tp=8, dp=1, pipeline=True)
    untied = model.model_copy(update={"architecture": model.architecture.model_copy(update={"tied_embeddings": False})})
    with_tie, without = (predict(two_groups(), m, plan, TRAINING) for m in (model, untied))
    size = 51200 * 1024 * 4
    seconds = 1e-5 + STACK.host_latency_s + size / (25e9 * STACK.network_share)
    seconds += 2 * size / STACK.host_staging_bytes_per_s
    extra = [a.gradient_sync_s - b.gradient_sync_s for a, b in zip(with_tie.stages, without.stages, strict=True)]
    assert extra == pytest.approx([seconds, 0, seconds])


def test_impossible_stages_are_illegal() -> None:
    """A stage that no software can run is marked, with the reason among the warnings."""
    model, plan = some_plan("dense", tp=1, dp=1)
    stage = plan.stages[0].model_copy(update={"tp": 3})
    predicted = predict(two_groups(), model, plan.model_copy(update={"stages": (stage,)}), TRAINING)
    assert predicted.stages[0].verdict == "illegal"
    assert not predicted.fits
    assert any("16 attention heads cannot be split over tp 3" in warning for warning in predicted.warnings)


def test_plan_of_another_model_is_refused() -> None:
    """Layers, groups, batch and accelerators that do not match are all named at once."""
    model, plan = some_plan("dense", tp=8, dp=4, pipeline=True)
    small = model.model_copy(update={"architecture": SMALL["dense"].model_copy(update={"layers": 5})})
    with pytest.raises(SpecError) as caught:
        predict(two_groups(), small, plan, TRAINING.model_copy(update={"global_batch_size": 32}))
    text = " ".join(f"{mistake.key} {mistake.message} {mistake.hint}" for mistake in caught.value.mistakes)
    for expected in ("the model has 5", "the training block says 32", "uses 64 accelerators of group h100"):
        assert expected in text


def test_schedules_fill_the_pipeline_as_published() -> None:
    """Even stages on one node: chunks divide 1F1B's bubble of (p - 1) / m, split backward passes shrink it."""
    even = MOE.model_copy(update={"layers": 8, "vocab_size": 128, "dense_layers": 0})
    idle = {}
    for name in ("1f1b", "gpipe", "interleaved-1f1b", "breadth-first", "zb-h1", "zb-v"):
        runs = 4 if schedule(name).chunks(1) is None else 8
        plan = plan_of(name, [8 // runs] * runs, on=[A100] * 4, num_microbatches=16)
        predicted = predict_in(setting_of(plan, even), plan)
        worst = predicted.stages[predicted.bottleneck]
        idle[name] = worst.idle_s / (worst.forward_s + worst.backward_s)
    bubble = 3 / 16
    for name, share in (("1f1b", 1), ("gpipe", 1), ("interleaved-1f1b", 1 / 2), ("breadth-first", 1 / 2)):
        # Hops and unequal ends come on top.
        assert share * bubble < idle[name] < 1.15 * share * bubble
    assert idle["zb-h1"] < 0.7 * idle["1f1b"]
    assert idle["zb-v"] < 0.5 * idle["zb-h1"]


UNEVEN = {"1f1b": [8, 4], "interleaved-1f1b": [4, 2, 4, 2], "zb-v": [4, 2, 2, 4]}
"""Layers of runs on a stage of A100 that is slower and one of H100 that has room."""


@pytest.mark.parametrize("name", UNEVEN)
def test_what_stops_a_stage(name: str) -> None:
    """The slowest stage is bound by compute, or by a longer hop; another by memory that a block more would overrun."""
    plan = plan_of(name, UNEVEN[name], on=[A100, H100], num_microbatches=8)
    setting = setting_of(plan, MOE)
    predicted = predict_in(setting, plan)
    assert [stage.binding for stage in predicted.stages] == ["compute", "none"]
    slow = predict_in(setting_of(plan, MOE, network_share=1e-3), plan)
    assert [stage.binding for stage in slow.stages] == ["link", "none"]
    tight = predict_in(filled(setting, H100, predicted.stages[1].memory.total_bytes), plan)
    assert [stage.binding for stage in tight.stages] == ["compute", "memory"]
    assert tight.stages[1].verdict == "tight"


def filled(setting: Setting, name: str, used_bytes: float) -> Setting:
    """The setting with hardly more memory in a group than is used of it."""
    groups = tuple(
        entry.model_copy(update={"usable_memory_bytes": used_bytes * 1.001}) if entry.name == name else entry
        for entry in setting.cluster.groups
    )
    cluster = setting.cluster.model_copy(update={"groups": groups})
    return Setting(cluster=cluster, model=setting.model, training=setting.training, stack=setting.stack)


def test_nothing_comes_before_the_first_block() -> None:
    """A stage that begins the model cannot take the block before it: its memory stops nothing."""
    plan = plan_of("1f1b", [4, 8], on=[H100, A100], num_microbatches=8)
    setting = setting_of(plan, MOE)
    used = predict_in(setting, plan).stages[0].memory.total_bytes
    assert [stage.binding for stage in predict_in(filled(setting, H100, used), plan).stages] == ["none", "compute"]


@pytest.mark.parametrize("name", NAMES)
def test_groups_of_their_own_micro_batch(name: str) -> None:
    """With dp x micro-batch alike, groups may differ in both; dp and ZeRO of one do not change the other's memory."""
    plan = simple_plan(name, splits={H100: Split(dp=4, zero=1), A100: Split(tp=2, microbatch_size=4)})
    predicted = predict_in(setting_of(plan), plan)
    assert predicted.fits
    assert [idle.accelerators for idle in predicted.idle] == [32 - 4 * 1, 16 - 2 * 1]
    same = simple_plan(name, splits={H100: Split(microbatch_size=4), A100: Split(tp=2, microbatch_size=4)})
    assert predict_in(setting_of(same), same).stages[1].memory == predicted.stages[1].memory
