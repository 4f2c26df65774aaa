"""Hand-made results for the report tests. Every number is invented; parts add up as real ones do."""

import io
from collections.abc import Sequence
from typing import Any

from rich.text import Text

from hetplan.plan import Plan, Recompute, Schedule, Stage
from hetplan.prediction import Binding, Breakdown, Idle, MemoryUse, Prediction, StagePrediction, Verdict
from hetplan.report.build import Inputs, run_record, search_record
from hetplan.report.records import ResultRecord
from hetplan.report.style import Terminal, terminal
from hetplan.search.result import Certificate, Fix, Infeasible, Limits, Plain, Pruned, RankedPlan, SearchResult
from hetplan.specs.accelerator import AcceleratorSpec
from hetplan.specs.cluster import ClusterSpec
from hetplan.specs.model import ModelSpec
from hetplan.specs.quantities import Spec
from hetplan.specs.training import TrainingSpec

GIB = 2**30
RUN = run_record(2.4, solver=True, threads=1, seed=0)


class SampleStack(Spec):
    """Stands for a stack profile: any spec will do."""

    name: str = "sample-stack"
    gemm_share: float = 0.9
    step_fixed_s: float = 0.01


def accelerator(name: str, *, bf16: float | None, measured: float | None, memory: str, **more: Any) -> dict[str, Any]:
    """A written datasheet; rates in TFLOP/s."""
    fp16 = bf16 if bf16 is not None else 125.0
    peak = {"fp32": "15 TFLOP/s", "fp16": f"{fp16} TFLOP/s"}
    if "fp8" in more.get("formats", ()):
        peak["fp8"] = f"{2 * fp16} TFLOP/s"
    if bf16 is not None:
        peak["bf16"] = f"{bf16} TFLOP/s"
    return {
        "name": name,
        "vendor": "maker",
        "architecture": "family",
        "formats": ("fp32", "fp16") if bf16 is None else ("fp32", "fp16", "bf16"),
        "peak": peak,
        "measured": {} if measured is None else {"bf16": f"{measured} TFLOP/s"},
        "memory_size": memory,
        "memory_bandwidth": "2 TB/s",
        "link_kind": "nvlink3",
        "link": "300 GB/s",
        **more,
    }


MI300X = accelerator(
    "mi300x-192gb",
    bf16=1307,
    measured=668,
    memory="192 GB",
    formats=("fp32", "fp16", "bf16", "fp8"),
    memory_bandwidth="5.3 TB/s",
    link="448 GB/s",
    link_per_peer="64 GB/s",
    vendor="amd",
    architecture="cdna3",
    tdp="750 W",
)
A100 = accelerator(
    "a100-sxm4-80gb",
    bf16=312,
    measured=271,
    memory="80 GB",
    memory_reported="81920 MiB",
    vendor="nvidia",
    architecture="ampere",
    compute_capability="8.0",
    aliases=("NVIDIA A100-SXM4-80GB", "NVIDIA A100 80GB SXM"),
    price_per_hour=1.69,
    tdp="400 W",
    notes="Measured over many runs.",
    sources={
        "peak": "the maker's datasheet",
        "measured": "a public table of measured matrix products of many accelerators, run with one driver version",
        "memory_size": "the maker's datasheet",
        "achievable_share": "measured in bf16; estimated to hold in the other formats",
    },
)
A30 = accelerator("a30", bf16=165, measured=None, memory="24 GB", price_per_hour=0.34)
V100 = accelerator("v100-sxm2-32gb", bf16=None, measured=None, memory="32 GB")


def spec(data: dict[str, Any]) -> AcceleratorSpec:
    """A datasheet as the loader makes it."""
    return AcceleratorSpec.model_validate(data, context={"written": True})


def cluster(name: str, groups: Sequence[dict[str, Any]], bandwidth: str = "100 Gbit/s") -> ClusterSpec:
    """A cluster whose groups are all linked alike."""
    written = tuple(
        {"accelerators_per_node": 8, "inter_node": {"bandwidth": "800 Gbit/s", "latency": "5 us"}, **group}
        for group in groups
    )
    names = [group["name"] for group in groups]
    pairs = [(a, b) for i, a in enumerate(names) for b in names[i + 1 :]]
    links = tuple({"between": pair, "bandwidth": bandwidth, "latency": "20 us"} for pair in pairs)
    data = {"name": name, "groups": written, "links": links}
    return ClusterSpec.model_validate(data, context={"written": True})


