"""A part of a call of `AttentionService.submit`, under way; what it copies, and for whom."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

from unicorn_async.background import THREAD_BYTES, run_to_end

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray

    from unicorn_async.npu.packets import Bf16Bits
    from unicorn_async.npu.part import PreparedPart
    from unicorn_async.npu.run_buffers import RunBuffers
    from unicorn_async.npu.shared import SharedPackets
    from unicorn_async.npu.work import AttentionHeads


class Call(Protocol):
    """Where a call's queries come from and its results go to."""

    @property
    def is_shared(self) -> bool:
        """Whether another device has its hands in packets and results, so that each item's place is known to it."""

    def load(self, buffers: RunBuffers, part: PreparedPart) -> None:
        """Give buffers what the part's run needs."""

    def unload(self, buffers: RunBuffers, part: PreparedPart) -> None:
        """Take the results."""

    def load_bytes(self, part: PreparedPart) -> int:
        """Bytes that `load` copies at most."""

    def unload_bytes(self, part: PreparedPart) -> int:
        """Bytes that `unload` copies."""


class CopiedCall(NamedTuple):
    """A call with arrays of the host; a `Call`."""

    heads: AttentionHeads
    q: Bf16Bits
    out: NDArray[np.float32]

    @property
    def is_shared(self) -> bool:
        """See `Call`."""
        return False

    def load(self, buffers: RunBuffers, part: PreparedPart) -> None:
        """See `Call`."""
        buffers.load(self.heads, part, self.q)

    def unload(self, buffers: RunBuffers, part: PreparedPart) -> None:
        """See `Call`."""
        buffers.unload(self.heads, part, self.out)

    def load_bytes(self, part: PreparedPart) -> int:
        """See `Call`."""
        return part.load_bytes

    def unload_bytes(self, part: PreparedPart) -> int:
        """See `Call`."""
        return part.result_bytes * len(part.items)


class SharedCall(NamedTuple):
    """A call whose queries and results another device writes and reads; a `Call`."""

    packets: SharedPackets

    @property
    def is_shared(self) -> bool:
        """See `Call`."""
        return True

    def load(self, buffers: RunBuffers, part: PreparedPart) -> None:
        """See `Call`."""
        buffers.load_shared(part, self.packets)

    def unload(self, buffers: RunBuffers, part: PreparedPart) -> None:
        """See `Call`."""
        del buffers
        self.packets.unload(part)

    def load_bytes(self, part: PreparedPart) -> int:
        """See `Call`: instructions alone, with the parameters."""
        return part.stream.nbytes + part.parameters.nbytes

    def unload_bytes(self, part: PreparedPart) -> int:
        """See `Call`."""
        del part
        return 0


@dataclass(slots=True)
class Caller:
    """Whose part it is: nobody's any more without a call. `is_copying` says that a thread has the call's memory now."""

    call: Call | None
    is_copying: bool = False

    async def copy(self, work: Callable[[], None], nbytes: int) -> None:
        """Do `work`, which copies so much, here or in a thread; it is done when this ends."""
        if nbytes < THREAD_BYTES:
            work()
            return
        self.is_copying = True
        try:
            await run_to_end(work)
        finally:
            self.is_copying = False


class Flight(NamedTuple):
    """A part under way, and whose it is.

    The task's code knows the caller alone: a failed task is in its error's traceback, and must not be in itself.
    """

    task: asyncio.Task[None]
    caller: Caller
