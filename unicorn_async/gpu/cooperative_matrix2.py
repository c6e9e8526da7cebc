"""VK_NV_cooperative_matrix2: its structs as words, for the `vulkan` package does not know them.

They are laid out as in Vulkan's headers since version 1.4.300, where pointers have 64 bits: `sType`, padding, two words
of `pNext`, then members of 32 bits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from unicorn_async.errors import MissingFeatureError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from unicorn_async.gpu.binding import Api, CData, InstanceHandle, PhysicalDeviceHandle

EXTENSION_MATRIX2 = "VK_NV_cooperative_matrix2"
FEATURES_MATRIX2 = "VkPhysicalDeviceCooperativeMatrix2FeaturesNV"
MATRIX2_FEATURES: Mapping[str, int] = {  # of those that there are, what kernels use, and its place after `pNext`
    "cooperativeMatrixWorkgroupScope": 0,
    "cooperativeMatrixFlexibleDimensions": 1,
    "cooperativeMatrixTensorAddressing": 5,
}

_FEATURES_TYPE, _DIMENSIONS_TYPE = 1000593000, 1000593001  # VkStructureType
_HEADER_WORDS, _FEATURES_WORDS, _DIMENSIONS_WORDS = 4, 12, 14
_FUNCTION = "vkGetPhysicalDeviceCooperativeMatrixFlexibleDimensionsPropertiesNV"
# The same function of VK_KHR_cooperative_matrix takes the same arguments, but for what the last one points to.
_ALIKE, _ALIKE_ITEM = "PFN_vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR", "VkCooperativeMatrixPropertiesKHR *"


def features_struct(api: Api, enabled: Collection[str] = ()) -> CData:
    """Make a struct of features, to be the last of a chain, with those of MATRIX2_FEATURES set that are `enabled`."""
    struct = api.ffi.new("uint64_t[]", _FEATURES_WORDS // 2)
    words = api.ffi.cast("uint32_t *", struct)
    words[0] = _FEATURES_TYPE
    for name, place in MATRIX2_FEATURES.items():
        words[_HEADER_WORDS + place] = int(name in enabled)
    return struct


def features_of(api: Api, struct: CData) -> frozenset[str]:
    """Return those of MATRIX2_FEATURES that a driver set in the struct."""
    words = api.ffi.cast("uint32_t *", struct)
    return frozenset(name for name, place in MATRIX2_FEATURES.items() if words[_HEADER_WORDS + place])


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
