"""The one door to the `vulkan` package: typed raw calls, struct construction, and VkResult turned into exceptions.

The package's wrapper functions cost microseconds a call, so nothing here uses them; `Any` stays inside this file.
"""

from __future__ import annotations

import functools
import importlib
import threading
import weakref
from typing import Any, NewType, Protocol, TypeAlias, cast

from unicorn_async.errors import (
    DeviceError,
    DeviceLostError,
    MissingFeatureError,
    OutOfMemoryError,
    VulkanUnavailableError,
)

CData: TypeAlias = Any  # a struct, an array or a pointer that cffi made

InstanceHandle = NewType("InstanceHandle", object)
PhysicalDeviceHandle = NewType("PhysicalDeviceHandle", object)
DeviceHandle = NewType("DeviceHandle", object)
QueueHandle = NewType("QueueHandle", object)
MemoryHandle = NewType("MemoryHandle", object)
BufferHandle = NewType("BufferHandle", object)
SemaphoreHandle = NewType("SemaphoreHandle", object)
CommandPoolHandle = NewType("CommandPoolHandle", object)
CommandBufferHandle = NewType("CommandBufferHandle", object)
PipelineHandle = NewType("PipelineHandle", object)
PipelineLayoutHandle = NewType("PipelineLayoutHandle", object)
PipelineCacheHandle = NewType("PipelineCacheHandle", object)
QueryPoolHandle = NewType("QueryPoolHandle", object)

TIMEOUT = 2
BIND_POINT_COMPUTE = 1
STAGE_COMPUTE = 0x20  # VkShaderStageFlagBits

_NAMES = {
    -1: "VK_ERROR_OUT_OF_HOST_MEMORY",
    -2: "VK_ERROR_OUT_OF_DEVICE_MEMORY",
    -3: "VK_ERROR_INITIALIZATION_FAILED",
    -4: "VK_ERROR_DEVICE_LOST",
    -5: "VK_ERROR_MEMORY_MAP_FAILED",
    -6: "VK_ERROR_LAYER_NOT_PRESENT",
    -7: "VK_ERROR_EXTENSION_NOT_PRESENT",
    -8: "VK_ERROR_FEATURE_NOT_PRESENT",
    -9: "VK_ERROR_INCOMPATIBLE_DRIVER",
    -10: "VK_ERROR_TOO_MANY_OBJECTS",
    -12: "VK_ERROR_FRAGMENTED_POOL",
    -13: "VK_ERROR_UNKNOWN",
    -1000069000: "VK_ERROR_OUT_OF_POOL_MEMORY",
    -1000072003: "VK_ERROR_INVALID_EXTERNAL_HANDLE",
}
_ERRORS: dict[int, type[DeviceError]] = {
    -1: OutOfMemoryError,
    -2: OutOfMemoryError,
    -4: DeviceLostError,
    -6: MissingFeatureError,
    -7: MissingFeatureError,
    -8: MissingFeatureError,
    -9: VulkanUnavailableError,
    -1000069000: OutOfMemoryError,
}


def check(result: int, what: str) -> int:
    """Return `result`, a VkResult, unless it is an error.

    Raises:
        DeviceError: or the subclass that fits; the message carries `what` and the VkResult's name.
    """
    if result < 0:
        name = _NAMES.get(result, f"VkResult {result}")
        raise _ERRORS.get(result, DeviceError)(f"{what}: {name}")
    return result


class StepCalls(Protocol):
    """The calls that are made for every step, as they are in the loader library."""

    def vkCmdBindPipeline(
        self, commands: CommandBufferHandle, bind_point: int, pipeline: PipelineHandle, /
    ) -> None: ...
    def vkCmdPushConstants(
        self,
        commands: CommandBufferHandle,
        layout: PipelineLayoutHandle,
        stages: int,
        offset: int,
        size: int,
        data: bytes,
        /,
    ) -> None: ...
    def vkCmdDispatch(self, commands: CommandBufferHandle, x: int, y: int, z: int, /) -> None: ...
    def vkCmdDispatchIndirect(self, commands: CommandBufferHandle, buffer: BufferHandle, offset: int, /) -> None: ...
    def vkCmdPipelineBarrier(
        self,
        commands: CommandBufferHandle,
        src_stages: int,
        dst_stages: int,
        flags: int,
        num_memory: int,
        memory: CData,
        num_buffer: int,
        buffers: CData,
        num_image: int,
        images: CData,
        /,
    ) -> None: ...
    def vkCmdCopyBuffer(
        self, commands: CommandBufferHandle, src: BufferHandle, dst: BufferHandle, num_regions: int, regions: CData, /
    ) -> None: ...
    def vkCmdFillBuffer(
        self, commands: CommandBufferHandle, buffer: BufferHandle, offset: int, size: int, data: int, /
    ) -> None: ...
    def vkCmdResetQueryPool(
        self, commands: CommandBufferHandle, pool: QueryPoolHandle, first: int, count: int, /
    ) -> None: ...
    def vkCmdWriteTimestamp2(
        self, commands: CommandBufferHandle, stage: int, pool: QueryPoolHandle, index: int, /
    ) -> None: ...
    def vkCmdCopyQueryPoolResults(
        self,
        commands: CommandBufferHandle,
        pool: QueryPoolHandle,
        first: int,
        count: int,
        buffer: BufferHandle,
        offset: int,
        stride: int,
        flags: int,
        /,
    ) -> None: ...
    def vkBeginCommandBuffer(self, commands: CommandBufferHandle, info: CData, /) -> int: ...
    def vkEndCommandBuffer(self, commands: CommandBufferHandle, /) -> int: ...
    def vkQueueSubmit2(self, queue: QueueHandle, num_submits: int, submits: CData, fence: CData, /) -> int: ...
    def vkGetSemaphoreCounterValue(self, device: DeviceHandle, semaphore: SemaphoreHandle, value: CData, /) -> int: ...
    def vkWaitSemaphores(self, device: DeviceHandle, info: CData, timeout_ns: int, /) -> int: ...
    def vkSignalSemaphore(self, device: DeviceHandle, info: CData, /) -> int: ...


