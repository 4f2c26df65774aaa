"""The JSON records: what `--json` and `-o` write, and what other commands read back.

Keys stand in the order of docs/json.md. Whatever varies from run to run stands under `run`, so that the rest is
the same bytes for the same inputs.
"""

from typing import Annotated, Literal

from pydantic import Field, JsonValue

from hetplan.cost.profiles import StackSpec
from hetplan.plan import Plan
from hetplan.prediction import Binding, Verdict
from hetplan.search.result import Status, StoppedBy
from hetplan.specs.accelerator import AcceleratorSpec
from hetplan.specs.cluster import ClusterSpec
from hetplan.specs.model import ModelSpec
from hetplan.specs.quantities import Spec
from hetplan.specs.training import TrainingSpec

SCHEMA_VERSION: Literal[1] = 1

Version = Annotated[Literal[1], Field(description="version of this record's layout")]
Seconds = Annotated[float, Field(ge=0, description="seconds")]
Share = Annotated[float, Field(ge=0, description="share of 1")]
Count = Annotated[int, Field(ge=0, description="whole number")]
ByteCount = Annotated[int, Field(description="bytes")]
ComparisonVerdict = Literal["same", "faster", "slower", "lost", "found", "none"]
MeasureVerdict = Literal["better", "worse", "same", "unknown"]


class InputsRecord(Spec):
    """What was asked: every file as it was understood, complete, in SI base units."""

    cluster: ClusterSpec = Field(description="the cluster, accelerators written out")
    model: ModelSpec = Field(description="the model")
    training: TrainingSpec = Field(description="the training values in force")
    stack: dict[str, JsonValue] = Field(description="the software stack's profile")
    options: dict[str, JsonValue] = Field(description="the command's options")


class ClusterSummary(Spec):
    """The cluster in short."""

    name: str = Field(description="name of the cluster")
    digest: str = Field(description="sha256 of its canonical JSON")
    accelerators: Count = Field(description="accelerators in the cluster")


class ModelSummary(Spec):
    """The model in short."""

    name: str = Field(description="name of the model")
    digest: str = Field(description="sha256 of its canonical JSON")
    parameters: Count = Field(description="exact number of parameters")


class RunRecord(Spec):
    """What varies from run to run."""

    elapsed_s: Seconds = Field(description="seconds that the work took")
    hetplan: str = Field(description="version of hetplan")
    ortools: str | None = Field(None, description="version of OR-Tools, where a solver was used")
    threads: int | None = Field(None, ge=1, description="worker processes")
    seed: int | None = Field(None, description="seed of the solver")


class ObjectiveRecord(Spec):
    """What is optimised."""

    name: Literal["throughput"] = Field("throughput", description="objective")
    unit: Literal["tokens/s"] = Field("tokens/s", description="unit of its values")
    sense: Literal["max", "min"] = Field("max", description="whether more or less is better")


class PlanSpaceRecord(Spec):
    """The space that the bound speaks about."""

    name: Literal["uniform", "per-group"] = Field("uniform", description="plan space")
    schedules: tuple[str, ...] = Field(("1f1b",), description="pipeline schedules searched")
    max_stages: Count = Field(description="most pipeline stages")
    max_stages_per_group: Count = Field(description="most stages on one group")
    max_tp: Count = Field(description="largest tensor parallel degree")
    max_microbatch_size: Count = Field(description="most sequences per micro-batch")
    max_microbatches: Count = Field(description="most micro-batches per step")
    max_virtual_stages: Count = Field(1, description="most chunks per stage where a schedule takes any number")
    max_warmup: Count = Field(0, description="most forwards of further 1f1b warm-up per change of group")
    group_orders: Literal["contiguous"] = Field("contiguous", description="a group's stages are neighbours")
    configurations: Count = Field(description="combinations of degrees and stage counts in the space")


class CertificateRecord(Spec):
    """Who proved the bound, and the work it took."""

    program: str = Field(description="solver of the integer programs")
    programs: Count = Field(description="integer programs solved")
    simulations: Count = Field(description="plans timed by the exact recurrence")
    dp_leaves: Count = Field(description="layer splits solved by the dynamic program")
    nodes: Count = Field(description="boxes taken from the queue")
    failures: Count = Field(description="programs without a usable answer")


