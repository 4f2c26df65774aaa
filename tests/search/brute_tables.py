"""Seconds and bytes of all chunks of a small problem, and what a stage should recompute, for `brute`."""

from functools import cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hetplan.cost.layers import EndCost
from hetplan.cost.stages import Degrees, Holding, StageCosts
from hetplan.predict import Setting

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Mix = tuple[int, int]
"""(selective, full) blocks of a stage."""

NONE, FIRST, LAST, BOTH, LAST_TOGETHER = range(5)
"""Ends of the model that a chunk holds: none, embedding, head, both; or the head, with the embedding elsewhere on
the stage."""


class Option(NamedTuple):
    """A group with its degrees."""

    group: int
    tp: int
    dp: int
    microbatch_size: int
    zero: int


@cache
def mixes(blocks: int, chunks: int) -> tuple[Mix, ...]:
    """What a stage may recompute: any mix, with several chunks all blocks alike."""
    if chunks > 1:
        return ((0, 0), (blocks, 0), (0, blocks))
    return tuple((s, f) for f in range(blocks + 1) for s in range(blocks - f + 1))


@cache
def _grid(layers: int) -> tuple[Ints, Ints, Ints, Ints, Ints]:
    """First block, block past the last, selective and full blocks of every run and mix; where each run begins."""
    rows: list[tuple[int, int, int, int]] = []
    begins = []
    for start in range(layers):
        for n in range(1, layers - start + 1):
            begins.append(len(rows))
            rows += [(start, start + n, s, f) for s, f in mixes(n, 1)]
    start_of, stop, selective, full = np.array(rows, dtype=np.int64).T
    return start_of, stop, selective, full, np.array(begins)


class Tables:
    """Tables by option, ends, first block and number of blocks, shape (options, 5, L, L + 1)."""

    def __init__(self, setting: Setting, options: list[Option]) -> None:
        self.setting, self.layers = setting, setting.model.architecture.layers
        self.batch = setting.training.global_batch_size
        self.options = options
        self._costs: dict[Option, StageCosts] = {}
        self.index = {option: i for i, option in enumerate(options)}
        shape = (len(options), 5, self.layers, self.layers + 1)
        self.forward_s, self.backward_s, self.weight_s = np.zeros(shape), np.zeros(shape), np.zeros(shape)
        self.sync_s, self.optimizer_s, self.state_bytes = np.zeros(shape), np.zeros(shape), np.zeros(shape)
        self.gradient_bytes = np.zeros(shape)
        # Nothing, all attention cores, all blocks.
        self.recompute_s, self.kept_bytes = np.zeros((3, *shape)), np.zeros((3, *shape))
        for option in options:
            self._fill(option)
        self._extra: dict[tuple[Option, int, tuple[Holding, ...]], Floats] = {}
        self._fixed: dict[tuple[Option, tuple[int, ...]], float] = {}

    def costs(self, option: Option) -> StageCosts:
        """Stage costs of an option: its micro-batches fill the global batch."""
        if option not in self._costs:
            degrees = Degrees(tp=option.tp, dp=option.dp, microbatch_size=option.microbatch_size, zero=option.zero)
            passes = self.batch // (option.dp * option.microbatch_size)
            name = self.setting.cluster.groups[option.group].name
            self._costs[option] = self.setting.costs(name, degrees, True, passes)
        return self._costs[option]

    def ends(self, costs: StageCosts, ends: int) -> tuple[EndCost, ...]:
        """What `ends` holds and does."""
        return costs.ends(
            first=ends in (FIRST, BOTH), last=ends in (LAST, BOTH, LAST_TOGETHER), together=ends == LAST_TOGETHER
        )

    def usable_bytes(self, option: Option) -> float:
        """Memory of an accelerator."""
        return self.setting.cluster.groups[option.group].usable_bytes

    def fixed_bytes(self, option: Option, ends: tuple[int, ...]) -> float:
        """Bytes of a stage whatever its blocks."""
        if (option, ends) not in self._fixed:
            costs = self.costs(option)
            held = tuple(end for chunk in ends for end in self.ends(costs, chunk))
            self._fixed[option, ends] = costs.fixed_bytes(held)
        return self._fixed[option, ends]

    def _fill(self, option: Option) -> None:
        start, stop = np.triu_indices(self.layers)
        stop = stop + 1
        costs, i, n = self.costs(option), self.index[option], stop - start
        none = np.zeros_like(n)
        for e in (NONE, FIRST, LAST, BOTH, LAST_TOGETHER):
            ends = self.ends(costs, e)
            dense, experts = costs.parameters(start, stop, ends)
            at = (i, e, start, n)
            self.forward_s[at] = costs.forward_s(start, stop, ends)
            self.backward_s[at] = costs.backward_s(start, stop, ends)
            self.weight_s[at] = costs.weight_s(start, stop, ends)
            self.sync_s[at] = costs.gradient_sync_s(dense, experts)
            self.optimizer_s[at] = costs.optimizer_s(dense, experts)
            self.state_bytes[at] = costs.state_bytes(start, stop, ends)
            self.gradient_bytes[at] = costs.gradient_bytes(dense, experts)
            for kind, (selective, full) in enumerate(((none, none), (n, none), (none, n))):
                self.recompute_s[(kind, *at)] = costs.recompute_s(stop, selective, full)
                self.kept_bytes[(kind, *at)] = costs.kept_bytes(start, stop, selective, full, ends)

    def extra_s(self, option: Option, ends: int, held: tuple[Holding, ...]) -> Floats:
        """Least recomputation of a stage with one chunk, shape (L, L + 1); infinite where nothing fits."""
        if (option, ends, held) not in self._extra:
            costs, (start, stop, selective, full, begins) = self.costs(option), _grid(self.layers)
            parts = self.ends(costs, ends)
            size = costs.kept_bytes(start, stop, selective, full, parts)
            whole = costs.kept_bytes(start, stop, 0, 0, parts)
            total = np.max([a * size + b * whole for a, b in held], axis=0) + costs.state_bytes(start, stop, parts)
            total = total + self.fixed_bytes(option, (ends,)) + np.where(full > 0, costs.block_bytes, 0.0)
            extra = np.where(total <= self.usable_bytes(option), costs.recompute_s(stop, selective, full), np.inf)
            table = np.full((self.layers, self.layers + 1), np.inf)
            table[start[begins], (stop - start)[begins]] = np.minimum.reduceat(extra, begins)
            self._extra[option, ends, held] = table
        return self._extra[option, ends, held]
