"""Recording: command pools, the recorder, and finished command buffers that are submitted again and again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unicorn_async.errors import ConfigError, DeviceError
from unicorn_async.gpu.binding import (
    BIND_POINT_COMPUTE,
    STAGE_COMPUTE,
    CommandBufferHandle,
    CommandPoolHandle,
    PipelineHandle,
    QueryPoolHandle,
    check,
)
from unicorn_async.gpu.queue import CommandBuffer

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from unicorn_async.gpu.binding import Api, CData
    from unicorn_async.gpu.device import Device
    from unicorn_async.gpu.kernel import Kernel
    from unicorn_async.gpu.memory import Buffer
    from unicorn_async.gpu.queue import Queue

_POOL_RESETS_BUFFERS = 0x2
_SIMULTANEOUS_USE = 0x4
_STAGE_INDIRECT, _STAGE_COMPUTE, _STAGE_TRANSFER, _STAGE_HOST = 0x2, 0x800, 0x1000, 0x4000
_ACCESS_INDIRECT, _ACCESS_SHADER_READ, _ACCESS_SHADER_WRITE = 0x1, 0x20, 0x40
_ACCESS_TRANSFER_READ, _ACCESS_TRANSFER_WRITE, _ACCESS_HOST_READ = 0x800, 0x1000, 0x2000
_STAGE2_ALL_COMMANDS = 0x10000
_QUERY_64, _QUERY_WAIT = 0x1, 0x2


class RecordingStructs:
    """What every recorder of a pool hands to the driver, which reads it during the call and keeps nothing."""

    def __init__(self, api: Api, *, has_compute: bool, shared: bool) -> None:
        writes = _ACCESS_TRANSFER_WRITE | (_ACCESS_SHADER_WRITE if has_compute else 0)
        reads = _ACCESS_TRANSFER_READ | (_ACCESS_SHADER_READ if has_compute else 0)
        self.stages = _STAGE_TRANSFER | (_STAGE_COMPUTE if has_compute else 0)
        self.barrier: CData = api.struct("VkMemoryBarrier", srcAccessMask=writes, dstAccessMask=reads | writes)
        self.indirect_barrier: CData = api.struct(
            "VkMemoryBarrier", srcAccessMask=writes, dstAccessMask=_ACCESS_INDIRECT
        )
        self.host_barrier: CData = api.struct("VkMemoryBarrier", srcAccessMask=writes, dstAccessMask=_ACCESS_HOST_READ)
        self.begin: CData = api.struct("VkCommandBufferBeginInfo", flags=_SIMULTANEOUS_USE if shared else 0)


class CommandPool:
    """A VkCommandPool for one queue's family; one thread at a time records from it.

    What is recorded from a `shared` one may be pending more than once. Close it when nothing of it is pending.
    """

    def __init__(self, device: Device, queue: Queue, *, shared: bool = False) -> None:
        self.device = device
        self._api = api = device.api
        self.structs = RecordingStructs(api, has_compute=queue.has_compute, shared=shared)
        info = api.struct("VkCommandPoolCreateInfo", queueFamilyIndex=queue.family, flags=_POOL_RESETS_BUFFERS)
        self._handle: CommandPoolHandle | None = CommandPoolHandle(
            api.create("vkCreateCommandPool", "vkCreateCommandPool", "VkCommandPool", device.handle, info, api.null)
        )
        device.adopt(self)

    def recorder(self, reuse: CommandBuffer | None = None) -> CommandRecorder:
        """Start recording, into `reuse` in place of what it held; it must not be pending.

        Raises:
            OutOfMemoryError: the driver ran out of memory.
        """
        return CommandRecorder(self, self.allocate() if reuse is None else reuse.handle)

    def free(self, commands: CommandBuffer) -> None:
        """Give a command buffer back before the pool is closed; it must not be pending."""
        handles = self._api.ffi.new("VkCommandBuffer[1]", [commands.handle])
        self._api.lib.vkFreeCommandBuffers(self.device.handle, self._handle, 1, handles)

    def close(self) -> None:
        """Destroy the pool and all its command buffers."""
        handle, self._handle = self._handle, None
        if handle is not None:
            self._api.lib.vkDestroyCommandPool(self.device.handle, handle, self._api.null)
            self.device.disown(self)

    def allocate(self) -> CommandBufferHandle:
        """Return a command buffer to record into."""
        api = self._api
        info = api.struct("VkCommandBufferAllocateInfo", commandPool=self._handle, level=0, commandBufferCount=1)
        return CommandBufferHandle(
            api.create(
                "vkAllocateCommandBuffers", "vkAllocateCommandBuffers", "VkCommandBuffer", self.device.handle, info
            )
        )


class TimestampPool:
    """A VkQueryPool of `count` timestamps; `CommandRecorder.timestamp` resets an entry before it writes it."""

    def __init__(self, device: Device, count: int) -> None:
        self.device = device
        self.count = count
        api = device.api
        info = api.struct("VkQueryPoolCreateInfo", queryType=api.vk.VK_QUERY_TYPE_TIMESTAMP, queryCount=count)
        self.handle = QueryPoolHandle(
            api.create("vkCreateQueryPool", "vkCreateQueryPool", "VkQueryPool", device.handle, info, api.null)
        )
        self._closed = False
        self._mask = (1 << device.compute.timestamp_bits) - 1
        device.adopt(self)

    def read(self, first: int, count: int) -> list[int]:
        """Return timestamps in nanoseconds, from an arbitrary start, once what writes them is done.

        Raises:
            DeviceError: one of them was not written yet.
        """
        api, device = self.device.api, self.device
        values = api.ffi.new("uint64_t[]", count)
        result = api.lib.vkGetQueryPoolResults(device.handle, self.handle, first, count, 8 * count, values, 8, 0x1)
        if check(result, "vkGetQueryPoolResults") != 0:
            raise DeviceError(f"timestamps {first} to {first + count - 1}: not all of them are written")
        return [round((value & self._mask) * device.info.timestamp_period_ns) for value in values]

    def ticks_to_s(self, start: int, stop: int) -> float:
        """Return the seconds between two values that `CommandRecorder.copy_timestamps` wrote."""
        return ((stop - start) & self._mask) * self.device.info.timestamp_period_ns * 1e-9

    def close(self) -> None:
        """Destroy the pool; nothing that writes to it may be pending."""
        if not self._closed:
            self._closed = True
            self.device.api.lib.vkDestroyQueryPool(self.device.handle, self.handle, self.device.api.null)
            self.device.disown(self)


class CommandRecorder:
    """Records one command buffer; `end` finishes it. Everything recorded runs in order only across barriers."""

    def __init__(self, pool: CommandPool, handle: CommandBufferHandle) -> None:
        api = pool.device.api
        self._step = api.step
        self._ffi = api.ffi
        self._null = api.null
        self._handle = handle
        self._bound: PipelineHandle | None = None
        self._limits = pool.device.info.max_workgroup_count
        self._region = api.ffi.new("VkBufferCopy[1]")
        self._structs = structs = pool.structs
        check(self._step.vkBeginCommandBuffer(handle, structs.begin), "vkBeginCommandBuffer")

    def dispatch(self, kernel: Kernel, push: bytes, x: int, y: int = 1, z: int = 1) -> None:
        """Run `kernel` on x·y·z workgroups with `push`, made by `kernel.pack`.

        Raises:
            ConfigError: the push block has the wrong size.
            DeviceError: more workgroups than the device can start at once.
        """
        limits = self._limits
        if x > limits[0] or y > limits[1] or z > limits[2]:
            raise DeviceError(f"{kernel.name}: {x}×{y}×{z} workgroups, the device starts {limits} at most")
        self._bind(kernel, push)
        self._step.vkCmdDispatch(self._handle, x, y, z)

    def dispatch_indirect(self, kernel: Kernel, push: bytes, buffer: Buffer, offset: int) -> None:
        """Run `kernel` on as many workgroups as three u32 at `offset` in `buffer` say when the dispatch starts.

        The host wrote them before the submission, or the device before an `indirect_barrier`.
        """
        self._bind(kernel, push)
        self._step.vkCmdDispatchIndirect(self._handle, buffer.handle, offset)

    def label(self, text: str) -> None:
        """See `Recorder`: what is recorded is not told apart."""

    def barrier(self) -> None:
        """Make all writes so far visible to the kernels and copies that follow."""
        structs = self._structs
        self._step.vkCmdPipelineBarrier(
            self._handle, structs.stages, structs.stages, 0, 1, structs.barrier, 0, self._null, 0, self._null
        )

    def indirect_barrier(self) -> None:
        """Make all writes so far visible to indirect dispatches; on NVIDIA it takes twice the time of `barrier`."""
        structs = self._structs
        self._step.vkCmdPipelineBarrier(
            self._handle, structs.stages, _STAGE_INDIRECT, 0, 1, structs.indirect_barrier, 0, self._null, 0, self._null
        )

    def host_barrier(self) -> None:
        """Make all writes so far visible to the CPU, once the submission is done."""
        structs = self._structs
        self._step.vkCmdPipelineBarrier(
            self._handle, structs.stages, _STAGE_HOST, 0, 1, structs.host_barrier, 0, self._null, 0, self._null
        )

    def copy(self, src: Buffer, src_offset: int, dst: Buffer, dst_offset: int, nbytes: int) -> None:
        """Copy `nbytes` between buffers; the ranges must not overlap.

        Raises:
            ConfigError: a range leaves its buffer.
        """
        for buffer, offset in ((src, src_offset), (dst, dst_offset)):
            if nbytes < 1 or offset < 0 or offset + nbytes > buffer.nbytes:
                raise ConfigError(f"copy: {nbytes} bytes at {offset} of {buffer.name}, which has {buffer.nbytes}")
        region = self._region[0]
        region.srcOffset, region.dstOffset, region.size = src_offset, dst_offset, nbytes
        self._step.vkCmdCopyBuffer(self._handle, src.handle, dst.handle, 1, self._region)

    def copy_regions(self, src: Buffer, dst: Buffer, regions: NDArray[np.uint64]) -> None:
        """Copy several ranges: (ranges, 3), each where in `src`, where in `dst`, and bytes; none may overlap.

        Raises:
            ConfigError: a range leaves its buffer.
        """
        for buffer, offsets in ((src, regions[:, 0]), (dst, regions[:, 1])):
            end = int((offsets + regions[:, 2]).max())
            if end > buffer.nbytes or not regions[:, 2].all():
                raise ConfigError(f"copy: to byte {end} of {buffer.name}, which has {buffer.nbytes}")
        made = self._ffi.from_buffer("VkBufferCopy[]", regions.tobytes())
        self._step.vkCmdCopyBuffer(self._handle, src.handle, dst.handle, len(regions), made)

    def fill(self, buffer: Buffer, offset: int, nbytes: int, value: int) -> None:
        """Fill a range with a u32; offset and size are multiples of 4.

        Raises:
            ConfigError: the range leaves the buffer or is not made of whole words.
        """
        if nbytes < 4 or offset % 4 or nbytes % 4 or offset < 0 or offset + nbytes > buffer.nbytes:
            raise ConfigError(f"fill: {nbytes} bytes at {offset} of {buffer.name}, which has {buffer.nbytes}")
        self._step.vkCmdFillBuffer(self._handle, buffer.handle, offset, nbytes, value)

    def timestamp(self, pool: TimestampPool, index: int) -> None:
        """Write the time at which all that was recorded so far is done."""
        self._step.vkCmdResetQueryPool(self._handle, pool.handle, index, 1)
        self.write_timestamp(pool, index)

    def reset_timestamps(self, pool: TimestampPool) -> None:
        """Make all of a pool's timestamps ready to be written."""
        self._step.vkCmdResetQueryPool(self._handle, pool.handle, 0, pool.count)

    def write_timestamp(self, pool: TimestampPool, index: int) -> None:
        """Write the time as `timestamp` does, into an entry that was made ready."""
        self._step.vkCmdWriteTimestamp2(self._handle, _STAGE2_ALL_COMMANDS, pool.handle, index)

    def copy_timestamps(self, pool: TimestampPool, first: int, count: int, buffer: Buffer, offset: int) -> None:
        """Write timestamps, each a u64 in ticks, to a buffer; unlike `TimestampPool.read` it waits for nothing else.

        `offset` is a multiple of 8. `ticks_to_s` of the pool converts differences.

        Raises:
            ConfigError: the range leaves the buffer.
        """
        if offset < 0 or offset % 8 or offset + 8 * count > buffer.nbytes:
            raise ConfigError(f"copy_timestamps: {count} at {offset} of {buffer.name}, which has {buffer.nbytes} bytes")
        self._step.vkCmdCopyQueryPoolResults(
            self._handle, pool.handle, first, count, buffer.handle, offset, 8, _QUERY_64 | _QUERY_WAIT
        )

    def end(self) -> CommandBuffer:
        """Finish; the recorder can't be used any more.

        Raises:
            OutOfMemoryError: the driver ran out of memory while recording.
        """
        check(self._step.vkEndCommandBuffer(self._handle), "vkEndCommandBuffer")
        return CommandBuffer(self._handle)

    def _bind(self, kernel: Kernel, push: bytes) -> None:
        if len(push) != kernel.push_bytes:
            raise ConfigError(f"{kernel.name}: expected {kernel.push_bytes} bytes of push constants, got {len(push)}")
        if kernel.pipeline is not self._bound:
            self._step.vkCmdBindPipeline(self._handle, BIND_POINT_COMPUTE, kernel.pipeline)
            self._bound = kernel.pipeline
        if push:
            self._step.vkCmdPushConstants(self._handle, kernel.layout, STAGE_COMPUTE, 0, len(push), push)
