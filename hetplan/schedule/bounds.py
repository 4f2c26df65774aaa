"""Lower bounds on when a pipeline ends, without simulating it. All are linear in stage times and hops.

With F, B, t = F + B per micro-batch, hops x, X their sum, m micro-batches, and for 1F1B w_j = min(p - j + further
warm-up, m) - 1 forwards that stage j does ahead of the first backward:

    round trip (every stage j)   sum_i t_i + 2 X + (m - 1) t_j - w_j min(F_j, B_j)
    window (every j <= k)        n = w_j - w_k + 1, q = floor((m - 1 - w_k) / n), i = w_k + q n, X' = hops j..k-1:
                                 sum_{a<j} (F_a + x_a) + w_k F_j + q (sum_{j..k} t + 2 X') + sum_{j..k} F + X'
                                 + (m - i + w_k) B_k + (m - 1 - i) F_k + sum_{a<k} (B_a + x_a)
    rendezvous (every stage j)   sum_{i<j} t_i + 2 sum_{i<j-1} x_i + m (t_j + 2 x_{j-1} + 2 x_j); where weight
                                 gradients are split off F_i for t_i and one way of the hops above
    GPipe, exact                 sum_i t_i + 2 X + (m - 1) (max F + max B)

Round trip: the path of the first micro-batch to j, its way down and back, then all that j still has to do, and
the way back to the first stage (or the mirror image of it). Window: strict one-forward-one-backward order ties
the stages j..k together. Rendezvous: transfers keep both stages busy. Other schedules: `hetplan.schedule.paths.trips`,
which derives paths of the first two kinds from any order of work. Transfers that keep someone busy only lengthen a
pipeline, so bounds without them hold for all.
"""

import numpy as np

from hetplan.schedule.base import ahead
from hetplan.schedule.paths import trips
from hetplan.schedule.simulator import Floats, Shape


def warmups(shape: Shape) -> Floats:
    """w_j of 1F1B for every stage, shape (p,)."""
    return ahead(shape.stages, shape.num_microbatches, shape.warmup).astype(np.float64)


def round_trip(shape: Shape, forward_s: Floats, backward_s: Floats, hop_s: Floats) -> Floats:
    """The round-trip bound of every stage of 1F1B, shape (K, p); `hop_s` has shape (K, p - 1)."""
    time = forward_s + backward_s
    base = time.sum(axis=1) + 2 * hop_s.sum(axis=1)
    before = warmups(shape) * np.minimum(forward_s, backward_s)
    bound: Floats = base[:, None] + (shape.num_microbatches - 1) * time - before
    return bound


def window(shape: Shape, forward_s: Floats, backward_s: Floats, hop_s: Floats) -> Floats:
    """The best window bound of 1F1B that ends its tie at each stage k, shape (K, p)."""
    candidates, stages = forward_s.shape
    m, w = shape.num_microbatches, warmups(shape).astype(int)
    zero = np.zeros((candidates, 1))
    forward = np.concatenate([zero, np.cumsum(forward_s, axis=1)], axis=1)
    backward = np.concatenate([zero, np.cumsum(backward_s, axis=1)], axis=1)
    hops = np.concatenate([zero, np.cumsum(hop_s, axis=1)], axis=1)
    best = np.zeros((candidates, stages))
    for k in range(stages):
        for j in range(k + 1):
            n = w[j] - w[k] + 1
            q, left = divmod(m - 1 - w[k], n)
            i = w[k] + q * n
            x = hops[:, k] - hops[:, j]
            inside = forward[:, k + 1] - forward[:, j]
            tied = inside + backward[:, k + 1] - backward[:, j] + 2 * x
            bound = (
                forward[:, j]
                + hops[:, j]
                + w[k] * forward_s[:, j]
                + q * tied
                + inside
                + x
                + (m - i + w[k]) * backward_s[:, k]
                + left * forward_s[:, k]
                + backward[:, k]
                + hops[:, k]
            )
            best[:, k] = np.maximum(best[:, k], bound)
    return best


def rendezvous(shape: Shape, work_s: Floats, hop_s: Floats) -> Floats:
    """Through every stage of a line whose transfers keep both sides busy, shape (K, p); `hop_s` (K, p - 1)."""
    time = work_s.sum(axis=2)
    zero = np.zeros((len(time), 1))
    before = np.concatenate([zero, hop_s], axis=1)
    after = np.concatenate([hop_s, zero], axis=1)
    # Nobody waits for the last weight gradients: where they are split off, the way back does not count.
    whole = work_s.shape[2] == 2
    trip, ways = (time, 2) if whole else (work_s[:, :, 0], 1)
    above = np.cumsum(trip, axis=1) - trip
    earlier = np.cumsum(before, axis=1) - before
    bound: Floats = above + ways * earlier + shape.num_microbatches * (time + 2 * before + 2 * after)
    return bound


def one_forward_one_backward(
    shape: Shape, forward_s: Floats, backward_s: Floats, hop_s: Floats, after_s: Floats
) -> Floats:
    """A lower bound on max over stages of (end of its last backward + `after_s`) under 1F1B, shape (K,).

    `after_s` (K, p) is what a stage does when its backward passes are over: gradient synchronisation and the
    optimizer. A bound through stage k passes every stage j <= k on its way back to stage 0, so stage j ends no
    earlier than the bound less the backward passes and hops above it.
    """
    arguments = (shape, forward_s, backward_s, hop_s)
    through = np.maximum(round_trip(*arguments), window(*arguments))
    if shape.transfers == "rendezvous":
        through = np.maximum(through, rendezvous(shape, np.stack([forward_s, backward_s], axis=2), hop_s))
    # Best bound through any stage at or below j.
    below = np.maximum.accumulate(through[:, ::-1], axis=1)[:, ::-1]
    zero = np.zeros((forward_s.shape[0], 1))
    steps = np.cumsum(backward_s[:, :-1] + hop_s, axis=1)
    above = np.concatenate([zero, steps], axis=1)
    bound: Floats = (below - above + after_s).max(axis=1)
    return bound


def gpipe(shape: Shape, forward_s: Floats, backward_s: Floats, hop_s: Floats, after_s: Floats) -> Floats:
    """The exact time of GPipe with overlapped transfers, shape (K,)."""
    m = shape.num_microbatches
    zero = np.zeros((len(forward_s), 1))
    down = forward_s.sum(axis=1) + hop_s.sum(axis=1) + (m - 1) * forward_s.max(axis=1)
    steps = backward_s + np.concatenate([hop_s, zero], axis=1)
    up = np.cumsum(steps[:, ::-1], axis=1)[:, ::-1]
    slowest = np.maximum.accumulate(backward_s[:, ::-1], axis=1)[:, ::-1]
    bound: Floats = (down[:, None] + up + (m - 1) * slowest + after_s).max(axis=1)
    return bound


def lower_bound(shape: Shape, work_s: Floats, hop_s: Floats, after_s: Floats) -> Floats:
    """The best bound known on the seconds until every stage has done all, shape (K,); arguments as in `step_s`."""
    inner = hop_s[:, :-1]
    if shape.schedule in ("1f1b", "gpipe"):
        formula = one_forward_one_backward if shape.schedule == "1f1b" else gpipe
        best = formula(shape, work_s[:, :, 0], work_s[:, :, 1], inner, after_s[:, :, 0])
    else:
        best = np.max([path.length_s(work_s, hop_s, after_s) for kind in trips(shape) for path in kind], axis=0)
    if shape.transfers == "rendezvous" and shape.virtual_stages == 1:
        best = np.maximum(best, rendezvous(shape, work_s, inner).max(axis=1))
    return best
