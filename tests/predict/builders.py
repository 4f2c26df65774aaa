"""Plans of every schedule on two unlike groups, for the tests of this room."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from hetplan.cost.profiles import StackSpec, load_stack
from hetplan.plan import Chunk, Plan, Recompute, Schedule, Stage
from hetplan.predict import Setting
from hetplan.schedule.schedules import SCHEDULES, schedule
from hetplan.specs.architecture import ArchitectureSpec
from hetplan.specs.cluster import ClusterSpec, LinkSpec
from hetplan.specs.model import ModelSpec
from hetplan.specs.training import TrainingSpec
from tests.cost.builders import group

NAMES: tuple[str, ...] = tuple(entry.name for entry in SCHEDULES)
LAYERS = 12
H100, A100 = "h100-sxm5-80gb", "a100-sxm4-80gb"
STACK = load_stack()
DENSE = ArchitectureSpec(
    layers=LAYERS,
    hidden_size=1024,
    ffn_hidden_size=2816,
    attention_heads=16,
    kv_heads=4,
    vocab_size=50257,
    tied_embeddings=True,
)
MOE = ArchitectureSpec(
    layers=LAYERS,
    hidden_size=1024,
    ffn_hidden_size=2816,
    attention_heads=16,
    vocab_size=32000,
    experts=8,
    experts_per_token=2,
    dense_layers=1,
)
Segments = list[tuple[int, int]]
"""Stage and chunk of every run of layers, in the model's order."""


def two_groups() -> ClusterSpec:
    """Four H100 nodes and two A100 nodes over a shared link."""
    a, b = group(H100, 4, network=400e9), group(A100, 2)
    link = LinkSpec(
        between=(a.name, b.name),
        bandwidth_bytes_per_s=25e9,
        total_bandwidth_bytes_per_s=40e9,
        latency_s=1e-5,
        path="rdma-host-staged",
    )
    return ClusterSpec(name="two", groups=(a, b), links=(link,))