def mixed_cluster(bandwidth: str = "100 Gbit/s", first: str = "a100", second: str = "mi300x") -> ClusterSpec:
    """640 + 128 accelerators, priced."""
    groups = (
        {"name": first, "accelerator": A100, "nodes": 80, "usable_memory": "76 GiB", "price_per_hour": 1.69},
        {"name": second, "accelerator": MI300X, "nodes": 16, "usable_memory": "184 GiB", "price_per_hour": 2.5},
    )
    return cluster("hethub-768", groups, bandwidth)


def model(layers: int = 97, name: str = "llama-140b") -> ModelSpec:
    """A dense model of so many layers."""
    architecture = {
        "layers": layers,
        "hidden_size": 8192,
        "ffn_hidden_size": 28672,
        "attention_heads": 64,
        "kv_heads": 8,
        "vocab_size": 32000,
    }
    return ModelSpec.model_validate({"name": name, "architecture": architecture})


def inputs(cluster_: ClusterSpec, model_: ModelSpec | None = None, **options: Any) -> Inputs:
    """What a search was asked."""
    training = TrainingSpec(global_batch_size=1536, sequence_length=4096)
    return Inputs(
        cluster=cluster_,
        model=model() if model_ is None else model_,
        training=training,
        stack=SampleStack(),
        options={"top": 5, "gap": 0.001, "time_limit_s": 60.0, "node_limit": None, **options},
    )


def stage(group: str, first: int, layers: int, *, tp: int = 4, dp: int = 32, kind: str = "none", **more: Any) -> Stage:
    """One stage with one kind of recomputation."""
    return Stage(
        group=group,
        first_layer=first,
        layers=layers,
        tp=tp,
        dp=dp,
        zero=1,
        recompute=Recompute(**{kind: layers}),
        **more,
    )


def plan(
    runs: Sequence[tuple[str, Sequence[int]]], *, microbatches: int = 48, tp: int = 4, dp: int = 32, **more: Any
) -> Plan:
    """A plan from the layers of each group's stages."""
    stages, first = [], 0
    for group, layers in runs:
        for number in layers:
            kind = "selective" if number > 20 else "none"
            stages.append(stage(group, first, number, tp=tp, dp=dp, kind=kind, **more))
            first += number
    return Plan(global_batch_size=1536, num_microbatches=microbatches, stages=tuple(stages))


def predicted_stage(
    group: str,
    accelerator_: str,
    *,
    used: float,
    usable: float,
    microbatch_s: float,
    count: int = 48,
    accelerators: int = 128,
    hop_s: float | None = 0.0002,
    binding: Binding = "compute",
    verdict: Verdict = "fits",
) -> StagePrediction:
    """One stage; memory in GiB."""
    memory = MemoryUse(
        weights_bytes=0.2 * used * GIB,
        gradients_bytes=0.2 * used * GIB,
        optimizer_bytes=0.3 * used * GIB,
        activations_bytes=0.25 * used * GIB,
        other_bytes=0.05 * used * GIB,
    )
    return StagePrediction(
        group=group,
        accelerator=accelerator_,
        accelerators=accelerators,
        forward_s=microbatch_s * count / 3,
        backward_s=microbatch_s * count * 2 / 3,
        recompute_s=0.0,
        idle_s=3.6,
        gradient_sync_s=0.6,
        optimizer_s=0.06,
        microbatch_s=microbatch_s,
        hop_s=hop_s,
        memory=memory,
        memory_capacity_bytes=usable * GIB,
        verdict=verdict,
        binding=binding,
    )


def prediction(
    time_s: float,
    stages: Sequence[StagePrediction],
    *,
    idle: tuple[Idle, ...] = (),
    warnings: tuple[str, ...] = (),
    tokens: int = 1536 * 4096,
) -> Prediction:
    """A prediction whose breakdown sums to the time."""
    shares = {
        "forward": 0.288,
        "backward": 0.579,
        "recompute": 0.0,
        "fill_and_drain": 0.09,
        "exposed_links": 0.022,
        "gradient_sync": 0.019,
        "optimizer": 0.002,
    }
    parts = {name: share * time_s for name, share in shares.items()}
    return Prediction(
        iteration_time_s=time_s,
        iteration_time_low_s=time_s * 0.95,
        iteration_time_high_s=time_s * 1.05,
        tokens_per_s=tokens / time_s,
        mfu=14.4 / time_s,
        additive_ratio=0.97,
        roofline_ratio=20.4 / time_s,
        best_single_type_ratio=1.31,
        calibrated=True,
        breakdown=Breakdown(**parts, other=time_s - sum(parts.values())),
        bottleneck=0,
        stages=tuple(stages),
        idle=idle,
        warnings=warnings,
    )


