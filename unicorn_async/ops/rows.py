"""Rows of activations, in the forms in which linears read them; and what kernels that write them need to know."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, TypeAlias

from unicorn_async.errors import UnsupportedModelError
from unicorn_async.tensor import QUANT_BLOCK, Tensor

if TYPE_CHECKING:
    from unicorn_async.gpu.device_info import DeviceInfo

MAX_SPLIT_TILES = 1024  # of a matrix kernel whose workgroups share K
_VECTOR = 4
_LANES = 1024  # of a row on a GPU, if it can
_MAX_SUBGROUPS = 32  # of a workgroup: the fewest that a driver takes; shaders/reduce/workgroup.glsl has room for 64
_MAX_SOFTWARE_VECTORS = 16  # that a lane holds: more are slow to compile


class RowForm(Enum):
    """A form of activations; the value is its file's name in shaders/form, and the suffix of kernels that write it."""

    FLOATS = "floats"  # f32
    HALVES = "halves"  # f16 with a scale for each row
    FRAGMENTS = "fragments"  # the same in the order of matrices' parts in lanes
    BLOCKS = "blocks"  # int8 with a scale for 32

    @property
    def unit(self) -> int:
        """Elements of which a row is a whole number."""
        return _UNITS[self]


_UNITS = {RowForm.FLOATS: 4, RowForm.HALVES: 8, RowForm.FRAGMENTS: 128, RowForm.BLOCKS: QUANT_BLOCK}


@dataclass(frozen=True, slots=True)
class HalfRows:
    """Rows in half precision, for matrix units: `values` (tokens, k) f16 times `scales` (tokens) f32, by address.

    `counters` are zeros for matrix kernels whose workgroups share K; whoever writes the rows sees to that, unless they
    are 0, for kernels whose workgroups don't. In the form of fragments there is room for whole tiles of 16 tokens.
    """

    values: int
    scales: int
    counters: int
    form: RowForm = RowForm.HALVES

    @staticmethod
    def size(num_tokens: int, k: int) -> int:
        """Bytes that rows of halves take, without counters."""
        return num_tokens * (2 * k + 4)

    @classmethod
    def at(cls, address: int, num_tokens: int, k: int) -> HalfRows:
        """Lay rows of halves out in `size(num_tokens, k)` bytes at an address aligned to 16 bytes, without counters."""
        return cls(address, address + 2 * num_tokens * k, counters=0)


@dataclass(frozen=True, slots=True)
class BlockRows:
    """Rows in blocks of 32 int8, for integer dot products, by address; see shaders/include/block_store.glsl.

    `codes` is (tokens, 2, k / 32, 16) bytes, `scales` (tokens, k / 32) pairs of an f32 scale and two sums of codes.
    """

    codes: int
    scales: int

    @staticmethod
    def size(num_tokens: int, k: int) -> int:
        """Bytes that they take."""
        return num_tokens * (k + k // QUANT_BLOCK * 8)

    @classmethod
    def at(cls, address: int, num_tokens: int, k: int) -> BlockRows:
        """Lay them out in `size(num_tokens, k)` bytes at an address aligned to 16 bytes.

        Raises:
            UnsupportedModelError: a row is no whole number of blocks.
        """
        if k % QUANT_BLOCK:
            raise UnsupportedModelError(f"linear: inputs have {k} elements a row, expected a multiple of {QUANT_BLOCK}")
        return cls(address, address + num_tokens * k)


Rows: TypeAlias = "Tensor | HalfRows | BlockRows"


def form_of(rows: Rows) -> RowForm:
    """The form that rows have; its value is the suffix of the kernels that write it."""
    if isinstance(rows, HalfRows):
        return rows.form
    return RowForm.BLOCKS if isinstance(rows, BlockRows) else RowForm.FLOATS


def form_fields(rows: Rows) -> dict[str, int]:
    """The push constants that say where the rows go."""
    if isinstance(rows, HalfRows):
        num_counters = MAX_SPLIT_TILES if rows.counters else 0
        return {"y": rows.values, "y_scale": rows.scales, "counters": rows.counters, "num_counters": num_counters}
    if isinstance(rows, BlockRows):
        return {"y": rows.codes, "y_scale": rows.scales, "counters": 0, "num_counters": 0}
    return {"y": rows.address, "y_scale": 0, "counters": 0, "num_counters": 0}


def check_columns(what: str, columns: int, form: RowForm) -> None:
    """Raise UnsupportedModelError for rows that are no whole number of what the form is made of."""
    if columns % form.unit:
        raise UnsupportedModelError(f"{what}: expected a size that is a multiple of {form.unit}, got {columns}")


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
