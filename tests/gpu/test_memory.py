from __future__ import annotations

import mmap
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from unicorn_async.errors import ConfigError, OutOfMemoryError
from unicorn_async.gpu.arena import Arena
from unicorn_async.gpu.command import CommandPool
from unicorn_async.gpu.device_info import MemoryHeap
from unicorn_async.gpu.memory import HeapKind, Memory, MemoryKind
from unicorn_async.gpu.timeline import Timeline

if TYPE_CHECKING:
    from collections.abc import Callable

    from unicorn_async.gpu.binding import CData
    from unicorn_async.gpu.device import Device
    from unicorn_async.gpu.memory import Buffer


@pytest.mark.parametrize("kind", list(MemoryKind))
def test_an_allocation_has_an_address_and_is_counted_until_it_is_closed(toy: Device, kind: MemoryKind) -> None:
    before = toy.memory.used_bytes
    buffer = toy.memory.allocate(1000, kind, name="probe")
    assert buffer.address and buffer.address % 16 == 0
    assert sum(toy.memory.used_bytes) >= sum(before) + 1000
    buffer.close()
    assert toy.memory.used_bytes == before
    buffer.close()
    assert toy.memory.used_bytes == before


@pytest.mark.parametrize("kind", [MemoryKind.STAGING, MemoryKind.ARGUMENTS])
def test_memory_for_the_cpu_is_mapped_in_full(toy: Device, kind: MemoryKind) -> None:
    buffer = toy.memory.allocate(1000, kind, name="probe")
    assert buffer.mapped is not None
    assert len(buffer.mapped) == 1000
    buffer.mapped[:] = bytes(range(250)) * 4
    assert bytes(buffer.mapped[250:500]) == bytes(range(250))
    buffer.close()
    assert buffer.mapped is None


def test_device_memory_is_mapped_where_the_device_maps_all_of_it(toy: Device) -> None:
    buffer = toy.memory.allocate(1000, MemoryKind.DEVICE, name="probe")
    assert (buffer.mapped is not None) == toy.info.rebar
    buffer.close()


@pytest.mark.parametrize("nbytes", [0, -1])
def test_an_empty_allocation_is_refused(toy: Device, nbytes: int) -> None:
    with pytest.raises(ConfigError, match=f"probe: expected a size of at least 1 byte, got {nbytes}"):
        toy.memory.allocate(nbytes, MemoryKind.DEVICE, name="probe")


def test_an_allocation_beyond_the_devices_limit_names_the_limit(toy: Device) -> None:
    limit = toy.info.max_allocation
    with pytest.raises(OutOfMemoryError, match=f"probe: {limit + 1} bytes needed, .* {limit} at once"):
        toy.memory.allocate(limit + 1, MemoryKind.DEVICE, name="probe")


