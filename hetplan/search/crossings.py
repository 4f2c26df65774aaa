"""What a slow hop between two groups costs under 1F1B: the window bound of the two stages on its sides.

With k the last-but-deepest stage of a group (depth D, so many changes of group below it) and j the stage above it on
another group, n = w_j - w_k + 1, q = floor((m - 1 - w_k) / n), i = w_k + q n (`hetplan.schedule.bounds`):

    T >= q (t_j + t_k + 2 x) + 2 x + (w_k + 1) F_j + (m - i) F_k + (m - i + w_k) B_k + B_j + what lies above j

Least stage times make it a bound on all plans with that crossing; a target makes it a cap on t_j + t_k.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from hetplan.search.roots import RootSpace
from hetplan.search.tables import Floats, Ints, Place

PLACES: tuple[Place, ...] = ("first", "middle", "last")


@dataclass(frozen=True, slots=True)
class Tie:
    """A crossing by depth of its lower stage: how often the two stages are tied, and the least seconds besides."""

    laps: Ints
    rest_s: Floats


class Crossings:
    """Window bounds across the hops between groups of one root."""

    def __init__(self, space: RootSpace) -> None:
        self.space = space

    @property
    def tied(self) -> bool:
        """Whether the order of work ties neighbouring stages: under GPipe and others there is no such bound."""
        return self.space.root.schedule == "1f1b"

    @cached_property
    def least(self) -> list[tuple[float, float]]:
        """Least forward and backward seconds of a stage, per option."""
        found = []
        for o in range(len(self.space.options)):
            forward = backward = float("inf")
            for place in PLACES:
                table = self.space.table(o, place)
                possible = table.possible.any(axis=0)
                forward = min(forward, float(table.forward_s[0][possible].min(initial=np.inf)))
                backward = min(backward, float(table.backward_s[:, 0][table.possible].min(initial=np.inf)))
            found.append((forward, backward))
        return found

    @cached_property
    def times(self) -> list[Floats]:
        """Per option, least seconds of a stage with n and more blocks, shape (L + 1,)."""
        found = []
        for o in range(len(self.space.options)):
            rows = [self.space.term(o, place, 0, "fill").min(axis=0) for place in PLACES]
            found.append(np.minimum.accumulate(np.min(rows, axis=0)[::-1])[::-1])
        return found

    def tie(self, upper: int, lower: int, depths: Ints, changes: int) -> Tie:
        """The crossing from option `upper` to `lower`, whose topmost stage stands at these depths."""
        m, deeper = self.space.root.num_microbatches, self.space.root.warmup
        below = np.minimum(depths + deeper * changes, m) - 1
        above = np.minimum(depths + 1 + deeper * (changes + 1), m) - 1
        step = above - below + 1
        laps = (m - 1 - below) // step
        left = m - below - laps * step
        hop = self.space.cross_hop(upper, lower)
        (upper_f, upper_b), (lower_f, lower_b) = self.least[upper], self.least[lower]
        rest = 2 * hop * (laps + 1) + (below + 1) * upper_f + left * lower_f + (left + below) * lower_b + upper_b
        return Tie(laps, rest)

    def least_s(self, a: int, b: int, stages: int) -> float:
        """The least bound on plans with so many stages that use these two options alone, in either order."""
        depths = np.arange(1, stages)
        found = float("inf")
        if not np.isfinite([*self.least[a], *self.least[b]]).all():
            return found
        for upper, lower in ((a, b), (b, a)):
            tie = self.tie(upper, lower, depths, 0)
            pair = sum(self.least[upper]) + sum(self.least[lower])
            found = min(found, float((tie.rest_s + tie.laps * pair).min(initial=np.inf)))
        return found + self.space.setting.stack.step_fixed_s
