"""Small random planning problems: clusters, models and limits whose whole plan space can be listed."""

import math
import random
from dataclasses import dataclass, replace
from typing import Literal

from hetplan.cost.profiles import StackSpec, load_stack
from hetplan.cost.stages import Degrees
from hetplan.plan import ScheduleName
from hetplan.predict import Setting
from hetplan.schedule.schedules import SCHEDULES
from hetplan.search.result import Limits
from hetplan.specs.accelerator import AcceleratorSpec, Format, Rates
from hetplan.specs.architecture import ArchitectureSpec
from hetplan.specs.cluster import ClusterSpec, GroupSpec, LinkRate, LinkSpec
from hetplan.specs.model import ModelSpec
from hetplan.specs.training import TrainingSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """Everything that a search is asked."""

    cluster: ClusterSpec
    model: ModelSpec
    training: TrainingSpec
    stack: StackSpec
    limits: Limits
    schedules: tuple[ScheduleName, ...] = ("1f1b",)
    space: Literal["uniform", "per-group"] = "uniform"


def random_instance(seed: int) -> Instance:
    """The problem of a seed: memory binds in many, in some nothing fits."""
    rng = random.Random(seed)
    training = TrainingSpec(
        global_batch_size=rng.choice((4, 6, 8, 9, 12, 12, 16, 16, 16)),
        sequence_length=rng.choice((512, 1024, 2048, 4096)),
        precision=rng.choice(("bf16", "bf16", "bf16", "fp16", "fp32")),
        optimizer=rng.choice(("adam", "adam", "sgd")),
    )
    model = _model(rng)
    stack = _stack(rng)
    cluster = _cluster(rng, model.architecture, training, stack)
    limits = Limits(
        max_stages=rng.choice((2, 3, 4, 4)),
        max_stages_per_group=rng.choice((1, 2, 3, 3)),
        max_tp=rng.choice((1, 2, 4, 4, 4)),
        max_microbatch_size=rng.choice((1, 2, 2, 2)),
        max_microbatches=rng.choice((2, 4, 4096, 4096, 4096, 4096, 4096, 4096)),
        max_warmup=0,
    )
    return Instance(cluster=cluster, model=model, training=training, stack=stack, limits=limits)


def tiny_instance(seed: int) -> Instance:
    """A problem so small that all combinations of recomputation mixes can be listed; recomputation is needed."""
    instance = random_instance(2000 + seed)
    architecture = instance.model.architecture.model_copy(
        update={"layers": 3, "dense_layers": seed % 2 if instance.model.architecture.experts else 0, "moe_every": 1}
    )
    groups = tuple(
        group.model_copy(update={"usable_memory_bytes": group.usable_bytes * 0.7}) for group in instance.cluster.groups
    )
    return Instance(
        cluster=instance.cluster.model_copy(update={"groups": groups}),
        model=ModelSpec(name="tiny", architecture=architecture),
        training=instance.training.model_copy(update={"global_batch_size": 4}),
        stack=instance.stack,
        limits=Limits(max_stages=2, max_stages_per_group=2, max_tp=2, max_microbatch_size=1, max_warmup=0),
    )


def slow_link_instance(seed: int) -> Instance:
    """Two or three small groups with slow hops between them, some or all schedules, and either space."""
    rng = random.Random(f"slow links {seed}")
    space: Literal["uniform", "per-group"] = rng.choice(("uniform", "per-group", "per-group"))
    training = TrainingSpec(
        global_batch_size=rng.choice((4, 6, 8, 8, 12, 12, 16, 16)),
        sequence_length=rng.choice((512, 1024, 2048)),
        precision=rng.choice(("bf16", "bf16", "bf16", "fp32")),
    )
    model = _model(rng, (3, 4, 4, 5, 6, 7, 8, 8))
    stack = _stack(rng).model_copy(
        update={"transfers": rng.choice(("overlapped", "overlapped", "overlapped", "eager", "rendezvous"))}
    )
    cluster = _cluster(rng, model.architecture, training, stack, small=True)
    cluster = _with_slow_links(rng, cluster, model, training, stack)
    every: tuple[ScheduleName, ...] = tuple(entry.name for entry in SCHEDULES)
    few = rng.sample(every, rng.randint(1, 3))
    small = space == "per-group" and len(cluster.groups) == 3
    limits = Limits(
        max_stages=rng.choice((3, 3, 4) if small else (3, 4, 4)),
        max_stages_per_group=rng.choice((1, 2, 2, 3)),
        max_tp=rng.choice((1, 2) if small else (1, 2, 2, 4)),
        max_microbatch_size=rng.choice((1, 2, 2)),
        max_virtual_stages=rng.choice((2, 4)),
        max_warmup=rng.choice((0, 1, 2, 2)),
    )
    return Instance(
        cluster=cluster,
        model=model,
        training=training,
        stack=stack,
        limits=limits,
        schedules=every if rng.random() < 0.4 else tuple(name for name in every if name in few),
        space=space,
    )


