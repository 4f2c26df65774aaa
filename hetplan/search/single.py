"""Plans without a pipeline: one group, one stage, ZeRO 0 to 3. There are few, so all are looked at."""

from collections.abc import Iterator

from hetplan.cost.stages import Degrees
from hetplan.plan import Plan, Recompute, Stage
from hetplan.predict.setting import Setting
from hetplan.search.result import Limits
from hetplan.search.space import batch_choices, replica_slots, tensor_degrees
from hetplan.search.tables import place_layout, stage_table

ONE = (((1, 0),),)
"""Without a pipeline one micro-batch is in flight."""


def single_stage_plans(
    setting: Setting, limits: Limits, groups: tuple[int, ...]
) -> Iterator[tuple[tuple[object, ...], float, Plan]]:
    """(configuration, seconds, plan) of every plan with one stage that fits."""
    layers = setting.model.architecture.layers
    for group in groups:
        spec = setting.cluster.groups[group]
        for tp in tensor_degrees(setting, group, limits):
            slots = replica_slots(setting, group, tp)
            for dp, size, m in batch_choices(setting, limits, (group,)):
                if dp > slots:
                    continue
                for zero in (0, 1, 2, 3) if dp > 1 else (0,):
                    degrees = Degrees(tp=tp, dp=dp, microbatch_size=size, zero=zero)
                    costs = setting.costs(spec.name, degrees, True, m)
                    ends = costs.ends(first=True, last=True)
                    least = float(costs.state_bytes(0, layers, ends)) + costs.fixed_bytes(ends)
                    if least > spec.usable_bytes:
                        continue
                    table = stage_table(costs, place_layout(costs, "only"), spec.usable_bytes, ONE, splits=False)
                    if not table.possible[0, layers]:
                        continue
                    work = float(table.forward_s[0, layers]) + float(table.backward_s[0, 0, layers])
                    time_s = m * work + (float(table.after_s[0, layers]) + float(table.optimizer_s[layers]))
                    selective, full = int(table.selective[0, layers]), int(table.full[0, layers])
                    stage = Stage(
                        group=spec.name,
                        first_layer=0,
                        layers=layers,
                        tp=tp,
                        dp=dp,
                        microbatch_size=size,
                        recompute=Recompute(none=layers - selective - full, selective=selective, full=full),
                        zero=zero,
                    )
                    plan = Plan(
                        global_batch_size=setting.training.global_batch_size,
                        num_microbatches=m,
                        sequence_parallel=tp > 1,
                        stages=(stage,),
                    )
                    yield (spec.name, tp, dp, size, zero), time_s + setting.stack.step_fixed_s, plan
