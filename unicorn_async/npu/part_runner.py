"""Does a part of a step on the NPU: again, or in halves, where the driver ends its run."""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from unicorn_async.npu.pace import can_be_cut
from unicorn_async.npu.step import halves

if TYPE_CHECKING:
    from collections.abc import Sequence

    from unicorn_async.npu.buffer import Buffer
    from unicorn_async.npu.flight import Caller
    from unicorn_async.npu.manifest import Build
    from unicorn_async.npu.pace import RunPace
    from unicorn_async.npu.part import PreparedPart
    from unicorn_async.npu.recovery import Failure, Recovery
    from unicorn_async.npu.run_buffers import RunBuffers
    from unicorn_async.npu.work import AttentionHeads

_MOST_FAILURES = 2  # of a run by itself
_MOST_STARTS = 8  # of a run, with those that others took along
_TAKEN_ALONG = "NPU attention: the driver ended another run that took too long, and with it all of its context"


class PartRunner:
    """Has runs of parts complete; `num_runs` counts those that did."""

    def __init__(self, build: Build, heads: AttentionHeads, pace: RunPace, recovery: Recovery) -> None:
        self.num_runs = 0
        self._build = build
        self._heads = heads
        self._pace = pace
        self._recovery = recovery
        self._halves: WeakKeyDictionary[PreparedPart, tuple[PreparedPart, ...]] = WeakKeyDictionary()

    async def complete(self, buffers: RunBuffers, part: PreparedPart, cache: Buffer, caller: Caller) -> Failure | None:
        """Copy queries, compute, copy the results; returns what failed in a new context too.

        What takes too long is done again in halves, and they in theirs. What the end of another run took along is done
        again, however often it is.
        """
        if (call := caller.call) is None:
            return None
        load, is_shared = call.load, call.is_shared
        if self._is_cut(part):
            return await self._complete_all(buffers, self._halve(part, is_shared=is_shared), cache, caller)
        await caller.copy(lambda: load(buffers, part), call.load_bytes(part))
        num_failures = 0
        for start in range(_MOST_STARTS):
            failure = await self._recovery.attempt(buffers, cache)
            if failure is None:
                break
            is_slow, generation, reason = failure.is_timeout, failure.generation, str(failure.error)
            if not is_slow and await self._recovery.is_taken_along(generation):
                reason = _TAKEN_ALONG
            else:
                num_failures += 1
            is_final = num_failures == _MOST_FAILURES or start == _MOST_STARTS - 1
            if is_final and not (is_slow and can_be_cut(part)):
                return failure
            failure = None
            if is_slow:
                self._pace.timed_out(part, self._half_s(part, is_shared=is_shared))
            await self._recovery.renew(generation, reason)
            if (is_slow and can_be_cut(part)) or self._is_cut(part):
                return await self._complete_all(buffers, self._halve(part, is_shared=is_shared), cache, caller)
        self.num_runs += 1
        self._pace.completed(part)
        if (call := caller.call) is not None:
            unload = call.unload
            await caller.copy(lambda: unload(buffers, part), call.unload_bytes(part))
        return None

    async def _complete_all(
        self, buffers: RunBuffers, parts: Sequence[PreparedPart], cache: Buffer, caller: Caller
    ) -> Failure | None:
        for part in parts:
            failure = await self.complete(buffers, part, cache, caller)
            if failure is not None:
                return failure
        return None

    def _is_cut(self, part: PreparedPart) -> bool:
        return part in self._halves or self._pace.is_too_long(part)

    def _half_s(self, part: PreparedPart, *, is_shared: bool) -> float:
        """Return the guess of half a part; of more than half of it where one item takes long."""
        if not can_be_cut(part):
            return part.guess_s / 2
        return max(half.guess_s for half in self._halve(part, is_shared=is_shared))

    def _halve(self, part: PreparedPart, *, is_shared: bool) -> tuple[PreparedPart, ...]:
        """Return a part's halves, for all layers the same."""
        if part not in self._halves:
            self._halves[part] = halves(self._build, self._heads, part, is_shared=is_shared)
        return self._halves[part]
