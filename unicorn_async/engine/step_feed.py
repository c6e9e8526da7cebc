"""What the last steps did and who has which blocks, kept while somebody watches."""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from unicorn_async.engine.block_runs import BlockRuns

if TYPE_CHECKING:
    from collections.abc import Iterator

    from unicorn_async.scheduler.scheduler import Scheduler
    from unicorn_async.scheduler.sequence import Sequence
    from unicorn_async.step.result import StepResult

_KEPT_STEPS = 1024
_CLOCK_WINDOW_S = 2.0  # in which two clocks of 50 ppm drift apart by 0.1 ms
_MAPS_LAST_S = 0.05


class StepPart(NamedTuple):
    """One sequence's part of a step, of a decode with the tokens that were proposed.

    `sequence` is its number among all, in the order of their arrival.
    """

    sequence: int
    request_id: str
    num_tokens: int
    is_decode: bool


class StepRecord(NamedTuple):
    """A step that has ended; times are seconds of `time.perf_counter`.

    The host began it at `begun_s`, and saw its end at `ended_s`. `device_start_s` is when its first operation began on
    the device, by that device's clock as laid beside the host's (see `_ClockOffset`), None where the step waited for
    layers to be loaded; its last one ended `device_s` later. `near` and `far` are the times, (start, stop), in which
    the device of the model and the one that attends worked, where these are two.
    """

    number: int
    begun_s: float
    ended_s: float
    host_s: float
    device_start_s: float | None
    device_s: float
    parts: tuple[StepPart, ...]
    near: tuple[tuple[float, float], ...] = ()
    far: tuple[tuple[float, float], ...] = ()


class BlockOwner(NamedTuple):
    """A sequence's blocks of one group of the KV cache, as runs of neighbours: (first, how many)."""

    sequence: int
    request_id: str
    runs: tuple[tuple[int, int], ...]


class BlockMap(NamedTuple):
    """One group of the KV cache: how many blocks there are, will be and are in use, and whose they are."""

    window: int
    num_blocks: int
    num_planned: int
    num_used: int
    owners: tuple[BlockOwner, ...]


class _ClockOffset:
    """What is added to a device's clock to have the host's: the least that was seen in the last two to four seconds.

    The clocks have no common zero, and drift. The device's is laid so that no step ended there after the host saw its
    end: by the step whose end was seen soonest. So times of the device are late by what that one took to be seen, some
    tens of microseconds, and by what the clocks have drifted apart since.
    """

    def __init__(self) -> None:
        self._begun_s = -math.inf  # of the window that `_least_s` is of
        self._least_s = math.inf
        self._before_s = math.inf  # the least of the window before

    def seen(self, now_s: float, offset_s: float) -> float:
        """Take what was seen at a step's end, and return the least."""
        if now_s - self._begun_s >= _CLOCK_WINDOW_S:
            is_next = now_s - self._begun_s < 2 * _CLOCK_WINDOW_S
            self._before_s = self._least_s if is_next else math.inf
            self._begun_s, self._least_s = now_s, math.inf
        self._least_s = min(self._least_s, offset_s)
        return min(self._least_s, self._before_s)


class StepFeed:
    """The last 1,024 steps, noted while there is a watcher, and the KV cache as it is now."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.is_watched = False
        self._num_watchers = 0
        self._scheduler = scheduler
        self._records: deque[StepRecord] = deque(maxlen=_KEPT_STEPS)
        self._num_noted = 0
        self._clock_offset = _ClockOffset()
        self._runs: dict[Sequence, list[BlockRuns]] = {}
        self._maps: tuple[BlockMap, ...] = ()
        self._maps_until_s = 0.0

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Have steps noted as long as the block lasts."""
        self._num_watchers += 1
        self.is_watched = True
        try:
            yield
        finally:
            self._num_watchers -= 1
            if not self._num_watchers:
                self.is_watched = False
                self._records.clear()
                self._clock_offset = _ClockOffset()
                self._runs = {}

    @property
    def num_noted(self) -> int:
        """How many steps were noted so far, those that are kept no longer among them."""
        return self._num_noted

    def note(self, begun_s: float, host_s: float, result: StepResult) -> None:
        """Note a step whose end has just been seen, `host_s` of the host's work in it."""
        now, batch, start_s = time.perf_counter(), result.batch, None
        if not result.waited:
            offset_s = now - (result.device_start_s + result.device_s)
            start_s = result.device_start_s + self._clock_offset.seen(now, offset_s)
        proposed = Counter(item.sequence for item in batch.scheduled if item.proposal)
        parts = tuple(
            StepPart(
                item.sequence.arrival,
                item.sequence.request_id,
                item.num_tokens + proposed[item.sequence],
                item.is_decode,
            )
            for item in batch.scheduled
            if not item.proposal
        )
        near, far = (tuple((span.start_s, span.stop_s) for span in spans) for spans in result.spans)
        record = StepRecord(batch.step, begun_s, now, host_s, start_s, result.device_s, parts, near, far)
        self._records.append(record)
        self._num_noted += 1

    def since(self, num_seen: int) -> tuple[list[StepRecord], int]:
        """Return the steps noted after the first `num_seen`, and how many of these are kept no longer."""
        num_new = self._num_noted - num_seen
        num_kept = min(num_new, len(self._records))
        records = list(self._records)[len(self._records) - num_kept :]
        return records, num_new - num_kept

    def block_maps(self) -> tuple[BlockMap, ...]:
        """Return who has which blocks of the KV cache: now, or some milliseconds ago, the same for all that watch."""
        now_s = time.perf_counter()
        if now_s >= self._maps_until_s:
            self._maps, self._maps_until_s = self._block_maps(), now_s + _MAPS_LAST_S
        return self._maps

    def _block_maps(self) -> tuple[BlockMap, ...]:
        scheduler, maps = self._scheduler, []
        sequences = scheduler.with_blocks
        self._runs = {sequence: self._runs_of(sequence) for sequence in sequences}
        counts = zip(scheduler.groups, scheduler.blocks_total, scheduler.blocks_used, strict=True)
        for index, (group, num_blocks, num_used) in enumerate(counts):
            owners = tuple(
                BlockOwner(
                    sequence.arrival,
                    sequence.request_id,
                    self._runs[sequence][index].update(sequence.first_blocks[index]),
                )
                for sequence in sequences
            )
            maps.append(BlockMap(group.window, num_blocks, group.num_blocks, num_used, owners))
        return tuple(maps)

    def _runs_of(self, sequence: Sequence) -> list[BlockRuns]:
        """What is known of a sequence's tables, unless it has others by now."""
        known = self._runs.get(sequence)
        if known is not None and all(
            runs.table is table for runs, table in zip(known, sequence.block_tables, strict=True)
        ):
            return known
        return [BlockRuns(table) for table in sequence.block_tables]
