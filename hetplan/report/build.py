"""Records made from results, and the text they are written as."""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib import metadata

from pydantic import JsonValue

from hetplan import __version__
from hetplan.errors import Mistake
from hetplan.plan import Plan
from hetplan.prediction import MemoryUse, Prediction, SingleType, StagePrediction
from hetplan.report.records import (
    BoundRecord,
    BreakdownRecord,
    CertificateRecord,
    ClusterSummary,
    ErrorRecord,
    FixRecord,
    IdleRecord,
    InfeasibleRecord,
    InputsRecord,
    MemoryRecord,
    MistakeRecord,
    ModelSummary,
    ObjectiveRecord,
    PlainRecord,
    PlanRecord,
    PlanSpaceRecord,
    PredictionRecord,
    PredictRecord,
    PrunedRecord,
    Record,
    ResultRecord,
    RunRecord,
    SingleTypeRecord,
    StageRecord,
)
from hetplan.search.result import Infeasible, RankedPlan, SearchResult
from hetplan.specs.cluster import ClusterSpec
from hetplan.specs.model import ModelSpec
from hetplan.specs.quantities import Spec
from hetplan.specs.training import TrainingSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """What was asked, as the commands hold it."""

    cluster: ClusterSpec
    model: ModelSpec
    training: TrainingSpec
    stack: Spec
    options: Mapping[str, JsonValue] = field(default_factory=dict)


def to_json(record: Record) -> str:
    """The record as text: keys in order, ASCII, finite numbers only, a newline at the end."""
    return json.dumps(record.model_dump(mode="json"), indent=2, allow_nan=False) + "\n"


def digest(spec: Spec) -> str:
    """sha256 of the spec's canonical JSON: keys sorted, no blanks."""
    text = json.dumps(spec.model_dump(mode="json"), sort_keys=True, separators=(",", ":"), allow_nan=False)
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()


def run_record(
    elapsed_s: float, *, solver: bool = False, threads: int | None = None, seed: int | None = None
) -> RunRecord:
    """What varies by run; `solver` names the version of OR-Tools without loading it."""
    return RunRecord(
        elapsed_s=elapsed_s,
        hetplan=__version__,
        ortools=metadata.version("ortools") if solver else None,
        threads=threads,
        seed=seed,
    )


def search_record(result: SearchResult, inputs: Inputs, run: RunRecord) -> ResultRecord:
    """The record of `search`."""
    tokens = inputs.training.global_batch_size * inputs.training.sequence_length
    bounded = math.isfinite(result.bound_s) and result.bound_s > 0
    proved_gap = bounded and bool(result.plans) and math.isfinite(result.gap)
    certificate, limits = result.certificate, result.limits
    return ResultRecord(
        status=result.status,
        stopped_by=result.stopped_by,
        objective=ObjectiveRecord(),
        bound=BoundRecord(
            value=tokens / result.bound_s if bounded else None,
            iteration_time_s=result.bound_s if bounded else None,
            gap=result.gap if proved_gap else None,
            plan_space=PlanSpaceRecord(
                name=result.space,
                schedules=result.schedules,
                max_virtual_stages=limits.max_virtual_stages,
                max_warmup=limits.max_warmup,
                max_stages=limits.max_stages,
                max_stages_per_group=limits.max_stages_per_group,
                max_tp=limits.max_tp,
                max_microbatch_size=limits.max_microbatch_size,
                max_microbatches=limits.max_microbatches,
                configurations=result.candidates,
            ),
            certified_by=CertificateRecord(
                program=certificate.program,
                programs=certificate.programs,
                simulations=certificate.simulations,
                dp_leaves=certificate.dp_leaves,
                nodes=certificate.nodes,
                failures=certificate.failures,
            ),
        ),
        inputs=_inputs(inputs),
        cluster=_cluster(inputs),
        model=_model(inputs),
        plans=tuple(_ranked(entry) for entry in result.plans),
        plain_1f1b=_plain(result),
        infeasible=None if result.infeasible is None else _infeasible(result.infeasible),
        single_types=_single_types(result.single_types),
        pruned=PrunedRecord(**asdict(result.pruned)),
        warnings=result.warnings,
        run=run,
    )


def _plain(result: SearchResult) -> PlainRecord | None:
    plain = result.plain
    if plain is None or not result.plans:
        return None
    return PlainRecord(
        iteration_time_s=plain.iteration_time_s,
        gap=plain.gap,
        longer=plain.iteration_time_s / result.plans[0].prediction.iteration_time_s - 1,
        why=plain.why,
        plan=plain.plan,
    )


