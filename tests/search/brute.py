"""Every plan of a small problem, timed by the exact recurrence.

Written from the definition of the space, apart from `hetplan.search`: only its limits are read. Seconds and bytes of a
stage are those of `hetplan.cost`, what it holds and when it ends those of `hetplan.schedule`.

Recomputation: for each stage everything that it may recompute is tried by a loop of its own, and what takes least
time is kept among what fits. A stage's memory does not depend on other stages, and no plan is faster for a slower
backward pass: `timed_by_predict` lists all combinations instead.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import product

import numpy as np
import numpy.typing as npt

from hetplan.cost.stages import Part, StageCosts
from hetplan.plan import Chunk, Plan, Recompute, Schedule, Stage
from hetplan.predict import predict_in
from hetplan.schedule.holdings import holdings
from hetplan.schedule.schedules import schedule
from hetplan.schedule.simulator import Shape, compile_shape, step_s
from tests.search.brute_space import Chain, Choices, Job, Layout, Run, layout
from tests.search.brute_tables import Mix, mixes
from tests.search.instances import Instance

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Timed:
    """All splits of a job and a chain that fit, with their seconds."""

    splits: Ints
    time_s: Floats


@dataclass(frozen=True, slots=True)
class Batch:
    """All plans of a job whose pipelines have one shape."""

    job: Job
    chains: list[Chain]
    layout: Layout
    time_s: Floats
    """By chain and split, infinite where it does not fit."""


class Space(Choices):
    """The plan space of a problem, with seconds."""

    def __init__(self, instance: Instance) -> None:
        super().__init__(instance)
        self._hops: dict[tuple[Chain, bool], list[float]] = {}

    # -- seconds

    def _spans(self, options: Ints, where: Layout, shape: Shape) -> Floats:
        """Least recomputation of every chunk, shape (C, K, p, v); infinite where nothing fits."""
        extra = np.empty((len(options), *where.size.shape))
        tables = self.tables
        for j in range(shape.stages):
            held, start, size = holdings(shape, j), where.start[:, j], where.size[:, j]
            ends = tuple(where.ends[j].tolist())
            if shape.virtual_stages == 1:
                known = {o: tables.extra_s(tables.options[o], ends[0], held) for o in set(options[:, j].tolist())}
                for c, o in enumerate(options[:, j].tolist()):
                    extra[c, :, j, 0] = known[o][start[:, 0], size[:, 0]]
                continue
            at = (options[:, j, None, None], where.ends[j], start, size)
            kept = tables.kept_bytes[(slice(None), *at)]
            counts = np.array(held)
            v = shape.virtual_stages
            flying = kept @ counts[:, :v].T + (kept[0] @ counts[:, v:].T)
            total = flying.max(axis=3) + tables.state_bytes[at].sum(axis=2)
            total += np.array([tables.fixed_bytes(tables.options[o], ends) for o in options[:, j]])[:, None]
            total[2] += np.array([tables.costs(tables.options[o]).block_bytes for o in options[:, j]])[:, None]
            room = np.array([tables.usable_bytes(tables.options[o]) for o in options[:, j]])[:, None]
            time = np.where((total <= room)[..., None], tables.recompute_s[(slice(None), *at)], np.inf)
            extra[:, :, j] = time.min(axis=0)
        return extra

    def hops(self, chain: Chain, loops: bool) -> list[float]:
        """One-way seconds from each stage to the next, the last one's back to the first."""
        if (chain, loops) not in self._hops:
            found = []
            for i, run in enumerate(chain):
                costs, name = self.tables.costs(run.option), self.groups[run.group].name
                found += [costs.inner_hop_s(k) for k in range(run.stages - 1)]
                after = chain[(i + 1) % len(chain)]
                there, other = self.tables.costs(after.option), self.groups[after.group].name
                if i + 1 == len(chain) and not loops:
                    found.append(0.0)
                elif len(chain) == 1:
                    found.append(costs.wrap_hop_s(run.stages))
                else:
                    found.append(self.setting.hop_s(costs, name, there, other, run.stages - 1))
            self._hops[chain, loops] = found
        return self._hops[chain, loops]

    def shared_s(self, chain: Chain, where: Layout, copies: int) -> Floats:
        """Seconds in which stages that hold the same weights exchange gradients, shape (p, v)."""
        found = np.zeros(where.ends.shape)
        owners = [run.option for run in chain for _ in range(run.stages)]

        def held(j: int) -> tuple[StageCosts, str]:
            return self.tables.costs(owners[j]), self.groups[owners[j].group].name

        if copies == 1:
            (j, c), (k, d) = where.first, where.last
            if j != k:
                found[j, c] = found[k, d] = self.setting.tied_sync_s(*held(j), *held(k))
            return found
        # Chunks of stages j and p - 1 - j are the same blocks, and there is one split.
        index = np.array([[self.tables.index[option]] for option in owners])
        size = self.tables.gradient_bytes[index, where.ends, where.start[0], where.size[0]].tolist()
        for j, k in enumerate(range(len(owners) - 1, -1, -1)):
            for c in (0, 1):
                found[j, c] = self.setting.exchange_s(*held(j), size[j][c], *held(k), size[k][1 - c])
        return found

    def batch(self, job: Job, shape: Shape, chains: list[Chain]) -> Batch:
        """All splits of chains of one shape."""
        tables, order = self.tables, schedule(job.schedule)
        where = layout(self.architecture, job.schedule, shape.stages, job.virtual_stages)
        time = np.full((len(chains), len(where.splits)), np.inf)
        if not time.size:
            return Batch(job, chains, where, time)
        options = np.array([[tables.index[run.option] for run in chain for _ in range(run.stages)] for chain in chains])
        extra = self._spans(options, where, shape)
        c, k = np.nonzero(np.isfinite(extra).all(axis=(2, 3)))
        if len(c):
            at = (options[c][:, :, None], where.ends, where.start[k], where.size[k])
            work = [tables.forward_s[at], tables.backward_s[at] + extra[c, k]]
            if order.splits_backward:
                work[1:] = [work[1] - tables.weight_s[at], tables.weight_s[at]]
            after = tables.sync_s[at]
            if order.copies > 1 or self.architecture.tied_embeddings:
                after += np.array([self.shared_s(chain, where, order.copies) for chain in chains])[c]
            stage = np.arange(shape.stages)
            last = compile_shape(shape).completion[:, -1] if job.virtual_stages > 1 else stage * 0
            after[:, stage, last] += tables.optimizer_s[at].sum(axis=2)
            hops = np.array([self.hops(chain, shape.loops) for chain in chains])[c]
            ends = step_s(shape, np.concatenate(work, axis=2), hops, after)
            time[c, k] = ends.max(axis=1) + self.instance.stack.step_fixed_s
        return Batch(job, chains, where, time)

    # -- plans

    def stage_parts(self, chain: Chain, where: Layout, row: int, j: int, mix: Mix) -> tuple[Part, ...]:
        """The chunks of a stage under a mix."""
        option = [run.option for run in chain for _ in range(run.stages)][j]
        costs, found = self.tables.costs(option), []
        chunks = where.ends.shape[1]
        for c in range(chunks):
            start, n = int(where.start[row, j, c]), int(where.size[row, j, c])
            selective, full = mix if chunks == 1 else (n if mix[0] else 0, n if mix[1] else 0)
            ends = self.tables.ends(costs, int(where.ends[j, c]))
            found.append(Part(start=start, stop=start + n, selective=selective, full=full, ends=ends))
        return tuple(found)

    def mixes(self, job: Job, chain: Chain, where: Layout, row: int) -> list[list[Mix]]:
        """Each stage's mixes that fit, least recomputation first."""
        shape, options = self.shape(job, chain), [run.option for run in chain for _ in range(run.stages)]
        found = []
        for j, option in enumerate(options):
            costs, fitting = self.tables.costs(option), []
            for mix in mixes(int(where.splits[row, j]), job.virtual_stages):
                parts = self.stage_parts(chain, where, row, j, mix)
                if costs.memory(parts, holdings(shape, j)).total_bytes <= self.tables.usable_bytes(option):
                    time = sum(float(costs.recompute_s(part.stop, part.selective, part.full)) for part in parts)
                    fitting.append((time, mix))
            found.append([mix for _, mix in sorted(fitting)])
        return found

    def plan(self, job: Job, chain: Chain, where: Layout, row: int, chosen: tuple[Mix, ...]) -> Plan:
        """The plan in the program's own form."""
        owners, stages = [run for run in chain for _ in range(run.stages)], []
        for j, (run, mix) in enumerate(zip(owners, chosen, strict=True)):
            chunks = tuple(
                Chunk(first_layer=part.start, layers=part.stop - part.start, recompute=_recompute(part))
                for part in self.stage_parts(chain, where, row, j, mix)
            )
            n = int(where.splits[row, j])
            stages.append(
                Stage(
                    group=self.groups[run.group].name,
                    first_layer=chunks[0].first_layer,
                    layers=n,
                    tp=run.tp,
                    dp=run.dp,
                    microbatch_size=run.microbatch_size,
                    recompute=Recompute(none=n - sum(mix), selective=mix[0], full=mix[1]),
                    zero=run.zero,  # type: ignore[arg-type]
                    chunks=chunks if job.virtual_stages > 1 else None,
                )
            )
        return Plan(
            schedule=Schedule(
                name=job.schedule, virtual_stages=job.virtual_stages, warmup=self.shape(job, chain).warmup or None
            ),
            global_batch_size=self.instance.training.global_batch_size,
            num_microbatches=job.num_microbatches,
            stages=tuple(stages),
        )


