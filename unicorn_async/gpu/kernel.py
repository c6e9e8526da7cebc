"""Kernels: compiled shaders with their constants, made on demand and shared."""

from __future__ import annotations

import contextlib
import os
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from unicorn_async.errors import ConfigError, DeviceError, MissingFeatureError
from unicorn_async.gpu.background_calls import BackgroundCalls
from unicorn_async.gpu.binding import STAGE_COMPUTE, PipelineHandle, PipelineLayoutHandle, check
from unicorn_async.gpu.manifest import MAX_PUSH_BYTES, Manifest
from unicorn_async.gpu.pipeline_cache import PipelineCache

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path
    from typing import TypeAlias

    from unicorn_async.gpu.binding import CData
    from unicorn_async.gpu.device_context import DeviceContext
    from unicorn_async.gpu.manifest import ConstantValue, ManifestEntry, PushBlock

    _Key: TypeAlias = tuple[str, tuple[tuple[str, ConstantValue], ...], int]

_REQUIRE_FULL_SUBGROUPS = 0x2
_MAX_COMPILERS = 8


@dataclass(frozen=True, slots=True)
class KernelRequest:
    """What `KernelLibrary.get` is asked for; `urgent` ones of many are compiled as fast as possible."""

    name: str
    constants: Mapping[str, ConstantValue] = field(default_factory=dict)
    subgroup_size: int | None = None
    urgent: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Kernel:
    """A compute pipeline and its interface; the library owns it.

    `variant` names the constants that were asked for, for people; `constants` has all of the shader's.
    """

    name: str
    variant: str
    workgroup: tuple[int, int, int]
    subgroup_size: int
    pipeline: PipelineHandle
    layout: PipelineLayoutHandle
    push: PushBlock
    push_bytes: int
    constants: Mapping[str, ConstantValue] = field(default_factory=dict)

    def pack(self, **fields: int | float) -> bytes:
        """Return the push-constant block with these members; pointers are addresses.

        Raises:
            ConfigError: a member is missing, unknown or out of its type's range.
        """
        return self.push.pack(self.name, fields)