def predict_record(
    plan: Plan,
    prediction: Prediction,
    inputs: Inputs,
    run: RunRecord,
    single_types: Sequence[SingleType] | None = None,
) -> PredictRecord:
    """The record of `predict`; `single_types` are those that the prediction was made with."""
    return PredictRecord(
        inputs=_inputs(inputs),
        cluster=_cluster(inputs),
        model=_model(inputs),
        plan=plan,
        prediction=prediction_record(prediction),
        idle=_idle(prediction),
        warnings=prediction.warnings,
        single_types=_single_types(single_types or ()),
        run=run,
    )


def error_record(command: str, *mistakes: Mistake) -> ErrorRecord:
    """What a command prints under --json when it fails."""
    return ErrorRecord(
        command=command,
        errors=tuple(
            MistakeRecord(
                kind=m.kind, message=m.message, hint=m.hint, file=m.file, line=m.line, column=m.column, key=m.key
            )
            for m in mistakes
        ),
    )


def prediction_record(prediction: Prediction) -> PredictionRecord:
    """A prediction as it stands in the records."""
    return PredictionRecord(
        iteration_time_s=prediction.iteration_time_s,
        iteration_time_low_s=prediction.iteration_time_low_s,
        iteration_time_high_s=prediction.iteration_time_high_s,
        tokens_per_s=prediction.tokens_per_s,
        mfu=prediction.mfu,
        additive_ratio=prediction.additive_ratio,
        roofline_ratio=prediction.roofline_ratio,
        best_single_type_ratio=prediction.best_single_type_ratio,
        calibrated=prediction.calibrated,
        breakdown_s=BreakdownRecord(**asdict(prediction.breakdown)),
        bottleneck=prediction.bottleneck,
        stages=tuple(_stage(stage) for stage in prediction.stages),
    )


def _inputs(inputs: Inputs) -> InputsRecord:
    return InputsRecord(
        cluster=inputs.cluster,
        model=inputs.model,
        training=inputs.training,
        stack=inputs.stack.model_dump(mode="json"),
        options=dict(inputs.options),
    )


def _cluster(inputs: Inputs) -> ClusterSummary:
    cluster = inputs.cluster
    return ClusterSummary(name=cluster.name, digest=digest(cluster), accelerators=cluster.accelerators)


def _model(inputs: Inputs) -> ModelSummary:
    model = inputs.model
    return ModelSummary(name=model.name, digest=digest(model), parameters=model.parameters)


def _ranked(entry: RankedPlan) -> PlanRecord:
    return PlanRecord(
        rank=entry.rank,
        plan=entry.plan,
        prediction=prediction_record(entry.prediction),
        idle=_idle(entry.prediction),
        warnings=entry.prediction.warnings,
    )


def _idle(prediction: Prediction) -> tuple[IdleRecord, ...]:
    return tuple(IdleRecord(group=idle.group, accelerators=idle.accelerators) for idle in prediction.idle)


def _single_types(single_types: Sequence[SingleType]) -> tuple[SingleTypeRecord, ...]:
    return tuple(SingleTypeRecord(accelerator=s.accelerator, tokens_per_s=s.tokens_per_s) for s in single_types)


def _memory(memory: MemoryUse) -> MemoryRecord:
    return MemoryRecord(
        weights_bytes=round(memory.weights_bytes),
        gradients_bytes=round(memory.gradients_bytes),
        optimizer_bytes=round(memory.optimizer_bytes),
        activations_bytes=round(memory.activations_bytes),
        other_bytes=round(memory.other_bytes),
    )


def _stage(stage: StagePrediction) -> StageRecord:
    memory = _memory(stage.memory)
    return StageRecord(
        group=stage.group,
        accelerator=stage.accelerator,
        accelerators=stage.accelerators,
        forward_s=stage.forward_s,
        backward_s=stage.backward_s,
        recompute_s=stage.recompute_s,
        idle_s=stage.idle_s,
        gradient_sync_s=stage.gradient_sync_s,
        optimizer_s=stage.optimizer_s,
        microbatch_s=stage.microbatch_s,
        hop_s=stage.hop_s,
        memory_bytes=memory.total_bytes,
        memory_capacity_bytes=round(stage.memory_capacity_bytes),
        memory=memory,
        verdict=stage.verdict,
        binding=stage.binding,
    )


def _infeasible(why: Infeasible) -> InfeasibleRecord:
    return InfeasibleRecord(
        binding=why.binding,
        message=why.message,
        shortfall_bytes=round(why.shortfall_bytes),
        group=why.group,
        stage=why.stage,
        closest=why.closest,
        memory=None if why.memory is None else _memory(why.memory),
        usable_bytes=None if why.usable_bytes is None else round(why.usable_bytes),
        nearest=why.nearest,
        fixes=tuple(FixRecord(**asdict(fix)) for fix in why.fixes),
    )
