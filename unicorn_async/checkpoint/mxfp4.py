"""MXFP4 as gpt-oss is published in safetensors: a tensor of codes and one of scales for each that they stand for.

Source: transformers' `integrations/mxfp4.py`, and the checkpoints of gpt-oss.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from unicorn_async.checkpoint.source_tensor import ScalePlane
from unicorn_async.errors import CheckpointError
from unicorn_async.tensor import QUANT_BLOCK, BlockPlane, QuantFormat

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from unicorn_async.checkpoint.source_tensor import SourceTensor

_CODES, _SCALES = "_blocks", "_scales"
_BYTE = "U8"


def joined_planes(tensors: Mapping[str, SourceTensor], directory: Path) -> dict[str, SourceTensor]:
    """Return the tensors with those of codes and of scales joined to what they stand for, by its name.

    Raises:
        CheckpointError: one lacks the other, or they do not fit to each other.
    """
    joined: dict[str, SourceTensor] = {}
    taken: set[str] = set()
    for name, codes in tensors.items():
        if not name.endswith(_CODES):
            continue
        whole = name.removesuffix(_CODES)
        scales = tensors.get(whole + _SCALES)
        if scales is None or whole in tensors:
            problem = f"there is no {whole + _SCALES!r}" if scales is None else f"{whole!r} is there as well"
            raise CheckpointError(f"{directory}: tensor {codes.name!r}: {problem}")
        joined[whole] = _joined(codes, scales, directory)
        taken |= {name, whole + _SCALES}
    return {name: tensor for name, tensor in tensors.items() if name not in taken} | joined


def _joined(codes: SourceTensor, scales: SourceTensor, directory: Path) -> SourceTensor:
    """Codes are (…, rows, blocks, bytes of a block), scales (…, rows, blocks)."""
    *outer, size = codes.shape or (0,)
    if codes.dtype != _BYTE or size != BlockPlane.MXFP4_CODES.source_bytes or len(outer) < 2:
        raise CheckpointError(
            f"{directory}: tensor {codes.name!r}: expected {_BYTE} of blocks of {BlockPlane.MXFP4_CODES.source_bytes} "
            f"bytes, got {codes.dtype} {list(codes.shape)}"
        )
    if scales.dtype != _BYTE or scales.shape != tuple(outer):
        raise CheckpointError(
            f"{directory}: tensor {scales.name!r}: expected {_BYTE} {outer}, got {scales.dtype} {list(scales.shape)}"
        )
    shape = (*outer[:-1], outer[-1] * QUANT_BLOCK)
    plane = ScalePlane(scales.file, scales.offset, scales.nbytes)
    return replace(codes, dtype=QuantFormat.MXFP4.value, shape=shape, scales=plane)