def test_the_driver_is_asked_for_room_again_after_a_while_or_where_little_is_left(
    toy: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    heaps, asked, clock, room = toy.heaps(), list[float](), [0.0], [1 << 20]

    def counted() -> tuple[MemoryHeap, ...]:
        asked.append(clock[0])
        return tuple(replace(heap, budget=heap.used + room[0]) for heap in heaps)

    monkeypatch.setattr(toy, "heaps", counted)
    monkeypatch.setattr("unicorn_async.gpu.memory.time.monotonic", lambda: clock[0])
    memory = Memory(toy)
    for clock[0], size in ((0.0, 1 << 10), (0.09, 1 << 10), (0.09, 1 << 17), (0.1, 1 << 10), (0.2, 1 << 10)):
        memory.allocate(size, MemoryKind.DEVICE, name="probe").close()
    assert asked == [0.0, 0.09, 0.2]
    room[0] = 100
    with pytest.raises(OutOfMemoryError, match="100 available"):
        for _ in range(2000):
            memory.allocate(1 << 10, MemoryKind.DEVICE, name="probe")
    memory.close()


def test_more_allocations_than_the_device_counts_are_refused(toy: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    live = toy.memory.num_buffers
    monkeypatch.setattr(toy, "info", replace(toy.info, max_allocation_count=live + 1))
    last = toy.memory.allocate(1000, MemoryKind.DEVICE, name="last")
    with pytest.raises(OutOfMemoryError, match=f"probe: {live + 1} allocations live, .* allows no more"):
        toy.memory.allocate(1000, MemoryKind.DEVICE, name="probe")
    last.close()
    toy.memory.allocate(1000, MemoryKind.DEVICE, name="probe").close()


def test_an_allocation_beyond_the_budget_states_what_is_available(toy: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    heaps = tuple(MemoryHeap(heap.nbytes, heap.device_local, 5000, 1000) for heap in toy.heaps())
    monkeypatch.setattr(toy, "heaps", lambda: heaps)
    monkeypatch.setattr(toy.memory, "_asked", None)
    with pytest.raises(OutOfMemoryError, match="probe: 8192 bytes of device memory needed, 4000 available"):
        toy.memory.allocate(8192, MemoryKind.DEVICE, name="probe")


def test_memory_lies_in_the_kind_of_heap_that_it_was_told(toy: Device) -> None:
    before = toy.memory.used_of(HeapKind.VRAM)
    buffer = toy.memory.allocate(1000, MemoryKind.DEVICE, name="probe", heap=HeapKind.VRAM)
    assert toy.heaps()[buffer.heap].device_local
    assert toy.memory.used_of(HeapKind.VRAM) == before + buffer.allocated_bytes
    buffer.close()
    kinds = [heap.device_local for heap in toy.heaps()]
    if all(kinds):
        with pytest.raises(OutOfMemoryError, match="probe: 1000 bytes of GTT memory needed, 0 available"):
            toy.memory.allocate(1000, MemoryKind.DEVICE, name="probe", heap=HeapKind.GTT)
    else:
        buffer = toy.memory.allocate(1000, MemoryKind.DEVICE, name="probe", heap=HeapKind.GTT)
        assert not toy.heaps()[buffer.heap].device_local
        buffer.close()
    assert toy.memory.used_of(HeapKind.VRAM) == before


def test_memory_that_the_driver_refuses_is_an_error_that_says_so(toy: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    out_of_device_memory, before = -2, (toy.memory.num_buffers, toy.memory.used_bytes)
    monkeypatch.setattr(Memory, "_vk_allocate", lambda *_: out_of_device_memory)
    with pytest.raises(OutOfMemoryError, match=r"probe: 1000 bytes of VRAM memory needed.*the driver refused them"):
        toy.memory.allocate(1000, MemoryKind.DEVICE, name="probe", heap=HeapKind.VRAM)
    assert (toy.memory.num_buffers, toy.memory.used_bytes) == before


def test_other_threads_allocate_and_map_while_the_driver_allocates(
    toy: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    allocate, at_work, may_end = Memory._vk_allocate, threading.Event(), threading.Event()

    def slow(memory: Memory, info: CData, out: CData) -> int:
        if threading.current_thread() is thread:
            at_work.set()
            assert may_end.wait(120)
        return allocate(memory, info, out)

    made: list[Buffer] = []
    thread = threading.Thread(target=lambda: made.append(toy.memory.allocate(1000, MemoryKind.DEVICE, name="slow")))
    monkeypatch.setattr(Memory, "_vk_allocate", slow)
    before = toy.memory.used_bytes
    thread.start()
    assert at_work.wait(120)
    buffer = toy.memory.allocate(1000, MemoryKind.STAGING, name="quick")
    assert buffer.mapped is not None
    buffer.close()
    may_end.set()
    thread.join()
    made[0].close()
    assert toy.memory.used_bytes == before


def test_a_released_buffer_lives_until_the_timeline_has_passed_its_value(toy: Device) -> None:
    timeline = Timeline(toy)
    before = toy.memory.num_buffers
    first = toy.memory.allocate(1000, MemoryKind.DEVICE, name="first")
    second = toy.memory.allocate(1000, MemoryKind.DEVICE, name="second")
    toy.memory.release(first, timeline=timeline, value=2)
    toy.memory.release(second, timeline=timeline, value=3)
    timeline.signal(1)
    toy.memory.collect()
    assert toy.memory.num_buffers == before + 2
    timeline.signal(2)
    toy.memory.collect()
    assert (first.owner, second.owner) == (None, toy.memory)
    timeline.signal(3)
    timeline.close()
    toy.memory.collect()
    assert toy.memory.num_buffers == before


def test_an_allocation_collects_what_was_released(toy: Device) -> None:
    before = toy.memory.num_buffers
    toy.memory.release(toy.memory.allocate(64, MemoryKind.DEVICE, name="old"), timeline=toy.compute.timeline, value=0)
    buffer = toy.memory.allocate(64, MemoryKind.DEVICE, name="new")
    assert toy.memory.num_buffers == before + 1
    buffer.close()


def test_while_the_driver_frees_others_go_on_and_the_memory_still_counts(
    toy: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, other = (toy.memory.allocate(1000, MemoryKind.DEVICE, name=name) for name in ("old", "other"))
    freeing, going_on, vk_free = threading.Event(), threading.Event(), Memory._vk_free

    def slow_free(memory: Memory, *handles: Any) -> None:
        if handles[0] == old_handle:
            freeing.set()
            assert going_on.wait(120)
        vk_free(memory, *handles)

    old_handle, before = old.handle, toy.memory.used_bytes
    monkeypatch.setattr(Memory, "_vk_free", slow_free)
    thread = threading.Thread(target=old.close)
    thread.start()
    assert freeing.wait(120)
    assert toy.memory.used_bytes == before
    toy.memory.release(other, timeline=toy.compute.timeline, value=0)
    new = toy.memory.allocate(1000, MemoryKind.DEVICE, name="new")  # collects the other one, too
    assert (toy.memory.used_bytes, old.mapped) == (before, None)
    going_on.set()
    thread.join()
    assert sum(toy.memory.used_bytes) == sum(before) - old.allocated_bytes
    new.close()


def test_closing_the_device_frees_what_is_left(open_device: Callable[..., Device]) -> None:
    device = open_device()
    device.memory.allocate(1000, MemoryKind.DEVICE, name="left")
    device.memory.release(
        device.memory.allocate(64, MemoryKind.DEVICE, name="deferred"), timeline=device.compute.timeline, value=99
    )
    device.close()
    assert device.memory.num_buffers == 0
    assert sum(device.memory.used_bytes) == 0


def test_arena_slices_share_blocks_and_do_not_overlap(toy: Device) -> None:
    arena = Arena(toy.memory, MemoryKind.STAGING, 4096)
    slices = [arena.allocate(size) for size in (100, 256, 1, 3000, 600)]
    assert [s.offset for s in slices] == [0, 256, 512, 768, 0]
    assert slices[0].buffer is slices[3].buffer is not slices[4].buffer
    assert [s.address - s.buffer.address for s in slices] == [s.offset for s in slices]
    assert arena.allocated_bytes == 8192
    for value, part in enumerate(slices):
        assert part.mapped is not None
        part.mapped[:] = bytes([value]) * part.nbytes
    assert [bytes(s.mapped or b"")[0] for s in slices] == [0, 1, 2, 3, 4]
    arena.close()
    arena.close()


def test_a_block_of_slices_is_as_large_as_they_are(toy: Device) -> None:
    arena = Arena(toy.memory, MemoryKind.DEVICE, 4096, heap=HeapKind.VRAM)
    slices = arena.allocate_block([100, 256, 5000])
    assert [part.offset for part in slices] == [0, 256, 512]
    assert [part.nbytes for part in slices] == [100, 256, 5000]
    assert {part.buffer for part in slices} == {slices[0].buffer}
    assert arena.allocated_bytes == 256 + 256 + 5120
    assert arena.allocate(16).buffer is not slices[0].buffer
    arena.close()


def test_a_slice_larger_than_a_block_gets_its_own_and_the_current_one_goes_on(toy: Device) -> None:
    arena = Arena(toy.memory, MemoryKind.DEVICE, 4096)
    first, large, second = arena.allocate(10), arena.allocate(10_000), arena.allocate(10)
    assert large.buffer is not first.buffer
    assert large.buffer.nbytes == 10_000
    assert (second.buffer, second.offset) == (first.buffer, 256)
    arena.close()


def test_imported_host_memory_is_read_by_the_device(toy: Device) -> None:
    if not toy.info.external_memory_host:
        pytest.skip(f"{toy.info.name} lacks VK_EXT_external_memory_host")
    pages = mmap.mmap(-1, 1 << 16)
    pages[:4] = b"abcd"
    source = toy.memory.import_host(memoryview(pages), name="pages")
    target = toy.memory.allocate(4096, MemoryKind.STAGING, name="target")
    pool = CommandPool(toy, toy.transfer)
    recorder = pool.recorder()
    recorder.copy(source, 0, target, 0, 4096)
    recorder.host_barrier()
    toy.transfer.timeline.wait(toy.transfer.submit([recorder.end()]), timeout_s=60)
    assert target.mapped is not None
    assert bytes(target.mapped[:4]) == b"abcd"
    pool.close()
    target.close()
    source.close()


def test_host_memory_off_the_alignment_is_refused(toy: Device) -> None:
    if not toy.info.external_memory_host:
        pytest.skip(f"{toy.info.name} lacks VK_EXT_external_memory_host")
    with pytest.raises(ConfigError, match="expected multiples of"):
        toy.memory.import_host(memoryview(bytearray(100)), name="odd")


def test_an_arenas_blocks_are_no_larger_than_the_device_allocates(toy: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(toy.memory), "max_allocation", 4096)
    arena = Arena(toy.memory, MemoryKind.DEVICE, 1 << 40)
    assert arena.allocate(16).buffer.nbytes == 4096
    arena.close()
