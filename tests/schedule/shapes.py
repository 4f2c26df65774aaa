"""Random pipelines for the tests of this room."""

from dataclasses import dataclass

import numpy as np

from hetplan.schedule.simulator import Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """One pipeline: seconds per stage and hop."""

    forward_s: Floats
    backward_s: Floats
    hop_s: Floats
    after_s: Floats
    num_microbatches: int


def random_pipeline(rng: np.random.Generator) -> Pipeline:
    """Up to 8 stages and 24 micro-batches; stages from equal to very unlike, hops from none to dominant."""
    stages = int(rng.integers(1, 9))
    spread = float(rng.choice([0.0, 0.1, 0.5, 2.0]))
    forward = np.exp(spread * rng.standard_normal(stages))
    backward = forward * float(rng.choice([0.5, 1.0, 2.0, 3.0])) * np.exp(0.5 * spread * rng.standard_normal(stages))
    scale = float(rng.choice([0.0, 0.01, 0.3, 3.0]))
    return Pipeline(
        forward_s=forward,
        backward_s=backward,
        hop_s=scale * rng.random(stages - 1),
        after_s=float(rng.choice([0.0, 0.5, 5.0])) * rng.random(stages),
        num_microbatches=int(rng.integers(1, 25)),
    )


def retimed(pipeline: Pipeline, rng: np.random.Generator) -> Pipeline:
    """Other seconds for a pipeline of the same shape."""
    stages = len(pipeline.forward_s)
    return Pipeline(
        forward_s=np.exp(rng.standard_normal(stages)),
        backward_s=2 * np.exp(rng.standard_normal(stages)),
        hop_s=rng.random(stages - 1),
        after_s=rng.random(stages),
        num_microbatches=pipeline.num_microbatches,
    )