def tiny_slow_link_instance(seed: int) -> Instance:
    """The same so small that all combinations of what stages recompute can be listed, with every schedule."""
    instance = tiny_instance(seed)
    rng = random.Random(seed)
    architecture = instance.model.architecture.model_copy(update={"layers": 4, "dense_layers": 0})
    return replace(
        instance,
        model=ModelSpec(name="tiny", architecture=architecture),
        stack=instance.stack.model_copy(update={"transfers": rng.choice(("overlapped", "eager", "rendezvous"))}),
        limits=replace(instance.limits, max_stages_per_group=1, max_virtual_stages=2, max_warmup=1),
        schedules=tuple(entry.name for entry in SCHEDULES),
        space="per-group",
    )


def _with_slow_links(
    rng: random.Random, cluster: ClusterSpec, model: ModelSpec, training: TrainingSpec, stack: StackSpec
) -> ClusterSpec:
    """Hops between groups of 0.1 to 4 forward times of a third of the model, by latency, by bandwidth or by both."""
    setting = Setting(cluster=cluster, model=model, training=training, stack=stack)
    layers, forward = model.architecture.layers, []
    for group in cluster.groups:
        if group.accelerator.supports(training.precision):
            costs = setting.costs(group.name, Degrees(tp=1, dp=1), True, 1)
            size = costs.side().size
            forward.append(float(costs.forward_s(0, layers, ())) / 3)
    if not forward:
        return cluster
    links = []
    for link in cluster.links:
        hop = _log_uniform(rng, 0.1, 4) * sum(forward) / len(forward)
        late = rng.choice((0.01, 0.5, 0.99)) * hop
        rate = size / (hop - late) / stack.network_share
        links.append(
            link.model_copy(
                update={
                    "bandwidth_bytes_per_s": rate,
                    "total_bandwidth_bytes_per_s": rng.choice((None, rate, 2 * rate)),
                    "latency_s": late,
                }
            )
        )
    return cluster.model_copy(update={"links": tuple(links)})


def _log_uniform(rng: random.Random, low: float, high: float) -> float:
    return math.exp(rng.uniform(math.log(low), math.log(high)))


def _model(rng: random.Random, layers_from: tuple[int, ...] = (3, 4, 5, 6, 6)) -> ModelSpec:
    """A few blocks; one in four is a mixture of experts, with leading dense blocks or every second block."""
    layers, heads = rng.choice(layers_from), rng.choice((2, 4, 4, 6, 8))
    width = rng.choice((64, 128))
    moe = rng.random() < 0.25
    every = 2 if moe and rng.random() < 0.4 else 1
    if every == 2:
        layers = rng.choice((4, 6, 6))
    architecture = ArchitectureSpec(
        layers=layers,
        hidden_size=heads * width,
        ffn_hidden_size=rng.choice((2, 3, 4)) * heads * width - rng.choice((0, 0, 2)),
        attention_heads=heads,
        kv_heads=rng.choice([k for k in range(1, heads + 1) if heads % k == 0]),
        vocab_size=rng.choice((1000, 4000, 8000)),
        gated_mlp=rng.random() < 0.7,
        tied_embeddings=rng.random() < 0.4,
        position=rng.choice(("rope", "learned")),
        max_positions=4096,
        experts=4 if moe else 0,
        experts_per_token=2 if moe else 0,
        expert_ffn_hidden_size=rng.choice((1, 2)) * heads * width if moe else None,
        dense_layers=rng.choice((0, 1, 2)) if moe else 0,
        moe_every=every,
        mtp_layers=1 if rng.random() < 0.05 else 0,
    )
    return ModelSpec(name="tiny", architecture=architecture)


