"""Memory that is left behind: counted, paced and waited for."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, cast

import pytest

from tests.patience import PATIENCE_S
from unicorn_async.errors import OutOfMemoryError
from unicorn_async.gpu import left_memory
from unicorn_async.gpu.budget import HeapLimits, host_room, memory_budget
from unicorn_async.gpu.host_memory import HostMemory
from unicorn_async.gpu.left_memory import LeftMemory
from unicorn_async.gpu.memory import Memory, MemoryKind

from .made_up import DISCRETE, INTEGRATED

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from unicorn_async.gpu.binding import CData
    from unicorn_async.gpu.device import Device
    from unicorn_async.gpu.device_info import DeviceInfo
    from unicorn_async.gpu.instance import Instance
    from unicorn_async.gpu.memory import Buffer

SIZE = 1 << 16


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who waits for memory gives up when a test has it do so, and not for what this machine takes."""
    monkeypatch.setattr(left_memory, "_PATIENCE_S", PATIENCE_S)


class Pair:
    """Memory of an engine that has ended, and of the next one, on a device that has room for `room` bytes of both."""

    def __init__(self, device: Device, patch: pytest.MonkeyPatch, room: int) -> None:
        self.left = LeftMemory()
        self.old, self.new = Memory(device, self.left), Memory(device, self.left)

        def available(memory: Memory) -> list[int]:
            return [room - sum(self.old.used_bytes) - sum(self.new.used_bytes)] * len(device.info.heaps)

        patch.setattr(Memory, "_available", available)

    def close(self) -> None:
        self.old.close()
        self.new.close()


@pytest.fixture
def pair(toy: Device, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pair]:
    made = Pair(toy, monkeypatch, 4 * SIZE)
    yield made
    made.close()


async def test_who_finds_no_room_waits_for_what_is_being_freed(pair: Pair) -> None:
    buffers = [pair.old.allocate(SIZE, MemoryKind.DEVICE, name="old") for _ in range(4)]
    pair.left.add(pair.old)
    asked, wait = threading.Event(), LeftMemory.wait

    def noted(left: LeftMemory, *args: object, **keys: object) -> bool:
        asked.set()
        return wait(left, *args, **keys)  # type: ignore[arg-type]

    pair.left.wait = noted.__get__(pair.left)  # type: ignore[method-assign]
    found = asyncio.create_task(asyncio.to_thread(pair.new.allocate, 2 * SIZE, MemoryKind.DEVICE, name="new"))
    async with asyncio.timeout(PATIENCE_S):
        await asyncio.to_thread(asked.wait, PATIENCE_S)
        assert not found.done()
        buffers[0].close()
        asked.clear()
        await asyncio.to_thread(asked.wait, PATIENCE_S)  # one was not enough
        assert not found.done()
        buffers[1].close()
        assert (await found).nbytes == 2 * SIZE


async def test_who_still_finds_no_room_when_all_is_freed_is_told_so(pair: Pair) -> None:
    buffer = pair.old.allocate(SIZE, MemoryKind.DEVICE, name="old")
    pair.left.add(pair.old)
    failing = asyncio.create_task(asyncio.to_thread(pair.new.allocate, 8 * SIZE, MemoryKind.DEVICE, name="new"))
    buffer.close()
    pair.left.remove(pair.old)
    async with asyncio.timeout(PATIENCE_S):
        with pytest.raises(OutOfMemoryError, match=f"new: {8 * SIZE} bytes of device memory needed"):
            await failing