class BoundRecord(Spec):
    """What no plan of the space can beat. Values are null where no plan fits."""

    value: float | None = Field(description="bound on the objective, in its unit")
    unit: Literal["tokens/s"] = Field("tokens/s", description="unit of the value")
    iteration_time_s: float | None = Field(description="seconds per iteration that no plan can beat")
    gap: float | None = Field(description="(printed time - bound) / printed time")
    plan_space: PlanSpaceRecord = Field(description="the space searched")
    certified_by: CertificateRecord = Field(description="the proof")


class MemoryRecord(Spec):
    """Bytes on one accelerator, by term."""

    weights_bytes: ByteCount = Field(description="parameters")
    gradients_bytes: ByteCount = Field(description="gradients")
    optimizer_bytes: ByteCount = Field(description="optimizer state and master weights")
    activations_bytes: ByteCount = Field(description="activations of the micro-batches in flight")
    other_bytes: ByteCount = Field(description="workspace, logits, buffers")

    @property
    def total_bytes(self) -> int:
        """All terms."""
        return (
            self.weights_bytes + self.gradients_bytes + self.optimizer_bytes + self.activations_bytes + self.other_bytes
        )


class StageRecord(Spec):
    """One stage: seconds per iteration unless said otherwise, bytes per accelerator."""

    group: str = Field(description="group of the cluster")
    accelerator: str = Field(description="its accelerator")
    accelerators: Count = Field(description="accelerators of the stage")
    forward_s: Seconds = Field(description="forward passes")
    backward_s: Seconds = Field(description="backward passes")
    recompute_s: Seconds = Field(description="recomputed forward passes")
    idle_s: Seconds = Field(description="waiting")
    gradient_sync_s: Seconds = Field(description="exposed gradient synchronisation")
    optimizer_s: Seconds = Field(description="optimizer step")
    microbatch_s: Seconds = Field(description="one micro-batch: forward, recomputation and backward")
    hop_s: float | None = Field(description="transfer to the next stage, one way; null on the last")
    memory_bytes: ByteCount = Field(description="memory in use, the sum of the terms")
    memory_capacity_bytes: ByteCount = Field(description="memory that a plan may use")
    memory: MemoryRecord = Field(description="memory by term")
    verdict: Verdict = Field(description="whether the stage fits")
    binding: Binding = Field(description="what keeps the stage from taking another layer")


class BreakdownRecord(Spec):
    """Where the iteration goes on the slowest stage; sums to the iteration time."""

    forward: float = Field(description="forward passes")
    backward: float = Field(description="backward passes")
    recompute: float = Field(description="recomputed forward passes")
    fill_and_drain: float = Field(description="waiting for the pipeline to fill and drain")
    exposed_links: float = Field(description="waiting for transfers between stages")
    gradient_sync: float = Field(description="exposed gradient synchronisation")
    optimizer: float = Field(description="optimizer step")
    other: float = Field(description="the rest")


class PredictionRecord(Spec):
    """Iteration time, memory and efficiency of one plan."""

    iteration_time_s: Seconds = Field(description="seconds per optimizer step")
    iteration_time_low_s: Seconds = Field(description="lower end of the 90 % band")
    iteration_time_high_s: Seconds = Field(description="upper end of the 90 % band")
    tokens_per_s: float = Field(ge=0, description="tokens per second")
    mfu: Share = Field(description="model FLOP over the dense peak of the accelerators in use")
    additive_ratio: float | None = Field(
        description="tokens/s over the sum of each type's own best: not a bound; null when a type alone cannot run it"
    )
    roofline_ratio: Share = Field(description="tokens/s over achievable FLOP/s of all accelerators per model FLOP")
    best_single_type_ratio: float | None = Field(description="tokens/s over the best plan on one type alone")
    calibrated: bool = Field(description="false where an accelerator or the stack has no measured figure behind it")
    breakdown_s: BreakdownRecord = Field(description="the slowest stage's time by part")
    bottleneck: Count = Field(description="index of the slowest stage")
    stages: tuple[StageRecord, ...] = Field(description="from the embedding to the head")


class IdleRecord(Spec):
    """Accelerators of a group that the plan leaves unused."""

    group: str = Field(description="group of the cluster")
    accelerators: Count = Field(description="unused accelerators")


