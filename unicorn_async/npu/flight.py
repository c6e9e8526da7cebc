"""A part of a call of `NpuAttention.submit`, under way; what it copies, and for whom."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from unicorn_async.background import run_to_end

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray

    from unicorn_async.npu.packets import Bf16Bits

_THREAD_BYTES = 1 << 20  # copies from this size on leave the event loop to others


class Call(NamedTuple):
    """The arrays of a call of `submit`."""

    q: Bf16Bits
    out: NDArray[np.float32]


@dataclass(slots=True)
class Caller:
    """Whose part it is: nobody's any more without a call. `is_copying` says that a thread has the arrays now."""

    call: Call | None
    is_copying: bool = False

    async def copy(self, work: Callable[[], None], nbytes: int) -> None:
        """Do `work`, which copies so much from or to the arrays, here or in a thread; it is done when this ends."""
        if nbytes < _THREAD_BYTES:
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
