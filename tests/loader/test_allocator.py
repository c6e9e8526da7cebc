"""A model's memory that is allocated while a load already fills the first of it."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pytest

from tests.patience import PATIENCE_S
from unicorn_async.errors import EngineClosedError, OutOfMemoryError
from unicorn_async.gpu.budget import HeapKind, MemoryBudget
from unicorn_async.gpu.memory import Memory
from unicorn_async.gpu.memory_types import MemoryKind, is_mappable
from unicorn_async.loader.allocator import BackgroundAllocator
from unicorn_async.loader.reader import FileReader
from unicorn_async.tensor import DType
from unicorn_async.weights.placement import Claim, MemoryGroup, Placement, PlannedBlock

from .held_blocks import HeldBlocks
from .loading import Loading, download

if TYPE_CHECKING:
    from collections.abc import Sequence

    from unicorn_async.loader.reader import Read

OUT_OF_DEVICE_MEMORY = -2

pytestmark = pytest.mark.parametrize("loading", [True], ids=["direct"], indirect=True)


def placement(loading: Loading) -> Placement:
    """Each destination in a block of its own."""
    blocks = [
        PlannedBlock(HeapKind.VRAM, (Claim(dest.name, dest.nbytes, MemoryGroup.FFN, dest.layer),))
        for dest in loading.plan.destinations
    ]
    return Placement(MemoryBudget(1 << 20, 0, 1 << 20), tuple(blocks))


@pytest.mark.parametrize("expected", [True, False], ids=["mapped", "staged"])
async def test_the_first_layers_are_active_while_others_have_no_memory(
    expected: bool, loading: Loading, monkeypatch: pytest.MonkeyPatch
) -> None:
    device, plan = loading.device, loading.plan
    monkeypatch.setattr(Memory, "expects_mappable", lambda *_: expected)
    first = [dest.name for dest in plan.destinations if dest.layer < 1]
    places = BackgroundAllocator(device.memory, placement(loading))
    stream = loading.stream(allocator=places)
    held = HeldBlocks(monkeypatch, len(first))
    places.begin()
    load = asyncio.create_task(stream.run())
    async with asyncio.timeout(PATIENCE_S):
        timeline, value = await stream.layer_submitted(0)
        await timeline.reached(value)
        assert list(places.slices) == first
        held.let(100)
        await load
    assert set(await places.all()) == {dest.name for dest in plan.destinations}
    assert download(device, places.slices["embed"]) == loading.expected("embed", DType.BF16)
    assert download(device, places.slices["norm"]) == loading.expected("norm", DType.F32)
    await stream.close()
    device.memory.collect()
    await places.close()


async def test_what_is_staged_is_read_before_its_place_is_there(
    loading: Loading, monkeypatch: pytest.MonkeyPatch
) -> None:
    device, read = loading.device, asyncio.Event()
    read_each, loop = FileReader._read_each, asyncio.get_running_loop()

    def noted(reader: FileReader, reads: Sequence[Read]) -> None:
        read_each(reader, reads)
        loop.call_soon_threadsafe(read.set)

    monkeypatch.setattr(FileReader, "_read_each", noted)
    held = HeldBlocks(monkeypatch, 0)
    places = BackgroundAllocator(device.memory, placement(loading))
    stream = loading.stream(allocator=places, stages_in_vram=True)
    places.begin()
    load = asyncio.create_task(stream.run())
    async with asyncio.timeout(PATIENCE_S):
        await read.wait()
        assert not places.slices
        held.let(len(loading.plan.destinations))
        await load
    assert download(device, places.slices["embed"]) == loading.expected("embed", DType.BF16)
    await stream.close()
    device.memory.collect()
    await places.close()


async def test_a_place_is_waited_for_alone(loading: Loading, monkeypatch: pytest.MonkeyPatch) -> None:
    held = HeldBlocks(monkeypatch, 0)
    places = BackgroundAllocator(loading.device.memory, placement(loading))
    places.begin()
    names = [dest.name for dest in loading.plan.destinations]
    async with asyncio.timeout(PATIENCE_S):
        held.let(1)
        await places.wait(names[:1])
        last = asyncio.create_task(places.wait(names[-1:]))
        await asyncio.sleep(0)
        assert list(places.slices) == names[:1]
        held.let(len(names))
        await last
        assert list(await places.all()) == names
    await places.close()


async def test_memory_that_is_not_mapped_against_expectation_is_staged_for(
    loading: Loading, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = loading.device
    monkeypatch.setattr("unicorn_async.gpu.memory.is_mappable", lambda _: False)
    monkeypatch.setattr(Memory, "expects_mappable", lambda *_: True)
    places = BackgroundAllocator(device.memory, placement(loading))
    places.begin()
    await places.all()
    assert not any(place.buffer.is_mappable for place in places.slices.values())
    monkeypatch.setattr("unicorn_async.gpu.memory.is_mappable", is_mappable)
    stream = loading.stream(allocator=places)
    await stream.run()
    assert download(device, places.slices["embed"]) == loading.expected("embed", DType.BF16)
    await stream.close()
    device.memory.collect()
    await places.close()


async def test_memory_that_runs_out_is_told_to_who_waits_and_is_given_back(
    loading: Loading, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = HeldBlocks(monkeypatch, 2)
    places = BackgroundAllocator(loading.device.memory, placement(loading))
    places.begin()
    waiting = asyncio.create_task(places.wait([loading.plan.destinations[-1].name]))
    async with asyncio.timeout(PATIENCE_S):
        await places.wait([loading.plan.destinations[1].name])
        monkeypatch.setattr(Memory, "_vk_allocate", lambda *_: OUT_OF_DEVICE_MEMORY)
        held.let(1)
        with pytest.raises(OutOfMemoryError, match=r"VRAM\[2\]: .* the driver refused them"):
            await waiting
        with pytest.raises(OutOfMemoryError):
            await places.all()
    await places.close()


async def test_closed_on_the_way_it_allocates_no_further_block(
    loading: Loading, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = HeldBlocks(monkeypatch, 1)
    places = BackgroundAllocator(loading.device.memory, placement(loading))
    places.begin()
    async with asyncio.timeout(PATIENCE_S):
        await places.wait([loading.plan.destinations[0].name])
        waiting = asyncio.create_task(places.all())
        closing = asyncio.create_task(places.close())
        await asyncio.sleep(0)
        held.let(1)
        await closing
        with pytest.raises(EngineClosedError):
            await waiting
    assert len(places.slices) <= 2


async def test_one_that_never_began_is_closed(loading: Loading) -> None:
    places = BackgroundAllocator(loading.device.memory, placement(loading))
    await places.close()
    assert not places.slices


async def test_a_block_gives_way_to_allocations_under_way(loading: Loading, monkeypatch: pytest.MonkeyPatch) -> None:
    memory, names = loading.device.memory, [dest.name for dest in loading.plan.destinations]
    vk_allocate, goes_on, begun = Memory._vk_allocate, threading.Event(), threading.Event()
    waiting = threading.local()

    def held(*call: Any) -> int:
        if getattr(waiting, "does", False):
            begun.set()
            assert goes_on.wait(PATIENCE_S)
        return vk_allocate(*call)

    def allocate() -> None:
        waiting.does = True
        memory.allocate(1000, MemoryKind.ARGUMENTS, name="small").close()

    monkeypatch.setattr(Memory, "_vk_allocate", held)
    places = BackgroundAllocator(memory, placement(loading))
    async with asyncio.timeout(PATIENCE_S):
        small = asyncio.create_task(asyncio.to_thread(allocate))
        await asyncio.to_thread(begun.wait)
        places.begin()
        await asyncio.to_thread(lambda: None)
        assert not places.slices
        goes_on.set()
        await small
        assert list(await places.all()) == names
    await places.close()