def _stack(rng: random.Random) -> StackSpec:
    """The default profile with its fixed costs scaled to tiny models."""
    return load_stack().model_copy(
        update={
            "host_per_layer_s": rng.choice((0.0, 3e-6, 3e-4)),
            "step_fixed_s": rng.choice((0.0, 1e-3)),
            "workspace_bytes": float(2**24),
            "gradient_sync_exposed": rng.choice((0.1, 0.5, 1.0)),
        }
    )


def _cluster(
    rng: random.Random, arch: ArchitectureSpec, training: TrainingSpec, stack: StackSpec, *, small: bool = False
) -> ClusterSpec:
    """One to three groups of two to eight accelerators, with links from fast to very slow.

    `small`: two or three groups of two to six, about as fast as each other, with slower links inside and less memory,
    so that many plans need several of them.
    """
    count = rng.choice((2, 2, 3) if small else (1, 2, 2, 3, 3, 3, 3))
    tokens = training.sequence_length
    state = 18.0 * arch.total_parameters
    activations = 34.0 * tokens * arch.hidden_size * arch.layers + stack.logits_bytes * tokens * arch.vocab_size
    if small:
        speeds = [_log_uniform(rng, 1e13, 3e13) for _ in range(count)]
    else:
        speeds = [_log_uniform(rng, 5e12, 5e13) * rng.choice((1.0, 1.0, 2.0, 4.0)) for _ in range(count)]
    groups: list[GroupSpec] = []
    for i in range(count):
        narrow = rng.random() < (0.02 if small else 0.07)
        formats: tuple[Format, ...] = ("fp16", "fp32") if narrow else ("bf16", "fp16", "fp32")
        per_node = rng.choice((1, 2, 2, 3, 4, 4))
        nodes = max(rng.randint(-(-2 // per_node), (6 if small else 8) // per_node) for _ in range(2))
        domain = None
        if rng.random() < 0.2:
            domain = rng.choice([k for k in (1, 2, 3, 4, 6, 8) if k % per_node == 0 or per_node % k == 0])
        share = _log_uniform(rng, 0.15, 1.5) / (rng.choice((0.6, 1, 1, 2)) if small else 1)
        memory = stack.workspace_bytes + (state + activations) * share
        link = _log_uniform(rng, 1e9, 1e10) if small else _log_uniform(rng, 1e10, 4e11)
        speed = speeds[i]
        sheet = AcceleratorSpec(
            # One in ten groups has the type of the group before it.
            name=f"type-{i}" if i == 0 or rng.random() > 0.1 else groups[-1].accelerator.name,
            formats=formats,
            peak=Rates(
                fp32_flops_per_s=speed / 4,
                fp16_flops_per_s=speed,
                bf16_flops_per_s=None if "bf16" not in formats else speed,
            ),
            memory_size_bytes=4 * memory + 2**32,
            memory_bandwidth_bytes_per_s=speed / 100,
            link_bytes_per_s=link,
            link_per_peer_bytes_per_s=rng.choice((None, link / 3)),
            flash_attention=rng.random() < 0.8,
        )
        groups.append(
            GroupSpec(
                name=f"g{i}",
                accelerator=sheet,
                nodes=nodes,
                accelerators_per_node=per_node,
                usable_memory_bytes=memory,
                inter_node=LinkRate(
                    bandwidth_bytes_per_s=_log_uniform(rng, 1e8, 1e11), latency_s=_log_uniform(rng, 1e-6, 1e-4)
                ),
                nvlink_domain=domain,
            )
        )
    links = []
    for i in range(count):
        for j in range(i):
            rate = _log_uniform(rng, 1e8, 1e11)
            links.append(
                LinkSpec(
                    between=(groups[j].name, groups[i].name),
                    bandwidth_bytes_per_s=rate,
                    total_bandwidth_bytes_per_s=rng.choice((None, rate, 2 * rate)),
                    latency_s=_log_uniform(rng, 1e-6, 1e-3),
                    path=rng.choice(("rdma-direct", "rdma-direct", "rdma-host-staged", "tcp-host")),
                )
            )
    return ClusterSpec(name="tiny", groups=tuple(groups), links=tuple(links))