class PlanRecord(Spec):
    """One ranked plan with its prediction."""

    rank: int = Field(ge=1, description="1 is best")
    plan: Plan = Field(description="the plan")
    prediction: PredictionRecord = Field(description="what is predicted of it")
    idle: tuple[IdleRecord, ...] = Field(description="accelerators left unused")
    warnings: tuple[str, ...] = Field(description="what to know before using it")


class FixRecord(Spec):
    """One change that would make a plan fit, found by searching again."""

    change: str = Field(description="what changes")
    before: str = Field(description="as given")
    after: str = Field(description="as it would fit")
    iteration_time_s: Seconds = Field(description="time it would reach")
    plan: str = Field(description="that plan in words")


class InfeasibleRecord(Spec):
    """Why no plan fits."""

    binding: Literal["memory", "divisibility", "accelerators"] = Field(description="the budget that binds")
    message: str = Field(description="why no plan fits, in words")
    shortfall_bytes: ByteCount = Field(description="bytes per accelerator that the closest plan lacks")
    group: str | None = Field(description="group on which it binds")
    stage: int | None = Field(description="stage of the closest plan on which it binds")
    closest: Plan | None = Field(description="the plan that comes closest")
    memory: MemoryRecord | None = Field(description="memory of that stage by term")
    usable_bytes: ByteCount | None = Field(description="memory that a plan may use there")
    nearest: str = Field(description="the smallest change that would fit, in words")
    fixes: tuple[FixRecord, ...] = Field(description="single changes that would fit, smallest first")


class PrunedRecord(Spec):
    """Configurations left out, by reason."""

    memory: Count = Field(description="too large for memory")
    divisibility: Count = Field(description="degrees that do not divide")
    target: Count = Field(description="not expressible in the target framework")
    bound: Count = Field(description="proved slower than the plans kept")


class SingleTypeRecord(Spec):
    """The best plan on the accelerators of one type alone."""

    accelerator: str = Field(description="the type")
    tokens_per_s: float | None = Field(description="tokens per second; null where it cannot run the model alone")


class PlainRecord(Spec):
    """The best plan under plain 1F1B, without deeper warm-up, in the uniform space."""

    iteration_time_s: Seconds = Field(description="its time")
    gap: float = Field(ge=0, description="how far below its time no such plan can be")
    longer: float = Field(description="its time over that of plan 1, less 1")
    why: str = Field(description="where plan 1 saves time; empty where it saves none")
    plan: Plan = Field(description="the plan")


class ResultRecord(Spec):
    """What `search` found: ranked plans, and a bound that no plan of the space can beat."""

    schema_version: Version = Field(SCHEMA_VERSION)
    command: Literal["search"] = Field("search", description="command that wrote this")
    status: Status = Field(description="optimal: gap at most 0.001")
    stopped_by: StoppedBy = Field(
        description="why the search ended; nodes: at the node limit, or the rest was too much to list"
    )
    objective: ObjectiveRecord = Field(description="what is optimised")
    bound: BoundRecord = Field(description="what no plan can beat")
    inputs: InputsRecord = Field(description="what was asked")
    cluster: ClusterSummary = Field(description="the cluster in short")
    model: ModelSummary = Field(description="the model in short")
    plans: tuple[PlanRecord, ...] = Field(description="best first")
    plain_1f1b: PlainRecord | None = Field(
        None, description="what plan 1 is up against; null where other orders of work were not searched"
    )
    infeasible: InfeasibleRecord | None = Field(description="why no plan fits; null where one does")
    single_types: tuple[SingleTypeRecord, ...] = Field(
        (), description="the best plan on each accelerator type alone, from which two of the ratios come"
    )
    pruned: PrunedRecord = Field(description="configurations left out, by reason")
    warnings: tuple[str, ...] = Field(description="what to know about the search")
    run: RunRecord = Field(description="what varies from run to run")


class PredictRecord(Spec):
    """What `predict` says of one plan."""

    schema_version: Version = Field(SCHEMA_VERSION)
    command: Literal["predict"] = Field("predict", description="command that wrote this")
    inputs: InputsRecord = Field(description="what was asked")
    cluster: ClusterSummary = Field(description="the cluster in short")
    model: ModelSummary = Field(description="the model in short")
    plan: Plan = Field(description="the plan")
    prediction: PredictionRecord = Field(description="what is predicted of it")
    idle: tuple[IdleRecord, ...] = Field(description="accelerators left unused")
    warnings: tuple[str, ...] = Field(description="what to know before using it")
    single_types: tuple[SingleTypeRecord, ...] = Field(
        (), description="the best plan on each accelerator type alone, from which two of the ratios come"
    )
    run: RunRecord = Field(description="what varies from run to run")


