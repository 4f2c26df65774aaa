"""Lower bounds on when a 1F1B pipeline ends, without simulating it.

With F, B, t = F + B per micro-batch, hops x, X their sum, m micro-batches, and w_j = min(p - j, m) - 1 forwards
that stage j does ahead of the first backward:

    round trip (every stage j)   sum_i t_i + 2 X + (m - 1) t_j - w_j min(F_j, B_j)
    window (every j <= k)        n = w_j - w_k + 1, q = floor((m - 1 - w_k) / n), i = w_k + q n, X' = hops j..k-1:
                                 sum_{a<j} (F_a + x_a) + w_k F_j + q (sum_{j..k} t + 2 X') + sum_{j..k} F + X'
                                 + (m - i + w_k) B_k + (m - 1 - i) F_k + sum_{a<k} (B_a + x_a)

Round trip: the path of the first micro-batch to j, its way down and back, then all that j still has to do, and
the way back to the first stage (or the mirror image of it). Window: strict one-forward-one-backward order ties
the stages j..k together. Both end at stage 0. Stage a < j ends that much earlier than stage 0 at most by the
backward passes and hops above it, which `replica_bound` uses for work that follows a stage's last backward.
"""

import numpy as np

from hetplan.schedule.simulator import Floats


def warmups(stages: int, num_microbatches: int) -> Floats:
    """w_j of every stage, shape (p,)."""
    depth = stages - np.arange(stages)
    return np.asarray(np.minimum(depth, num_microbatches) - 1, dtype=np.float64)


def round_trip(forward_s: Floats, backward_s: Floats, hop_s: Floats, num_microbatches: int) -> Floats:
    """The round-trip bound of every stage, shape (K, p)."""
    stages = forward_s.shape[1]
    time = forward_s + backward_s
    base = time.sum(axis=1) + 2 * hop_s.sum(axis=1)
    ahead = warmups(stages, num_microbatches) * np.minimum(forward_s, backward_s)
    bound: Floats = base[:, None] + (num_microbatches - 1) * time - ahead
    return bound


def window(forward_s: Floats, backward_s: Floats, hop_s: Floats, num_microbatches: int) -> Floats:
    """The best window bound that ends its tie at each stage k, shape (K, p)."""
    candidates, stages = forward_s.shape
    m, w = num_microbatches, warmups(stages, num_microbatches).astype(int)
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


def replica_bound(
    forward_s: Floats, backward_s: Floats, hop_s: Floats, after_s: Floats, num_microbatches: int
) -> Floats:
    """A lower bound on max over stages of (end of its last backward + `after_s`), shape (K,).

    `after_s` (K, p) is what a stage does when its backward passes are over: gradient synchronisation and the
    optimizer. A bound through stage k passes every stage j <= k on its way back to stage 0, so stage j ends no
    earlier than the bound less the backward passes and hops above it.
    """
    through = np.maximum(
        round_trip(forward_s, backward_s, hop_s, num_microbatches),
        window(forward_s, backward_s, hop_s, num_microbatches),
    )
    # Best bound through any stage at or below j.
    below = np.maximum.accumulate(through[:, ::-1], axis=1)[:, ::-1]
    zero = np.zeros((forward_s.shape[0], 1))
    steps = np.cumsum(backward_s[:, :-1] + hop_s, axis=1)
    above = np.concatenate([zero, steps], axis=1)
    bound: Floats = (below - above + after_s).max(axis=1)
    return bound
