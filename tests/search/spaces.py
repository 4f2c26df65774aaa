"""Roots, structures and splits of small random problems, listed one by one."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import combinations, permutations, product

import numpy as np
import numpy.typing as npt

from hetplan.plan import ScheduleName
from hetplan.predict import Setting
from hetplan.schedule.schedules import schedule
from hetplan.schedule.simulator import Shape, Transfers
from hetplan.search.chain import Chain
from hetplan.search.options import SearchOptions, SpaceName
from hetplan.search.roots import RootSpace, Structure
from hetplan.search.shared import Shared
from hetplan.search.space import base_roots, orders_of_work
from tests.search.brute_space import Chain as Choice
from tests.search.brute_space import Job, Run
from tests.search.instances import Instance, random_instance, slow_link_instance

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
NAMES: tuple[ScheduleName, ...] = ("1f1b", "gpipe", "interleaved-1f1b", "breadth-first", "zb-h1", "zb-v", "dualpipe")
SEMANTICS: tuple[Transfers, ...] = ("overlapped", "eager", "rendezvous")


def setting_of(instance: Instance) -> Setting:
    """What plans of a problem are judged against."""
    return Setting(cluster=instance.cluster, model=instance.model, training=instance.training, stack=instance.stack)


def all_groups(instance: Instance) -> tuple[int, ...]:
    """Every group of the cluster."""
    return tuple(range(len(instance.cluster.groups)))


def options_of(instance: Instance) -> SearchOptions:
    """A search to the end over the space of a problem."""
    return SearchOptions(gap=0.0, limits=instance.limits, schedules=instance.schedules, space=instance.space)


def under(name: ScheduleName) -> Callable[[int], Instance]:
    """Problems with slow links where one schedule is searched, with degrees by group on odd seeds."""

    def make(seed: int) -> Instance:
        space: SpaceName = "per-group" if seed % 2 else "uniform"
        return replace(slow_link_instance(seed), schedules=(name,), space=space)

    return make


def root_spaces(instance: Instance) -> list[RootSpace]:
    """The roots of a problem that have room for a pipeline, under every order of work; they share their tables."""
    setting, groups, asked = setting_of(instance), all_groups(instance), options_of(instance)
    shared, found = Shared(), []
    for base in base_roots(setting, asked, groups):
        for root in orders_of_work(base, asked, groups, instance.limits.max_stages):
            space = RootSpace(
                setting=setting, limits=instance.limits, groups=groups, root=root, counters={}, shared=shared
            )
            if space.options and space.max_stages >= space.min_stages:
                found.append(space)
    return found


def some_spaces(
    seeds: range, per_seed: int = 2, make: Callable[[int], Instance] = random_instance
) -> Iterator[tuple[int, RootSpace]]:
    """A few roots of each seed, picked at random."""
    for seed in seeds:
        spaces = root_spaces(make(seed))
        picked = np.random.default_rng(seed).permutation(len(spaces))[:per_seed]
        for i in picked:
            yield seed, spaces[i]


def structures(space: RootSpace) -> list[Structure]:
    """Every ordered structure of a root; further warm-up per change of group takes two groups."""
    by_group: dict[int, list[tuple[int, int] | None]] = {}
    for o, option in enumerate(space.options):
        by_group.setdefault(option.group, [None]).extend((o, n) for n in range(1, option.max_stages + 1))
    found: list[Structure] = []
    for chosen in product(*by_group.values()):
        used = [entry for entry in chosen if entry is not None]
        if space.min_stages <= sum(n for _, n in used) <= space.max_stages and len(used) > bool(space.root.warmup):
            found += permutations(used)
    return found


def as_listed(space: RootSpace, structure: Structure) -> tuple[Job, Choice]:
    """A root's order of work and a structure as the list of all plans writes them."""
    root, chosen = space.root, [(space.options[o], stages) for o, stages in structure]
    job = Job(root.schedule, root.virtual_stages, root.warmup, root.num_microbatches)
    return job, tuple(Run(e.group, e.tp, e.dp, e.microbatch_size, e.zero, stages) for e, stages in chosen)


