"""Slots are filled and read through copies, which nobody makes any more once their memory is gone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from unicorn_async.errors import CacheError
from unicorn_async.kv_store.slot_memory import SlotMemory

if TYPE_CHECKING:
    from unicorn_async.gpu.device import Device


def test_a_thread_that_comes_behind_the_end_touches_nothing(device: Device) -> None:
    slots = SlotMemory(device.memory, [96, 64], [1, 1], [2, 2], 1024)
    assert slots.grow(1) == 8
    data = memoryview(bytes(range(64)))
    slots.copy_in(1, 3, data)
    assert slots.copy_out(1, 3) == data
    assert slots.copy_out(1, 2) != data
    slots.close()
    with pytest.raises(CacheError, match="closed"):
        slots.copy_in(1, 3, data)
    with pytest.raises(CacheError, match="closed"):
        slots.copy_out(1, 3)
