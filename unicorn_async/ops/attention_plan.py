"""How attention is cut into workgroups, for one shape on one device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from unicorn_async.config import KVDType
from unicorn_async.errors import UnsupportedModelError
from unicorn_async.ops.subgroups import (
    asked_subgroup_size,
    halves_subgroups,
    lean_subgroup_size,
    matrix_subgroup_size,
    workgroup_unit,
)
from unicorn_async.tensor import QUANT_BLOCK

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from unicorn_async.gpu.device_info import DeviceInfo
    from unicorn_async.ops.kv_cache import AttentionShape

Grid: TypeAlias = tuple[int, int, int]

_MATRIX_ROWS = 64  # of attention_prefill_coopmat, of which two subgroups may share 16
_MAX_MATRIX_DIM = 256  # a lane has the queries and the output of larger heads in more registers than there are
_SHARED_DIM = 128  # of larger heads a subgroup has no registers for whole rows where a factor takes twice as many
_MATRIX_SHARED_BYTES = 14592  # of it, beside the rows that it stages
_SOFTWARE_LANES = 4  # that share a key; sums over more of them cost more than they save
MAX_ROTATING_TOKENS = 4  # of a step whose attention rotates in passing: every workgroup of an item repeats that
MAX_ALONE_TOKENS = 4  # of a step whose sequences have a large device nearly for themselves
MAX_FEW_TOKENS = 24  # of a step whose sequences are too few to fill a large device: their contexts are cut into more
_DECODE_WORKGROUP, _MANY_WORKGROUP = 256, 128  # lanes, for few sequences and for many
_FEW_TILE, _MANY_TILE = 64, 512  # keys of the shortest splits
_DECODE_WORKGROUPS = 512  # of one sequence with a long context: an H200 holds them all at once
_LEAN_ROWS = 8  # heads times chunks of keys that a lane has under way where registers are few
_LEAN_SHARED_BYTES = 32_000  # of 32 KiB, beside what a split's join takes
_UNIT_WORKGROUPS = 8  # the same of a compute unit, where the driver says how many there are
_SPLIT_GRAIN, _FIRST_GROWTH = 32, 8  # keys, and the power of two from which splits grow: attention_splits.glsl
_ALONE_GROWTH, _FEW_GROWTH = 2, 3  # quarters of a doubling of splits for each of the context
_MAX_LANES = 32
_GPU_ROWS, _GPU_LANES, _GPU_UNROLL, _GPU_LOADS = 4, 16, 4, 8  # of decode on other GPUs, by an H100's times
_FULL_UNIT_WORKGROUPS = 2  # of 256 lanes each, from which on many sequences have smaller workgroups
_MIN_INT8_SUBGROUP = 8  # lanes that quantise a block of keys or values together
_PARTIAL_EXTRA = 4  # f32 of a partial beside the head's elements


def _divisor(number: int, limit: int) -> int:
    """The largest divisor that is not above the limit."""
    return max(i for i in range(1, min(number, limit) + 1) if number % i == 0)


def _subgroups(info: DeviceInfo, workgroup: int) -> int:
    """Subgroups of a workgroup of so many lanes, at most."""
    return -(-workgroup // lean_subgroup_size(info))


def _most_shared(info: DeviceInfo) -> int:
    """Shared memory of a workgroup at most: where units have 64 KiB of it, room for two of them."""
    return min(info.max_shared_memory, _LEAN_SHARED_BYTES) if halves_subgroups(info) else info.max_shared_memory


def _decode_workgroups(info: DeviceInfo) -> int:
    """Workgroups of one sequence with a long context: as many as the device has under way, or twice that."""
    return min(_DECODE_WORKGROUPS, _UNIT_WORKGROUPS * info.compute_units) or _DECODE_WORKGROUPS


def _has_all_registers(info: DeviceInfo, shape: AttentionShape) -> bool:
    """Whether a lane of decode can have all 256 registers of an RDNA3: drivers without matrices stop at 144."""
    return matrix_subgroup_size(info) is not None and shape.head_dim <= _MAX_MATRIX_DIM


def _most_heads(info: DeviceInfo, shape: AttentionShape) -> int:
    """Query heads of a workgroup of decode at most, where a lane has a chunk of each: 8 f32 of q and 8 of output."""
    if info.is_software:
        return 1
    if shape.latent_dim:  # one key serves all heads: what fewer workgroups read of it counts for more
        return (4 if matrix_subgroup_size(info) is None else 5) if halves_subgroups(info) else 10
    if not halves_subgroups(info):
        return _GPU_ROWS  # with more, too few lanes have room
    is_large, is_int8 = shape.head_dim > _SHARED_DIM, shape.kv_dtype is KVDType.INT8
    if _has_all_registers(info, shape):
        return 6 if is_large and not is_int8 else 8
    return 4 if is_large or is_int8 else 5


def _rows_under_way(info: DeviceInfo, shape: AttentionShape) -> int:
    """Query heads times chunks of keys that a lane of decode has under way at most, where registers are few."""
    if _has_all_registers(info, shape):
        return 2 * _LEAN_ROWS
    return _LEAN_ROWS // 2 if shape.kv_dtype is KVDType.F32 else _LEAN_ROWS  # those of f32 take twice the registers


def _decode_shared_bytes(info: DeviceInfo, shape: AttentionShape, workgroup: int, heads: int) -> int:
    """Shared memory of attention_decode: each subgroup's output, maximum and sum of each head."""
    return _subgroups(info, workgroup) * heads * (shape.value_dim + 2) * 4


