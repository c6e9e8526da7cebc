"""Asks a physical device for its properties, features and memory; the answers make a DeviceInfo."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unicorn_async.errors import MissingFeatureError
from unicorn_async.gpu.binding import STAGE_COMPUTE
from unicorn_async.gpu.device_info import CooperativeMatrixShape, DeviceInfo, DeviceType, MemoryHeap
from unicorn_async.gpu.host_memory import HostMemory

if TYPE_CHECKING:
    from collections.abc import Mapping

    from unicorn_async.gpu.binding import Api, CData, InstanceHandle, PhysicalDeviceHandle

MIN_API_VERSION = (1, 3, 0)

FEATURES_CORE = "VkPhysicalDeviceFeatures"
FEATURES_11 = "VkPhysicalDeviceVulkan11Features"
FEATURES_12 = "VkPhysicalDeviceVulkan12Features"
FEATURES_13 = "VkPhysicalDeviceVulkan13Features"
FEATURES_MATRIX = "VkPhysicalDeviceCooperativeMatrixFeaturesKHR"

REQUIRED: Mapping[str, tuple[str, ...]] = {
    FEATURES_CORE: ("shaderInt64", "shaderInt16"),
    FEATURES_11: ("storageBuffer16BitAccess",),
    FEATURES_12: (
        "timelineSemaphore",
        "bufferDeviceAddress",
        "scalarBlockLayout",
        "vulkanMemoryModel",
        "vulkanMemoryModelDeviceScope",
        "storageBuffer8BitAccess",
    ),
    FEATURES_13: ("synchronization2", "maintenance4"),
}
OPTIONAL: Mapping[str, tuple[str, ...]] = {
    FEATURES_12: ("shaderFloat16", "shaderInt8", "shaderSubgroupExtendedTypes"),
    FEATURES_13: ("subgroupSizeControl", "computeFullSubgroups", "shaderIntegerDotProduct"),
    FEATURES_MATRIX: ("cooperativeMatrix",),
}
EXTENSION_MATRIX = "VK_KHR_cooperative_matrix"
EXTENSION_BUDGET = "VK_EXT_memory_budget"
EXTENSION_HOST_MEMORY = "VK_EXT_external_memory_host"
# What says how many compute units a device has: by extension a structure of properties, and its field.
_UNITS = {
    "VK_AMD_shader_core_properties2": ("VkPhysicalDeviceShaderCoreProperties2AMD", "activeComputeUnitCount"),
    "VK_NV_shader_sm_builtins": ("VkPhysicalDeviceShaderSMBuiltinsPropertiesNV", "shaderSMCount"),
}

_SHADER_FEATURES = {
    "shaderFloat16": "float16",
    "shaderInt8": "int8",
    "shaderIntegerDotProduct": "integer_dot",
    "subgroupSizeControl": "subgroup_size_control",
}
_TYPES = {
    1: DeviceType.INTEGRATED,
    2: DeviceType.DISCRETE,
    3: DeviceType.VIRTUAL,
    4: DeviceType.SOFTWARE,
}
_COMPONENTS = ("f16", "f32", "f64", "s8", "s16", "s32", "s64", "u8", "u16", "u32", "u64")
_SCOPES = {1: "device", 2: "workgroup", 3: "subgroup", 5: "queue_family"}
_DEVICE_LOCAL, _HOST_VISIBLE, _HOST_COHERENT = 1, 2, 4


class PhysicalDevice:
    """A VkPhysicalDevice, owned by its instance: `info`, what to enable, and heap budgets as of now."""

    def __init__(self, api: Api, instance: InstanceHandle, handle: PhysicalDeviceHandle, index: int) -> None:
        self._api = api
        self.instance = instance
        self.handle = handle
        found = api.enumerate("vkEnumerateDeviceExtensionProperties", "VkExtensionProperties", handle, api.null)
        self._extensions = frozenset(api.text(item.extensionName) for item in found)
        self._properties = api.struct("VkPhysicalDeviceProperties2")
        api.lib.vkGetPhysicalDeviceProperties2(handle, self._properties)
        version = self._properties.properties.apiVersion
        self.api_version = (version >> 22 & 0x7F, version >> 12 & 0x3FF, version & 0xFFF)
        self.supported = self._query_features()
        self.info = self._describe(index)

    @property
    def is_software(self) -> bool:
        """Whether the driver says that it runs on the CPU."""
        return bool(self._properties.properties.deviceType == self._api.vk.VK_PHYSICAL_DEVICE_TYPE_CPU)

    @property
    def pipeline_cache_uuid(self) -> bytes:
        """What a pipeline cache's header must hold to be of use."""
        return bytes(self._properties.properties.pipelineCacheUUID)

    def has_extension(self, name: str) -> bool:
        """Whether the driver offers the extension."""
        return name in self._extensions

    def feature_chain(self, last: CData | None = None) -> CData:
        """Return a VkPhysicalDeviceFeatures2 chain of all that is required, and what there is of the optional.

        `last` is the struct of an extension that the package itself does not use.
        """
        wanted = {name for group in (REQUIRED, OPTIONAL) for names in group.values() for name in names}
        return self._chain(wanted & self.supported, last)

    def heaps(self) -> tuple[MemoryHeap, ...]:
        """Return the heaps with their budgets as of now."""
        api = self._api
        has_budget = self.has_extension(EXTENSION_BUDGET)
        budget = api.struct("VkPhysicalDeviceMemoryBudgetPropertiesEXT")
        memory = api.struct("VkPhysicalDeviceMemoryProperties2", pNext=budget if has_budget else api.null)
        api.lib.vkGetPhysicalDeviceMemoryProperties2(self.handle, memory)
        heaps = []
        for index in range(memory.memoryProperties.memoryHeapCount):
            heap = memory.memoryProperties.memoryHeaps[index]
            nbytes, used = int(heap.size), int(budget.heapUsage[index]) if has_budget else 0
            allowed = int(budget.heapBudget[index]) if has_budget else nbytes
            if self.is_software:  # its heap is a made-up number: what limits it is the host's memory
                nbytes = allowed = (HostMemory().available_bytes() or nbytes) + used
            heaps.append(MemoryHeap(nbytes, bool(heap.flags & _DEVICE_LOCAL), allowed, used))
        return tuple(heaps)

    def memory_types(self) -> tuple[tuple[int, int], ...]:
        """Return (property flags, heap index) of every memory type."""
        memory = self._api.struct("VkPhysicalDeviceMemoryProperties")
        self._api.lib.vkGetPhysicalDeviceMemoryProperties(self.handle, memory)
        kinds = [memory.memoryTypes[i] for i in range(memory.memoryTypeCount)]
        return tuple((int(kind.propertyFlags), int(kind.heapIndex)) for kind in kinds)

    def queue_families(self) -> tuple[tuple[int, int, int], ...]:
        """Return (flags, number of queues, valid timestamp bits) of every queue family."""
        api, count = self._api, self._api.ffi.new("uint32_t *")
        api.lib.vkGetPhysicalDeviceQueueFamilyProperties(self.handle, count, api.null)
        families = api.ffi.new("VkQueueFamilyProperties[]", count[0])
        api.lib.vkGetPhysicalDeviceQueueFamilyProperties(self.handle, count, families)
        return tuple((int(f.queueFlags), int(f.queueCount), int(f.timestampValidBits)) for f in families)

    def _structs(self) -> list[str]:
        names = [FEATURES_11, FEATURES_12, FEATURES_13] if self.api_version >= MIN_API_VERSION else []
        return [*names, FEATURES_MATRIX] if names and self.has_extension(EXTENSION_MATRIX) else names

    def _chain(self, enabled: set[str], last: CData | None) -> CData:
        following = self._api.null if last is None else last
        for struct in self._structs():
            wanted = (*REQUIRED.get(struct, ()), *OPTIONAL.get(struct, ()))
            following = self._api.struct(struct, pNext=following, **{name: 1 for name in wanted if name in enabled})
        chain = self._api.struct("VkPhysicalDeviceFeatures2", pNext=following)
        for name in REQUIRED[FEATURES_CORE]:
            setattr(chain.features, name, int(name in enabled))
        return chain

    def _query_features(self) -> frozenset[str]:
        following, structs = self._api.null, {}
        for struct in self._structs():
            following = structs[struct] = self._api.struct(struct, pNext=following)
        chain = self._api.struct("VkPhysicalDeviceFeatures2", pNext=following)
        self._api.lib.vkGetPhysicalDeviceFeatures2(self.handle, chain)
        structs[FEATURES_CORE] = chain.features
        return frozenset(
            name
            for struct, answer in structs.items()
            for name in (*REQUIRED.get(struct, ()), *OPTIONAL.get(struct, ()))
            if getattr(answer, name)
        )

    def _describe(self, index: int) -> DeviceInfo:
        api, core = self._api, self._properties.properties
        limits = core.limits
        modern = self.api_version >= MIN_API_VERSION
        host_memory = api.struct("VkPhysicalDeviceExternalMemoryHostPropertiesEXT")
        with_host = self.has_extension(EXTENSION_HOST_MEMORY)
        v13 = api.struct("VkPhysicalDeviceVulkan13Properties", pNext=host_memory if with_host else api.null)
        v12 = api.struct("VkPhysicalDeviceVulkan12Properties", pNext=v13)
        v11 = api.struct("VkPhysicalDeviceVulkan11Properties", pNext=v12)
        if modern:
            api.lib.vkGetPhysicalDeviceProperties2(self.handle, api.struct("VkPhysicalDeviceProperties2", pNext=v11))
        shapes = self._cooperative_matrix()
        features = {name for vulkan_name, name in _SHADER_FEATURES.items() if vulkan_name in self.supported}
        if not v13.requiredSubgroupSizeStages & STAGE_COMPUTE:
            features.discard("subgroup_size_control")
        features |= {shape.feature for shape in shapes if shape.feature is not None}
        return DeviceInfo(
            index=index,
            name=api.text(core.deviceName),
            type=_TYPES.get(core.deviceType, DeviceType.OTHER),
            driver_name=api.text(v12.driverName),
            driver_info=api.text(v12.driverInfo),
            driver_version=int(core.driverVersion),
            api_version=self.api_version,
            vendor_id=int(core.vendorID),
            device_id=int(core.deviceID),
            device_uuid=bytes(v11.deviceUUID).hex(),
            heaps=self.heaps(),
            subgroup_size=int(v11.subgroupSize),
            min_subgroup_size=int(v13.minSubgroupSize) or int(v11.subgroupSize),
            max_subgroup_size=int(v13.maxSubgroupSize) or int(v11.subgroupSize),
            cooperative_matrix=shapes,
            integer_dot=bool(v13.integerDotProduct4x8BitPackedSignedAccelerated),
            rebar=self._maps_everything(),
            float16="shaderFloat16" in self.supported,
            int8="shaderInt8" in self.supported,
            storage16="storageBuffer16BitAccess" in self.supported,
            storage8="storageBuffer8BitAccess" in self.supported,
            memory_budget=self.has_extension(EXTENSION_BUDGET),
            external_memory_host=with_host,
            host_pointer_alignment=int(host_memory.minImportedHostPointerAlignment),
            max_shared_memory=int(limits.maxComputeSharedMemorySize),
            max_push_constants=int(limits.maxPushConstantsSize),
            max_workgroup_size=tuple(limits.maxComputeWorkGroupSize),
            max_workgroup_invocations=int(limits.maxComputeWorkGroupInvocations),
            max_workgroup_count=tuple(limits.maxComputeWorkGroupCount),
            max_storage_range=int(limits.maxStorageBufferRange),
            max_allocation=min(int(v11.maxMemoryAllocationSize), int(v13.maxBufferSize)),
            max_allocation_count=int(limits.maxMemoryAllocationCount),
            timestamp_period_ns=float(limits.timestampPeriod),
            features=frozenset(features),
            missing=self._missing(),
            compute_units=self._compute_units(),
        )

    def _compute_units(self) -> int:
        for extension, (kind, count) in _UNITS.items():
            if self.has_extension(extension):
                units = self._api.struct(kind)
                answer = self._api.struct("VkPhysicalDeviceProperties2", pNext=units)
                self._api.lib.vkGetPhysicalDeviceProperties2(self.handle, answer)
                return int(getattr(units, count))
        return 0

    def _missing(self) -> tuple[str, ...]:
        if self.api_version < MIN_API_VERSION:
            return (f"Vulkan 1.3 (the driver has {'.'.join(map(str, self.api_version))})",)
        return tuple(name for names in REQUIRED.values() for name in names if name not in self.supported)

    def _maps_everything(self) -> bool:
        heaps = self.heaps()
        largest = max((i for i, h in enumerate(heaps) if h.device_local), key=lambda i: heaps[i].nbytes, default=-1)
        mapped = _DEVICE_LOCAL | _HOST_VISIBLE | _HOST_COHERENT
        return any(flags & mapped == mapped and heap == largest for flags, heap in self.memory_types())

    def _cooperative_matrix(self) -> tuple[CooperativeMatrixShape, ...]:
        if "cooperativeMatrix" not in self.supported:
            return ()
        api, kind = self._api, "VkCooperativeMatrixPropertiesKHR"
        try:
            function = api.instance_function(self.instance, "vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR")
        except MissingFeatureError:
            return ()
        return tuple(
            CooperativeMatrixShape(
                m=int(item.MSize),
                n=int(item.NSize),
                k=int(item.KSize),
                a=component_name(item.AType),
                b=component_name(item.BType),
                c=component_name(item.CType),
                result=component_name(item.ResultType),
                scope=scope_name(item.scope),
            )
            for item in api.enumerate(function, kind, self.handle, struct=True)
        )


def component_name(value: int) -> str:
    """Return the short name of a VkComponentTypeKHR."""
    return _COMPONENTS[value] if 0 <= value < len(_COMPONENTS) else f"type{value}"


def scope_name(value: int) -> str:
    """Return the name of a VkScopeKHR."""
    return _SCOPES.get(value, f"scope {value}")
