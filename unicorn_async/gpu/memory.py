"""Buffers of device memory, and deferred frees."""

from __future__ import annotations

import threading
import time
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from unicorn_async.errors import ConfigError, MissingFeatureError, OutOfMemoryError
from unicorn_async.gpu.binding import BufferHandle, MemoryHandle, check
from unicorn_async.gpu.budget import HeapKind, heap_kinds
from unicorn_async.gpu.host_pages import prefer_huge_pages
from unicorn_async.gpu.memory_types import MemoryKind, is_mappable, rank_memory_types
from unicorn_async.gpu.right_of_way import RightOfWay

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from unicorn_async.gpu.binding import CData
    from unicorn_async.gpu.device_context import DeviceContext
    from unicorn_async.gpu.left_memory import LeftMemory
    from unicorn_async.gpu.timeline import Timeline

__all__ = ["Buffer", "HeapKind", "Memory", "MemoryKind"]

_USAGE = 0x1 | 0x2 | 0x20 | 0x100 | 0x20000  # transfer both ways, storage, indirect, device address
_ALLOCATE_DEVICE_ADDRESS = 0x2
_HANDLE_HOST_ALLOCATION = 0x80
_OUT_OF_MEMORY = (-1, -2)
_WHOLE_SIZE = (1 << 64) - 1
_FRESH_S = 0.1
_PLENTY = 16  # times what is wanted


@dataclass(eq=False, slots=True)
class Buffer:
    """A VkBuffer on memory of its own; whoever allocated it closes it, or hands it to `Memory.release`.

    `is_mappable` says whether the CPU can see it.
    """

    handle: BufferHandle
    memory: MemoryHandle
    address: int
    nbytes: int
    allocated_bytes: int
    kind: MemoryKind
    heap: int
    is_mappable: bool
    name: str
    owner: Memory | None
    view: memoryview | None = None  # what is mapped already

    @property
    def mapped(self) -> memoryview | None:
        """The memory as writable bytes, None where the CPU can't see it; no view of it may outlive the buffer.

        The first call maps it, which takes some drivers 15 milliseconds a gigabyte.
        """
        if self.view is None and self.is_mappable and self.owner is not None:
            self.owner.map(self)
        return self.view

    def close(self) -> None:
        """Free the memory now; nothing on the GPU may still use it."""
        owner, self.owner = self.owner, None
        if owner is not None:
            owner.free(self)


class _Allocation(NamedTuple):
    memory: MemoryHandle
    nbytes: int  # of the device's memory; imported memory is the host's
    type_index: int


class _Asked(NamedTuple):
    at: float
    heaps: tuple[Sequence[int], Sequence[int]]  # bytes available in each, and used by this process


