"""The subgroup sizes that kernels run with, and what a device's matrix units are known to do. Pure: needs no GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from unicorn_async.gpu.device_info import DeviceInfo

MATRIX_FEATURE = "cooperative_matrix_f16_f32_16x16x16"
FRAGMENTS_FEATURE = "matrix_fragments"  # lanes hold what linear_quant_fragments counts on, see `find_matrix_fragments`
NARROW_FEATURE = "matrix_fragments_narrow"  # the same of matrices of 8 columns
NARROW_MATRIX_FEATURE = "cooperative_matrix_f16_f32_16x8x16"


def known_subgroup_size(info: DeviceInfo) -> int:
    """The subgroup size of kernels that ask for none; where the driver may choose, the smallest that it can take."""
    return info.subgroup_size if "subgroup_size_control" in info.features else info.min_subgroup_size


def matrix_subgroup_size(info: DeviceInfo) -> int | None:
    """The subgroup size that matrix kernels run with on the device; None where it can't run them."""
    if MATRIX_FEATURE not in info.features or not info.float16:
        return None
    if "subgroup_size_control" not in info.features:
        return info.subgroup_size if info.min_subgroup_size == info.max_subgroup_size else None
    return 32 if info.min_subgroup_size <= 32 <= info.max_subgroup_size else info.subgroup_size
