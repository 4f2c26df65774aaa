"""`search`: what it says besides the plans."""

from hetplan.search.options import SearchOptions
from hetplan.search.planner import search
from tests.search.instances import random_instance


def test_idle_groups_are_explained() -> None:
    """A group that the best plan leaves unused is named with the reason; one in use is not."""
    explained = 0
    for seed in range(100, 112):
        instance = random_instance(seed)
        options = SearchOptions(gap=0.0, limits=instance.limits)
        result = search(instance.cluster, instance.model, instance.training, instance.stack, options)
        if not result.plans:
            continue
        used = {stage.group for stage in result.plans[0].plan.stages}
        for group in instance.cluster.groups:
            told = [warning for warning in result.warnings if warning.startswith(f"group {group.name} stays idle: ")]
            assert len(told) == (group.name not in used)
            explained += len(told)
    assert explained