class KernelLibrary:
    """A device's kernels, built from `shader_dir` when they are first asked for; any thread may ask.

    The device owns it. All pipelines have one layout: no descriptor sets, and one range of push constants.
    """

    def __init__(
        self, device: DeviceContext, shader_dir: Path, *, cache_dir: Path | None, pipeline_flags: int = 0
    ) -> None:
        """Keep what the driver compiles in `cache_dir`, None = not at all; `pipeline_flags` are Vulkan's, for each."""
        self._device = device
        self._pipeline_flags = pipeline_flags
        self._shader_dir = shader_dir
        self._manifest: Manifest | None = None
        self._kernels: dict[_Key, Future[Kernel]] = {}
        self._lock = threading.Lock()
        self._closed = False
        self._urgent: set[_Key] = set()
        self._is_awaited = False  # whether somebody waits for more than the urgent ones
        self._full_subgroups = "computeFullSubgroups" in device.physical.supported
        self.cache = PipelineCache(device, cache_dir)
        self.layout = self._create_layout()

    @property
    def manifest(self) -> Manifest:
        """The folder's manifest, read at its first use.

        Raises:
            ConfigError: it is absent or damaged.
        """
        with self._lock:
            if self._manifest is None:
                self._manifest = Manifest.read(self._shader_dir)
            return self._manifest

    @property
    def num_kernels(self) -> int:
        """How many kernels are built."""
        return sum(future.done() for future in self._kernels.values())

    @property
    def names(self) -> tuple[str, ...]:
        """The manifest entries of the kernels that are built, sorted."""
        with self._lock:
            return tuple(sorted({name for (name, _, _), future in self._kernels.items() if future.done()}))

    def get(
        self, name: str, *, constants: Mapping[str, ConstantValue] | None = None, subgroup_size: int | None = None
    ) -> Kernel:
        """Return the manifest's entry `name` with these constants, compiling it unless it was asked for before.

        `subgroup_size` None means the device's default; kernels always run with a known size where the device allows
        to choose it.

        Raises:
            ConfigError: there is no such entry or constant, or the compiled shader is absent or damaged.
            MissingFeatureError: the device lacks what the entry requires, or can't run this subgroup size.
        """
        key = self._key(name, constants or {}, subgroup_size)
        with self._lock:
            found = self._kernels.get(key)
            if key not in self._urgent and (found is None or not found.done()):
                self._is_awaited = True
        return self._get(key)

    def _get(self, key: _Key, background: BackgroundCalls | None = None) -> Kernel:
        name, values, subgroup_size = key
        with self._lock:
            future = self._kernels.get(key)
            building = future is None
            if future is None:
                if self._closed:
                    raise DeviceError(f"{name}: asked for after the device was closed")
                future = self._kernels[key] = Future()
        if building:
            try:
                future.set_result(self._build(name, dict(values), subgroup_size, background))
            except BaseException as exc:
                with self._lock:
                    self._kernels.pop(key, None)
                future.set_exception(exc)
        return future.result()

    def prepare(self, requests: Iterable[KernelRequest]) -> list[Kernel]:
        """Compile several kernels side by side, and return them in the order asked for; raises as `get` does.

        The driver's part steps back behind other threads of this process, but for urgent kernels, and until `get` is
        asked for one that is not there: on few cores it would slow down who reads the weights.
        """
        wanted = [(self._key(item.name, item.constants, item.subgroup_size), item.urgent) for item in requests]
        with self._lock:
            self._urgent.update(key for key, urgent in wanted if urgent)
        threads = max(1, min(_MAX_COMPILERS, os.cpu_count() or 1, len(wanted)))
        patient = min(threads, sum(not urgent for _, urgent in wanted))
        with (
            BackgroundCalls(patient, name="unicorn-driver") as background,
            ThreadPoolExecutor(threads, thread_name_prefix="unicorn-compile") as pool,
        ):
            return list(pool.map(lambda item: self._get(item[0], None if item[1] else background), wanted))

    def save_cache(self) -> bool:
        """Write the driver's pipeline cache to its file; return whether that worked."""
        return self.cache.save()

    def close(self) -> None:
        """Destroy all pipelines; nothing that uses them may be pending."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            futures = list(self._kernels.values())
            self._kernels.clear()
        api, device = self._device.api, self._device.handle
        for future in futures:
            with contextlib.suppress(Exception):  # one whose build failed was reported to who asked
                api.lib.vkDestroyPipeline(device, future.result().pipeline, api.null)
        api.lib.vkDestroyPipelineLayout(device, self.layout, api.null)
        self.cache.close()

    def _create_layout(self) -> PipelineLayoutHandle:
        api = self._device.api
        pushes = api.struct("VkPushConstantRange", stageFlags=STAGE_COMPUTE, offset=0, size=MAX_PUSH_BYTES)
        info = api.struct("VkPipelineLayoutCreateInfo", pushConstantRangeCount=1, pPushConstantRanges=pushes)
        what = "vkCreatePipelineLayout"
        return PipelineLayoutHandle(api.create(what, what, "VkPipelineLayout", self._device.handle, info, api.null))

    def _entry(self, name: str) -> ManifestEntry:
        entries = self.manifest.entries
        if name not in entries:
            raise ConfigError(f"kernel {name}: not in the shader manifest, which has {sorted(entries)}")
        return entries[name]

    def _key(self, name: str, constants: Mapping[str, ConstantValue], subgroup_size: int | None) -> _Key:
        return name, tuple(sorted(constants.items())), subgroup_size or self._device.info.subgroup_size

    def _build(
        self, name: str, given: dict[str, ConstantValue], subgroup_size: int, background: BackgroundCalls | None
    ) -> Kernel:
        entry, info = self._entry(name), self._device.info
        if lacking := info.lacks(entry.requires):
            raise MissingFeatureError(f"kernel {name}: {info.name} lacks {', '.join(lacking)}")
        self._check_subgroup_size(name, subgroup_size)
        values = entry.constant_values(given)
        workgroup = entry.workgroup_size(values)
        x, y, z = workgroup
        too_wide = any(size > limit for size, limit in zip(workgroup, info.max_workgroup_size, strict=True))
        if too_wide or not 0 < x * y * z <= info.max_workgroup_invocations:
            raise MissingFeatureError(
                f"kernel {name}: a workgroup of {x}×{y}×{z}, {info.name} has {info.max_workgroup_size}"
            )
        pipeline = self._create_pipeline(
            entry, given, subgroup_size, background, full=self._full_subgroups and x % subgroup_size == 0
        )
        variant = ",".join(f"{key}={value}" for key, value in sorted(given.items()))
        return Kernel(
            name, variant, workgroup, subgroup_size, pipeline, self.layout, entry.push, entry.push_bytes, values
        )

    def _check_subgroup_size(self, name: str, size: int) -> None:
        info = self._device.info
        if size == info.subgroup_size:
            return
        if "subgroup_size_control" not in info.features or not info.min_subgroup_size <= size <= info.max_subgroup_size:
            sizes = f"{info.min_subgroup_size} to {info.max_subgroup_size}"
            raise MissingFeatureError(f"kernel {name}: subgroups of {size}, {info.name} has {sizes}")

    def _create_pipeline(
        self,
        entry: ManifestEntry,
        given: Mapping[str, ConstantValue],
        subgroup_size: int,
        background: BackgroundCalls | None,
        *,
        full: bool,
    ) -> PipelineHandle:
        api, device = self._device.api, self._device
        code = self.manifest.spirv(entry)
        words = api.ffi.new("uint32_t[]", len(code) // 4)
        api.ffi.memmove(words, code, len(code))
        module_info = api.struct("VkShaderModuleCreateInfo", codeSize=len(code), pCode=words)
        what = f"kernel {entry.name}"
        module = api.create("vkCreateShaderModule", what, "VkShaderModule", device.handle, module_info, api.null)
        try:
            required = api.null
            if "subgroup_size_control" in device.info.features:
                required = api.struct(
                    "VkPipelineShaderStageRequiredSubgroupSizeCreateInfo", requiredSubgroupSize=subgroup_size
                )
            stage = api.struct(
                "VkPipelineShaderStageCreateInfo",
                pNext=required,
                flags=_REQUIRE_FULL_SUBGROUPS if full else 0,
                stage=STAGE_COMPUTE,
                module=module,
                pName="main",
                pSpecializationInfo=self._specialization(entry, given),
            )
            info = api.struct(
                "VkComputePipelineCreateInfo",
                flags=self._pipeline_flags,
                stage=stage[0],
                layout=self.layout,
                basePipelineIndex=-1,
            )
            out = api.ffi.new("VkPipeline[1]")
            create, arguments = (
                api.lib.vkCreateComputePipelines,
                (device.handle, self.cache.handle, 1, info, api.null, out),
            )
            if background is None or self._is_awaited:
                result = create(*arguments)
            else:
                result = background.call(create, *arguments)
            check(result, f"{what}: vkCreateComputePipelines")
            return PipelineHandle(out[0])
        finally:
            api.lib.vkDestroyShaderModule(device.handle, module, api.null)

    def _specialization(self, entry: ManifestEntry, given: Mapping[str, ConstantValue]) -> CData:
        api = self._device.api
        entries, data = [], b""
        for name, value in given.items():
            constant = entry.constants[name]
            entries.append(api.struct("VkSpecializationMapEntry", constantID=constant.id, offset=len(data), size=4))
            data += constant.pack(value)
        return api.struct(
            "VkSpecializationInfo",
            mapEntryCount=len(entries),
            pMapEntries=api.array("VkSpecializationMapEntry", entries),
            dataSize=len(data),
            pData=api.ffi.new("char[]", data or b"\0"),
        )
