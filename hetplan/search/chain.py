"""A chain: stages with their options in pipeline order, all that is left open is how many blocks each holds.

Exact time of splits, dynamic programs over splits, and a complete enumeration of the splits that could beat a
target. Letters as in docs/formulation.md.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from hetplan.schedule.bounds import lower_bound, warmups
from hetplan.schedule.paths import CriticalPath, critical_path
from hetplan.schedule.simulator import Shape, step_s
from hetplan.search.forms import form, tied
from hetplan.search.paths import PathPool, compositions, least_split, suffix_sums, weigh
from hetplan.search.tables import Bools

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
NOTHING = -1e300
"""Below every time, and still finite when infinity is added."""
MIXTURES = 16
"""Steps that mix paths for one range."""
FUNCTIONALS = 6
"""Mixtures that prune the enumeration of splits."""
HALVINGS = 3
"""How often open ranges of the bottleneck are halved before splits are listed."""
WINDOWED = 20_000
"""Splits whose window bounds are worked out: they see slow hops, and take a step for every pair of stages."""
ROUNDING = 1e-12
"""Relative slack of comparisons between sums of floats."""


@dataclass(frozen=True, kw_only=True)
class Chain:
    """Tables of p stages over blocks n = 0 .. L, with what they hold in flight."""

    shape: Shape
    work_s: Floats
    """Seconds of every unit, shape (p, L + 1, units)."""
    possible: Bools
    """Whether a stage can hold n blocks, shape (p, L + 1)."""
    after_s: Floats
    """What follows each chunk's last backward, shape (p, L + 1, v)."""
    hop_s: Floats
    """(p,), the last one back to the first stage."""
    fixed_s: float
    counters: dict[str, int] = field(default_factory=dict, compare=False, repr=False)
    pool: PathPool = field(default_factory=PathPool, compare=False, repr=False)

    @property
    def stages(self) -> int:
        """Stages of the pipeline, p."""
        return int(self.work_s.shape[0])

    @property
    def layers(self) -> int:
        """Blocks of the model, L."""
        return int(self.work_s.shape[1]) - 1

    @cached_property
    def _line(self) -> bool:
        """Whether the round-trip bound is that of 1F1B and GPipe, which also bounds every stage's own end."""
        return self.shape.schedule in ("1f1b", "gpipe")

    @cached_property
    def time_s(self) -> Floats:
        """f, what a stage adds to a path through another one, shape (p, L + 1); infinite where impossible."""
        fill = self.work_s.sum(axis=2) if self._line else form(self.shape).fill(self.work_s)
        return np.where(self.possible, fill, np.inf)

    @cached_property
    def tied_s(self) -> Floats:
        """c, what a stage adds to the path through it, shape (p, L + 1)."""
        if not self._line:
            paths = form(self.shape)
            values = np.array([paths.tied(j, work) for j, work in enumerate(self.work_s)])
        else:
            gpipe = self.shape.schedule == "gpipe"
            ahead = np.zeros(self.stages) if gpipe else warmups(self.shape)
            values = tied(self.work_s[:, :, 0], self.work_s[:, :, 1], ahead[:, None], self.shape.num_microbatches)
        return np.where(self.possible, values, np.inf)

    @cached_property
    def hop_weight(self) -> float:
        """How often a path crosses each hop at least."""
        return 2.0 if self._line else form(self.shape).hop

    @cached_property
    def lead_s(self) -> Floats:
        """What a stage adds to a path that goes on below it, shape (p, L + 1), with the hop."""
        hops = np.append(self.hop_s[:-1], 0.0)[:, None]
        if self._line:
            return np.where(self.possible, self.work_s[:, :, 0] + hops, np.inf)
        return self.time_s + self.hop_weight * hops

    @cached_property
    def ending_s(self) -> Floats:
        """What follows the end of a stage on every path through it, shape (p, L + 1): its own, or the first stage's."""
        if self._line:
            return self.after_s[:, :, 0]
        ending = np.zeros(self.possible.shape)
        ending[0] = self.after_s[0] @ form(self.shape).after
        return ending

    def _rows(self, splits: Ints) -> tuple[Floats, Floats, Floats]:
        stage = np.arange(self.stages)
        hops = np.broadcast_to(self.hop_s, (splits.shape[0], self.stages))
        return self.work_s[stage, splits], hops, self.after_s[stage, splits]

    def simulate(self, splits: Ints) -> Floats:
        """Exact iteration seconds of splits (K, p); infinite where a stage cannot hold its blocks."""
        self.counters["simulations"] = self.counters.get("simulations", 0) + len(splits)
        good = self.possible[np.arange(self.stages), splits].all(axis=1)
        time = np.full(len(splits), np.inf)
        if good.any():
            time[good] = step_s(self.shape, *self._rows(splits[good])).max(axis=1) + self.fixed_s
        return time

    def all_splits(self) -> Ints:
        """Every split that the stages can hold, (K, p): for few blocks."""
        splits = compositions(self.layers, self.stages)
        return splits[self.possible[np.arange(self.stages), splits].all(axis=1)]

    def bound(self, splits: Ints) -> Floats:
        """Lower bounds on the iteration seconds of splits (K, p), all of them possible."""
        return lower_bound(self.shape, *self._rows(splits)) + self.fixed_s

    @cached_property
    def suffixes(self) -> Suffixes:
        """Bounds on stages j.. with r blocks left, for all j and r."""
        self.counters["dp_leaves"] = self.counters.get("dp_leaves", 0) + 1
        return self._suffixes(np.inf)

    def _suffixes(self, cap_s: float) -> Suffixes:
        """Dynamic programs from the last stage upwards, no stage above `cap_s` in `tied_s`.

        fill: least sum of f and of the hops below, as often as paths cross them. bottleneck: least of the largest
        `tied_s`. end: a lower bound on max (end + A) of the pipeline cut at stage j, by

            R_j >= max (sum_{i >= j} f_i + h X + C + A_j,  lead_j + R_{j+1})        lead = F + x under 1F1B

        with fill and bottleneck of the rest bounded apart, hence a bound and not the value.
        """
        p, size = self.time_s.shape
        time = np.where(self.tied_s <= cap_s, self.time_s, np.inf)
        fill, bottleneck, end = (np.full((p + 1, size), np.inf) for _ in range(3))
        fill[p, 0], bottleneck[p, 0], end[p, 0] = 0.0, -np.inf, NOTHING
        choice = np.zeros((p, size), dtype=np.int64)

        def rest(values: Floats) -> Floats:
            """Row r holds values[r - L .. r]: what is left to the rest when the stage takes L .. 0 blocks."""
            padded = np.full(2 * size - 1, np.inf)
            padded[size - 1 :] = values
            return np.lib.stride_tricks.sliding_window_view(padded, size)

        for j in range(p - 1, -1, -1):
            hop = float(self.hop_s[j]) if j < p - 1 else 0.0
            sums = rest(fill[j + 1]) + (time[j] + self.hop_weight * hop)[::-1]
            worst = np.maximum(rest(bottleneck[j + 1]), np.where(np.isfinite(time[j]), self.tied_s[j], np.inf)[::-1])
            later = rest(end[j + 1]) + np.where(np.isfinite(time[j]), self.lead_s[j], np.inf)[::-1]
            value = np.maximum(sums + worst + self.ending_s[j, ::-1], later)
            fill[j], bottleneck[j], end[j] = sums.min(axis=1), worst.min(axis=1), value.min(axis=1)
            choice[j] = size - 1 - value.argmin(axis=1)
        first = float((sums[self.layers] + self.ending_s[0, ::-1]).min())
        return Suffixes(fill_s=fill, bottleneck_s=bottleneck, end_s=end, first_s=first, choice=choice)

    def _split(self, suffixes: Suffixes) -> Ints | None:
        """The split that attains the bound of `suffixes`."""
        if not np.isfinite(suffixes.end_s[0, self.layers]):
            return None
        split, left = np.zeros(self.stages, dtype=np.int64), self.layers
        for j in range(self.stages):
            split[j] = suffixes.choice[j, left]
            left -= int(split[j])
        return split

    def improve(self, split: Ints, time: float) -> tuple[Ints, float]:
        """Move blocks between two stages while that makes the exact time less.

        A move helps only if it shortens the longest path, which leaves few to simulate.
        """
        p = self.stages
        stage = np.arange(p)
        give, take = (grid.ravel() for grid in np.meshgrid(stage, stage))
        moves = np.zeros((p * p, p), dtype=np.int64)
        moves[np.arange(p * p), give] -= 1
        moves[np.arange(p * p), take] += 1
        moves = moves[give != take]
        while True:
            near = split + moves
            near = near[(near >= 1).all(axis=1) & (near <= self.layers).all(axis=1)]
            path = self.weigh(self.path(split))
            near = near[path[stage, near].sum(axis=1) + self.fixed_s < time * (1 - ROUNDING)]
            if not len(near):
                return split, time
            times = self.simulate(near)
            best = int(np.argmin(times))
            if times[best] >= time * (1 - ROUNDING):
                return split, time
            split, time = near[best], float(times[best])

    def heuristic(self) -> tuple[Ints, float] | None:
        """A good split: the splits that attain the bound at a few caps on the bottleneck, then local moves."""
        least = float(self.suffixes.bottleneck_s[0, self.layers])
        if not np.isfinite(least):
            return None
        splits: list[Ints] = []
        for slack in (0.0, 0.01, 0.05, np.inf):
            cap = least + abs(least) * (slack + ROUNDING) + ROUNDING
            split = self._split(self._suffixes(cap) if np.isfinite(cap) else self.suffixes)
            if split is not None and not any((split == other).all() for other in splits):
                splits.append(split)
        times = self.simulate(np.array(splits))
        best = int(np.argmin(times))
        return self.improve(splits[best], float(times[best]))

    def closed(self, target_s: float) -> bool:
        """Whether bounds keep every split from the target: a path of the pool, the caps, or a mixture of paths."""
        if self.excluded(target_s):
            return True
        ranges = self.open_ranges(target_s, halvings=0)
        return not ranges or self.functionals(ranges[0], target_s) is None

    def open_ranges(self, target_s: float, halvings: int = HALVINGS) -> list[Range]:
        """Ranges of the bottleneck that may hold a split below the target; empty where there is no such split.

        A split below the target has C <= target - V - A_first: that caps every stage, which raises V, and so on
        until the caps settle. What is left is halved a few times: in a range (C1, C2] the caps of C2 go with the
        bottleneck of C1.
        """
        budget, cap, suffixes = target_s * (1 - ROUNDING) - self.fixed_s, np.inf, self.suffixes
        least = float(suffixes.bottleneck_s[0, self.layers])
        while True:
            room = budget - suffixes.first_s
            if suffixes.end_s[0, self.layers] >= budget or least > room:
                return []
            if room >= cap * (1 - 1e-6):
                break
            cap = room
            suffixes = self._suffixes(cap)
        ranges = [Range(low_s=least, high_s=cap, suffixes=suffixes)]
        for _ in range(halvings):
            halves = []
            for part in ranges:
                middle = (part.low_s + part.high_s) / 2
                halves += [(part.low_s, middle, self._suffixes(middle)), (middle, part.high_s, part.suffixes)]
            ranges = [
                Range(low_s=low, high_s=high, suffixes=rest)
                for low, high, rest in halves
                if max(rest.end_s[0, self.layers], low + rest.first_s) < budget
            ]
        return ranges

    def weigh(self, path: CriticalPath) -> Floats:
        """A path's seconds by stage and blocks, shape (p, L + 1)."""
        return weigh(path, self.work_s, self.possible, self.after_s, self.hop_s)

    def path(self, split: Ints) -> CriticalPath:
        """The longest path of a split."""
        stage = np.arange(self.stages)
        return critical_path(self.shape, self.work_s[stage, split], self.hop_s, self.after_s[stage, split])

    def excluded(self, target_s: float) -> bool:
        """Whether a path of the pool alone keeps every split from the target."""
        budget = target_s * (1 - ROUNDING) - self.fixed_s
        fill = suffix_sums(self.time_s)[0, self.layers] + self.hop_weight * float(self.hop_s[:-1].sum())
        closed = self.tied_s > budget - fill
        for path in self.pool.paths:
            weight = self.weigh(path)
            weight[closed] = np.inf
            if suffix_sums(weight)[0, self.layers] >= budget:
                self.pool.promote(path)
                return True
        return False

    def functionals(self, part: Range, target_s: float) -> list[tuple[Floats, Floats]] | None:
        """Mixtures of paths with their suffix sums, None where one of them keeps the whole range from the target.

        Frank-Wolfe: the longest path of the split that attains a mixture's bound is mixed in.
        """
        budget = target_s * (1 - ROUNDING) - self.fixed_s
        closed = self.tied_s > part.high_s
        found: list[tuple[float, CriticalPath, Floats, Floats]] = []

        def bound(path: CriticalPath) -> float:
            weight = self.weigh(path)
            weight[closed] = np.inf
            sums = suffix_sums(weight)
            found.append((float(sums[0, self.layers]), path, weight, sums))
            return found[-1][0]

        if self.pool.paths:
            mixture = self.pool.paths[0]
        else:
            mixture = self.path(least_split(np.where(closed, np.inf, self.time_s), part.suffixes.fill_s))
        for step in range(MIXTURES):
            if bound(mixture) >= budget:
                self.pool.promote(mixture)
                return None
            _, _, weight, sums = found[-1]
            mixture = mixture.mixed(self.path(least_split(weight, sums)), 2 / (step + 3))
        found.sort(key=lambda entry: -entry[0])
        self.pool.promote(found[0][1])
        return [(weight, sums) for _, _, weight, sums in found[:FUNCTIONALS]]

    def splits_below(self, target_s: float, limit: int) -> tuple[Ints, Floats, float]:
        """All splits whose bound is below `target_s`, with their bounds.

        Ranges of the bottleneck with more than `limit` partial splits are left out: the third value is a lower
        bound on what they hold, infinite where nothing was left out.
        """
        found, bounds, left_out = [np.zeros((0, self.stages), dtype=np.int64)], [np.zeros(0)], float("inf")
        for part in self.open_ranges(target_s):
            functionals = self.functionals(part, target_s)
            if functionals is None:
                continue
            listed = self._splits_in(part, target_s, functionals, limit)
            if listed is None:
                rest = part.suffixes
                known = [float(sums[0, self.layers]) for _, sums in functionals]
                bound = max(*known, float(rest.end_s[0, self.layers]), part.low_s + rest.first_s)
                left_out = min(left_out, bound + self.fixed_s)
            else:
                found.append(listed[0])
                bounds.append(listed[1])
        splits, least = np.concatenate(found), np.concatenate(bounds)
        if 0 < len(splits) <= WINDOWED:
            least = np.maximum(least, self.bound(splits))
            still = least < target_s * (1 - ROUNDING)
            splits, least = splits[still], least[still]
        return splits, least, left_out

    def _splits_in(
        self, part: Range, target_s: float, functionals: list[tuple[Floats, Floats]], limit: int
    ) -> tuple[Ints, Floats] | None:
        """Splits with the bottleneck in a range, and their bounds, that a bound does not keep from the target.

        Stage by stage, a partial split is dropped when its bound reaches the target: through each stage so far
        with what the rest adds at least, through the rest after the forwards above it, and along mixtures of paths.
        """
        rest, size = part.suffixes, self.layers + 1
        keep = target_s * (1 - ROUNDING) - self.fixed_s
        prefix = np.zeros((1, 0), dtype=np.int32)
        used, ahead, worst = np.zeros(1, dtype=np.int64), np.zeros(1), np.full(1, -np.inf)
        first = np.zeros(1)
        sums = np.zeros((len(functionals), 1))
        # Largest of (forwards above i + times i.. + A_i) over stages i so far, without and with the bottleneck since i.
        open_s, tied_s = np.full(1, -np.inf), np.full(1, -np.inf)
        for j in range(self.stages):
            hop = float(self.hop_s[j]) if j < self.stages - 1 else 0.0
            choices = np.flatnonzero(self.tied_s[j] <= part.high_s)
            grown = used[:, None] + choices
            left = np.clip(self.layers - grown, 0, self.layers)
            step = self.time_s[j, choices] + self.hop_weight * hop
            opened = np.maximum(open_s[:, None], ahead[:, None] + self.ending_s[j, choices]) + step
            closed = np.maximum(tied_s[:, None] + step, opened + self.tied_s[j, choices])
            whole = first[:, None] + step + (self.ending_s[0, choices] if j == 0 else 0.0)
            later = ahead[:, None] + self.lead_s[j, choices]
            tied = np.maximum(worst[:, None], self.tied_s[j, choices])
            fill, bottleneck = rest.fill_s[j + 1, left], rest.bottleneck_s[j + 1, left]
            bound = np.maximum(np.maximum(closed, opened + bottleneck) + fill, later + rest.end_s[j + 1, left])
            bound = np.maximum(bound, whole + part.low_s + fill)
            for f, (weight, suffix) in enumerate(functionals):
                bound = np.maximum(bound, sums[f][:, None] + weight[j, choices] + suffix[j + 1, left])
            row, column = np.nonzero((grown < size) & (bound < keep))
            if len(row) > limit:
                return None
            prefix = np.concatenate([prefix[row], choices[column][:, None].astype(np.int32)], axis=1)
            used, ahead, first = grown[row, column], later[row, column], whole[row, column]
            open_s, tied_s, worst = opened[row, column], closed[row, column], tied[row, column]
            sums = np.array([sums[f][row] + weight[j, choices][column] for f, (weight, _) in enumerate(functionals)])
        inside = (worst > part.low_s) | (part.low_s <= self.suffixes.bottleneck_s[0, self.layers])
        return prefix[inside].astype(np.int64), bound[row, column][inside] + self.fixed_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """Splits with the bottleneck in (low_s, high_s], with the bounds on their suffixes."""

    low_s: float
    high_s: float
    suffixes: Suffixes


@dataclass(frozen=True, slots=True, kw_only=True)
class Suffixes:
    """Least values over the splits of stages j.. with r blocks, each shape (p + 1, L + 1)."""

    fill_s: Floats
    bottleneck_s: Floats
    end_s: Floats
    first_s: float
    """Least sum of t and hops over all stages, with what follows the first stage's last backward."""
    choice: Ints
    """(p, L + 1): blocks of stage j that attain `end_s`."""