def _matrix_shares(info: DeviceInfo, shape: AttentionShape) -> int:
    """Subgroups that share 16 rows of prefill on matrix units."""
    large = shape.head_dim > _SHARED_DIM and shape.head_dim % (2 * QUANT_BLOCK) == 0
    return 2 if large and halves_subgroups(info) else 1


def _matrix_subgroup(info: DeviceInfo, shape: AttentionShape) -> int | None:
    """The subgroup size of prefill on matrix units; None where the device or the shape rules it out."""
    subgroup = matrix_subgroup_size(info)
    padded_row = 2 * shape.head_dim + 16
    rows = _MATRIX_ROWS // _matrix_shares(info, shape)
    fits = rows * padded_row + _MATRIX_SHARED_BYTES <= info.max_shared_memory
    has_room = shape.head_dim % 16 == 0 and shape.head_dim <= _MAX_MATRIX_DIM
    is_plain = shape.kv_dtype is not KVDType.F32 and not shape.latent_dim
    usable = is_plain and has_room and subgroup in (32, 64)
    return subgroup if usable and fits else None


def _prefill_rows(info: DeviceInfo, shape: AttentionShape) -> int:
    """Rows of attention_prefill's tiles: as many as have room in 32 KB of shared memory, and lanes for a workgroup."""
    if shape.head_dim <= 128 and not info.is_software:
        return 32
    return 16 if shape.head_dim <= 256 else 8


def _lane_elements(shape: AttentionShape) -> int:
    return 16 if shape.kv_dtype is KVDType.INT8 else 8


def _lanes(info: DeviceInfo, shape: AttentionShape) -> int:
    """Lanes that share a key: a power of two of which each has as many loads of a value as the others."""
    most = min(info.min_subgroup_size, _SOFTWARE_LANES if info.is_software else _MAX_LANES)
    if not info.is_software and not halves_subgroups(info):
        most = min(most, _GPU_LANES)
    loads, lanes = shape.value_dim // _lane_elements(shape), 1
    while lanes < most and loads % (2 * lanes) == 0:
        lanes *= 2
    return lanes