class Api:
    """The loaded Vulkan library: `lib` for raw calls, `step` for the typed ones, `ffi`, and `vk` for constants."""

    def __init__(self, module: Any) -> None:
        self.vk: Any = module
        self.ffi: Any = module.ffi
        self.lib: Any = module.lib
        self.step = cast("StepCalls", module.lib)
        self.null: CData = module.ffi.NULL
        self._owned: weakref.WeakKeyDictionary[CData, tuple[CData, ...]] = weakref.WeakKeyDictionary()
        self._owned_lock = threading.Lock()

    def struct(self, name: str, **fields: object) -> CData:
        """Make a struct with its sType set; what the fields point to lives as long as the struct.

        Pass a list of struct pointers for an array of structs, and str for a C string.
        """
        made = self.ffi.new(f"{name} *")
        factory = getattr(self.vk, name)
        if factory.__code__.co_varnames[0] == "sType":
            made.sType = factory.__defaults__[0]
        owned = []
        for field, given in fields.items():
            value = self.ffi.new("char[]", given.encode()) if isinstance(given, str) else given
            if isinstance(value, self.ffi.CData):
                owned.append(value)
            setattr(made, field, value)
        with self._owned_lock:
            self._owned[made] = tuple(owned)
        return made

    def array(self, name: str, items: list[CData]) -> CData:
        """Copy structs, made by `struct`, into one array that keeps alive what they point to."""
        made = self.ffi.new(f"{name}[]", max(len(items), 1))
        for index, item in enumerate(items):
            made[index] = item[0]
        with self._owned_lock:
            self._owned[made] = tuple(items)
        return made

    def strings(self, items: list[str]) -> CData:
        """Make a `char const *[]` that owns its strings."""
        texts = [self.ffi.new("char[]", item.encode()) for item in items]
        made = self.ffi.new("char const *[]", texts or 1)
        with self._owned_lock:
            self._owned[made] = tuple(texts)
        return made

    def create(self, call: str, what: str, kind: str, *arguments: object) -> CData:
        """Make a raw creating call that writes a handle of type `kind`, and return the handle."""
        out = self.ffi.new(f"{kind} *")
        check(getattr(self.lib, call)(*arguments, out), what)
        return out[0]

    def enumerate(self, call: Any, kind: str, *arguments: object, struct: bool = False) -> list[CData]:
        """Make a raw call, by name or function, for the count, then for the items; `struct` items get their sType."""
        function = getattr(self.lib, call) if isinstance(call, str) else call
        count = self.ffi.new("uint32_t *")
        function(*arguments, count, self.null)
        items = self.ffi.new(f"{kind}[]", max(count[0], 1))
        if struct:
            for item in items:
                item.sType = getattr(self.vk, kind).__defaults__[0]
        function(*arguments, count, items)
        if self.ffi.typeof(kind).kind != "struct":
            return cast("list[CData]", self.ffi.unpack(items, count[0]))
        return [self.ffi.new(f"{kind} *", items[i]) for i in range(count[0])]  # each its own owner

    def instance_function(self, instance: InstanceHandle, name: str, *, like: str | None = None) -> Any:
        """Return an instance extension's function; `like` names its type where the package has none of its name.

        Raises:
            MissingFeatureError: the driver has none of that name.
        """
        pointer = self.lib.vkGetInstanceProcAddr(instance, self.ffi.new("char[]", name.encode()))
        return self._function(pointer, name, like)

    def device_function(self, device: DeviceHandle, name: str) -> Any:
        """Return a device extension's function.

        Raises:
            MissingFeatureError: the driver has none of that name.
        """
        pointer = self.lib.vkGetDeviceProcAddr(device, self.ffi.new("char[]", name.encode()))
        return self._function(pointer, name)

    def _function(self, pointer: CData, name: str, like: str | None = None) -> Any:
        if pointer == self.null:
            raise MissingFeatureError(f"{name}: the driver does not have this function")
        return self.ffi.cast(like or f"PFN_{name}", pointer)

    def view(self, pointer: CData, nbytes: int) -> memoryview:
        """Return `nbytes` of mapped memory as writable bytes; the mapping must outlive the view."""
        return memoryview(self.ffi.buffer(pointer, nbytes)).cast("B")

    def text(self, characters: CData) -> str:
        """Decode a C string of a driver."""
        return cast("str", self.ffi.string(characters).decode("utf-8", "replace"))


@functools.cache
def load_api() -> Api:
    """Load libvulkan once.

    Raises:
        VulkanUnavailableError: there is no Vulkan loader on this system.
    """
    try:
        module = importlib.import_module("vulkan._vulkan")
    except OSError as exc:
        raise VulkanUnavailableError(
            "libvulkan.so.1: not found; install the Vulkan loader and your GPU's driver"
            " (Debian and Ubuntu: libvulkan1 mesa-vulkan-drivers; Fedora: vulkan-loader mesa-vulkan-drivers;"
            " Arch: vulkan-icd-loader vulkan-radeon)"
        ) from exc
    return Api(module)
