from __future__ import annotations

from typing import TYPE_CHECKING

from unicorn_async.gpu.arena import Arena, ArenaSlice
from unicorn_async.gpu.memory import MemoryKind
from unicorn_async.gpu.zero_memory import zero_memory

if TYPE_CHECKING:
    from unicorn_async.gpu.device import Device


def test_a_slice_is_filled_with_zeros_and_nothing_beside_it(device: Device) -> None:
    arena = Arena(device.memory, MemoryKind.ARGUMENTS, 4096, name="test")
    room = arena.allocate(36)
    slices = [
        ArenaSlice(room.buffer, at, room.buffer.address + at, nbytes) for at, nbytes in ((0, 8), (8, 20), (28, 8))
    ]
    for part in slices:
        assert part.mapped is not None
        part.mapped[:] = b"\xff" * part.nbytes
    zero_memory(device, slices[1])
    assert [bytes(part.mapped or b"") for part in slices] == [b"\xff" * 8, bytes(20), b"\xff" * 8]
    arena.close()
