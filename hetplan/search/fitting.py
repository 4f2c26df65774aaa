"""Does any plan fit, and if not, how much memory is missing? Exact for the uniform plan space.

Time plays no part here: every stage may recompute everything. The smallest micro-batch needs least memory
(b min(k, B / (d b)) grows with b), so only dp is left open among the shared choices. What a stage of depth k
needs grows with its blocks, so a structure fits exactly if the most blocks of its stages add up to the model;
a dynamic program over sets of groups and depths finds the structure that holds most.
"""

from dataclasses import dataclass, field

import numpy as np

from hetplan.cost.stages import StageCosts
from hetplan.plan import Plan, Recompute, Stage
from hetplan.predict import Setting, stage_memory
from hetplan.prediction import MemoryUse
from hetplan.search.chain import Floats, Ints
from hetplan.search.result import Limits
from hetplan.search.space import Option, Root, options, pipeline_roots, replica_slots, tensor_degrees
from hetplan.search.tables import FULL, Place, run_of

IMPOSSIBLE = -(10.0**9)


def stage_needs(costs: StageCosts, place: Place, depths: int) -> Floats:
    """Least bytes of a stage at depths 1 .. `depths` by blocks, shape (depths, L + 1); infinite where not allowed."""
    run = run_of(costs, place)
    start, stop, ends = run.start, run.stop, run.ends
    held = costs.fixed_bytes(ends) + costs.state_bytes(start, stop, ends)
    blocks = stop - start
    flying = np.minimum(np.arange(1, depths + 1), costs.num_microbatches)[:, None]
    ways = (
        flying * costs.kept_bytes(start, stop, 0, 0, ends),
        flying * costs.kept_bytes(start, stop, blocks, 0, ends),
        flying * costs.kept_bytes(start, stop, 0, blocks, ends) + costs.block_bytes,
    )
    need: Floats = np.where(run.allowed, held + np.minimum.reduce(ways), np.inf)
    return need


@dataclass(frozen=True, slots=True)
class _Step:
    """How a set of groups came to its depth: the option added last, with so many stages above so many others."""

    option: int
    stages: int
    below: int
    mask: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """A structure that holds the model if accelerators had `missing_bytes` more; options from the last stage up."""

    missing_bytes: float
    root: Root
    options: tuple[Option, ...]
    counts: tuple[int, ...]
    blocks: tuple[int, ...]
    """Of every stage, from the last one up."""


