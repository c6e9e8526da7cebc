"""NormalFloat4 as bitsandbytes writes it: blocks of 64, with scales in F32 or quantised themselves.

Source: bitsandbytes' `functional.py` (`QuantState.as_dict`), and Dettmers et al., QLoRA.
"""

from __future__ import annotations

import json
import struct
from dataclasses import replace
from typing import TYPE_CHECKING

from unicorn_async.checkpoint.packed.parts import plane
from unicorn_async.checkpoint.packed.settings import Settings
from unicorn_async.errors import CheckpointError, UnsupportedModelError
from unicorn_async.packing import Codes, Nested, Packing, Piece, PlaneUse
from unicorn_async.tensor import QuantFormat

if TYPE_CHECKING:
    from collections.abc import Mapping

    from unicorn_async.checkpoint.packed.parts import Parts
    from unicorn_async.checkpoint.source_tensor import SourceTensor
    from unicorn_async.packing import Plane

_STATE = ".weight.quant_state.bitsandbytes__nf4"
_BLOCK, _LEVELS = 64, 256
_MAX_STATE_BYTES = 4096
# The quantiles of a normal distribution that codes choose from.
_NORMAL_FLOATS = (
    *(-1.0, -0.6961928, -0.52507305, -0.3949175, -0.28444138, -0.18477343, -0.09105004, 0.0),
    *(0.0795803, 0.1609302, 0.2461123, 0.33791524, 0.44070983, 0.562617, 0.72295684, 1.0),
)
_NEAR = 1e-5
_MOST_OFFSET = 65000.0  # what scales are at most


def check_settings(raw: Mapping[str, object], where: str) -> None:
    """Check what a configuration says; raises UnsupportedModelError for a kind that can't be read."""
    settings = Settings(raw, f"{where}: bitsandbytes")
    settings.one_of("bnb_4bit_quant_type", "fp4", "nf4")
    settings.one_of("bnb_4bit_quant_storage", "uint8", "uint8")


def join(parts: Parts) -> None:
    """Put what each matrix is made of together; raises CheckpointError where it does not fit."""
    for stem in parts.ending_with(_STATE):
        state_tensor = parts.take(stem + _STATE)
        assert state_tensor is not None, "its name ends so"
        where = f"{parts.directory}: tensor {state_tensor.name!r}"
        state = _state(parts.content(state_tensor, _MAX_STATE_BYTES), where)
        rows, columns = _shape(state, where)
        codes = parts.need(f"{stem}.weight", state_tensor)
        parts.check(codes, "U8", (rows * columns // 2, 1))
        _check_levels(parts, parts.need(f"{stem}.weight.quant_map", codes))
        packing = Packing(Codes.NF4, (_scales(parts, stem, codes, state, (rows, columns), where),))
        parts.put(f"{stem}.weight", replace(codes, dtype=QuantFormat.NF4.value, shape=(rows, columns), packing=packing))


def _scales(
    parts: Parts, stem: str, codes: SourceTensor, state: Mapping[str, object], shape: tuple[int, int], where: str
) -> Plane:
    rows, width = shape[0], shape[1] // _BLOCK
    scales = parts.need(f"{stem}.weight.absmax", codes)
    block = state.get("nested_blocksize")
    own = plane(PlaneUse.SCALES, scales, width=width, row_block=1, column_block=_BLOCK)
    if block is None:
        parts.check(scales, "F32", (rows * width,))
        return own
    offset = state.get("nested_offset")
    if type(block) is not int or not 0 < block < 1 << 24:
        raise CheckpointError(f"{where}: nested_blocksize: expected a positive integer, got {str(block)[:100]}")
    if not isinstance(offset, int | float) or isinstance(offset, bool) or not -_MOST_OFFSET <= offset <= _MOST_OFFSET:
        raise CheckpointError(
            f"{where}: nested_offset: expected a number of at most {_MOST_OFFSET:.0f} in magnitude, "
            f"got {str(offset)[:100]}"
        )
    parts.check(scales, "U8", (rows * width,))
    levels = parts.need(f"{stem}.weight.nested_quant_map", codes)
    parts.check(levels, "F32", (_LEVELS,))
    factors = parts.need(f"{stem}.weight.nested_absmax", codes)
    parts.check(factors, "F32", (-(-rows * width // block),))
    return replace(own, nested=Nested(_piece(levels), _piece(factors), block, float(offset)))


def _state(content: bytes, where: str) -> Mapping[str, object]:
    try:
        state = json.loads(content)
    except (ValueError, RecursionError) as exc:
        raise CheckpointError(f"{where}: expected a JSON object") from exc
    if not isinstance(state, dict):
        raise CheckpointError(f"{where}: expected a JSON object")
    Settings(state, where).one_of("blocksize", None, _BLOCK)
    return state


def _shape(state: Mapping[str, object], where: str) -> tuple[int, int]:
    shape = state.get("shape")
    if not isinstance(shape, list) or len(shape) != 2 or not all(type(n) is int and 0 < n < 1 << 31 for n in shape):
        raise CheckpointError(f"{where}: shape: expected two positive integers, got {str(shape)[:100]}")
    if shape[1] % _BLOCK:
        raise UnsupportedModelError(f"{where}: shape: {shape}, expected rows of whole blocks of {_BLOCK}")
    return shape[0], shape[1]


def _check_levels(parts: Parts, levels: SourceTensor) -> None:
    parts.check(levels, "F32", (len(_NORMAL_FLOATS),))
    content = parts.content(levels, 4 * len(_NORMAL_FLOATS))
    found = struct.unpack(f"<{len(content) // 4}f", content)
    if len(found) != len(_NORMAL_FLOATS) or not all(
        abs(level - own) <= _NEAR for level, own in zip(found, _NORMAL_FLOATS, strict=True)
    ):
        raise UnsupportedModelError(
            f"{parts.directory}: tensor {levels.name!r}: other levels than those of NormalFloat4, such as {found[1:2]}"
        )


def _piece(source: SourceTensor) -> Piece:
    return Piece(source.file, source.offset, source.nbytes)