def _recompute(part: Part) -> Recompute:
    none = part.stop - part.start - part.selective - part.full
    return Recompute(none=none, selective=part.selective, full=part.full)


@dataclass(frozen=True)
class Enumeration:
    """All plans of a problem."""

    space: Space
    batches: list[Batch]

    @property
    def plans(self) -> int:
        """Plans looked at, those that do not fit too."""
        return sum(batch.time_s.size for batch in self.batches)

    @cached_property
    def fitting(self) -> int:
        """Plans that fit."""
        return sum(int(np.isfinite(batch.time_s).sum()) for batch in self.batches)

    @cached_property
    def timed(self) -> dict[tuple[Job, Chain], Timed]:
        """What fits, by job and chain."""
        return {
            (batch.job, chain): Timed(batch.layout.splits[np.isfinite(times)], times[np.isfinite(times)])
            for batch in self.batches
            for chain, times in zip(batch.chains, batch.time_s, strict=True)
        }

    @cached_property
    def best_s(self) -> float:
        """Seconds of the fastest plan, infinite where none fits."""
        return self.least_s(lambda job, chain: True)

    def least_s(self, keep: Callable[[Job, Chain], bool]) -> float:
        """Seconds of the fastest plan of some jobs and chains, infinite where none fits."""
        least = np.inf
        for batch in self.batches:
            kept = [keep(batch.job, chain) for chain in batch.chains]
            least = min(least, float(batch.time_s[kept].min(initial=np.inf)))
        return least

    def best(self) -> Plan:
        """The fastest plan with the mixes that make it so."""
        batch = next(batch for batch in self.batches if batch.time_s.size and batch.time_s.min() == self.best_s)
        c, row = np.unravel_index(int(batch.time_s.argmin()), batch.time_s.shape)
        return self.at(batch, int(c), int(row))

    def at(self, batch: Batch, chain: int, row: int) -> Plan:
        """A plan that fits, with its best mixes."""
        found = self.space.mixes(batch.job, batch.chains[chain], batch.layout, row)
        return self.space.plan(batch.job, batch.chains[chain], batch.layout, row, tuple(stage[0] for stage in found))

    @cached_property
    def _places(self) -> dict[tuple[Job, Chain], tuple[Batch, int]]:
        return {(batch.job, chain): (batch, i) for batch in self.batches for i, chain in enumerate(batch.chains)}

    def time_s(self, plan: Plan) -> float:
        """Enumerated seconds of a plan; KeyError where it is not one of those that fit, in every detail."""
        names = [group.name for group in self.space.groups]
        runs: list[Run] = []
        for s in plan.stages:
            option = (names.index(s.group), s.tp, s.dp, s.microbatch_size, s.zero)
            more = runs[-1].stages if runs and runs[-1].option == option else 0
            runs[len(runs) - bool(more) :] = [Run(*option, more + 1)]
        deepest = max(plan.schedule.warmup or (0,))
        warmup = deepest // (len(runs) - 1) if deepest else 0
        job = Job(plan.schedule.name, plan.schedule.virtual_stages, warmup, plan.num_microbatches)
        batch, c = self._places[job, tuple(runs)]
        rows = np.flatnonzero((batch.layout.splits == [stage.layers for stage in plan.stages]).all(axis=1))
        if len(rows) != 1 or not np.isfinite(batch.time_s[c, rows[0]]):
            raise KeyError("no such split fits")
        row, chosen = int(rows[0]), tuple((s.recompute.selective, s.recompute.full) for s in plan.stages)
        allowed = self.space.mixes(job, tuple(runs), batch.layout, row)
        if any(mix not in fits for mix, fits in zip(chosen, allowed, strict=True)):
            raise KeyError("stages recompute what they may not")
        same = self.space.plan(job, tuple(runs), batch.layout, row, chosen)
        if same != plan.model_copy(update={"sequence_parallel": True}):
            raise KeyError("the plan differs in other details")
        return float(batch.time_s[c, row])


def enumerate_plans(instance: Instance) -> Enumeration:
    """Time every plan of a problem, those of one shape together."""
    space = Space(instance)
    return Enumeration(space=space, batches=[space.batch(*entry) for entry in space.by_shape()])


def timed_by_predict(space: Space, one_in: int = 1) -> Iterator[tuple[Job, Chain, Layout, int, float, int]]:
    """Each split, or one in so many, with its best time over all combinations of mixes and the number of these.

    As `predict` alone sees them: the time is infinite where no combination fits by its prediction.
    """
    turn = 0
    for job, shape, chains in space.by_shape():
        where = layout(space.architecture, job.schedule, shape.stages, job.virtual_stages)
        for chain, (row, split) in product(chains, enumerate(where.splits.tolist())):
            turn += 1
            if turn % one_in:
                continue
            best, plans = np.inf, 0
            for chosen in product(*(mixes(n, job.virtual_stages) for n in split)):
                prediction = predict_in(space.setting, space.plan(job, chain, where, row, chosen))
                plans += 1
                if prediction.fits:
                    best = min(best, prediction.iteration_time_s)
            yield job, chain, where, row, best, plans
