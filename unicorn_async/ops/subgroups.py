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


def lean_subgroup_size(info: DeviceInfo) -> int:
    """The subgroup size of kernels whose lanes hold much: 32 lanes where the device can have these, but takes more.

    Its registers are made for 32 lanes then (RDNA), and a register of a larger subgroup costs two of them.
    """
    return 32 if halves_subgroups(info) else known_subgroup_size(info)


def asked_subgroup_size(info: DeviceInfo) -> int | None:
    """What to ask for to have kernels run with `lean_subgroup_size`; None where the device's default is that."""
    return 32 if halves_subgroups(info) else None


def workgroup_unit(info: DeviceInfo) -> int:
    """Lanes of a subgroup as those count who size workgroups by them; where the driver may choose, its default."""
    return 32 if halves_subgroups(info) else info.subgroup_size


def halves_subgroups(info: DeviceInfo) -> bool:
    """Whether a device takes subgroups of 64 lanes where 32 can be had: RDNA by what its drivers say of it.

    Matrices of 16 rows then have their rows in 16 lanes, twice: a factor takes twice the registers that it takes of
    other devices.
    """
    return (
        "subgroup_size_control" in info.features
        and info.min_subgroup_size <= 32 < info.subgroup_size <= info.max_subgroup_size
    )
