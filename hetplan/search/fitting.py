"""Does any plan fit, and if not, how much memory is missing? Exact for the plan space.

Time plays no part here: every stage may recompute everything. In the uniform space the smallest micro-batch needs
least memory (b min(k, B / (d b)) grows with b), so only dp is left open among the shared choices. What a stage needs
grows with its blocks, so a structure fits exactly if the most blocks of its stages add up to the model; a dynamic
program over sets of groups and depths finds the structure that holds most. Under GPipe, interleaved 1F1B,
breadth-first and ZB-H1 a stage holds at least what it holds under 1F1B.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from hetplan.cost.stages import Holding, StageCosts
from hetplan.plan import Plan, Recompute, ScheduleName, Stage
from hetplan.predict import Setting, stage_memory
from hetplan.prediction import MemoryUse
from hetplan.search.chain import Floats, Ints
from hetplan.search.options import SearchOptions
from hetplan.search.result import Limits
from hetplan.search.roots import RootSpace, Structure
from hetplan.search.shared import Shared
from hetplan.search.space import Option, Root, base_roots, batch_choices, orders_of_work, replica_slots, tensor_degrees
from hetplan.search.tables import FULL, WAYS, Layout, Place, kept_bytes, most_held

IMPOSSIBLE = -(10.0**9)
PLACES: tuple[Place, ...] = ("middle", "first", "last")
NOT_LESS: tuple[ScheduleName, ...] = ("1f1b", "gpipe", "interleaved-1f1b", "breadth-first", "zb-h1")
"""Schedules under which nothing fits that does not fit under 1F1B."""


def stage_needs(costs: StageCosts, plan: Layout, rows: tuple[tuple[Holding, ...], ...]) -> Floats:
    """Bytes of a stage in each way of recomputation, for each row of holdings by blocks, (3, rows, L + 1).

    Infinite where so many blocks are not allowed.
    """
    held = np.full(plan.allowed.shape, costs.fixed_bytes(plan.ends))
    for run in plan.runs:
        held = held + costs.state_bytes(run.start, run.stop, run.ends)
    kept = kept_bytes(costs, plan)
    ways = [held + most_held(size, rows) + w * costs.block_bytes for (_, w), size in zip(WAYS, kept, strict=True)]
    return np.where(plan.allowed, np.array(ways), np.inf)


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
    space: RootSpace
    options: tuple[int, ...]
    counts: tuple[int, ...]
    blocks: tuple[int, ...]
    """Of every stage, from the last one up."""

    @property
    def structure(self) -> Structure:
        """In pipeline order."""
        return tuple(zip(self.options, self.counts, strict=True))[::-1]


@dataclass(kw_only=True)
class _RootNeeds:
    """What stages need under one root."""

    space: RootSpace
    options: list[Option] = field(init=False)
    depths: int = field(init=False)
    needs: list[dict[Place, Floats]] = field(init=False)

    def __post_init__(self) -> None:
        self.options, self.depths = self.space.options, self.space.max_stages
        self.needs = []
        for o, entry in enumerate(self.options if self.depths >= 2 else ()):
            by_place: dict[Place, Floats] = {}
            for place in PLACES:
                table = stage_needs(entry.costs, self.space.layout(o, place), self.space.holding_rows(place)).min(
                    axis=0
                )
                by_place[place] = np.full((self.depths, table.shape[1]), np.inf)
                for depth in self.space.depths(place):
                    by_place[place][depth - 1] = table[self.space.row(place, depth, 0)]
            self.needs.append(by_place)

    def _caps(self, option: int, place: Place, spare: float) -> Ints:
        group = self.space.setting.cluster.groups[self.options[option].group]
        fits = self.needs[option][place] <= group.usable_bytes * FULL + spare
        return np.where(fits.any(axis=1), fits.shape[1] - 1 - np.argmax(fits[:, ::-1], axis=1), 0)

    def _least(self, place: Place) -> int:
        """The fewest blocks that a stage may hold."""
        return int(np.argmax(self.space.layout(0, place).allowed))

    def fit(self, spare: float) -> Fit | None:
        """A structure that holds the model with `spare` more bytes on every accelerator, or None."""
        layers = self.space.setting.model.architecture.layers
        fixed = self.space.root.stages
        if self.depths < 2 or not self.options:
            return None
        if self._least("first") + self._least("last") + ((fixed or 2) - 2) * self._least("middle") > layers:
            return None
        caps = []
        for o in range(len(self.options)):
            row = self._caps(o, "middle", spare)
            row[0] = self._caps(o, "last", spare)[0]
            caps.append(row)
        firsts = [self._caps(o, "first", spare) for o in range(len(self.options))]
        held = [np.concatenate([[0.0], np.cumsum(np.where(c >= 1, c, IMPOSSIBLE))]) for c in caps]
        members = sorted({entry.group for entry in self.options})
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
                    done = done[done + n >= 2] if fixed is None else done[done + n == fixed]
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
            space=self.space,
            options=tuple(entry.option for entry in trail),
            counts=tuple(entry.stages for entry in trail),
            blocks=self._blocks(rooms),
        )

    def _blocks(self, rooms: list[int]) -> tuple[int, ...]:
        """Blocks of every stage: no more than its room, the whole model in all, as even as whole periods allow."""
        arch = self.space.setting.model.architecture
        unit = arch.moe_every if arch.experts else 1
        fewest = [self._least("last"), *[self._least("middle")] * (len(rooms) - 2), self._least("first")]
        blocks, over = list(rooms), sum(rooms) - arch.layers
        while over > 0:
            able = [i for i, b in enumerate(blocks) if b - unit >= fewest[i]]
            if not able:
                break
            i = max(able, key=lambda i: (blocks[i], -i))
            blocks[i] -= unit
            over -= unit
        return tuple(blocks)


def _spaces(setting: Setting, search_options: SearchOptions, groups: tuple[int, ...]) -> Iterator[RootSpace]:
    """Roots that decide whether anything fits: under 1F1B alone where it needs least."""
    least: dict[tuple[int | None, int], Root] = {}
    for root in base_roots(setting, search_options, groups):
        key = (root.dp, root.samples if root.dp is None else 0)
        if key not in least or (root.microbatch_size or 0) < (least[key].microbatch_size or 0):
            least[key] = root
    names = search_options.schedules
    if "1f1b" in names:
        names = ("1f1b", *(name for name in names if name not in NOT_LESS))
    limits, shared = search_options.limits, Shared()
    for name in names:
        # Only under 1F1B has the smallest micro-batch been shown to need least.
        roots = list(least.values()) if name == "1f1b" else base_roots(setting, search_options, groups)
        asked = SearchOptions(schedules=(name,), space=search_options.space, limits=limits)
        for root in roots:
            for full in orders_of_work(root, asked, groups, limits.max_stages):
                if not full.warmup:
                    yield RootSpace(
                        setting=setting, limits=limits, groups=groups, root=full, counters={}, shared=shared
                    )


def first_fit(setting: Setting, search_options: SearchOptions, groups: tuple[int, ...]) -> Fit | None:
    """A plan with a pipeline that fits, or None where none does."""
    for space in _spaces(setting, search_options, groups):
        found = _RootNeeds(space=space).fit(0.0)
        if found is not None:
            return found
    return None


def closest_fit(setting: Setting, search_options: SearchOptions, groups: tuple[int, ...]) -> Fit | None:
    """The structure that would hold the model with the least more memory on every accelerator."""
    best: Fit | None = None
    for space in _spaces(setting, search_options, groups):
        needs = _RootNeeds(space=space)
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


def plan_of(fit: Fit) -> Plan:
    """The plan of a fit: every stage recomputes nothing, the attention core or everything, the first that fits."""
    space, structure = fit.space, fit.structure
    split = fit.blocks[::-1]
    total, at, ways = len(split), 0, []
    for option, count in structure:
        entry = space.options[option]
        usable = space.setting.cluster.groups[entry.group].usable_bytes * FULL + fit.missing_bytes
        for _ in range(count):
            place = space.place(at, total)
            plan = space.layout(option, place)
            row = (space.holding_rows(place)[space.row(place, total - at, 0)],)
            needs = stage_needs(entry.costs, plan, row)[:, 0, split[at]]
            fitting = np.flatnonzero(needs <= usable)
            core, whole = WAYS[int(fitting[0]) if len(fitting) else int(np.argmin(needs))]
            ways.append((core * split[at], whole * split[at]))
            at += 1
    return space.plan_with(structure, np.array(split), ways)


def least_single_stage(setting: Setting, limits: Limits, groups: tuple[int, ...]) -> tuple[float, Plan] | None:
    """The plan without a pipeline that lacks least memory: (missing bytes, plan)."""
    layers = setting.model.architecture.layers
    found: list[tuple[float, Plan]] = []
    for group in groups:
        spec = setting.cluster.groups[group]
        for tp in tensor_degrees(setting, group, limits):
            slots = replica_slots(setting, group, tp)
            least: dict[int, tuple[int, int]] = {}
            for dp, size, m in batch_choices(setting, limits, (group,)):
                if dp <= slots:
                    least[dp] = min(least.get(dp, (size, m)), (size, m))
            for dp, (size, m) in least.items():
                for zero in (0, 1, 2, 3) if dp > 1 else (0,):
                    for recompute in (Recompute(none=layers), Recompute(selective=layers), Recompute(full=layers)):
                        stage = Stage(
                            group=spec.name,
                            first_layer=0,
                            layers=layers,
                            tp=tp,
                            dp=dp,
                            microbatch_size=size,
                            recompute=recompute,
                            zero=zero,
                        )
                        plan = Plan(
                            global_batch_size=setting.training.global_batch_size,
                            num_microbatches=m,
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