@dataclass(kw_only=True)
class _RootNeeds:
    """What stages need under one root."""

    setting: Setting
    root: Root
    limits: Limits
    groups: tuple[int, ...]
    options: list[Option] = field(init=False)
    depths: int = field(init=False)
    needs: list[dict[Place, Floats]] = field(init=False)

    def __post_init__(self) -> None:
        self.options = options(self.setting, self.root, self.limits, self.groups)
        most: dict[int, int] = {}
        for entry in self.options:
            most[entry.group] = max(most.get(entry.group, 0), entry.max_stages)
        layers = self.setting.model.architecture.layers
        self.depths = min(self.limits.max_stages, sum(most.values()), layers)
        self.needs = []
        for entry in self.options:
            middle = stage_needs(entry.costs, "middle", self.depths)
            first = stage_needs(entry.costs, "first", self.depths)
            last = stage_needs(entry.costs, "last", 1)
            self.needs.append({"middle": middle, "first": first, "last": last})

    def _caps(self, option: int, place: Place, spare: float) -> Ints:
        usable = self.setting.cluster.groups[self.options[option].group].usable_bytes * FULL + spare
        fits = self.needs[option][place] <= usable
        return np.where(fits.any(axis=1), fits.shape[1] - 1 - np.argmax(fits[:, ::-1], axis=1), 0)

    def fit(self, spare: float) -> Fit | None:
        """A structure that holds the model with `spare` more bytes on every accelerator, or None."""
        if self.depths < 2:
            return None
        caps = []
        for o in range(len(self.options)):
            row = self._caps(o, "middle", spare)
            row[0] = self._caps(o, "last", spare)[0]
            caps.append(row)
        firsts = [self._caps(o, "first", spare) for o in range(len(self.options))]
        held = [np.concatenate([[0.0], np.cumsum(np.where(c >= 1, c, IMPOSSIBLE))]) for c in caps]
        members = sorted({entry.group for entry in self.options})
        layers = self.setting.model.architecture.layers
        best: dict[int, Floats] = {0: np.full(self.depths + 1, IMPOSSIBLE)}
        best[0][0] = 0.0
        steps: dict[int, list[_Step | None]] = {0: [None] * (self.depths + 1)}
        for mask in range(1 << len(members)):
            if mask not in best:
                continue
            for o, entry in enumerate(self.options):
                bit = 1 << members.index(entry.group)
                if mask & bit:
                    continue
                grown = best.setdefault(mask | bit, np.full(self.depths + 1, IMPOSSIBLE))
                trail = steps.setdefault(mask | bit, [None] * (self.depths + 1))
                for n in range(1, min(entry.max_stages, self.depths) + 1):
                    below = best[mask][: self.depths + 1 - n]
                    inner = below + held[o][n - 1 : self.depths] - held[o][: self.depths + 1 - n]
                    top = np.where(firsts[o][n - 1 :] >= 1, firsts[o][n - 1 :], IMPOSSIBLE)
                    done = np.flatnonzero(inner + top >= layers)
                    done = done[done + n >= 2]
                    if len(done):
                        step = _Step(o, n, int(done[0]), mask)
                        return self._found(spare, step, steps, caps, firsts)
                    value = below + held[o][n:] - held[o][: self.depths + 1 - n]
                    for k in np.flatnonzero(value > grown[n:]):
                        trail[k + n] = _Step(o, n, int(k), mask)
                    grown[n:] = np.maximum(grown[n:], value)
        return None

    def _found(
        self, spare: float, last: _Step, steps: dict[int, list[_Step | None]], caps: list[Ints], firsts: list[Ints]
    ) -> Fit:
        trail: list[_Step] = []
        step: _Step | None = last
        while step is not None:
            trail.append(step)
            step = steps[step.mask][step.below]
        trail.reverse()
        total = trail[-1].below + trail[-1].stages
        rooms = []
        for entry in trail:
            for i in range(entry.stages):
                depth = entry.below + i + 1
                rooms.append(int(firsts[entry.option][depth - 1] if depth == total else caps[entry.option][depth - 1]))
        return Fit(
            missing_bytes=spare,
            root=self.root,
            options=tuple(self.options[entry.option] for entry in trail),
            counts=tuple(entry.stages for entry in trail),
            blocks=self._blocks(rooms),
        )

    def _blocks(self, rooms: list[int]) -> tuple[int, ...]:
        """Blocks of every stage: no more than its room, the whole model in all, as even as whole periods allow."""
        arch = self.setting.model.architecture
        unit = arch.moe_every if arch.experts else 1
        blocks, over = list(rooms), sum(rooms) - arch.layers
        while over > 0:
            least = [b - unit for b in blocks]
            able = [i for i, b in enumerate(least) if b >= (max(1, arch.dense_layers) if i == len(blocks) - 1 else 1)]
            if not able:
                break
            i = max(able, key=lambda i: (blocks[i], -i))
            blocks[i] -= unit
            over -= unit
        return tuple(blocks)


def _least_roots(setting: Setting, limits: Limits, groups: tuple[int, ...]) -> list[Root]:
    """Per dp the root with the smallest micro-batch: it needs least memory."""
    least: dict[int, Root] = {}
    for root in pipeline_roots(setting, limits, groups):
        if root.dp not in least or root.microbatch_size < least[root.dp].microbatch_size:
            least[root.dp] = root
    return list(least.values())


def first_fit(setting: Setting, limits: Limits, groups: tuple[int, ...]) -> Fit | None:
    """A plan with a pipeline that fits, or None where none does."""
    for root in _least_roots(setting, limits, groups):
        found = _RootNeeds(setting=setting, root=root, limits=limits, groups=groups).fit(0.0)
        if found is not None:
            return found
    return None


