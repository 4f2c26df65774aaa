"""What the planner says where nothing fits, on public cases and on small problems."""

from dataclasses import replace
from functools import cache

import pytest

from hetplan.cost.profiles import load_stack
from hetplan.predict import Setting
from hetplan.search.infeasible import fits
from hetplan.search.options import SearchOptions
from hetplan.search.planner import search
from hetplan.search.result import Fix, Infeasible
from hetplan.specs.catalog import accelerator
from hetplan.specs.cluster import ClusterSpec, GroupSpec
from hetplan.specs.files import LoadedModel, load_model
from hetplan.specs.model import ModelSpec
from hetplan.specs.training import TrainingSpec
from tests.cost.builders import MODELS, group
from tests.search.spaces import options_of, setting_of, under, with_memory

QUICK = SearchOptions(time_limit_s=10.0, gap=0.05)


def of_group(one: GroupSpec) -> ClusterSpec:
    """A cluster of one group."""
    return ClusterSpec(name="cluster", groups=(one,))


def setting(cluster: ClusterSpec, loaded: LoadedModel) -> Setting:
    """What plans of an example model are judged against."""
    return Setting(cluster=cluster, model=loaded.model, training=loaded.training, stack=load_stack())


@cache
def llama_70b() -> LoadedModel:
    """Llama-2-70B as in the examples."""
    return load_model(MODELS / "llama-2-70b.yaml")


def explained(one: GroupSpec, loaded: LoadedModel) -> Infeasible:
    """Why nothing fits on one group."""
    result = search(of_group(one), loaded.model, loaded.training, search_options=QUICK)
    assert (result.status, result.plans) == ("infeasible", ())
    assert result.bound_s == float("inf")
    assert result.pruned.memory == result.candidates > 0
    assert result.infeasible is not None
    return result.infeasible


def growth(fixes: tuple[Fix, ...]) -> tuple[int, int]:
    """Nodes, or accelerators in a node, before and after the fix that adds some."""
    fix = next(fix for fix in fixes if "accelerators in " in fix.change)
    return int(fix.before.split()[0]), int(fix.after.split()[0])


def test_llama_70b_on_two_h100() -> None:
    """Two H100 cannot hold Llama-2-70B (NVIDIA/Megatron-LM issue 783: states of about 1.24 TB); 16 at least can.

    The number named is the smallest: with one accelerator less nothing fits.
    """
    two = group("h100-sxm5-80gb", nodes=1, per_node=2)
    found = explained(two, llama_70b())
    assert found.binding == "memory"
    assert found.group == "h100-sxm5-80gb"
    assert found.memory is not None
    assert found.usable_bytes == two.usable_bytes
    assert found.shortfall_bytes == pytest.approx(found.memory.total_bytes - two.usable_bytes)
    # Half of the states each is eight times what an H100 has.
    assert 500e9 < found.shortfall_bytes < 1000e9
    before, after = growth(found.fixes)
    assert before == 2
    assert after >= 16
    for count, enough in ((after, True), (after - 1, False)):
        grown = of_group(two.model_copy(update={"accelerators_per_node": count}))
        assert fits(setting(grown, llama_70b()), QUICK) == enough
    assert str(after) in found.nearest


def test_llama_70b_on_two_nodes() -> None:
    """With a network the fix is in nodes: the smallest number that fits, and a search on it finds a plan."""
    nodes = group("h100-sxm5-80gb", nodes=2, per_node=2)
    found = explained(nodes, llama_70b())
    before, after = growth(found.fixes)
    assert before == 2
    assert 2 * after >= 16
    assert not fits(setting(of_group(nodes.model_copy(update={"nodes": after - 1})), llama_70b()), QUICK)
    grown = of_group(nodes.model_copy(update={"nodes": after}))
    result = search(grown, llama_70b().model, llama_70b().training, search_options=QUICK)
    assert result.plans[0].prediction.fits


def test_qwen_72b_on_one_node_of_a100() -> None:
    """One node of eight A100-80GB cannot train Qwen-72B, not with ZeRO-3 either (QwenLM/Qwen issue 755)."""
    loaded = load_model(MODELS / "qwen2.5-72b.yaml", {"global_batch_size": 8, "sequence_length": 2048})
    found = explained(group("a100-sxm4-80gb", nodes=1, per_node=8), loaded)
    assert found.binding == "memory"
    assert found.shortfall_bytes > 20e9


def test_every_fix_fits_when_searched() -> None:
    """Each change that is named, made and searched again, gives a plan that fits; its time is what was said."""
    small = group("a100-sxm4-40gb", nodes=1, per_node=8)
    loaded = load_model(MODELS / "llama-2-13b.yaml", {"global_batch_size": 16, "sequence_length": 4096})
    small = small.model_copy(update={"accelerators_per_node": 4})
    found = explained(small, loaded)
    assert len(found.fixes) >= 3
    for fix in found.fixes:
        one, model = small, loaded.model
        if "in place of" in fix.change:
            sheet = accelerator(fix.change.split(" in place of ")[0])
            assert sheet is not None
            one = small.model_copy(update={"accelerator": sheet})
        elif fix.change == "fewer layers":
            layers = int(fix.after)
            model = ModelSpec(name="less", architecture=model.architecture.model_copy(update={"layers": layers}))
            more = ModelSpec(name="more", architecture=model.architecture.model_copy(update={"layers": layers + 1}))
            assert search(of_group(one), more, loaded.training, search_options=QUICK).status == "infeasible"
        else:
            one = small.model_copy(update={"accelerators_per_node": int(fix.after.split()[0])})
        result = search(of_group(one), model, loaded.training, search_options=QUICK)
        assert result.plans[0].prediction.fits, fix
        assert result.plans[0].prediction.iteration_time_s == pytest.approx(fix.iteration_time_s, rel=0.1)


def test_rules_bind_where_memory_does_not() -> None:
    """Where the accelerators cannot run the format, the answer names the rules and shows no plan."""
    loaded = llama_70b()
    v100 = group("v100-sxm2-32gb", nodes=1, per_node=8)
    result = search(of_group(v100), loaded.model, loaded.training, search_options=QUICK)
    assert result.status == "infeasible"
    assert result.infeasible is not None
    assert result.infeasible.binding == "divisibility"
    assert result.infeasible.closest is None


def test_small_problems_without_a_plan() -> None:
    """The shortfall is that of the plan shown, positive, and the stage named is the one that lacks most."""
    schedules = set()
    problems = [with_memory(under(name)(5), 0.2) for name in ("breadth-first", "zb-v")]
    for instance in (with_memory(under("1f1b")(0), 0.2), *problems):
        options = replace(options_of(instance), time_limit_s=10.0)
        result = search(instance.cluster, instance.model, instance.training, instance.stack, options)
        found = result.infeasible
        assert found is not None
        assert found.closest is not None
        assert found.shortfall_bytes > 0
        assert found.stage is not None
        assert found.memory is not None
        assert found.closest.stages[found.stage].group == found.group
        more = with_memory(instance, more_bytes=found.shortfall_bytes + 2**20)
        assert fits(setting_of(more), options)
        schedules.add(found.closest.schedule.name)
    assert schedules == {"1f1b", "breadth-first", "zb-v"}


def test_training_without_a_divisor() -> None:
    """A batch of one sequence on many accelerators is no mistake: a pipeline of one replica is found."""
    training = TrainingSpec(global_batch_size=1, sequence_length=512)
    result = search(of_group(group(per_node=4)), load_model(MODELS / "gpt2-small.yaml").model, training)
    assert result.status == "optimal"
    assert {stage.dp for stage in result.plans[0].plan.stages} == {1}