def _key_chunks(shape: AttentionShape, lanes: int) -> int:
    """Chunks of 8 elements of a key that so many lanes have, with those that stand in for none."""
    elements = _lane_elements(shape)
    return -(-shape.head_dim // (elements * lanes)) * lanes * elements // 8


def _cuts(info: DeviceInfo, shape: AttentionShape, lanes: int, heads: int) -> Iterator[tuple[int, DecodeCut]]:
    """How decode is cut by a step's tokens, with `heads` query heads to a workgroup."""
    subgroup = workgroup_unit(info)
    large = subgroup if info.is_software else _DECODE_WORKGROUP
    while large > subgroup and _decode_shared_bytes(info, shape, large, heads) > _most_shared(info):
        large //= 2
    small = max(subgroup, min(large, _MANY_WORKGROUP))

    def cut(workgroup: int, tile: int, unroll: int, growth: int = 0) -> DecodeCut:
        return DecodeCut(workgroup, _subgroups(info, workgroup), lanes, tile, unroll, growth)

    chunks = _key_chunks(shape, lanes)
    loads = 8 * chunks // _lane_elements(shape)
    if info.is_software:
        yield MAX_FEW_TOKENS, cut(large, _FEW_TILE, 1)
    elif halves_subgroups(info):
        unroll = max(1, 4 * lanes // loads)
        unroll = max(1, min(unroll, _rows_under_way(info, shape) // (heads * chunks // lanes)))
        yield MAX_FEW_TOKENS, cut(large, _FEW_TILE, unroll)
        yield 2 * MAX_FEW_TOKENS, cut(small, _MANY_TILE, max(1, unroll // 2))
    else:
        unroll = max(1, min(_GPU_UNROLL, _GPU_LOADS * lanes // loads))
        yield MAX_ALONE_TOKENS, cut(large, _FEW_TILE, unroll, _ALONE_GROWTH)
        yield MAX_FEW_TOKENS, cut(small, _FEW_TILE, unroll, _FEW_GROWTH)
        not_full = _FULL_UNIT_WORKGROUPS * info.compute_units * heads // shape.num_heads
        if not_full > MAX_FEW_TOKENS:
            yield not_full, cut(large, _MANY_TILE, unroll)
        yield max(not_full, MAX_FEW_TOKENS) + 1, cut(small, _MANY_TILE, unroll)


@dataclass(frozen=True, slots=True)
class DecodeCut:
    """How decode is cut: `lanes` lanes share a key and load `unroll` of them at once, splits have `tile` keys or more.

    A workgroup has `workgroup` lanes, in `subgroups` subgroups at most. From 512 keys on the shortest splits become
    longer: `growth` quarters of a doubling for each doubling of the keys.
    """

    workgroup: int
    subgroups: int
    lanes: int
    tile: int
    unroll: int
    growth: int = 0

    def shortest_split(self, num_keys: int) -> int:
        """Keys of the shortest splits of so many."""
        steps = max(num_keys.bit_length() - 1, _FIRST_GROWTH) - _FIRST_GROWTH
        return self.tile << (self.growth * steps // 4)


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """The kernels' constants for one shape on one device; a pure function of both.

    `cuts` are how decode is cut in steps of up to so many tokens, by rising numbers; the last one is for any above. All
    of them have the same `lanes`. An item has at most `max_splits` splits. `decode_heads` and `prefill_heads` are the
    query heads of a workgroup, `rows` the pairs of a query and a head in a prefill tile, of which a lane scores
    `prefill_keys` keys at a time. With a `matrix_subgroup` prefill runs on matrix units, in subgroups of this size,
    `matrix_shares` of them for the same rows; all else asks for `subgroup`.
    """

    shape: AttentionShape
    cuts: tuple[tuple[int, DecodeCut], ...]
    decode_heads: int
    max_splits: int
    rows: int
    prefill_heads: int
    prefill_keys: int
    matrix_subgroup: int | None
    matrix_shares: int = 1
    subgroup: int | None = None

    @classmethod
    def of(cls, info: DeviceInfo, shape: AttentionShape) -> AttentionPlan:
        """Choose the constants.

        Raises:
            UnsupportedModelError: the device's subgroups are too small to quantise the cache.
        """
        if shape.kv_dtype is KVDType.INT8 and info.min_subgroup_size < _MIN_INT8_SUBGROUP:
            lanes = info.min_subgroup_size
            raise UnsupportedModelError(
                f"KV cache: int8 needs subgroups of {_MIN_INT8_SUBGROUP} lanes, {info.name} has {lanes}"
            )
        lanes = _lanes(info, shape)
        held = (_key_chunks(shape, lanes) + shape.value_dim // 8) // 2  # of q and of output
        decode_heads = _divisor(shape.group, max(1, _most_heads(info, shape) * lanes // held))
        workgroups = shape.num_heads // decode_heads  # of one split
        matrix_subgroup = _matrix_subgroup(info, shape)
        shares = _matrix_shares(info, shape)
        rows = _MATRIX_ROWS // shares if matrix_subgroup else _prefill_rows(info, shape)
        return cls(
            shape=shape,
            cuts=tuple(_cuts(info, shape, lanes, decode_heads)),
            decode_heads=decode_heads,
            max_splits=8 if info.is_software else min(128, max(16, _decode_workgroups(info) // workgroups)),
            rows=rows,
            prefill_heads=_divisor(shape.group, rows),
            prefill_keys=1 if info.is_software else 4,
            matrix_subgroup=matrix_subgroup,
            matrix_shares=shares,
            subgroup=asked_subgroup_size(info),
        )

    @property
    def lane_elements(self) -> int:
        """Elements of a key that a lane of decode loads at once."""
        return _lane_elements(self.shape)

    @property
    def query_tile(self) -> int:
        """Queries of one prefill tile."""
        return self.rows // self.prefill_heads

    @property
    def lanes(self) -> int:
        """Lanes that share a key of decode."""
        return self.cuts[0][1].lanes

    def cut(self, num_tokens: int) -> DecodeCut:
        """How steps that were recorded for so many tokens cut decode."""
        return next((cut for most, cut in self.cuts if num_tokens <= most), self.cuts[-1][1])

    def num_splits(self, context_len: int, window: int, num_tokens: int) -> int:
        """Splits of a decode item with so many tokens, its own included, in a step recorded for `num_tokens`."""
        num_keys = self._num_keys(context_len, window)
        share = -(-num_keys // self.max_splits)
        shortest = self.cut(num_tokens).shortest_split(num_keys)
        return -(-num_keys // max(shortest, -(-share // _SPLIT_GRAIN) * _SPLIT_GRAIN))

    @staticmethod
    def _num_keys(context_len: int, window: int) -> int:
        return min(context_len, window) if window else context_len

    def decode_grid(self, context_lens: Sequence[int], window: int, num_tokens: int) -> Grid:
        """Workgroups for decode items with these contexts, in tokens, of layers with this window (0 = none).

        `num_tokens` is what the step was recorded for.
        """
        if not context_lens:
            return 0, 0, 0
        items, splits = len(context_lens), self.num_splits(max(context_lens), window, num_tokens)
        cut = self.cut(num_tokens)
        if cut.growth or self._num_keys(max(context_lens), window) > cut.tile * self.max_splits:
            splits = max(self.num_splits(context, window, num_tokens) for context in context_lens)
        return splits, self.shape.num_heads // self.decode_heads, items

    def prefill_grid(self, num_tiles: int) -> Grid:
        """Workgroups for so many prefill tiles."""
        return (num_tiles, self.shape.num_heads // self.prefill_heads, 1) if num_tiles else (0, 0, 0)

    def partials_nbytes(self, max_items: int) -> int:
        """Scratch that the splits of so many decode items need, in bytes; it may be shared by all layers."""
        return max_items * self.shape.num_heads * self.max_splits * (self.shape.value_dim + _PARTIAL_EXTRA) * 4

    def split_counters_nbytes(self, max_items: int) -> int:
        """Size of the counters by which the splits of so many decode items are joined, in bytes; shared likewise."""
        return max_items * (self.shape.num_heads // self.decode_heads) * 4
