"""compressed-tensors, as llm-compressor writes it: int4 and int8 packed or plain, and FP8.

Source: the package's `compressors/` and `quantization/quant_args.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from unicorn_async.checkpoint.packed import fp8
from unicorn_async.checkpoint.packed.parts import plane
from unicorn_async.checkpoint.packed.settings import Settings
from unicorn_async.errors import CheckpointError, UnsupportedModelError
from unicorn_async.packing import Codes, Packing, PlaneUse
from unicorn_async.tensor import QuantFormat

if TYPE_CHECKING:
    from collections.abc import Mapping

    from unicorn_async.checkpoint.packed.parts import Parts
    from unicorn_async.checkpoint.source_tensor import SourceTensor
    from unicorn_async.packing import Plane

PACKED, FLOATS = "pack-quantized", "float-quantized"
_PLAIN = ("int-quantized", "naive-quantized")
FORMATS = (PACKED, FLOATS, *_PLAIN)
_WORD, _BYTE = "I32", "I8"
_SCALES, _ZEROS, _SHAPE, _GROUPS = ".weight_scale", ".weight_zero_point", ".weight_shape", ".weight_g_idx"
_TOLD = (
    "num_bits",
    "type",
    "strategy",
    "group_size",
    "symmetric",
    "block_structure",
)  # of weights, what decides how they lie


@dataclass(frozen=True, slots=True)
class Compressed:
    """How a checkpoint's matrices lie; `group_size` is 0 where no groups are."""

    bits: int
    is_float: bool
    is_packed: bool
    is_symmetric: bool
    group_size: int
    block: tuple[int, int] | None


def compressed(raw: Mapping[str, object], where: str) -> Compressed | None:
    """Read what a configuration says, None where it is of a format that is none of these.

    Raises:
        CheckpointError, UnsupportedModelError: it makes no sense, or is a kind that can't be read.
    """
    where = f"{where}: compressed-tensors"
    if raw.get("format") not in (*FORMATS, None, "mixed-precision"):
        return None
    settings, weights, kind = Settings(raw, where), *_weights(raw, where)
    if kind not in FORMATS:
        raise settings.unsupported("format", kind, " or ".join(FORMATS))
    for name in ("transform_config", "sparsity_config"):
        found = raw.get(name) or {}
        if not isinstance(found, dict) or found.get("format", "dense") != "dense" or found.get("config_groups"):
            raise settings.unsupported(name, found, "none")
    own = Settings(weights, f"{where}: weights")
    own.one_of("strategy", "tensor", "tensor", "channel", "group", "block")
    is_float = own.one_of("type", "int", "int", "float") == "float"
    bits = own.one_of("num_bits", 8, *((8,) if is_float or kind != PACKED else (4, 8)))
    own.one_of("actorder", False, False, "weight", "static")  # others have the columns of a group lie anywhere
    is_symmetric = own.flag("symmetric", default=True)
    if not is_symmetric and bits == 8:
        raise own.unsupported("symmetric", False, "symmetric weights of 8 bits")
    return Compressed(
        bits=4 if bits == 4 else 8,
        is_float=is_float,
        is_packed=kind == PACKED,
        is_symmetric=is_symmetric,
        group_size=own.group_size() if weights.get("strategy") == "group" else 0,
        block=fp8.as_block(weights.get("block_structure"), f"{own.where}: block_structure"),
    )


def _weights(raw: Mapping[str, object], where: str) -> tuple[Mapping[str, object], object]:
    """What all groups of modules say of their weights, and the format."""
    groups = raw.get("config_groups")
    if not isinstance(groups, dict) or not groups:
        raise CheckpointError(f"{where}: config_groups: expected an object that is not empty")
    found: list[tuple[Mapping[str, object], object]] = []
    for name, group in groups.items():
        weights = group.get("weights") if isinstance(group, dict) else None
        if not isinstance(weights, dict):
            raise CheckpointError(f"{where}: config_groups: {str(name)[:100]}: expected an object with weights")
        found.append((weights, group.get("format") or raw.get("format")))
    kinds = [([weights.get(name) for name in _TOLD], kind) for weights, kind in found]
    if any(kind != kinds[0] for kind in kinds):
        raise UnsupportedModelError(f"{where}: config_groups: {len(found)} groups of several kinds, expected one")
    return found[0]


def join(parts: Parts, kind: Compressed) -> None:
    """Put each matrix's tensors together; raises CheckpointError where they do not fit."""
    if kind.is_float:
        fp8.join(parts, kind.block)
        return
    suffix, dtype = (".weight_packed", _WORD) if kind.is_packed else (".weight", _BYTE)
    for stem in parts.ending_with(suffix):
        codes = parts.peek(stem + suffix)
        if codes is None or (not kind.is_packed and codes.dtype != dtype):
            continue
        rows, width = parts.matrix(codes, dtype)
        parts.take(stem + suffix)
        parts.take(stem + _SHAPE)
        shape = (rows, width * (32 // kind.bits if kind.is_packed else 1))
        quant_format = QuantFormat.INT8 if kind.bits == 8 else QuantFormat.INT4
        order = Codes.BIASED_BYTES if kind.is_packed else Codes.BYTES
        if kind.bits == 4:
            quant_format, order = quant_format if kind.is_symmetric else QuantFormat.UINT4, Codes.NIBBLES
        packing = Packing(order, _planes(parts, stem, codes, kind, shape))
        parts.put(stem + ".weight", replace(codes, dtype=quant_format.value, shape=shape, packing=packing))
    for other in (_SCALES, _ZEROS):
        for stem in parts.ending_with(other):
            raise CheckpointError(f"{parts.directory}: tensor {stem + other!r}: there is no {stem + suffix!r} for it")


def _planes(
    parts: Parts, stem: str, codes: SourceTensor, kind: Compressed, shape: tuple[int, int]
) -> tuple[Plane, ...]:
    rows, columns = shape
    scales = parts.need(stem + _SCALES, codes)
    group = kind.group_size or columns
    groups = -(-columns // group)
    if not kind.group_size:
        planes = [fp8.scale_plane(parts, scales, rows, columns, None)]
    else:
        parts.check(scales, scales.dtype, (rows, groups))
        planes = [parts.scales(scales, width=groups, row_block=1, column_block=group)]
    if not kind.is_symmetric:
        zeros = parts.need(stem + _ZEROS, codes)
        parts.check(zeros, _WORD, (-(-rows // 8), groups))
        planes.append(plane(PlaneUse.ZEROS, zeros, width=groups, row_block=8, column_block=group))
    if (own := parts.take(stem + _GROUPS)) is not None:
        parts.check(own, _WORD, (columns,))
        named = plane(PlaneUse.GROUPS, own, width=1, row_block=1, column_block=1, is_turned=True)
        planes.append(replace(named, expected=group))
    return tuple(planes)
