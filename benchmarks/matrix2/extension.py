"""VK_NV_cooperative_matrix2: its structs as words, for the `vulkan` package does not know them.

They are laid out as in Vulkan's headers since version 1.4.300, where pointers have 64 bits: `sType`, padding, two words
of `pNext`, then members of 32 bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from unicorn_async.errors import MissingFeatureError
from unicorn_async.gpu.physical import component_name, scope_name

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from unicorn_async.gpu.binding import Api, CData, InstanceHandle, PhysicalDeviceHandle
    from unicorn_async.gpu.device_info import DeviceInfo
    from unicorn_async.gpu.instance import Instance
    from unicorn_async.gpu.physical import PhysicalDevice

EXTENSION = "VK_NV_cooperative_matrix2"
FEATURE = "cooperative_matrix2"  # in a shader's `requires`
VULKAN_FEATURES: Mapping[str, int] = {  # of those that there are, what kernels use, and its place after `pNext`
    "cooperativeMatrixWorkgroupScope": 0,
    "cooperativeMatrixFlexibleDimensions": 1,
    "cooperativeMatrixTensorAddressing": 5,
}

_FEATURES_TYPE, _DIMENSIONS_TYPE = 1000593000, 1000593001  # VkStructureType
_HEADER_WORDS, _FEATURES_WORDS, _DIMENSIONS_WORDS = 4, 12, 14
_FUNCTION = "vkGetPhysicalDeviceCooperativeMatrixFlexibleDimensionsPropertiesNV"
# The same function of VK_KHR_cooperative_matrix takes the same arguments, but for what the last one points to.
_ALIKE, _ALIKE_ITEM = "PFN_vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR", "VkCooperativeMatrixPropertiesKHR *"


@dataclass(frozen=True, slots=True)
class FlexibleMatrixShape:
    """Products of VK_NV_cooperative_matrix2: m, n and k are what the sizes must be multiples of.

    `invocations` is how many a workgroup must have; 0 where the scope is a subgroup.
    """

    m: int
    n: int
    k: int
    a: str
    b: str
    c: str
    result: str
    scope: str
    invocations: int

    def takes(self, m: int, n: int, k: int) -> bool:
        """Whether a product of these sizes is one of them."""
        return not (m % self.m or n % self.n or k % self.k)


def flexible_shapes(api: Api, physical: PhysicalDevice) -> tuple[FlexibleMatrixShape, ...] | str:
    """Return the products that a device multiplies by the extension, or why there are none."""
    if not physical.has_extension(EXTENSION):
        return "the driver does not offer it"
    found = features_struct(api)
    api.lib.vkGetPhysicalDeviceFeatures2(physical.handle, api.struct("VkPhysicalDeviceFeatures2", pNext=found))
    if absent := sorted(VULKAN_FEATURES.keys() - features_of(api, found)):
        return f"the driver lacks {', '.join(absent)}"
    return tuple(
        FlexibleMatrixShape(m, n, k, *map(component_name, types), scope_name(scope), invocations)
        for m, n, k, *types, _, scope, invocations in flexible_dimensions(api, physical.instance, physical.handle)
    )


def enabled(instance: Instance, info: DeviceInfo) -> tuple[str, CData] | None:
    """Return what opening a device with the extension takes, see `Device.open`; None for a device without it."""
    if isinstance(flexible_shapes(instance.api, instance.physical(info)), str):
        return None
    return EXTENSION, features_struct(instance.api, VULKAN_FEATURES)


def features_struct(api: Api, enabled: Collection[str] = ()) -> CData:
    """Make a struct of features, to be the last of a chain, with those of VULKAN_FEATURES set that are `enabled`."""
    struct = api.ffi.new("uint64_t[]", _FEATURES_WORDS // 2)
    words = api.ffi.cast("uint32_t *", struct)
    words[0] = _FEATURES_TYPE
    for name, place in VULKAN_FEATURES.items():
        words[_HEADER_WORDS + place] = int(name in enabled)
    return struct


def features_of(api: Api, struct: CData) -> frozenset[str]:
    """Return those of VULKAN_FEATURES that a driver set in the struct."""
    words = api.ffi.cast("uint32_t *", struct)
    return frozenset(name for name, place in VULKAN_FEATURES.items() if words[_HEADER_WORDS + place])


def flexible_dimensions(
    api: Api, instance: InstanceHandle, device: PhysicalDeviceHandle
) -> tuple[tuple[int, ...], ...]:
    """Return the driver's list of products whose sizes are multiples of given ones; empty if it has no such function.

    Each is ten numbers: the multiples of M, N and K, the VkComponentTypeKHR of A, B, C and of the result, whether it
    saturates, the VkScopeKHR, and the number of invocations of a workgroup, 0 where the scope is a subgroup.
    """
    try:
        function = api.instance_function(instance, _FUNCTION, like=_ALIKE)
    except MissingFeatureError:
        return ()
    count = api.ffi.new("uint32_t *")
    function(device, count, api.null)
    structs = api.ffi.new("uint64_t[]", max(count[0], 1) * _DIMENSIONS_WORDS // 2)
    words = api.ffi.cast("uint32_t *", structs)
    for item in range(count[0]):
        words[item * _DIMENSIONS_WORDS] = _DIMENSIONS_TYPE
    function(device, count, api.ffi.cast(_ALIKE_ITEM, structs))
    starts = (item * _DIMENSIONS_WORDS + _HEADER_WORDS for item in range(count[0]))
    return tuple(tuple(int(words[start + i]) for i in range(_DIMENSIONS_WORDS - _HEADER_WORDS)) for start in starts)
