"""Device memory that has to hold zeros before its first use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unicorn_async.gpu.command import CommandPool

if TYPE_CHECKING:
    from unicorn_async.gpu.arena import ArenaSlice
    from unicorn_async.gpu.device import Device

_TIMEOUT_S = 60


def zero_memory(device: Device, place: ArenaSlice) -> None:
    """Fill a slice, a multiple of 4 bytes, with zeros; it blocks until they are there.

    Raises:
        DeviceLostError: the device was lost meanwhile.
    """
    pool = CommandPool(device, device.compute)
    try:
        recorder = pool.recorder()
        recorder.fill(place.buffer, place.offset, place.nbytes, 0)
        device.compute.timeline.wait(device.compute.submit([recorder.end()]), timeout_s=_TIMEOUT_S)
    finally:
        pool.close()
