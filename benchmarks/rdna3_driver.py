"""A driver's compiler, without its device: pipelines by what VK_KHR_pipeline_executable_properties says of them."""

from __future__ import annotations

import struct
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from unicorn_async.errors import ConfigError, MissingFeatureError
from unicorn_async.gpu.binding import STAGE_COMPUTE, DeviceHandle, check
from unicorn_async.gpu.kernel import KernelLibrary
from unicorn_async.gpu.manifest import MAX_PUSH_BYTES
from unicorn_async.gpu.physical import EXTENSION_MATRIX
from unicorn_async.resources import resource_dir

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from unicorn_async.gpu.binding import CData
    from unicorn_async.gpu.device_context import Closable
    from unicorn_async.gpu.device_info import DeviceInfo, MemoryHeap
    from unicorn_async.gpu.instance import Instance
    from unicorn_async.gpu.kernel import KernelRequest

EXTENSION = "VK_KHR_pipeline_executable_properties"
BINDINGS = 12  # as llama.cpp has them
_STORAGE_BUFFER = 7  # VkDescriptorType
_REQUIRE_FULL_SUBGROUPS = 0x2
_CAPTURE = 0x40 | 0x80  # statistics, internal representations
_STATISTIC, _REPRESENTATION = 1000269004, 1000269005  # VkStructureType


@dataclass(frozen=True, slots=True)
class Statistics:
    """What a driver says of a pipeline; sizes in bytes, LDS a work-group's, scratch a wave's."""

    lanes: int
    vgprs: int
    spilled: int
    scratch_bytes: int
    lds_bytes: int
    code_bytes: int
    instructions: int


@dataclass(frozen=True, slots=True)
class Compiled:
    """A pipeline's statistics and code, and the size of its work-groups."""

    statistics: Statistics
    code: str
    workgroup: int


class _Context:
    """A VkDevice that nothing is ever allocated on or submitted to: some compilers' devices can do neither."""

    def __init__(self, instance: Instance, info: DeviceInfo) -> None:
        self.api = api = instance.api
        self.physical = physical = instance.physical(info)
        self.info = replace(info, missing=())
        self.queue_families = (0,)
        extra = api.struct("VkPhysicalDevicePipelineExecutablePropertiesFeaturesKHR", pipelineExecutableInfo=1)
        priorities = api.ffi.new("float[]", [1.0])
        queue = api.struct("VkDeviceQueueCreateInfo", queueFamilyIndex=0, queueCount=1, pQueuePriorities=priorities)
        names = [EXTENSION, *([EXTENSION_MATRIX] if physical.has_extension(EXTENSION_MATRIX) else [])]
        create = api.struct(
            "VkDeviceCreateInfo",
            pNext=physical.feature_chain(extra),
            queueCreateInfoCount=1,
            pQueueCreateInfos=api.array("VkDeviceQueueCreateInfo", [queue]),
            enabledExtensionCount=len(names),
            ppEnabledExtensionNames=api.strings(names),
        )
        made = api.create(
            "vkCreateDevice", f"{info.name}: vkCreateDevice", "VkDevice", physical.handle, create, api.null
        )
        self.handle = DeviceHandle(made)

    def heaps(self) -> tuple[MemoryHeap, ...]:
        """Return what the driver says."""
        return self.physical.heaps()

    def adopt(self, child: Closable) -> None:
        """Nothing lives on it but the library."""

    def disown(self, child: Closable) -> None:
        """As `adopt`."""


