"""The ring of staging memory: who gets a buffer, and when; nothing is lost when somebody gives up."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

import pytest

from unicorn_async.errors import OutOfMemoryError
from unicorn_async.gpu.memory import MemoryKind
from unicorn_async.loader.staging import StagingRing

if TYPE_CHECKING:
    from unicorn_async.gpu.device import Device
    from unicorn_async.gpu.memory import Buffer


async def test_acquiring_waits_for_a_release_and_may_be_cancelled(device: Device) -> None:
    ring = StagingRing(device.memory, num_buffers=1, buffer_bytes=256)
    buffer = await ring.acquire()
    waiting = asyncio.create_task(ring.acquire())
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    ring.release(buffer, device.compute.timeline, device.compute.submit([]))
    assert await ring.acquire() is buffer
    ring.close()
    device.wait_idle()
    device.memory.collect()


async def test_a_ring_near_the_device_goes_on_with_the_hosts_memory_where_there_is_no_room(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    allocate, kinds = device.memory.allocate, []

    def limited(nbytes: int, kind: MemoryKind, *, name: str) -> Buffer:
        kinds.append(kind)
        if kind is MemoryKind.ARGUMENTS and kinds.count(kind) == 2:
            raise OutOfMemoryError(f"{name}: full")
        return allocate(nbytes, kind, name=name)

    monkeypatch.setattr(device.memory, "allocate", limited)
    ring = StagingRing(device.memory, num_buffers=3, buffer_bytes=256, in_vram=True)
    buffers = [await ring.acquire() for _ in range(3)]
    near, host = MemoryKind.ARGUMENTS, MemoryKind.STAGING
    assert kinds == [near, near, host, host]
    assert [buffer.memory.kind for buffer in buffers] == [near, host, host]
    ring.close()
    device.memory.collect()


async def test_a_buffer_is_in_the_ring_when_its_making_is_cancelled(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    allocate, may_end = device.memory.allocate, threading.Event()

    def slow(nbytes: int, kind: MemoryKind, *, name: str) -> Buffer:
        assert may_end.wait(120)
        return allocate(nbytes, kind, name=name)

    monkeypatch.setattr(device.memory, "allocate", slow)
    ring = StagingRing(device.memory, num_buffers=1, buffer_bytes=256)
    waiting = asyncio.create_task(ring.acquire())
    await asyncio.sleep(0)
    waiting.cancel()
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert ring.num_free == 1
    assert (await asyncio.wait_for(ring.acquire(), 120)).memory.nbytes == 256
    assert ring.num_free == 0
    ring.close()


async def test_who_waits_for_a_buffer_gets_it_before_who_gave_it_back(device: Device) -> None:
    ring, order = StagingRing(device.memory, num_buffers=1, buffer_bytes=256), []

    async def use(name: str) -> None:
        for _ in range(3):
            buffer = await ring.acquire()
            order.append(name)
            await asyncio.sleep(0)
            ring.release(buffer, device.compute.timeline, 0)

    await asyncio.gather(*(use(name) for name in "abc"))
    assert order == list("abcabcabc")
    ring.close()
    device.memory.collect()


async def test_a_buffer_stays_in_the_ring_when_the_wait_for_the_device_is_cancelled(device: Device) -> None:
    ring = StagingRing(device.memory, num_buffers=1, buffer_bytes=256)
    buffer = await ring.acquire()
    never = device.compute.timeline.last_submitted + 1
    ring.release(buffer, device.compute.timeline, never)
    waiting = asyncio.create_task(ring.acquire())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert ring.num_free == 1
    assert device.compute.submit([]) == never
    assert await asyncio.wait_for(ring.acquire(), 120) is buffer
    ring.close()
    device.wait_idle()
    device.memory.collect()
