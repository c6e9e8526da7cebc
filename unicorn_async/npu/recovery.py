"""Runs of one context: how they fail, and the new context in which a failed one is done again."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, NamedTuple

from unicorn_async.errors import NpuContextLostError, NpuTimeoutError
from unicorn_async.npu.completion import RunEnd

if TYPE_CHECKING:
    from collections.abc import Sequence

    from unicorn_async.errors import NpuError
    from unicorn_async.npu.buffer import Buffer
    from unicorn_async.npu.context import Context
    from unicorn_async.npu.run_buffers import RunBuffers

_log = logging.getLogger(__name__)
_ABORT_HINT = (
    "if the kernel's log (`dmesg | grep xdna`) has `xdna_mailbox … ret -22` or `Command bo size … too large`, its"
    " firmware is not the one that the driver came with"
)
_HANG_HINT = (
    "new contexts did not help, so the NPU hangs: as root, `echo 1 > /sys/bus/pci/devices/ADDRESS/remove` and"
    " `echo 1 > /sys/bus/pci/rescan` bring it back (`unicorn npu doctor` shows the address)"
)


class Failure(NamedTuple):
    """How a run failed, and which of the contexts it ran in."""

    error: NpuError
    generation: int

    @property
    def is_timeout(self) -> bool:
        """Whether the driver found that it takes too long."""
        return isinstance(self.error, NpuTimeoutError)

    def final(self) -> NpuError:
        """Return the error that is told when it fails in a new context too."""
        return NpuTimeoutError(f"{self.error}; {_HANG_HINT}") if self.is_timeout else self.error


class Recovery:
    """Starts runs, and makes their context anew where the driver gave up on it; `count` says how often it did.

    `runs` are all that there are of the context, and stay the owner's, who may still add to them.
    """

    def __init__(self, context: Context, runs: Sequence[RunBuffers], wait_s: float) -> None:
        self.count = 0
        self._context = context
        self._runs = runs
        self._wait_s = wait_s
        self._lock = asyncio.Lock()

    async def attempt(self, buffers: RunBuffers, cache: Buffer) -> Failure | None:
        """Run what the buffers hold; returns the driver's failure, which a new context may help.

        Raises:
            NpuTimeoutError: the run has no end, and the driver gives it none.
        """
        async with self._lock:
            generation = self._context.generation
            if not self._context.is_open:
                return Failure(NpuContextLostError("NPU attention: its context is gone"), generation)
            try:
                ended = buffers.start(cache, self._wait_s)
            except NpuContextLostError as exc:
                return Failure(exc, generation)
        try:
            end = await asyncio.shield(ended)
        except NpuContextLostError as exc:
            return Failure(exc, generation)
        if end is RunEnd.COMPLETED:
            return None
        if end is RunEnd.TIMEOUT:
            error: NpuError = NpuTimeoutError("NPU attention: the driver ended a run that took too long")
        else:
            error = NpuContextLostError(f"NPU attention: the driver gave up on a run and its context; {_ABORT_HINT}")
        return Failure(error, generation)

    async def renew(self, generation: int, reason: str) -> None:
        """Make the context anew, once for all runs that it took along, and say so.

        Raises:
            NpuTimeoutError: a run hangs: nothing may be made anew under it.
            NpuContextLostError, NpuBusyError: no new context can be had.
        """
        async with self._lock:
            await self._until_idle()
            for buffers in self._runs:
                if buffers.ended is not None and not isinstance(buffers.ended.exception(), NpuContextLostError):
                    buffers.ended.result()  # raises where a run hangs
            if self._context.generation == generation:
                self._context.renew()
                self.count += 1
                _log.warning("%s; it is done again in a new context, recovery %d", reason, self.count)

    async def settle(self, buffers: RunBuffers) -> None:
        """Close the context if the last run has no known end: it is to be free. The next call makes a new one."""
        async with self._lock:
            if buffers.is_in_doubt:
                await self._until_idle()
                self._context.close()

    async def _until_idle(self) -> None:
        while pending := [f.ended for f in self._runs if f.ended is not None and not f.ended.done()]:
            await asyncio.wait(pending)