class Memory:
    """Allocates a device's memory; any thread may call it. The device owns it."""

    def __init__(self, device: DeviceContext, left: LeftMemory | None = None) -> None:
        """Allocate on a device; where it is short of memory, it waits for what is `left` there by others."""
        self._device = device
        self._left = left
        self._waits = left is not None
        self._api = device.api
        self._types = device.physical.memory_types()
        heap_bytes = [heap.nbytes for heap in device.info.heaps]
        shares = device.info.shares_host_memory
        self._ranked = {
            kind: rank_memory_types(self._types, heap_bytes, kind, shares_host_memory=shares) for kind in MemoryKind
        }
        ranked = rank_memory_types(self._types, heap_bytes, MemoryKind.DEVICE, shares_host_memory=True)
        self._kinds = heap_kinds(device.info)
        self._told = {heap: tuple(i for i in ranked if self._kinds[self._types[i][1]] is heap) for heap in HeapKind}
        self._used = [0] * len(heap_bytes)
        self._asked: _Asked | None = None
        self._live: set[Buffer] = set()
        self._deferred: list[tuple[Timeline, int, Buffer]] = []
        # Neither is held while the driver allocates or frees, which takes milliseconds: another thread, which may be an
        # event loop, would hardly get its turn between two allocations.
        self._lock = threading.Lock()
        self._map_lock = threading.Lock()
        self._way = RightOfWay()

    @property
    def used_bytes(self) -> tuple[int, ...]:
        """What this process has allocated through here, per heap."""
        return tuple(self._used)

    def used_of(self, heap: HeapKind) -> int:
        """Return what this process has allocated through here in the heaps of one kind, in bytes."""
        return sum(used for used, kind in zip(self._used, self._kinds, strict=True) if kind is heap)

    @property
    def device_uuid(self) -> str:
        """Whose memory it is: all logical devices of a physical one have the same."""
        return self._device.info.device_uuid

    @property
    def num_buffers(self) -> int:
        """How many buffers live, the deferred ones included."""
        return len(self._live)

    @property
    def max_allocation(self) -> int:
        """Bytes of the largest possible buffer."""
        return self._device.info.max_allocation

    def expects_mappable(self, heap: HeapKind) -> bool:
        """Whether the CPU sees DEVICE memory of a kind of heap, as long as it is given the type that suits best."""
        types = self._told[heap]
        return bool(types) and is_mappable(self._types[types[0]][0])

    def allocate(
        self, nbytes: int, kind: MemoryKind, *, name: str, heap: HeapKind | None = None, gives_way: bool = False
    ) -> Buffer:
        """Allocate `nbytes`, uninitialised, in a Vulkan allocation of its own: few and large ones, or an Arena.

        DEVICE memory may be told the kind of `heap` that it is to lie in, and then lies nowhere else. While others'
        memory is being freed where it would best lie, this waits for that before it takes another heap. One that
        `gives_way` begins when no other is under way: a driver serves a thread that asks again and again before others.

        Raises:
            OutOfMemoryError: it does not fit into the budget of any heap that suits, or into one allocation.
        """
        if nbytes < 1:
            raise ConfigError(f"{name}: expected a size of at least 1 byte, got {nbytes}")
        info = self._device.info
        if nbytes > info.max_allocation:
            raise OutOfMemoryError(
                f"{name}: {nbytes} bytes needed, {info.name} allocates {info.max_allocation} at once at most"
            )
        self.collect()
        with self._lock:
            if len(self._live) >= info.max_allocation_count:
                raise OutOfMemoryError(f"{name}: {len(self._live)} allocations live, {info.name} allows no more")
        types = self._ranked[kind] if heap is None else self._told[heap]
        what = f"{nbytes} bytes of {kind.value if heap is None else heap.value} memory"
        with self._way.given() if gives_way else self._way.taken():
            return self._make(nbytes, kind, name, lambda handle: self._allocate_memory(handle, types, what, name))

    def stop_waiting(self) -> None:
        """Have who allocates wait no more for what others have left: nobody needs the memory any longer."""
        self._waits = False
        if self._left is not None:
            self._left.look_again()

    def import_host(self, view: memoryview, *, name: str) -> Buffer:
        """Make host memory a buffer that the GPU copies from; `view` must outlive the buffer and stay where it is.

        Start and size must be multiples of the device's `host_pointer_alignment`.

        Raises:
            MissingFeatureError: the device lacks VK_EXT_external_memory_host.
            OutOfMemoryError: the driver can't pin the memory.
        """
        api, device = self._api, self._device
        alignment = device.info.host_pointer_alignment
        if not device.info.external_memory_host:
            raise MissingFeatureError(f"{name}: {device.info.name} lacks VK_EXT_external_memory_host")
        pointer = api.ffi.from_buffer("char[]", view, require_writable=True)
        start = int(api.ffi.cast("uintptr_t", pointer))
        if start % alignment or view.nbytes % alignment:
            raise ConfigError(f"{name}: start {start:#x} and size {view.nbytes}: expected multiples of {alignment}")
        return self._make(
            view.nbytes,
            MemoryKind.STAGING,
            name,
            lambda handle: self._import_memory(handle, pointer, view.nbytes, name),
            host=view,
        )

    def release(self, buffer: Buffer, *, timeline: Timeline, value: int) -> None:
        """Free the buffer once `timeline` has reached `value`; a later `collect` or `allocate` does it."""
        with self._lock:
            self._deferred.append((timeline, value, buffer))

    def collect(self) -> None:
        """Free the released buffers whose timeline value has passed."""
        with self._lock:
            if not self._deferred:
                return
            reached = {timeline: timeline.completed() for timeline, _, _ in self._deferred}
            passed = [item for item in self._deferred if reached[item[0]] >= item[1]]
            self._deferred = [item for item in self._deferred if reached[item[0]] < item[1]]
        for _, _, buffer in passed:
            buffer.close()

    def free(self, buffer: Buffer) -> None:
        """Destroy a buffer on behalf of its `close`; it counts as allocated until the driver has its memory back."""
        buffer.view = None
        with nullcontext() if self._left is None else self._left.freeing(self):
            self._vk_free(buffer.handle, buffer.memory)
            with self._lock:
                self._live.discard(buffer)
                self._used[buffer.heap] -= buffer.allocated_bytes

    def map(self, buffer: Buffer) -> None:
        """Map a buffer on behalf of its `mapped`, if nobody has."""
        with self._map_lock:
            if buffer.view is None and buffer.owner is not None:
                buffer.view = self._map(buffer.memory, buffer.nbytes, buffer.name)

    def close(self) -> None:
        """Free every buffer; the device must be idle, and no other thread may allocate or free any more."""
        with self._lock:
            self._deferred.clear()
            live = list(self._live)
        for buffer in live:
            buffer.close()

    def _map(self, memory: MemoryHandle, nbytes: int, name: str) -> memoryview:
        api, device = self._api, self._device
        out = api.ffi.new("void **")
        check(api.lib.vkMapMemory(device.handle, memory, 0, _WHOLE_SIZE, 0, out), f"{name}: vkMapMemory")
        view = api.view(out[0], nbytes)
        if device.info.is_software:  # its memory is this process's own, and nobody has touched it yet
            prefer_huge_pages(view)
        return view

    def _available(self) -> list[int]:
        info, heaps = self._device.info, self._device.heaps()
        if info.memory_budget or info.is_software:
            return [heap.available_bytes for heap in heaps]
        return [max(0, heap.nbytes - used) for heap, used in zip(heaps, self._used, strict=True)]

    def _lately_available(self, wanted: int) -> list[int]:
        """Return what was available in each heap a moment ago, less what was allocated since, where that is plenty.

        To ask the driver takes as long as to allocate some megabytes.
        """
        asked, now = self._asked, time.monotonic()
        if asked is not None and now - asked.at < _FRESH_S:
            room = [free + before - used for free, before, used in zip(*asked.heaps, self._used, strict=True)]
            if min(room) >= _PLENTY * wanted:
                return room
        used, available = tuple(self._used), self._available()
        self._asked = _Asked(now, (available, used))
        return available

    def _create_buffer(self, nbytes: int, name: str, extra: CData) -> BufferHandle:
        api, families = self._api, self._device.queue_families
        info = api.struct(
            "VkBufferCreateInfo",
            pNext=extra,
            size=nbytes,
            usage=_USAGE,
            sharingMode=int(len(families) > 1),
            queueFamilyIndexCount=len(families),
            pQueueFamilyIndices=api.ffi.new("uint32_t[]", families),
        )
        return BufferHandle(
            api.create("vkCreateBuffer", f"{name}: vkCreateBuffer", "VkBuffer", self._device.handle, info, api.null)
        )

    def _requirements(self, handle: BufferHandle) -> tuple[int, int]:
        needs = self._api.ffi.new("VkMemoryRequirements *")
        self._api.lib.vkGetBufferMemoryRequirements(self._device.handle, handle, needs)
        return int(needs.size), int(needs.memoryTypeBits)

    def _allocate_memory(self, handle: BufferHandle, types: Sequence[int], what: str, name: str) -> _Allocation:
        size, type_bits = self._requirements(handle)
        candidates = [index for index in types if type_bits >> index & 1]
        if self._left is None:
            return self._try_to_allocate(size, candidates, what, name)
        return self._left.allocate(
            self._device.info,
            {index: self._types[index][1] for index in candidates},
            lambda better: self._try_to_allocate(size, better, what, name),
            is_given_up=lambda: not self._waits,
        )

    def _try_to_allocate(self, size: int, candidates: Sequence[int], what: str, name: str) -> _Allocation:
        api = self._api
        available = self._lately_available(size)
        refused = False
        flags = api.struct("VkMemoryAllocateFlagsInfo", flags=_ALLOCATE_DEVICE_ADDRESS)
        for index in candidates:
            if available[self._types[index][1]] < size:
                continue
            info = api.struct("VkMemoryAllocateInfo", pNext=flags, allocationSize=size, memoryTypeIndex=index)
            out = api.ffi.new("VkDeviceMemory *")
            result = self._vk_allocate(info, out)
            if result not in _OUT_OF_MEMORY:
                check(result, f"{name}: vkAllocateMemory")
                return _Allocation(MemoryHandle(out[0]), size, index)
            refused = True
        best = max((available[self._types[index][1]] for index in candidates), default=0)
        why = "; the driver refused them, another program may have been faster" if refused else ""
        raise OutOfMemoryError(f"{name}: {what} needed, {best} available on {self._device.info.name}{why}")

    def _vk_allocate(self, info: CData, out: CData) -> int:
        return int(self._api.lib.vkAllocateMemory(self._device.handle, info, self._api.null, out))

    def _vk_free(self, buffer: BufferHandle, memory: MemoryHandle) -> None:
        self._api.lib.vkDestroyBuffer(self._device.handle, buffer, self._api.null)
        self._api.lib.vkFreeMemory(self._device.handle, memory, self._api.null)

    def _import_memory(self, handle: BufferHandle, pointer: CData, nbytes: int, name: str) -> _Allocation:
        api, device = self._api, self._device
        answer = api.struct("VkMemoryHostPointerPropertiesEXT")
        query = api.device_function(device.handle, "vkGetMemoryHostPointerPropertiesEXT")
        check(
            query(device.handle, _HANDLE_HOST_ALLOCATION, pointer, answer),
            f"{name}: vkGetMemoryHostPointerPropertiesEXT",
        )
        type_bits = self._requirements(handle)[1] & answer.memoryTypeBits
        index = next((i for i in range(len(self._types)) if type_bits >> i & 1), None)
        if index is None:
            raise MissingFeatureError(f"{name}: no memory type of {device.info.name} takes this host memory")
        source = api.struct(
            "VkImportMemoryHostPointerInfoEXT", handleType=_HANDLE_HOST_ALLOCATION, pHostPointer=pointer
        )
        flags = api.struct("VkMemoryAllocateFlagsInfo", flags=_ALLOCATE_DEVICE_ADDRESS, pNext=source)
        info = api.struct("VkMemoryAllocateInfo", pNext=flags, allocationSize=nbytes, memoryTypeIndex=index)
        memory = api.create(
            "vkAllocateMemory", f"{name}: importing {nbytes} bytes", "VkDeviceMemory", device.handle, info, api.null
        )
        return _Allocation(MemoryHandle(memory), 0, index)

    def _make(
        self,
        nbytes: int,
        kind: MemoryKind,
        name: str,
        obtain: Callable[[BufferHandle], _Allocation],
        host: memoryview | None = None,
    ) -> Buffer:
        api, device = self._api, self._device.handle
        external = api.struct("VkExternalMemoryBufferCreateInfo", handleTypes=_HANDLE_HOST_ALLOCATION)
        handle = self._create_buffer(nbytes, name, api.null if host is None else external)
        memory = None
        try:
            memory, size, index = obtain(handle)
            check(api.lib.vkBindBufferMemory(device, handle, memory, 0), f"{name}: vkBindBufferMemory")
            mappable = host is not None or is_mappable(self._types[index][0])
            view = host
            if host is None and mappable and (kind is not MemoryKind.DEVICE or self._device.info.is_software):
                view = self._map(memory, nbytes, name)
        except BaseException:
            api.lib.vkDestroyBuffer(device, handle, api.null)
            if memory is not None:
                api.lib.vkFreeMemory(device, memory, api.null)
            raise
        info = api.struct("VkBufferDeviceAddressInfo", buffer=handle)
        address = int(api.lib.vkGetBufferDeviceAddress(device, info))
        heap = self._types[index][1]
        buffer = Buffer(handle, memory, address, nbytes, size, kind, heap, mappable, name, self, view)
        with self._lock:
            self._live.add(buffer)
            self._used[heap] += size
        return buffer
