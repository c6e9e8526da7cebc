"""How much work a run may have: a guess of its time, and what the driver allows.

The driver ends a run that takes longer than its limit, mostly two seconds, whether it hangs or is slow. So runs are cut
to a quarter of the limit by a guess out of counts, and after a timeout to half of that, until runs end well again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from unicorn_async.npu.geometry import CORES_PER_TEAM
from unicorn_async.npu.tile_budget import CHAIN, MAX_RUN_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterable

    from unicorn_async.npu.part import PreparedPart
    from unicorn_async.npu.work import AttentionHeads, Item

CLOCK_HZ = 1.0e9  # of a core: a guess on the low side
MULTIPLY_ADDS_A_CYCLE = 10  # of 128: counted 16 to 28 for the matrix unit alone, and the softmax takes time too
FEW_TASKS = 256  # of the controller in a run, to begin with: very many have wedged a Phoenix (mlir-aie #2224)
MOST_CUTS = 3  # of a run: what does not end with an eighth of its work hangs
PUSH_CYCLES = (
    3050  # between two tasks of the controller, as others fitted to an npu1; one stream begins all teams' tasks
)
LEAST_PUSH_CYCLES = 520  # onto a channel that is at work, by an earlier fit of theirs

_LONGEST_RUN_S = 0.5
_SHARE = 4  # of the driver's limit
_SMALLEST = 1 / 64  # of the time that runs start with: a shorter one that is ended hangs, and says nothing of the guess
_NEAR = 1 / 8  # of the time that runs may take: one of so much says that the guess is good
_GOOD_RUNS = 8  # before runs grow again after a timeout; if that proves too long, it takes so many times as many then
_MORE_GOOD_RUNS = 4
_WAIT_S, _LONGEST_WAIT_S = 10.0, 30.0  # for the end of a run: the driver ends those that it can
_LIMITS_WAITED = 3  # a run may wait for the one before it, and the driver for its next look


class RunPace:
    """The time that a run may take by the guess. `driver_limit_s` is None where the driver ends no run by itself."""

    def __init__(self, driver_limit_s: float | None) -> None:
        limit_s = _LONGEST_RUN_S if driver_limit_s is None else min(_LONGEST_RUN_S, driver_limit_s / _SHARE)
        self.run_s = limit_s
        waited_s = _LIMITS_WAITED * (driver_limit_s or 0.0)
        self.wait_s = min(max(_WAIT_S, waited_s), _LONGEST_WAIT_S)
        self._most_s, self._shortest_s = limit_s, limit_s * _SMALLEST
        self._num_good, self._num_wanted = 0, _GOOD_RUNS
        self._has_grown = False  # since the last timeout

    def is_too_long(self, part: PreparedPart) -> bool:
        """Whether the part is to be cut in two before it is run."""
        return part.guess_s > self.run_s and can_be_cut(part)

    def timed_out(self, part: PreparedPart, half_s: float) -> None:
        """Have later runs be as long as half of one that the driver has ended, unless it can but hang."""
        if part.guess_s < self._shortest_s:
            return
        if self._has_grown:
            self._num_wanted *= _MORE_GOOD_RUNS
        self._num_good, self._has_grown = 0, False
        self.run_s = min(self.run_s, max(self._shortest_s, half_s))

    def completed(self, part: PreparedPart) -> None:
        """Have later runs be twice as long, and as long as at the start at most, behind enough that ended well."""
        if self.run_s >= self._most_s or part.guess_s < self.run_s * _NEAR:
            return
        self._num_good += 1
        if self._num_good >= self._num_wanted:
            self._num_good, self._has_grown = 0, True
            self.run_s = min(self._most_s, 2 * self.run_s)


def can_be_cut(part: PreparedPart) -> bool:
    """Whether half of a part may end where the whole does not."""
    return part.cuts < MOST_CUTS and len(part.items) > 1


@dataclass(frozen=True, slots=True)
class RunLoad:
    """The guessed time of items that are spread over `num_teams`, each to the team with the least to do."""

    num_teams: int
    _computing_s: float = 0.0
    _longest_s: float = 0.0
    _pushing_s: float = 0.0

    @classmethod
    def of(cls, heads: AttentionHeads, items: Iterable[Item]) -> RunLoad:
        """Return the load of these items."""
        load = cls(heads.layout.chip.num_teams)
        for item in items:
            load = load.with_item(heads, item)
        return load

    def with_item(self, heads: AttentionHeads, item: Item) -> RunLoad:
        """Return the load with one item more."""
        computing = computing_s(heads, item)
        return RunLoad(
            self.num_teams,
            self._computing_s + computing,
            max(self._longest_s, computing),
            self._pushing_s + pushing_s(item),
        )

    @property
    def seconds(self) -> float:
        """At most so long: no team has more than its share and one item; one controller pushes for all of them."""
        return self._computing_s / self.num_teams + self._longest_s + self._pushing_s


def computing_s(heads: AttentionHeads, item: Item) -> float:
    """Guess how long a team computes for an item, whose strips go round its cores."""
    layout = heads.layout
    strips = -(-item.num_queries * heads.group // (layout.chip.tile_n * CORES_PER_TEAM))
    products = (
        2 * strips * layout.chip.tile_n * layout.head_dim * layout.chunk_keys * item.num_chunks
    )  # with K and with V
    return products / MULTIPLY_ADDS_A_CYCLE / CLOCK_HZ


def pushing_s(item: Item) -> float:
    """Guess how long the controller needs for an item's tasks."""
    return num_tasks(item) * PUSH_CYCLES / CLOCK_HZ


def num_tasks(item: Item) -> int:
    """Return how many tasks of the controller an item takes: its inputs', and that of its results."""
    return num_tasks_of(size for _, size in item.runs)


def num_tasks_of(sizes: Iterable[int]) -> int:
    """Return how many tasks an item takes that reads so many bytes from each of several places."""
    transfers = 1 + sum(-(-size // MAX_RUN_BYTES) for size in sizes)
    return 1 + -(-transfers // CHAIN)