def ranked(rank: int, time_s: float, plan_: Plan, *, headroom: float = 0.14, **more: Any) -> RankedPlan:
    """A plan whose fullest stage leaves `headroom`."""
    usable = {"a100": 76.0, "mi300x": 184.0, "old": 22.1}
    names = {"a100": "a100-sxm4-80gb", "mi300x": "mi300x-192gb", "old": "a30"}
    stages = []
    last = len(plan_.stages) - 1
    for index, s in enumerate(plan_.stages):
        capacity = usable.get(s.group, 76.0)
        crosses = index < last and plan_.stages[index + 1].group != s.group
        slower = index == last and index > 0
        stages.append(
            predicted_stage(
                s.group,
                names.get(s.group, "a100-sxm4-80gb"),
                used=capacity * (1 - headroom) * (1 - 0.06 * max(0, index - 1)) if index < 8 else capacity * 0.5,
                usable=capacity,
                microbatch_s=0.562 if slower else 0.574,
                accelerators=s.accelerators,
                hop_s=None if index == last else 0.015 if crosses else 0.0002,
                binding="none" if slower else "compute",
            )
        )
    return RankedPlan(rank=rank, plan=plan_, prediction=prediction(time_s, stages, **more))


def five_plans() -> tuple[RankedPlan, ...]:
    """Five plans of the mixed cluster; the last leaves accelerators idle."""
    split = [("mi300x", [32]), ("a100", [13, 13, 13, 13, 13])]
    ten = [("mi300x", [17, 15]), ("a100", [7, 7, 7, 7, 7, 6, 6, 6, 6, 6])]
    return (
        ranked(
            1,
            31.78,
            plan(split),
            warnings=("mi300x-192gb has no measured profile: its times rest on datasheet rates (±12%)",),
            idle=(Idle(group="a100", accelerators=0), Idle(group="mi300x", accelerators=0)),
        ),
        ranked(2, 32.30, plan(split, microbatches=96, tp=8, dp=16), headroom=0.412),
        ranked(
            3,
            32.57,
            plan(split, microbatches=24, microbatch_size=2),
            headroom=0.042,
            warnings=("stage 0 leaves under 5% of its memory free",),
        ),
        ranked(4, 33.40, plan(ten, microbatches=96, dp=16), headroom=0.228),
        ranked(
            5,
            35.10,
            plan([("mi300x", [32]), ("a100", [11, 11, 11, 11, 11, 10])], microbatches=64, dp=24),
            headroom=0.18,
            idle=(Idle(group="a100", accelerators=64), Idle(group="mi300x", accelerators=32)),
        ),
    )


def result(plans: Sequence[RankedPlan], **changes: Any) -> SearchResult:
    """A proved search with these plans."""
    best_s = plans[0].prediction.iteration_time_s if plans else 0.0
    values: dict[str, Any] = {
        "status": "optimal",
        "stopped_by": "gap",
        "bound_s": best_s,
        "gap": 0.0,
        "limits": Limits(),
        "candidates": 375126,
        "plans": tuple(plans),
        "certificate": Certificate(program="highs", programs=41, simulations=12, dp_leaves=3, nodes=276),
        "pruned": Pruned(memory=1200, bound=373000),
        "infeasible": None,
        "warnings": (),
        "elapsed_s": 2.4,
    }
    return SearchResult(**{**values, **changes})


def optimal() -> ResultRecord:
    """The main screen's record."""
    return search_record(result(five_plans()), inputs(mixed_cluster()), RUN)


def feasible(stopped_by: str = "nodes") -> ResultRecord:
    """A search that stopped with a gap."""
    open_ = result(five_plans(), status="feasible", stopped_by=stopped_by, bound_s=30.79, gap=0.0311)
    return search_record(open_, inputs(mixed_cluster(), node_limit=40), RUN)


