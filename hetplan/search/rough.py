"""The first bounds of a root, without tables: whole blocks and memory are left out."""

from hetplan.schedule.schedules import schedule
from hetplan.search.forms import form
from hetplan.search.roots import RootSpace
from hetplan.search.space import rates


def arithmetic_bound_s(space: RootSpace) -> float:
    """No stage is busy for longer than the iteration.

    Blocks of all micro-batches over the blocks per second of as many stages as there may be.
    """
    if space.max_stages < space.min_stages:
        return float("inf")
    work = space.root.num_microbatches * space.setting.model.architecture.layers
    return work / float(space.rates[space.max_stages]) + space.setting.stack.step_fixed_s


def rough_bound_s(space: RootSpace) -> float:
    """The round-trip bound with whole blocks and memory left out, for a fixed number of stages.

    With k the seconds per block that a stage adds to a path through it and f those to one through another stage,
    T >= max_j (k - f) n_j + f L.
    """
    paths, v = form(space.fixed_shape), space.root.virtual_stages
    # Chunks of a stage may differ by a block: the least count of any chunk holds for all its blocks.
    own = paths.own.reshape(len(paths.own), -1, v).min(axis=2)
    other = paths.elsewhere.reshape(len(paths.elsewhere), -1, v).min(axis=2)
    copies = schedule(space.root.schedule).copies
    fills, through = [], []
    for entry in space.options:
        for cost in entry.costs.layers.values():
            split = len(own[0]) > 2
            times = [cost.forward_s, cost.backward_s - (cost.weight_s if split else 0.0)]
            times += [cost.weight_s] if split else []
            fills.append(float((other @ times).min()))
            # n blocks of each copy, all of which the stage passes.
            through.append((entry, copies * float((own @ times).min())))
    least = min(fills) if copies == 1 else 0.0
    paces = [(entry, max(k - least, 1e-300)) for entry, k in through]
    layers = space.setting.model.architecture.layers
    most = float(rates(paces, space.max_stages)[-1])
    return layers / most + least * layers + space.setting.stack.step_fixed_s