def closest_fit(setting: Setting, limits: Limits, groups: tuple[int, ...]) -> Fit | None:
    """The structure that would hold the model with the least more memory on every accelerator."""
    best: Fit | None = None
    for root in _least_roots(setting, limits, groups):
        needs = _RootNeeds(setting=setting, root=root, limits=limits, groups=groups)
        finite = [table[np.isfinite(table)] for places in needs.needs for table in places.values()]
        high = max((float(values.max()) for values in finite if len(values)), default=0.0)
        high = high if best is None else min(high, best.missing_bytes)
        found = needs.fit(high * (1 - 1e-6))
        if found is None:
            continue
        low, high = 0.0, found.missing_bytes
        while high - low > 2.0**20:
            middle = (low + high) / 2
            narrower = needs.fit(middle)
            if narrower is None:
                low = middle
            else:
                found, high = narrower, middle
        best = found
    return best


def plan_of(setting: Setting, fit: Fit) -> Plan:
    """The plan of a fit: every stage recomputes nothing, the attention core or everything, the first that fits."""
    stages = []
    total = sum(fit.counts)
    at = 0
    for option, count in zip(fit.options, fit.counts, strict=True):
        usable = setting.cluster.groups[option.group].usable_bytes * FULL + fit.missing_bytes
        for _ in range(count):
            depth = at + 1
            place: Place = "last" if depth == 1 else "first" if depth == total else "middle"
            run, n = run_of(option.costs, place), fit.blocks[at]
            flying = min(depth, fit.root.num_microbatches)
            ways = ((0, 0), (n, 0), (0, n))
            needs = [
                option.costs.memory(int(run.start[n]), int(run.stop[n]), selective, full, run.ends, flying).total_bytes
                for selective, full in ways
            ]
            fitting = [way for way, need in zip(ways, needs, strict=True) if need <= usable]
            selective, full = fitting[0] if fitting else ways[int(np.argmin(needs))]
            stages.append(
                Stage(
                    group=option.name,
                    first_layer=0,
                    layers=n,
                    tp=option.tp,
                    dp=fit.root.dp,
                    microbatch_size=fit.root.microbatch_size,
                    recompute=Recompute(none=n - selective - full, selective=selective, full=full),
                    zero=1 if fit.root.dp > 1 else 0,
                )
            )
            at += 1
    layer, placed = 0, []
    for stage in reversed(stages):
        placed.append(stage.model_copy(update={"first_layer": layer}))
        layer += stage.layers
    return Plan(
        global_batch_size=setting.training.global_batch_size,
        num_microbatches=fit.root.num_microbatches,
        sequence_parallel=any(stage.tp > 1 for stage in placed),
        stages=tuple(placed),
    )


def least_single_stage(setting: Setting, limits: Limits, groups: tuple[int, ...]) -> tuple[float, Plan] | None:
    """The plan without a pipeline that lacks least memory: (missing bytes, plan)."""
    layers = setting.model.architecture.layers
    found: list[tuple[float, Plan]] = []
    for group in groups:
        spec = setting.cluster.groups[group]
        for tp in tensor_degrees(setting, group, limits):
            slots = replica_slots(setting, group, tp)
            for root in _least_roots(setting, limits, (group,)):
                if root.dp > slots:
                    continue
                for zero in (0, 1, 2, 3) if root.dp > 1 else (0,):
                    for recompute in (Recompute(none=layers), Recompute(selective=layers), Recompute(full=layers)):
                        stage = Stage(
                            group=spec.name,
                            first_layer=0,
                            layers=layers,
                            tp=tp,
                            dp=root.dp,
                            microbatch_size=root.microbatch_size,
                            recompute=recompute,
                            zero=zero,
                        )
                        plan = Plan(
                            global_batch_size=setting.training.global_batch_size,
                            num_microbatches=root.num_microbatches,
                            sequence_parallel=tp > 1,
                            stages=(stage,),
                        )
                        found.append((missing_bytes(setting, plan), plan))
    return min(found, key=lambda entry: entry[0], default=None)


def missing_bytes(setting: Setting, plan: Plan) -> float:
    """Bytes that the worst stage of a plan lacks; negative where all fit."""
    return max(use.total_bytes - usable for use, usable in memory_of(setting, plan))


def memory_of(setting: Setting, plan: Plan) -> list[tuple[MemoryUse, float]]:
    """Memory and usable bytes of every stage of a plan."""
    usable = [setting.cluster.group(stage.group).usable_bytes for stage in plan.stages]
    return list(zip(stage_memory(setting, plan), usable, strict=True))
