"""Plans without a pipeline against the list of all plans."""

import numpy as np
import pytest

from hetplan.predict import predict_in
from hetplan.search.single import single_stage_plans
from tests.search.brute import enumerate_plans
from tests.search.instances import random_instance
from tests.search.spaces import NAMES, setting_of, under, with_memory


def test_every_plan_with_one_stage() -> None:
    """Each configuration that fits is yielded once with its exact time, no other, whatever schedules are searched."""
    zeros: set[int] = set()
    recomputed = 0
    made = [with_memory(random_instance(seed), 0.7) for seed in range(400, 410)]
    for instance in [*made, *(under(name)(i) for i, name in enumerate(NAMES))]:
        setting, groups = setting_of(instance), tuple(range(len(instance.cluster.groups)))
        listed = {
            (instance.cluster.groups[run.group].name, *run.option[1:]): float(entry.time_s[0])
            for (_, chain), entry in enumerate_plans(instance).timed.items()
            for run in chain
            if len(chain) == run.stages == 1 and len(entry.time_s)
        }
        found = list(single_stage_plans(setting, instance.limits, groups))
        assert len({key for key, _, _ in found}) == len(found)
        assert {key: time_s for key, time_s, _ in found} == pytest.approx(listed, rel=1e-12)
        for _, time_s, plan in found:
            prediction = predict_in(setting, plan)
            assert prediction.fits
            assert prediction.iteration_time_s == pytest.approx(time_s, rel=1e-12)
            zeros.add(plan.stages[0].zero)
            recomputed += plan.stages[0].recompute.none < plan.stages[0].layers
    assert zeros == {0, 1, 2, 3}
    assert recomputed > 1


def test_only_the_groups_asked_for() -> None:
    """Plans lie on the groups asked for, and all groups together have the plans of each."""
    instance = random_instance(3)
    setting, count = setting_of(instance), len(instance.cluster.groups)
    assert count > 1
    parts = [[key for key, _, _ in single_stage_plans(setting, instance.limits, (g,))] for g in range(count)]
    for g, keys in enumerate(parts):
        assert {key[0] for key in keys} <= {instance.cluster.groups[g].name}
    together = [key for key, _, _ in single_stage_plans(setting, instance.limits, tuple(range(count)))]
    assert len(together) >= max(map(len, parts))
    assert set(np.concatenate([np.array([str(key) for key in keys]) for keys in parts])) <= {str(k) for k in together}