def test_nobody_waits_for_memory_that_is_in_use_or_lies_on_another_device(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair.old.allocate(4 * SIZE, MemoryKind.DEVICE, name="old")
    with pytest.raises(OutOfMemoryError):
        pair.new.allocate(SIZE, MemoryKind.DEVICE, name="new")
    pair.left.add(pair.old)
    monkeypatch.setattr(Memory, "device_uuid", "another")
    with pytest.raises(OutOfMemoryError):
        pair.new.allocate(SIZE, MemoryKind.DEVICE, name="new")


async def test_frees_are_paced_until_somebody_waits_for_them(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(left_memory, "_PAUSES", 1e9)
    for _ in range(4):
        pair.old.allocate(SIZE, MemoryKind.DEVICE, name="old")
    pair.left.add(pair.old)
    freeing = asyncio.create_task(asyncio.to_thread(pair.old.close))
    async with asyncio.timeout(PATIENCE_S):
        await asyncio.wait([freeing], timeout=0.05)
        assert pair.old.num_buffers >= 3
        found = await asyncio.to_thread(pair.new.allocate, 4 * SIZE, MemoryKind.DEVICE, name="new")
        assert found.nbytes == 4 * SIZE
        await freeing
    assert pair.old.num_buffers == 0


async def test_frees_are_not_paced_when_somebody_waits_for_the_end(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(left_memory, "_PAUSES", 1e9)
    for _ in range(4):
        pair.old.allocate(SIZE, MemoryKind.DEVICE, name="old")
    pair.left.add(pair.old)
    freeing = asyncio.create_task(asyncio.to_thread(pair.old.close))
    async with asyncio.timeout(PATIENCE_S):
        with pair.left.hurrying():
            await freeing


class Stand:
    """Stands for an object, with some attributes of its own."""

    def __init__(self, original: object, **replaced: object) -> None:
        self._original = original
        self.__dict__.update(replaced)

    def __getattr__(self, name: str) -> object:
        return getattr(self._original, name)


class TwoHeaps:
    """A GPU whose own memory, heap 0, is full of what is left, beside the host's, heap 1; all of it is mapped."""

    def __init__(self, device: Device, patch: pytest.MonkeyPatch, info: DeviceInfo = DISCRETE) -> None:
        self.left = LeftMemory()
        stand = cast("Device", Stand(device, info=replace(info, device_uuid=device.info.device_uuid)))
        self.old, self.new = Memory(stand, self.left), Memory(stand, self.left)
        for memory in (self.old, self.new):
            mapped = memory._ranked[MemoryKind.STAGING][0]
            memory._types = ((7, 0), (6, 1))
            memory._ranked = dict.fromkeys(MemoryKind, (0, 1))
            memory._used = [0, 0]
        vk_allocate, requirements = Memory._vk_allocate, Memory._requirements

        def available(memory: Memory) -> list[int]:
            return [2 * SIZE - self.old.used_bytes[0] - self.new.used_bytes[0], 1 << 30]

        def allocate(memory: Memory, info: CData, out: CData) -> int:
            info.memoryTypeIndex = mapped  # whichever is asked for
            return vk_allocate(memory, info, out)

        patch.setattr(Memory, "_available", available)
        patch.setattr(Memory, "_vk_allocate", allocate)
        patch.setattr(Memory, "_requirements", lambda memory, handle: (requirements(memory, handle)[0], 3))
        self.buffers = [self.old.allocate(SIZE, MemoryKind.DEVICE, name="old") for _ in range(2)]
        self.left.add(self.old)
        assert self.old.used_bytes == (2 * SIZE, 0)

    def allocate(self, kind: MemoryKind) -> asyncio.Task[Buffer]:
        """Allocate in a thread."""
        return asyncio.create_task(asyncio.to_thread(self.new.allocate, SIZE, kind, name="new"))

    def close(self) -> None:
        self.old.close()
        self.new.close()


@pytest.mark.parametrize("kind", [MemoryKind.ARGUMENTS, MemoryKind.STAGING])
async def test_no_worse_memory_is_taken_while_better_one_is_being_freed(
    kind: MemoryKind, toy: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    heaps = TwoHeaps(toy, monkeypatch)
    async with asyncio.timeout(PATIENCE_S):
        allocating = heaps.allocate(kind)
        await asyncio.wait([allocating], timeout=0.05)
        assert not allocating.done()
        heaps.buffers[0].close()
        assert (await allocating).heap == 0
    heaps.close()


async def test_worse_memory_is_taken_where_others_need_the_better_one_or_nothing_is_left_there(
    toy: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    heaps = TwoHeaps(toy, monkeypatch)
    heaps.left.remove(heaps.old)
    assert (await heaps.allocate(MemoryKind.ARGUMENTS)).heap == 1
    heaps.close()


async def test_the_wait_for_better_memory_ends(toy: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    heaps = TwoHeaps(toy, monkeypatch)
    async with asyncio.timeout(PATIENCE_S):
        with monkeypatch.context() as patch:
            patch.setattr(left_memory, "_PATIENCE_S", 0.05)
            assert (await heaps.allocate(MemoryKind.ARGUMENTS)).heap == 1
        allocating = heaps.allocate(MemoryKind.ARGUMENTS)
        await asyncio.wait([allocating], timeout=0.05)
        assert not allocating.done()
        heaps.new.stop_waiting()
        assert (await allocating).heap == 1
    heaps.close()


async def test_where_gpu_and_host_share_their_memory_none_is_worse(
    toy: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    heaps = TwoHeaps(toy, monkeypatch, INTEGRATED)
    async with asyncio.timeout(PATIENCE_S):
        assert (await heaps.allocate(MemoryKind.ARGUMENTS)).heap == 1
    heaps.close()


async def test_who_waits_for_memory_alone_is_let_go_too(pair: Pair) -> None:
    pair.old.allocate(4 * SIZE, MemoryKind.DEVICE, name="old")
    pair.left.add(pair.old)
    allocating = asyncio.create_task(asyncio.to_thread(pair.new.allocate, SIZE, MemoryKind.DEVICE, name="new"))
    async with asyncio.timeout(PATIENCE_S):
        await asyncio.wait([allocating], timeout=0.05)
        assert not allocating.done()
        pair.new.stop_waiting()
        with pytest.raises(OutOfMemoryError, match="0 available"):
            await allocating


async def test_nobody_waits_for_the_driver_but_who_wants_to_know_how_much_there_is(pair: Pair) -> None:
    info = replace(DISCRETE, device_uuid=pair.old.device_uuid, heaps=DISCRETE.heaps[: len(pair.old.used_bytes)])
    begun, gate = threading.Event(), threading.Event()
    pair.left.add(pair.old)

    def free() -> None:
        with pair.left.freeing(pair.old):
            begun.set()
            assert gate.wait(PATIENCE_S)

    async with asyncio.timeout(PATIENCE_S):
        freeing = asyncio.create_task(asyncio.to_thread(free))
        await asyncio.to_thread(begun.wait, PATIENCE_S)
        before = pair.left.count()
        assert pair.left.heaps_at_once(info, lambda: info.heaps) is None
        counting = asyncio.create_task(asyncio.to_thread(pair.left.heaps, info, lambda: info.heaps))
        await asyncio.wait([counting], timeout=0.05)
        assert not counting.done()
        gate.set()
        await counting
        await freeing
    assert pair.left.count() == before + 1
    assert pair.left.heaps_at_once(info, lambda: info.heaps) is not None


async def test_nothing_is_freed_between_two_figures_of_one_time(pair: Pair) -> None:
    buffer = pair.old.allocate(SIZE, MemoryKind.DEVICE, name="old")
    pair.left.add(pair.old)
    async with asyncio.timeout(PATIENCE_S):
        with pair.left.still():
            freeing = asyncio.create_task(asyncio.to_thread(buffer.close))
            await asyncio.wait([freeing], timeout=0.05)
            assert not freeing.done() and pair.old.num_buffers == 1
        await freeing
    assert pair.old.num_buffers == 0


def test_what_is_left_counts_as_available(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    for info, room in ((DISCRETE, None), (INTEGRATED, 10 << 30)):
        monkeypatch.setattr(Memory, "device_uuid", info.device_uuid)
        full = replace(info, heaps=tuple(replace(heap, used=heap.budget) for heap in info.heaps))
        monkeypatch.setattr(Memory, "used_bytes", tuple(heap.budget for heap in info.heaps))
        left = LeftMemory()
        assert memory_budget(full, HeapLimits(), room).vram == 0
        left.add(pair.old)
        counted = replace(full, heaps=left.heaps(full, lambda full=full: full.heaps))  # type: ignore[misc]
        empty = replace(info, heaps=tuple(replace(heap, used=0) for heap in info.heaps))
        assert memory_budget(counted, HeapLimits(), room) == memory_budget(empty, HeapLimits(), room)
        left.remove(pair.old)
        assert left.heaps(full, lambda full=full: full.heaps) == full.heaps  # type: ignore[misc]


def test_the_host_has_what_is_left_where_the_device_shares_its_memory(tmp_path: Path) -> None:
    (meminfo := tmp_path / "meminfo").write_text("MemAvailable: 1024 kB\n")
    memory = HostMemory(meminfo, tmp_path, tmp_path)
    full = replace(
        INTEGRATED,
        vendor_id=0x8086,
        heaps=tuple(replace(heap, used=1 << 30, left=1 << 30) for heap in INTEGRATED.heaps),
    )
    assert host_room(full, memory) == (1 << 20) + (len(INTEGRATED.heaps) << 30)


def test_a_device_without_anything_left_is_as_it_says(toy: Device, instance: Instance) -> None:
    assert [heap.left for heap in toy.heaps_with_left()] == [0] * len(toy.info.heaps)
