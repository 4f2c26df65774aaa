"""What may be chosen against the definition of the space; what is left out, and why nothing is lost."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetplan.cost.stages import Degrees
from hetplan.schedule.schedules import schedule
from hetplan.search.options import SearchOptions, SpaceName
from hetplan.search.result import Limits
from hetplan.search.space import Root, base_roots, batch_choices, divisors, microbatch_sizes, orders_of_work
from hetplan.specs.architecture import ArchitectureSpec
from hetplan.specs.training import TrainingSpec
from tests.cost.builders import group, stage_costs
from tests.search.brute_space import Choices
from tests.search.instances import random_instance, slow_link_instance
from tests.search.spaces import NAMES, all_groups, as_listed, options_of, root_spaces, setting_of, structures
from tests.specs.shapes import architectures


@given(
    arch=architectures(),
    tp=st.sampled_from([1, 2, 8]),
    dp=st.integers(2, 16),
    precision=st.sampled_from(["bf16", "fp16", "fp32"]),
    optimizer=st.sampled_from(["adam", "sgd"]),
    network=st.floats(1e8, 1e12),
    gradient_bytes=st.sampled_from([2, 4]),
)
def test_zero_1_is_never_worse_than_zero_0(
    arch: ArchitectureSpec, tp: int, dp: int, precision: str, optimizer: str, network: float, gradient_bytes: int
) -> None:
    """With replicas, ZeRO-1 takes no more memory and no more time than ZeRO-0, for any stage of any model."""
    training = TrainingSpec.model_validate({"precision": precision, "optimizer": optimizer, "sequence_length": 64})
    on = group(nodes=16, network=network)
    plain, sharded = (
        stage_costs(
            arch,
            Degrees(tp=tp, dp=dp, zero=zero),
            training=training,
            on=on,
            stack=stage_costs(arch, Degrees(tp=1, dp=1)).stack.model_copy(update={"gradient_bytes": gradient_bytes}),
        )
        for zero in (0, 1)
    )
    for first, last in ((True, True), (True, False), (False, False), (False, True)):
        ends = plain.ends(first=first, last=last)
        held = plain.parameters(0, arch.layers, ends)
        assert held == sharded.parameters(0, arch.layers, ends)
        assert sharded.gradient_sync_s(*held) <= plain.gradient_sync_s(*held)
        assert sharded.optimizer_s(*held) <= plain.optimizer_s(*held)
        assert sharded.state_bytes(0, arch.layers, ends) <= plain.state_bytes(0, arch.layers, ends)
        assert sharded.fixed_bytes(ends) == plain.fixed_bytes(ends)
    assert sharded.layers == plain.layers


@pytest.mark.parametrize("space", ["uniform", "per-group"])
def test_roots_hold_exactly_the_choices_that_there_are(space: SpaceName) -> None:
    """Orders of work, degrees and structures of all roots are those of the definition, each under one root."""
    checked = 0
    for instance in [*map(random_instance, range(4)), *map(slow_link_instance, range(7))]:
        asked = replace(instance, space=space)
        told = {
            (job, chain)
            for job, shape, chains in Choices(asked).by_shape()
            for chain in chains
            # ZeRO-0 with replicas is listed to show that it is never better.
            if shape.stages > 1 and all(run.zero == (run.dp > 1) for run in chain)
        }
        listed = [as_listed(root, structure) for root in root_spaces(asked) for structure in structures(root)]
        assert len(set(listed)) == len(listed)
        assert set(listed) == told
        checked += len(told)
    assert checked > 2_000


def test_roots_by_batch() -> None:
    """Every root fills the global batch within the limits; uniform ones fix the degrees, others the product alone."""
    for seed in range(20):
        instance = slow_link_instance(seed)
        setting, groups = setting_of(instance), all_groups(instance)
        batch, limits = instance.training.global_batch_size, instance.limits
        choices = set(batch_choices(setting, limits, groups))
        for dp, size, m in choices:
            assert dp * size * m == batch
            assert m <= limits.max_microbatches
            assert size in microbatch_sizes(limits)
        uniform, apart = (
            base_roots(setting, replace(options_of(instance), space=space), groups)
            for space in ("uniform", "per-group")
        )
        assert {(r.dp, r.microbatch_size, r.num_microbatches) for r in uniform} == choices
        assert all(r.samples == (r.dp or 0) * (r.microbatch_size or 0) for r in uniform)
        assert {(r.samples, r.num_microbatches) for r in apart} == {(r.samples, r.num_microbatches) for r in uniform}
        assert len({r.samples for r in apart}) == len(apart)
        assert {(r.dp, r.microbatch_size) for r in apart} <= {(None, None)}


def test_orders_of_work_exist() -> None:
    """Each order exists for its stages and micro-batches; 1F1B and GPipe leave the number of stages open."""
    root = Root(samples=1, num_microbatches=12)
    asked = SearchOptions(schedules=NAMES)
    found = orders_of_work(root, asked, (0, 1), 6)
    assert len(set(found)) == len(found)
    assert {order.schedule for order in found} == set(NAMES)
    for order in found:
        entry = schedule(order.schedule)
        assert entry.chunks(order.virtual_stages) is None
        assert (order.stages is None) == (order.schedule in ("1f1b", "gpipe"))
        assert order.stages is None or entry.obstacle(order.stages, 12) is None
        assert order.warmup == 0 or order.schedule == "1f1b"
    assert [order.warmup for order in found if order.schedule == "1f1b"] == [0, 1, 2, 4]
    assert [order.stages for order in found if order.schedule == "dualpipe"] == [2, 4, 6]
    pairs = [(order.virtual_stages, order.stages) for order in found if order.schedule == "interleaved-1f1b"]
    assert pairs == [(v, p) for v in (2, 4) for p in (2, 3, 4, 6)]


@pytest.mark.parametrize(
    ("groups", "limits", "told"),
    [
        ((0,), Limits(), {"1f1b": 1, "interleaved-1f1b": 6, "zb-v": 3}),
        ((0, 1), Limits(max_warmup=1), {"1f1b": 2, "interleaved-1f1b": 6, "zb-v": 3}),
        ((0, 1), Limits(max_warmup=3, max_virtual_stages=3), {"1f1b": 3, "interleaved-1f1b": 3, "zb-v": 3}),
        ((0, 1), Limits(max_warmup=0, max_virtual_stages=1), {"1f1b": 1, "zb-v": 3}),
    ],
)
def test_limits_on_orders_of_work(groups: tuple[int, ...], limits: Limits, told: dict[str, int]) -> None:
    """Deeper warm-up takes two groups and stays within its limit, as chunks do."""
    asked = SearchOptions(schedules=("1f1b", "interleaved-1f1b", "zb-v"), limits=limits)
    found = orders_of_work(Root(samples=1, num_microbatches=12), asked, groups, 4)
    assert {name: sum(order.schedule == name for order in found) for name in told} == told
    assert len(found) == sum(told.values())


def test_divisors() -> None:
    """In ascending order, each once."""
    for n in (*range(1, 50), 360):
        assert divisors(n) == [i for i in range(1, n + 1) if n % i == 0]
