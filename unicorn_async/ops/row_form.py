"""What kernels that write rows of activations need to know of the form: its kernels' suffix and where the parts go."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unicorn_async.errors import UnsupportedModelError
from unicorn_async.ops.linear_input import MAX_SPLIT_TILES, HalfRows, InputBlocks, InputForm
from unicorn_async.tensor import QUANT_BLOCK

if TYPE_CHECKING:
    from unicorn_async.gpu.device_info import DeviceInfo
    from unicorn_async.ops.linear_input import LinearInput

_VECTOR = 4
_UNITS = {InputForm.FLOATS: 4, InputForm.HALVES: 8, InputForm.FRAGMENTS: 128, InputForm.BLOCKS: QUANT_BLOCK}
_LANES = 1024  # of a row on a GPU, if it can
_MAX_SUBGROUPS = 32  # of a workgroup: the fewest that a driver takes; shaders/reduce/workgroup.glsl has room for 64
_MAX_SOFTWARE_VECTORS = 64  # that a lane holds: more are slow to compile


def form_of(rows: LinearInput) -> InputForm:
    """The form that rows have; its value is the suffix of the kernels that write it."""
    if isinstance(rows, HalfRows):
        return rows.form
    return InputForm.BLOCKS if isinstance(rows, InputBlocks) else InputForm.FLOATS


def form_fields(rows: LinearInput) -> dict[str, int]:
    """The push constants that say where the rows go."""
    if isinstance(rows, HalfRows):
        return {"y": rows.values, "y_scale": rows.scales, "counters": rows.counters, "num_counters": MAX_SPLIT_TILES}
    if isinstance(rows, InputBlocks):
        return {"y": rows.codes, "y_scale": rows.scales, "counters": 0, "num_counters": 0}
    return {"y": rows.address, "y_scale": 0, "counters": 0, "num_counters": 0}


def check_columns(what: str, columns: int, form: InputForm) -> None:
    """Raise UnsupportedModelError for rows that are no whole number of what the form is made of."""
    if columns % _UNITS[form]:
        raise UnsupportedModelError(f"{what}: expected a size that is a multiple of {_UNITS[form]}, got {columns}")


def row_constants(info: DeviceInfo, columns: int) -> dict[str, int]:
    """WORKGROUP and VECTORS of a kernel in which a workgroup holds a row, four elements a vector.

    A software device takes one subgroup as far as it can, because its barriers are slow.
    """
    vectors = -(-columns // _VECTOR)
    if info.is_software:
        lanes = info.subgroup_size
        while -(-vectors // lanes) > _MAX_SOFTWARE_VECTORS and 2 * lanes <= _most_lanes(info):
            lanes *= 2
        return {"WORKGROUP": lanes, "VECTORS": -(-vectors // lanes)}
    per_lane = -(-vectors // _most_lanes(info))
    subgroup = info.max_subgroup_size
    lanes = -(-vectors // (per_lane * subgroup)) * subgroup
    return {"WORKGROUP": min(lanes, _most_lanes(info)), "VECTORS": per_lane}


def _most_lanes(info: DeviceInfo) -> int:
    return min(_LANES, info.max_workgroup_invocations, _MAX_SUBGROUPS * info.min_subgroup_size)
