"""A recorder that measures each dispatch, for profiles; what it records is slower to run than without."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from unicorn_async.gpu.command import CommandRecorder, TimestampPool

if TYPE_CHECKING:
    from unicorn_async.gpu.command import CommandPool
    from unicorn_async.gpu.kernel import Kernel
    from unicorn_async.gpu.memory import Buffer

_GROUPS = struct.Struct("<3I")


@dataclass(frozen=True, slots=True)
class DispatchTime:
    """One dispatch and its time in nanoseconds, with the barrier before it and the gap that it leaves.

    `groups` are its workgroups; of an indirect one they were in `frame` when the times were read, 0 if that is not
    mapped.
    """

    kernel: Kernel
    push: bytes
    ns: int
    groups: tuple[int, int, int] = (0, 0, 0)
    frame: Buffer | None = None


@dataclass(frozen=True, slots=True)
class _Dispatch:
    """What was recorded; of an indirect dispatch the sizes are in the frame, from an offset on."""

    kernel: Kernel
    push: bytes
    groups: tuple[int, int, int]
    frame: Buffer | None = None
    offset: int = 0

    def timed(self, ns: int) -> DispatchTime:
        """Return it with its time, and the sizes as they are now."""
        groups = self.groups
        if self.frame is not None and self.frame.mapped is not None:
            groups = _GROUPS.unpack_from(self.frame.mapped, self.offset)
        return DispatchTime(self.kernel, self.push, ns, groups, self.frame)


class TimedRecorder(CommandRecorder):
    """Writes a timestamp after each dispatch; `times` tells them once the commands are done.

    Dispatches without a barrier between them run side by side: the first of them seems to take the time of all.
    Whoever makes it closes it when the commands are no longer pending.
    """

    def __init__(self, pool: CommandPool, max_dispatches: int) -> None:
        super().__init__(pool, pool.allocate())
        self._stamps = TimestampPool(pool.device, max_dispatches + 1)
        self._dispatches: list[_Dispatch] = []
        self.reset_timestamps(self._stamps)
        self._stamp()

    def dispatch(self, kernel: Kernel, push: bytes, x: int, y: int = 1, z: int = 1) -> None:
        """Record a dispatch, see `CommandRecorder.dispatch`, and the time of its end."""
        super().dispatch(kernel, push, x, y, z)
        self._note(_Dispatch(kernel, push, (x, y, z)))

    def dispatch_indirect(self, kernel: Kernel, push: bytes, buffer: Buffer, offset: int) -> None:
        """Record a dispatch, see `CommandRecorder.dispatch_indirect`, and the time of its end."""
        super().dispatch_indirect(kernel, push, buffer, offset)
        self._note(_Dispatch(kernel, push, (0, 0, 0), buffer, offset))

    def times(self) -> tuple[DispatchTime, ...]:
        """Return what the last run took, while the sizes of its indirect dispatches are still where they were.

        Raises:
            DeviceError: the commands are not done yet.
        """
        stamps = self._stamps.read(0, len(self._dispatches) + 1)
        return tuple(
            dispatch.timed(stop - start)
            for dispatch, start, stop in zip(self._dispatches, stamps[:-1], stamps[1:], strict=True)
        )

    def close(self) -> None:
        """Free the timestamps."""
        self._stamps.close()

    def _note(self, dispatch: _Dispatch) -> None:
        self._dispatches.append(dispatch)
        self._stamp()

    def _stamp(self) -> None:
        self.write_timestamp(self._stamps, len(self._dispatches))