class MeasureRecord(Spec):
    """One measure of the best plans of two results."""

    name: str = Field(description="measure")
    unit: str = Field(description="unit of both values")
    before: float | None = Field(description="value in the first result")
    after: float | None = Field(description="value in the second result")
    verdict: MeasureVerdict = Field(description="which way it went")


class ChangeRecord(Spec):
    """One thing that differs, in words."""

    key: str = Field(description="what differs")
    before: str | None = Field(description="in the first result; null where it is absent")
    after: str | None = Field(description="in the second result; null where it is absent")


class CompareRecord(Spec):
    """Two results side by side, by their best plans."""

    schema_version: Version = Field(SCHEMA_VERSION)
    command: Literal["compare"] = Field("compare", description="command that wrote this")
    verdict: ComparisonVerdict = Field(
        description="lost: only the first has a plan; found: only the second has one; none: neither has one"
    )
    regression: bool = Field(description="whether the second is worse by more than is allowed")
    fail_above_pct: float = Field(ge=0, description="slowdown that is allowed, in percent")
    slowdown_pct: float | None = Field(description="time per token, second over first; null without two plans")
    before_status: Status = Field(description="status of the first result")
    after_status: Status = Field(description="status of the second result")
    measures: tuple[MeasureRecord, ...] = Field(description="the best plans by measure")
    plan_changes: tuple[ChangeRecord, ...] = Field(description="how the best plans differ")
    input_changes: tuple[ChangeRecord, ...] = Field(description="how the inputs differ")


class ScheduleRecord(Spec):
    """One pipeline schedule."""

    name: str = Field(description="name")
    description: str = Field(description="what it does")
    bubble: str = Field(description="idle time of like stages, in F, B, W, p, v, m")
    splits_backward: bool = Field(description="whether weight gradients are work of their own")
    weight_copies: int = Field(description="copies of the model's weights in the pipeline")
    zero_2_and_3: bool = Field(description="whether ZeRO-2 and ZeRO-3 go with it")
    frameworks: tuple[str, ...] = Field(description="frameworks that run it, with its name there")
    source: str = Field(description="where it was published")


class ShowAcceleratorsRecord(Spec):
    """What `show accelerators` lists."""

    schema_version: Version = Field(SCHEMA_VERSION)
    command: Literal["show"] = Field("show", description="command that wrote this")
    topic: Literal["accelerators"] = Field("accelerators", description="what is listed")
    accelerators: tuple[AcceleratorSpec, ...] = Field(description="datasheets, in the order asked for")


class ShowSchedulesRecord(Spec):
    """What `show schedules` lists."""

    schema_version: Version = Field(SCHEMA_VERSION)
    command: Literal["show"] = Field("show", description="command that wrote this")
    topic: Literal["schedules"] = Field("schedules", description="what is listed")
    schedules: tuple[ScheduleRecord, ...] = Field(description="pipeline schedules")


class ShowStacksRecord(Spec):
    """What `show stacks` lists."""

    schema_version: Version = Field(SCHEMA_VERSION)
    command: Literal["show"] = Field("show", description="command that wrote this")
    topic: Literal["stacks"] = Field("stacks", description="what is listed")
    stacks: tuple[StackSpec, ...] = Field(description="software stack profiles")


class MistakeRecord(Spec):
    """One thing wrong, and where."""

    kind: str = Field(description="kind of mistake")
    message: str = Field(description="what is wrong")
    hint: str = Field(description="what to do; empty where nothing is known")
    file: str | None = Field(description="file, or null")
    line: int | None = Field(description="line, counted from 1, or null")
    column: int | None = Field(description="column, counted from 1, or null")
    key: str | None = Field(description="key path, or null")


class ErrorRecord(Spec):
    """What a command prints instead of its record when the input is wrong."""

    schema_version: Version = Field(SCHEMA_VERSION)
    command: str = Field(description="command that failed")
    errors: tuple[MistakeRecord, ...] = Field(min_length=1, description="every mistake found, in file order")


ShowRecord = ShowAcceleratorsRecord | ShowStacksRecord | ShowSchedulesRecord
Record = ResultRecord | PredictRecord | CompareRecord | ShowRecord | ErrorRecord