def segments_of(name: str, stages: int, chunks: int) -> list[Segments]:
    """The runs of layers that a micro-batch passes; both directions of DualPipe, each over the whole model."""
    down = range(stages)
    if name == "zb-v":
        return [[(j, 0) for j in down] + [(j, 1) for j in reversed(down)]]
    if name == "dualpipe":
        return [[(j, 0) for j in down], [(j, 1) for j in reversed(down)]]
    return [[(j, c) for c in range(chunks) for j in down]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Degrees of a group's stages."""

    tp: int = 1
    dp: int = 1
    microbatch_size: int = 1
    zero: int = 0


def plan_of(
    name: str,
    layers: Sequence[int],
    *,
    on: Sequence[str],
    num_microbatches: int,
    splits: dict[str, Split] | None = None,
    recompute: Sequence[tuple[int, int]] = (),
    warmup: tuple[int, ...] | None = None,
) -> Plan:
    """A plan with these layers on every run of the model (of one direction), a stage on each of the named groups.

    `recompute` holds selective and full blocks of every run.
    """
    stages = len(on)
    routes = segments_of(name, stages, max(1, len(layers) // stages))
    chunks: dict[tuple[int, int], Chunk] = {}
    for route in routes:
        first = 0
        for place, count in enumerate(layers):
            selective, full = recompute[place] if recompute else (0, 0)
            mix = Recompute(none=count - selective - full, selective=selective, full=full)
            chunks[route[place]] = Chunk(first_layer=first, layers=count, recompute=mix)
            first += count
    held = [tuple(chunks[key] for key in sorted(chunks) if key[0] == j) for j in range(stages)]
    made = []
    for j, (group_name, parts) in enumerate(zip(on, held, strict=True)):
        split = (splits or {}).get(group_name, Split())
        total = {kind: sum(getattr(part.recompute, kind) for part in parts) for kind in ("none", "selective", "full")}
        made.append(
            Stage(
                group=group_name,
                first_layer=held[j][0].first_layer,
                layers=sum(part.layers for part in parts),
                tp=split.tp,
                dp=split.dp,
                microbatch_size=split.microbatch_size,
                zero=split.zero,  # type: ignore[arg-type]
                recompute=Recompute(**total),
                chunks=parts if len(parts) > 1 else None,
            )
        )
    split = (splits or {}).get(on[0], Split())
    return Plan(
        schedule=Schedule(name=name, virtual_stages=len(held[0]), warmup=warmup),  # type: ignore[arg-type]
        global_batch_size=split.dp * split.microbatch_size * num_microbatches,
        num_microbatches=num_microbatches,
        stages=tuple(made),
    )


def simple_plan(name: str, *, stages: int = 2, chunks: int = 2, num_microbatches: int = 8, **more: Any) -> Plan:
    """An even plan of a schedule: the first half of the stages on H100, the others on A100."""
    runs = stages * chunks if name in ("interleaved-1f1b", "breadth-first", "zb-v") else stages
    on = (H100,) * (stages // 2) + (A100,) * (stages - stages // 2)
    return plan_of(name, (LAYERS // runs,) * runs, on=on, num_microbatches=num_microbatches, **more)


def training_of(plan: Plan, **more: Any) -> TrainingSpec:
    """Training values that go with a plan."""
    return TrainingSpec(global_batch_size=plan.global_batch_size, sequence_length=1024, **more)


def setting_of(plan: Plan, architecture: ArchitectureSpec = DENSE, **stack: Any) -> Setting:
    """What a plan is judged against; `stack` changes figures of the default stack."""
    model = ModelSpec(name="small", architecture=architecture)
    changed: StackSpec = STACK.model_copy(update=stack)
    return Setting(cluster=two_groups(), model=model, training=training_of(plan), stack=changed)


def runs_of(name: str, stages: int) -> list[int]:
    """Numbers of runs that a schedule may cut a model into, over so many stages."""
    order = schedule(name)
    if order.copies == 2:
        return [stages]
    return [v * stages for v in (1, 2, 3) if order.chunks(v) is None and v * stages <= LAYERS]


@st.composite
def plans(draw: st.DrawFn, names: Sequence[str] = NAMES) -> Plan:
    """Uneven plans of every schedule, each group with degrees of its own."""
    name = draw(st.sampled_from(names))
    order = schedule(name)
    stages = draw(st.sampled_from([p for p in (2, 3, 4) if order.obstacle(p, 4 * p) is None]))
    per_step = draw(st.sampled_from([1, 2, 4]))
    splits = {}
    for group_name in (H100, A100):
        size = draw(st.sampled_from([b for b in (1, 2, 4) if b <= per_step]))
        dp = per_step // size
        zero = draw(st.integers(0, 1)) if dp > 1 else 0
        # Four stages of four accelerators fill the smaller group.
        tp = draw(st.sampled_from([t for t in (1, 2) if t * dp <= 4]))
        splits[group_name] = Split(tp=tp, dp=dp, microbatch_size=size, zero=zero)
    microbatches = draw(st.integers(2, 4)) * stages if name != "dualpipe" else 2 * draw(st.integers(stages, stages + 2))
    border = draw(st.integers(0, stages))
    on = [H100] * border + [A100] * (stages - border)
    on = on if draw(st.booleans()) else on[::-1]
    runs = draw(st.sampled_from(runs_of(name, stages)))
    cuts = sorted(draw(st.sets(st.integers(1, LAYERS - 1), min_size=runs - 1, max_size=runs - 1)))
    layers = [b - a for a, b in zip([0, *cuts], [*cuts, LAYERS], strict=True)]
    recompute = []
    for count in layers:
        full = draw(st.integers(0, count))
        recompute.append((draw(st.integers(0, count - full)), full))
    warmup = None
    if name == "1f1b" and draw(st.booleans()):
        steps = draw(st.lists(st.integers(0, 2), min_size=stages, max_size=stages))
        warmup = tuple(sum(steps[j:]) - steps[-1] for j in range(stages))
    return plan_of(
        name, layers, on=on, num_microbatches=microbatches, splits=splits, recompute=recompute, warmup=warmup
    )