def schedules(why: str = "the hop from mi300x to a100 takes 1.8 forward passes", gap: float = 0.0) -> ResultRecord:
    """Plans of several schedules, in the per-group space, and the best under plain 1F1B, proved to a gap."""
    split = plan([("mi300x", [32]), ("a100", [13, 13, 13, 13, 13])])
    entries = (
        Schedule(warmup=(2, 0, 0, 0, 0, 0)),
        Schedule(name="interleaved-1f1b", virtual_stages=4),
        Schedule(name="zb-v", virtual_stages=2),
        Schedule(name="gpipe"),
    )
    plans = [
        ranked(i, 31.0 + i, split.model_copy(update={"schedule": entry}), headroom=0.2 - 0.01 * i)
        for i, entry in enumerate(entries, 1)
    ]
    plain = Plain(iteration_time_s=38.4 if why else 32.0, gap=gap, plan=split, why=why)
    names = ("1f1b", "gpipe", "interleaved-1f1b", "zb-v")
    limits = Limits(max_virtual_stages=8, max_warmup=2)
    found = result(plans, space="per-group", schedules=names, limits=limits, plain=plain)
    return search_record(found, inputs(mixed_cluster("25 Gbit/s"), space="per-group"), RUN)


def many_stages() -> ResultRecord:
    """25 stages on four groups, some accelerators idle, one stage close to full."""
    groups = (
        {
            "name": "h100",
            "accelerator": accelerator("h100-sxm5-80gb", bf16=989, measured=795, memory="80 GB"),
            "nodes": 256,
        },
        {"name": "a100", "accelerator": A100, "nodes": 320},
        {"name": "mi300x", "accelerator": MI300X, "nodes": 192},
        {"name": "l40s", "accelerator": accelerator("l40s", bf16=362, measured=None, memory="48 GB"), "nodes": 272},
    )
    runs = [("h100", [8, 8, 8, 8, 7, 8, 8, 8]), ("a100", [3] * 10), ("mi300x", [9, 9, 8]), ("l40s", [2, 2, 2, 1])]
    idle = (Idle(group="mi300x", accelerators=768), Idle(group="l40s", accelerators=1152))
    best = ranked(1, 37.9, plan(runs, microbatches=64, dp=64), headroom=0.06, idle=idle)
    four = cluster("four-types", groups)
    tcp = four.links[-1].model_copy(update={"path": "tcp-host"})
    four = four.model_copy(update={"links": (*four.links[:-1], tcp)})
    return search_record(result([best], gap=0.0004, bound_s=37.88), inputs(four, model(126, "llama-405b")), RUN)


def infeasible() -> ResultRecord:
    """Nothing fits into memory."""
    groups = ({"name": "old", "accelerator": A30, "nodes": 8, "usable_memory": "22.1 GiB"},)
    closest = plan([("old", [12] * 8)], tp=8, dp=1)
    closest = closest.model_copy(
        update={"stages": tuple(s.model_copy(update={"recompute": Recompute(full=12)}) for s in closest.stages)}
    )
    memory = MemoryUse(
        weights_bytes=4.13 * GIB,
        gradients_bytes=4.13 * GIB,
        optimizer_bytes=24.36 * GIB,
        activations_bytes=4.87 * GIB,
        other_bytes=1.42 * GIB,
    )
    why = Infeasible(
        binding="memory",
        message="no plan fits into memory",
        shortfall_bytes=memory.total_bytes - 22.1 * GIB,
        group="old",
        stage=0,
        closest=closest,
        memory=memory,
        usable_bytes=22.1 * GIB,
        nearest="17 nodes of old",
        fixes=(
            Fix(
                change="l40s in place of a30",
                before="24",
                after="48 GB",
                iteration_time_s=96.2,
                plan="tp8 dp1, 8 stages",
            ),
            Fix(change="more nodes of old", before="8", after="17", iteration_time_s=71.5, plan="tp8 dp1, 17 stages"),
            Fix(change="fewer layers", before="96", after="46", iteration_time_s=66.8, plan="tp8 dp1, 8 stages"),
        ),
    )
    nothing = result((), status="infeasible", bound_s=float("inf"), gap=float("inf"), infeasible=why, candidates=1208)
    return search_record(nothing, inputs(cluster("a30-64", groups), model(96)), RUN)


def unknown(stopped_by: str = "time") -> ResultRecord:
    """Stopped before any plan was found."""
    nothing = result((), status="unknown", stopped_by=stopped_by, bound_s=26.04, gap=float("inf"))
    return search_record(nothing, inputs(mixed_cluster()), RUN)


def stream(width: int, *, ascii_only: bool = False) -> Terminal:
    """A pipe of this width."""
    file = io.TextIOWrapper(io.BytesIO(), encoding="ascii" if ascii_only else "utf-8", newline="\n")
    return terminal(file, environment={}, width=width)


def plain(lines: Sequence[Text]) -> str:
    """What a pipe gets."""
    return "\n".join(line.plain.rstrip() for line in lines) + "\n"