class Compiler:
    """Compiles the package's kernels by the first device of an instance; close it before that."""

    def __init__(self, instance: Instance, folder: Path | None = None) -> None:
        """Open the device; each pipeline's code is written to `folder`, if there is one.

        Raises:
            MissingFeatureError: the driver does not say what it makes.
            ConfigError: the folder can't be made.
        """
        found = instance.devices()[0]
        if not instance.physical(found).has_extension(EXTENSION):
            raise MissingFeatureError(f"{found.name}: lacks {EXTENSION} ({found.driver_name} {found.driver_info})")
        self._context = _Context(instance, found)
        self.info = self._context.info
        self._folder = folder
        self._library = KernelLibrary(self._context, resource_dir("shaders"), cache_dir=None, pipeline_flags=_CAPTURE)
        self._known: dict[object, Compiled] = {}
        self.seconds = 0.0  # that compiling took
        if folder is not None:
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as exc:
                raise ConfigError(f"{folder}: {exc.strerror}") from exc

    def close(self) -> None:
        """Destroy the pipelines and the device."""
        self._library.close()
        self._context.api.lib.vkDestroyDevice(self._context.handle, self._context.api.null)

    @property
    def num_compiled(self) -> int:
        """Pipelines so far."""
        return len(self._known)

    def compile(self, request: KernelRequest) -> Compiled:
        """Compile a kernel, unless it was before.

        Raises:
            MissingFeatureError: the device lacks what it needs.
            ConfigError: the code can't be written.
        """
        key = request.name, tuple(sorted(request.constants.items())), request.subgroup_size
        if key not in self._known:
            start = time.perf_counter()
            kernel = self._library.get(request.name, constants=request.constants, subgroup_size=request.subgroup_size)
            self.seconds += time.perf_counter() - start
            x, y, z = kernel.workgroup
            self._known[key] = self._read(kernel.pipeline, kernel.subgroup_size, x * y * z)
            if self._folder is not None:
                self._write(self._folder / f"{len(self._known)}-{request.name}.s", self._known[key].code)
        return self._known[key]

    def compile_code(
        self, name: str, code: bytes, constants: Mapping[int, int], lanes: int, workgroup: int
    ) -> Compiled:
        """Compile SPIR-V of others, which takes storage buffers by BINDINGS of one set and 128 bytes of push constants.

        Raises:
            DeviceError: the driver does not make it.
        """
        api, handle = self._context.api, self._context.handle
        bindings = [
            api.struct(
                "VkDescriptorSetLayoutBinding",
                binding=index,
                descriptorType=_STORAGE_BUFFER,
                descriptorCount=1,
                stageFlags=STAGE_COMPUTE,
            )
            for index in range(BINDINGS)
        ]
        listed = api.array("VkDescriptorSetLayoutBinding", bindings)
        info = api.struct("VkDescriptorSetLayoutCreateInfo", bindingCount=BINDINGS, pBindings=listed)
        sets = api.ffi.new("VkDescriptorSetLayout[1]")
        sets[0] = api.create("vkCreateDescriptorSetLayout", name, "VkDescriptorSetLayout", handle, info, api.null)
        pushes = api.struct("VkPushConstantRange", stageFlags=STAGE_COMPUTE, offset=0, size=MAX_PUSH_BYTES)
        info = api.struct(
            "VkPipelineLayoutCreateInfo",
            setLayoutCount=1,
            pSetLayouts=sets,
            pushConstantRangeCount=1,
            pPushConstantRanges=pushes,
        )
        layout = api.create("vkCreatePipelineLayout", name, "VkPipelineLayout", handle, info, api.null)
        words = api.ffi.new("uint32_t[]", len(code) // 4)
        api.ffi.memmove(words, code, len(code))
        info = api.struct("VkShaderModuleCreateInfo", codeSize=len(code), pCode=words)
        module = api.create("vkCreateShaderModule", name, "VkShaderModule", handle, info, api.null)
        entries = [
            api.struct("VkSpecializationMapEntry", constantID=number, offset=4 * index, size=4)
            for index, number in enumerate(constants)
        ]
        stage = api.struct(
            "VkPipelineShaderStageCreateInfo",
            pNext=api.struct("VkPipelineShaderStageRequiredSubgroupSizeCreateInfo", requiredSubgroupSize=lanes),
            flags=_REQUIRE_FULL_SUBGROUPS,
            stage=STAGE_COMPUTE,
            module=module,
            pName="main",
            pSpecializationInfo=api.struct(
                "VkSpecializationInfo",
                mapEntryCount=len(entries),
                pMapEntries=api.array("VkSpecializationMapEntry", entries),
                dataSize=4 * len(entries),
                pData=api.ffi.new("char[]", struct.pack(f"<{len(entries)}I", *constants.values())),
            ),
        )
        info = api.struct(
            "VkComputePipelineCreateInfo", flags=_CAPTURE, stage=stage[0], layout=layout, basePipelineIndex=-1
        )
        out = api.ffi.new("VkPipeline[1]")
        try:
            check(api.lib.vkCreateComputePipelines(handle, api.null, 1, info, api.null, out), name)
            return self._read(out[0], lanes, workgroup)
        finally:
            api.lib.vkDestroyPipeline(handle, out[0], api.null)
            api.lib.vkDestroyShaderModule(handle, module, api.null)
            api.lib.vkDestroyPipelineLayout(handle, layout, api.null)
            api.lib.vkDestroyDescriptorSetLayout(handle, sets[0], api.null)

    def _read(self, pipeline: CData, lanes: int, workgroup: int) -> Compiled:
        which = self._context.api.struct("VkPipelineExecutableInfoKHR", pipeline=pipeline, executableIndex=0)
        values = self._statistics(which)
        statistics = Statistics(
            lanes=lanes,
            vgprs=values["VGPRs"],
            spilled=values["Spilled VGPRs"],
            scratch_bytes=values["Scratch size"],
            lds_bytes=values["LDS size"],
            code_bytes=values["Code size"],
            instructions=values["Instructions"],
        )
        return Compiled(statistics, self._code(which), workgroup)

    def _write(self, file: Path, code: str) -> None:
        try:
            file.write_text(code)
        except OSError as exc:
            raise ConfigError(f"{file}: {exc.strerror}") from exc

    def _statistics(self, which: CData) -> dict[str, int]:
        items = self._asked(
            "vkGetPipelineExecutableStatisticsKHR", "VkPipelineExecutableStatisticKHR", _STATISTIC, which
        )
        api = self._context.api
        return {api.text(item.name): int(item.value.u64) for item in items}

    def _code(self, which: CData) -> str:
        """The last representation is the machine's code."""
        call, kind = (
            "vkGetPipelineExecutableInternalRepresentationsKHR",
            "VkPipelineExecutableInternalRepresentationKHR",
        )
        ffi = self._context.api.ffi
        rooms: list[CData] = []

        def make_room(items: CData) -> None:
            for item in items:
                rooms.append(ffi.new("char[]", int(item.dataSize)))
                item.pData = rooms[-1]

        self._asked(call, kind, _REPRESENTATION, which, make_room)
        return bytes(ffi.buffer(rooms[-1])).split(b"\0")[0].decode(errors="replace")

    def _asked(
        self, call: str, kind: str, number: int, which: CData, make_room: Callable[[CData], None] | None = None
    ) -> CData:
        """Ask for a list of structs, once more where what they point to needs room."""
        api, handle = self._context.api, self._context.handle
        function, size = api.device_function(handle, call), api.ffi.new("uint32_t *")
        check(function(handle, which, size, api.null), call)
        items = api.ffi.new(f"{kind}[]", size[0])
        for item in items:
            item.sType = number
        check(function(handle, which, size, items), call)
        if make_room is not None:
            make_room(items)
            check(function(handle, which, size, items), call)
        return items