def compositions(layers: int, stages: int) -> Ints:
    """Every way to give each stage a block or more, shape (K, stages)."""
    rows = [np.diff((0, *cuts, layers)) for cuts in combinations(range(1, layers), stages - 1)]
    return np.array(rows, dtype=np.int64).reshape(-1, stages)


def timed(chain: Chain) -> tuple[Ints, Floats]:
    """All splits of a chain that fit, with their exact seconds."""
    splits = compositions(chain.layers, chain.stages)
    time_s = chain.simulate(splits)
    fits = np.isfinite(time_s)
    return splits[fits], time_s[fits]


def random_shape(rng: np.random.Generator, name: ScheduleName) -> Shape:
    """Three to five stages as far as the schedule allows, 1F1B at times with further warm-up, any transfers."""
    order = schedule(name)
    while True:
        p, m = int(rng.integers(3, 6)), int(rng.choice([1, 2, 3, 4, 5, 8, 12]))
        if order.obstacle(p, m) is None:
            break
    deeper: tuple[int, ...] = ()
    if name == "1f1b" and rng.random() < 0.4:
        deeper = tuple(int(n) for n in np.sort(rng.choice([0, 1, 2, 4], p))[::-1])
    return Shape(
        schedule=name,
        stages=p,
        num_microbatches=m,
        virtual_stages=next(v for v in (int(rng.integers(2, 4)), 1, 2) if order.chunks(v) is None),
        warmup=deeper,
        transfers=SEMANTICS[int(rng.choice([0, 0, 1, 2]))],
    )


def random_chain(seed: int, name: ScheduleName = "1f1b") -> Chain:
    """Stages with random tables, independent of any model: some entries impossible, some jumps."""
    rng = np.random.default_rng(seed)
    shape = random_shape(rng, name)
    p, layers = shape.stages, int(rng.integers(7, 11))
    blocks = np.arange(layers + 1)
    units = [rng.uniform(0.5, 3.0, (p, 1)) * blocks + rng.uniform(0.0, 1.0, (p, 1))]
    for _ in range(shape.units // shape.virtual_stages - 1):
        more = np.cumsum(rng.uniform(0.0, 0.5, (p, layers + 1)), axis=1)
        units.append(units[0] * rng.uniform(0.4, 2.5, (p, 1)) + more)
    # Chunks of a stage are about alike.
    shares = rng.uniform(0.7, 1.3, (len(units), shape.virtual_stages, p, 1)) / shape.virtual_stages
    work = np.stack([share * unit for unit, row in zip(units, shares, strict=True) for share in row], axis=2)
    possible = rng.random((p, layers + 1)) >= 0.07
    possible[:, 0] = False
    for j in range(p):
        possible[j, int(rng.integers(layers // p + 1, layers + 2)) :] = False
    after = rng.exponential(rng.choice([0.1, 5.0]), (p, 1, shape.virtual_stages))
    return Chain(
        shape=shape,
        work_s=work,
        possible=possible,
        after_s=after + rng.uniform(0, 0.5, (p, 1, shape.virtual_stages)) * blocks[:, None],
        hop_s=rng.exponential(rng.choice([0.01, 1.0, 5.0]), p),
        fixed_s=float(rng.choice([0.0, 3.0])),
    )


def with_memory(instance: Instance, factor: float = 1.0, more_bytes: float = 0.0) -> Instance:
    """The same problem with other memory on every accelerator."""
    groups = tuple(
        group.model_copy(update={"usable_memory_bytes": group.usable_bytes * factor + more_bytes})
        for group in instance.cluster.groups
    )
    return replace(instance, cluster=instance.cluster.model_copy(update={"groups": groups}))
