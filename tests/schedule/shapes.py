"""Random pipelines for the tests of this room."""

from dataclasses import dataclass, replace

import numpy as np

from hetplan.schedule.schedules import SCHEDULES, schedule
from hetplan.schedule.simulator import Floats, Program, Shape, Transfers, compile_shape

SEMANTICS: tuple[Transfers, ...] = ("overlapped", "eager", "rendezvous")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """A shape and the seconds of K candidates: (K, p, units), (K, p), (K, p, v)."""

    shape: Shape
    work_s: Floats
    hop_s: Floats
    after_s: Floats

    @property
    def times(self) -> tuple[Floats, Floats, Floats]:
        """What `step_s` takes after the shape."""
        return self.work_s, self.hop_s, self.after_s

    @property
    def one(self) -> tuple[Floats, Floats, Floats]:
        """The first candidate's, as `critical_path` takes them."""
        return self.work_s[0], self.hop_s[0], self.after_s[0]

    @property
    def program(self) -> Program:
        """The compiled shape."""
        return compile_shape(self.shape)

    def with_transfers(self, transfers: Transfers) -> "Pipeline":
        """The same pipeline with other transfers."""
        return replace(self, shape=replace(self.shape, transfers=transfers))


def random_warmup(rng: np.random.Generator, stages: int) -> tuple[int, ...]:
    """Further forwards per stage; each has at most one fewer than the next, or they would wait for each other."""
    extra = [int(rng.integers(0, 3))]
    for _ in range(stages - 1):
        extra.append(max(0, extra[-1] + int(rng.choice([-1, -1, 0, 0, 1, 3]))))
    return tuple(reversed(extra))


def random_shape(
    rng: np.random.Generator, name: str | None = None, transfers: Transfers | None = None, *, small: bool = False
) -> Shape:
    """Up to 8 stages, 3 chunks and 24 micro-batches, or as far as the schedule allows; about half when small."""
    plan = schedule(name or str(rng.choice([s.name for s in SCHEDULES])))
    most_stages, most_microbatches = (6, 14) if small else (8, 24)
    while True:
        stages = int(rng.integers(1, most_stages + 1))
        virtual_stages = next(v for v in (int(rng.integers(2, 4)), 1, 2) if plan.chunks(v) is None)
        num_microbatches = int(rng.integers(1, most_microbatches + 1))
        if plan.obstacle(stages, num_microbatches) is None:
            break
    return Shape(
        schedule=plan.name,
        stages=stages,
        num_microbatches=num_microbatches,
        virtual_stages=virtual_stages,
        warmup=random_warmup(rng, stages) if plan.name == "1f1b" and rng.random() < 0.5 else (),
        transfers=transfers or SEMANTICS[int(rng.integers(3))],
    )


def random_times(rng: np.random.Generator, shape: Shape, candidates: int = 1) -> Pipeline:
    """Stages from equal to very unlike, hops from none to dominant, also of one slow link."""
    p, v, units = shape.stages, shape.virtual_stages, shape.units
    work, hop, after = [], [], []
    for _ in range(candidates):
        spread = float(rng.choice([0.0, 0.1, 0.5, 2.0]))
        stage = np.exp(spread * rng.standard_normal((p, 1, 1)))
        kind = np.array([1.0, *rng.choice([0.5, 1.0, 2.0, 3.0], size=units // v - 1)])[None, :, None]
        own = np.exp(0.5 * spread * rng.standard_normal((p, units // v, v)))
        work.append((stage * kind * own).reshape(p, units))
        scale = float(rng.choice([0.0, 0.01, 0.3, 3.0]))
        slow = rng.random(p) < 1 / p if rng.random() < 0.5 else np.ones(p)
        hop.append(scale * rng.random(p) * slow)
        after.append(float(rng.choice([0.0, 0.5, 5.0])) * rng.random((p, v)))
    return Pipeline(shape=shape, work_s=np.array(work), hop_s=np.array(hop), after_s=np.array(after))


def random_pipeline(
    rng: np.random.Generator,
    name: str | None = None,
    transfers: Transfers | None = None,
    *,
    candidates: int = 1,
    small: bool = False,
) -> Pipeline:
    """A random shape with random times."""
    return random_times(rng, random_shape(rng, name, transfers, small=small), candidates)


def uniform(shape: Shape, *seconds: float, hop_s: float = 0.0) -> Pipeline:
    """Equal stages: seconds of F, B and, where it is split off, W of each chunk; nothing afterwards."""
    p, v = shape.stages, shape.virtual_stages
    return Pipeline(
        shape=shape,
        work_s=np.tile(np.repeat(np.array(seconds), v), (1, p, 1)),
        hop_s=np.full((1, p), hop_s),
        after_s=np.zeros((1, p, v)),
    )
