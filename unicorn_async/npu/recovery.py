"""Runs of one context: how they fail, and the new context in which a failed one is done again."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from unicorn_async.background import run_to_end
from unicorn_async.errors import NpuContextLostError, NpuError, NpuTimeoutError, OutOfMemoryError
from unicorn_async.npu.completion import RunEnd

if TYPE_CHECKING:
    from collections.abc import Sequence

    from unicorn_async.npu.buffer import Buffer
    from unicorn_async.npu.context import Context
    from unicorn_async.npu.run_buffers import RunBuffers

_log = logging.getLogger(__name__)
_REMEMBERED = 8
_ABORT_HINT = (
    "if the kernel's log (`dmesg | grep xdna`) has `xdna_mailbox … ret -22` or `Command bo size … too large`, its"
    " firmware is not the one that the driver came with"
)
_RESET_HINT = (
    "AMD's driver, from August 2026 on, power-cycles firmware that has stopped, so a later start may do; else, as root,"
    " `echo 1 > /sys/bus/pci/devices/ADDRESS/remove` and `echo 1 > /sys/bus/pci/rescan` bring it back (`unicorn"
    " npu doctor` shows the address)"
)


class Failure(NamedTuple):
    """How a run failed, and which of the contexts it ran in."""

    error: NpuError
    generation: int

    @property
    def is_timeout(self) -> bool:
        """Whether it took too long, for the driver or for us."""
        return isinstance(self.error, NpuTimeoutError)

    def final(self) -> NpuError:
        """Return the error that is told when it fails in a new context too."""
        why = "new contexts did not help, so the NPU hangs" if self.is_timeout else "a new context did not help"
        return type(self.error)(f"{self.error}; {why}: {_RESET_HINT}")


class Recovery:
    """Starts runs, and makes their context anew where the driver gave up on it; `count` says how often it did.

    A context that was made anew has answered no known question. So its runs begin with NaN for results until one of
    them has written all of its own: one that ends and does nothing would leave those of the run before.

    `runs` are all that there are of the context, and stay the owner's, who may still add to them.
    """

    def __init__(self, context: Context, runs: Sequence[RunBuffers], wait_s: float) -> None:
        self.count = 0
        self._context = context
        self._runs = runs
        self._wait_s = wait_s
        self._lock = asyncio.Lock()
        self._working = context.generation  # in which runs write results
        self._slow: deque[int] = deque(maxlen=_REMEMBERED)  # generations in which a run took too long

    async def attempt(self, buffers: RunBuffers, cache: Buffer) -> Failure | None:
        """Run what the buffers hold; returns how it failed, which a new context may help.

        So is a run to which the driver gives no end. Older drivers leave the state of a run that they ended as it was,
        and newer ones that of a run which begins behind it, where their own restart of the context failed.
        """
        async with self._lock:
            generation = self._context.generation
            if not self._context.is_open:
                return Failure(NpuContextLostError("NPU attention: its context is gone"), generation)
            is_checked = generation != self._working
            try:
                if is_checked:
                    buffers.poison_loaded()
                ended = buffers.start(cache, self._wait_s)
            except NpuContextLostError as exc:
                return Failure(exc, generation)
        try:
            end = await asyncio.shield(ended)
        except (NpuContextLostError, NpuTimeoutError) as exc:
            return Failure(exc, generation)
        if end is RunEnd.COMPLETED:
            if not is_checked or buffers.has_results():
                self._working = max(self._working, generation)
                return None
            error: NpuError = NpuContextLostError("NPU attention: a run in a new context ended without results")
        elif end is RunEnd.TIMEOUT:
            error = NpuTimeoutError("NPU attention: the driver ended a run that took too long")
        else:
            error = NpuContextLostError(f"NPU attention: the driver gave up on a run and its context; {_ABORT_HINT}")
        return Failure(error, generation)

    async def is_taken_along(self, generation: int) -> bool:
        """Whether another run of this context took too long: to end it, the driver aborts all that are under way."""
        async with self._lock:
            await self._until_idle()
            self._note_slow(generation)
            return generation in self._slow

    async def renew(self, generation: int, reason: str) -> None:
        """Make the context anew, once for all runs that it took along, and say so.

        A run without an end loses the NPU by this. It is made in a thread: a driver may wait for firmware.

        Raises:
            NpuError, OutOfMemoryError: no new context can be had.
        """
        async with self._lock:
            await self._until_idle()
            if self._context.generation == generation:
                self._note_slow(generation)
                try:
                    await run_to_end(self._context.renew)
                except (NpuError, OutOfMemoryError) as exc:
                    raise type(exc)(f"{exc}; no new context can be had: {_RESET_HINT}") from exc
                self.count += 1
                _log.warning("%s; it is done again in a new context, recovery %d", reason, self.count)

    def _note_slow(self, generation: int) -> None:
        if self._context.generation == generation and any(buffers.took_too_long(generation) for buffers in self._runs):
            self._slow.append(generation)

    async def settle(self, buffers: RunBuffers) -> None:
        """Close the context if the last run has no known end: it is to be free. The next call makes a new one."""
        async with self._lock:
            if buffers.is_in_doubt:
                await self._until_idle()
                self._context.close()

    async def _until_idle(self) -> None:
        while pending := [f.ended for f in self._runs if f.ended is not None and not f.ended.done()]:
            await asyncio.wait(pending)
