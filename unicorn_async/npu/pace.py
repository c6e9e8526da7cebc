"""How much work a run may have: a guess of its time, and what the driver allows.

The driver ends a run that takes longer than its limit, two seconds unless it is told otherwise, whether it hangs or is
slow. So runs are cut to a quarter of the limit by a guess out of counts, and after a timeout to half of that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from unicorn_async.npu.tile_budget import CHAIN, MAX_RUN_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterable

    from unicorn_async.npu.part import PreparedPart
    from unicorn_async.npu.work import AttentionHeads, Item

CLOCK_HZ = 1.0e9  # of a core: a guess on the low side
MULTIPLY_ADDS_A_CYCLE = 10  # of 128: counted 16 to 28 for the matrix unit alone, and the softmax takes time too
FEW_TASKS = 256  # of the controller in a run, to begin with: very many have wedged a Phoenix (mlir-aie #2224)
MOST_CUTS = 3  # of a run: what does not end with an eighth of its work hangs
PUSH_CYCLES = 3050  # between two tasks of the controller, as others measured on an npu1

_LONGEST_RUN_S = 0.5
_SHARE = 4  # of the driver's limit
_SMALLEST = 1 / 64  # of the time that runs start with: one that hangs is no reason for runs that are dispatches alone
_WAIT_S = 10.0  # for the end of a run, at least: the driver ends those that it can
_LIMITS_WAITED = 3  # a run may wait for the one before it, and the driver for its next look


class RunPace:
    """The time that a run may take by the guess. `driver_limit_s` is None where the driver ends no run by itself."""

    def __init__(self, driver_limit_s: float | None) -> None:
        limit_s = _LONGEST_RUN_S if driver_limit_s is None else min(_LONGEST_RUN_S, driver_limit_s / _SHARE)
        self.run_s = limit_s
        self.wait_s = _WAIT_S if driver_limit_s is None else max(_WAIT_S, _LIMITS_WAITED * driver_limit_s)
        self._shortest_s = limit_s * _SMALLEST

    def is_too_long(self, part: PreparedPart) -> bool:
        """Whether the part is to be cut in two before it is run."""
        return part.guess_s > self.run_s and can_be_cut(part)

    def timed_out(self, part: PreparedPart) -> None:
        """Have later runs be half as long as one that the driver has ended."""
        self.run_s = min(self.run_s, max(self._shortest_s, part.guess_s / 2))


def can_be_cut(part: PreparedPart) -> bool:
    """Whether half of a part may end where the whole does not."""
    return part.cuts < MOST_CUTS and len(part.items) > 1


@dataclass(frozen=True, slots=True)
class RunLoad:
    """The guessed time of items that are spread over `num_cores`, each to the core with the least to do."""

    num_cores: int
    _computing_s: float = 0.0
    _longest_s: float = 0.0
    _pushing_s: float = 0.0

    @classmethod
    def of(cls, heads: AttentionHeads, items: Iterable[Item]) -> RunLoad:
        """Return the load of these items."""
        load = cls(heads.layout.chip.num_cores)
        for item in items:
            load = load.with_item(heads, item)
        return load

    def with_item(self, heads: AttentionHeads, item: Item) -> RunLoad:
        """Return the load with one item more."""
        computing = computing_s(heads, item)
        return RunLoad(
            self.num_cores,
            self._computing_s + computing,
            max(self._longest_s, computing),
            self._pushing_s + pushing_s(item),
        )

    @property
    def seconds(self) -> float:
        """At most so long: no core has more than its share and one item; one controller pushes for all cores."""
        return self._computing_s / self.num_cores + self._longest_s + self._pushing_s


def computing_s(heads: AttentionHeads, item: Item) -> float:
    """Guess how long a core computes for an item."""
    layout = heads.layout
    rows = -(-item.num_queries * heads.group // layout.chip.tile_n) * layout.chip.tile_n
    products = 2 * rows * layout.head_dim * layout.chunk_keys * item.num_chunks  # with K and with V
    return products / MULTIPLY_ADDS_A_CYCLE / CLOCK_HZ


def pushing_s(item: Item) -> float:
    """Guess how long the controller needs for an item's tasks."""
    return num_tasks(item) * PUSH_CYCLES / CLOCK_HZ


def num_tasks(item: Item) -> int:
    """Return how many tasks of the controller an item takes: its inputs', and that of its results."""
    transfers = 1 + sum(-(-size // MAX_RUN_BYTES) for _, size in item.runs)
    return 1 + -(-transfers // CHAIN)
