"""FP8 in E4M3 as DeepSeek, Qwen and Mistral publish it, and as compressed-tensors writes it.

Source: transformers' `integrations/finegrained_fp8.py`, vLLM's `quantization/fp8.py`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from unicorn_async.errors import CheckpointError, UnsupportedModelError
from unicorn_async.packing import Codes, Packing
from unicorn_async.tensor import QuantFormat

if TYPE_CHECKING:
    from collections.abc import Mapping

    from unicorn_async.checkpoint.packed.parts import Parts
    from unicorn_async.checkpoint.source_tensor import SourceTensor
    from unicorn_async.packing import Plane

E4M3 = "F8_E4M3"
_WEIGHT = ".weight"
_STACK = "_proj"  # the matrices of all experts in one tensor
_OF_CODES = ("_scale_inv", "_scale")
_SCALES = tuple(f"{_WEIGHT}{suffix}" for suffix in _OF_CODES)
# What activations and caches are divided by where they are FP8, which here they are not.
UNREAD = (
    *(
        f".{name}"
        for name in (
            *("input_scale", "input_zero_point", "activation_scale", "output_scale"),
            *("k_scale", "v_scale", "kv_scale", "q_scale"),
        )
    ),
    *(f"{_STACK}_{name}" for name in ("input_scale", "activation_scale")),
)


def block_size(settings: Mapping[str, object], where: str) -> tuple[int, int] | None:
    """Return for how many rows and columns a scale is, None where not by blocks.

    Raises:
        CheckpointError, UnsupportedModelError: the settings are none of FP8, or of another kind of it.
    """
    if (kind := settings.get("fmt", "e4m3")) not in ("e4m3", "float8_e4m3fn"):
        raise UnsupportedModelError(f"{where}: fp8 of fmt {str(kind)[:100]!r}, expected e4m3")
    return as_block(settings.get("weight_block_size"), f"{where}: weight_block_size")


def as_block(value: object, where: str) -> tuple[int, int] | None:
    """Return a pair of positive integers, or None; raises CheckpointError for anything else."""
    if value is None:
        return None
    if isinstance(value, list) and len(value) == 2 and all(type(size) is int and 0 < size < 1 << 31 for size in value):
        return value[0], value[1]
    raise CheckpointError(f"{where}: expected two positive integers, got {str(value)[:100]}")


def join(parts: Parts, block: tuple[int, int] | None) -> None:
    """Put each FP8 matrix and its scales together; raises CheckpointError where they do not fit."""
    for stem in parts.ending_with(_WEIGHT):
        codes = parts.peek(stem + _WEIGHT)
        if codes is None or codes.dtype != E4M3:
            continue
        rows, columns = parts.matrix(codes, E4M3)
        scales = parts.need(stem + _SCALES[0], codes, stem + _SCALES[1])
        parts.take(stem + _WEIGHT)
        packing = Packing(Codes.E4M3, (scale_plane(parts, scales, rows, columns, block),))
        parts.put(stem + _WEIGHT, replace(codes, dtype=QuantFormat.F8_E4M3.value, packing=packing))
    for stem in parts.ending_with(_STACK):
        codes = parts.peek(name := stem + _STACK)
        if codes is None or codes.dtype != E4M3:
            continue
        shape = parts.matrices(codes, E4M3)
        scales = parts.need(name + _OF_CODES[0], codes, name + _OF_CODES[1])
        parts.take(name)
        packing = Packing(Codes.E4M3, (_stack_plane(parts, scales, shape, block),))
        parts.put(name, replace(codes, dtype=QuantFormat.F8_E4M3.value, packing=packing))
    for suffix in _SCALES:
        for stem in parts.ending_with(suffix):
            raise CheckpointError(f"{parts.directory}: tensor {stem + suffix!r}: there is no {E4M3} {stem + _WEIGHT!r}")


def scale_plane(parts: Parts, scales: SourceTensor, rows: int, columns: int, block: tuple[int, int] | None) -> Plane:
    """Return the scales of a matrix: one for all of it, one a row, or one a block."""
    if scales.shape in ((), (1,), (1, 1)):
        return parts.scales(scales, width=1, row_block=rows, column_block=columns)
    shapes = [(rows, 1), (rows,)]
    if block is not None:
        across, down = -(-columns // block[1]), -(-rows // block[0])
        if scales.shape == (down, across):
            return parts.scales(scales, width=across, row_block=block[0], column_block=block[1])
        shapes.insert(0, (down, across))
    parts.check(scales, scales.dtype, *shapes, (1,))
    return parts.scales(scales, width=1, row_block=1, column_block=columns)


def _stack_plane(
    parts: Parts, scales: SourceTensor, shape: tuple[int, int, int], block: tuple[int, int] | None
) -> Plane:
    """The scales of a stack of matrices: one for each, or for its gate and what that is for, one a row, or one a block.

    Rows are counted through all matrices, so that one of blocks has to be whole blocks of them.
    """
    num_matrices, rows, columns = shape
    if block is not None:
        across, down = -(-columns // block[1]), -(-rows // block[0])
        parts.check(scales, scales.dtype, (num_matrices, down, across))
        row_block = rows if down == 1 else block[0]
        if rows % row_block:
            raise UnsupportedModelError(
                f"{parts.directory}: tensor {scales.name!r}: scales for blocks of {row_block} rows of matrices of "
                f"{rows}, expected whole blocks"
            )
        return parts.scales(scales, width=across, row_block=row_block, column_block=block[1])
    halves = ((num_matrices, 2, 1),) if rows % 2 == 0 else ()
    parts.check(
        scales, scales.dtype, (num_matrices, 1, 1), (num_matrices, 1), (num_matrices,), *halves, (num_matrices, rows, 1)
    )
    each = scales.shape[1] if len(scales.shape) == 3 else 1
    return parts.scales(scales, width=1, row_block=rows // each, column_block=columns)
