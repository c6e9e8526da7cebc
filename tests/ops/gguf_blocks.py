"""GGUF's quantised blocks in NumPy: random ones, and what they stand for, by the definitions in ggml-common.h."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from gguf import GGMLQuantizationType, quants

from unicorn_async.tensor import QuantFormat

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]
    Floats = NDArray[np.float32]

GGUF_FORMATS = [f for f in QuantFormat if f.source_bytes]
_OTHERS = [QuantFormat.NF4, QuantFormat.F8_E4M3, QuantFormat.UINT4]
KERNEL_FORMATS = list({f.layout: f for f in reversed([*_OTHERS, *GGUF_FORMATS])}.values())[::-1]  # one a layout

_IQ4 = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32)
_MXFP4 = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.float32)
# Where each type's scales and offsets, which are halves, lie in its block.
SCALE_OFFSETS = {
    QuantFormat.Q8_0: (0,),
    QuantFormat.Q4_0: (0,),
    QuantFormat.Q4_1: (0, 2),
    QuantFormat.Q5_0: (0,),
    QuantFormat.Q5_1: (0, 2),
    QuantFormat.Q2_K: (80, 82),
    QuantFormat.Q3_K: (108,),
    QuantFormat.Q4_K: (0, 2),
    QuantFormat.Q5_K: (0, 2),
    QuantFormat.Q6_K: (208,),
    QuantFormat.IQ1_S: (0,),
    QuantFormat.IQ1_M: (),  # in four parts, see `put_scales`
    QuantFormat.IQ2_XXS: (0,),
    QuantFormat.IQ2_XS: (0,),
    QuantFormat.IQ2_S: (0,),
    QuantFormat.IQ3_XXS: (0,),
    QuantFormat.IQ3_S: (0,),
    QuantFormat.IQ4_NL: (0,),
    QuantFormat.IQ4_XS: (0,),
    QuantFormat.MXFP4: (),  # a byte, see `MXFP4_EXPONENTS`
}
# Of scales, as bytes mean them: those of a sensible size, and all that halves hold.
MXFP4_EXPONENTS = range(116, 123), range(104, 144)


def random_blocks(quant_format: QuantFormat, rows: int, k: int, seed: int = 0) -> Bytes:
    """Any bits at all for (rows, k) elements, but scales of a sensible size; (blocks, bytes of a block)."""
    rng = np.random.default_rng([seed, rows, k])
    count = rows * k // quant_format.layout.unit
    blocks = rng.integers(0, 256, (count, quant_format.source_bytes), dtype=np.uint8)
    for number in range(num_scales(quant_format)):
        put_scales(quant_format, blocks, number, (rng.standard_normal(count) * 0.01).astype(np.float16))
    if quant_format is QuantFormat.MXFP4:
        blocks[:, 0] = rng.choice(MXFP4_EXPONENTS[0], count)
    return blocks


def num_scales(quant_format: QuantFormat) -> int:
    """How many halves scale all of a block."""
    return 1 if quant_format is QuantFormat.IQ1_M else len(SCALE_OFFSETS[quant_format])


def put_scales(quant_format: QuantFormat, blocks: Bytes, number: int, scales: NDArray[np.float16]) -> None:
    """Write one of the halves of each block."""
    if quant_format is QuantFormat.IQ1_M:
        words = np.ascontiguousarray(blocks[:, 48:]).view(np.uint16) & 0xFFF
        nibbles = scales.view(np.uint16)[:, None] >> np.array([0, 4, 8, 12], np.uint16)
        blocks[:, 48:] = (words | nibbles << 12).view(np.uint8)
        return
    offset = SCALE_OFFSETS[quant_format][number]
    blocks[:, offset : offset + 2] = scales[:, None].view(np.uint8)


def dequantize(quant_format: QuantFormat, blocks: Bytes, rows: int, k: int) -> Floats:
    """The weights (rows, k), computed in single precision as ggml does; of those with codebooks by the package gguf."""
    if quant_format not in DEFINED_HERE:
        return np.asarray(quants.dequantize(blocks.reshape(rows, -1), GGMLQuantizationType[quant_format.value]))
    return DEFINED_HERE[quant_format](blocks).astype(np.float32).reshape(rows, k)


def _half(blocks: Bytes, offset: int) -> Floats:
    return np.ascontiguousarray(blocks[:, offset : offset + 2]).view(np.float16).astype(np.float32)


def _nibbles(packed: Bytes) -> NDArray[np.int32]:
    """16 bytes a block of 32: the lower halves, then the upper ones."""
    return np.concatenate([packed & 15, packed >> 4], axis=1).astype(np.int32)


def _fifth_bits(packed: Bytes) -> NDArray[np.int32]:
    words = np.ascontiguousarray(packed).view(np.uint32)
    return (words >> np.arange(32, dtype=np.uint32) & 1).astype(np.int32) << 4


def _q8_0(blocks: Bytes) -> Floats:
    return _half(blocks, 0) * blocks[:, 2:].view(np.int8)


def _q4_0(blocks: Bytes) -> Floats:
    return _half(blocks, 0) * (_nibbles(blocks[:, 2:]) - 8)


def _q4_1(blocks: Bytes) -> Floats:
    return _half(blocks, 0) * _nibbles(blocks[:, 4:]) + _half(blocks, 2)


def _q5_0(blocks: Bytes) -> Floats:
    return _half(blocks, 0) * ((_nibbles(blocks[:, 6:]) | _fifth_bits(blocks[:, 2:6])) - 16)


def _q5_1(blocks: Bytes) -> Floats:
    return _half(blocks, 0) * (_nibbles(blocks[:, 8:]) | _fifth_bits(blocks[:, 4:8])) + _half(blocks, 2)


def _iq4_nl(blocks: Bytes) -> Floats:
    return _half(blocks, 0) * _IQ4[_nibbles(blocks[:, 2:])]


def _mxfp4(blocks: Bytes) -> Floats:
    return np.ldexp(np.float32(1), blocks[:, :1].astype(np.int32) - 128) * _MXFP4[_nibbles(blocks[:, 1:])]


def _iq4_xs(blocks: Bytes) -> Floats:
    low = (blocks[:, 4:8, None] >> np.array([0, 4], np.uint8) & 15).reshape(-1, 8)
    high = np.ascontiguousarray(blocks[:, 2:4]).view(np.uint16) >> np.arange(0, 16, 2, dtype=np.uint16) & 3
    scales = _half(blocks, 0) * ((low | high << 4).astype(np.int32) - 32)
    codes = _nibbles(blocks[:, 8:].reshape(-1, 16)).reshape(-1, 8, 32)
    return scales.astype(np.float32)[:, :, None] * _IQ4[codes]


def _k_scales(blocks: Bytes) -> tuple[Floats, Floats]:
    """Scales and offsets (blocks, 8, 1) of Q4_K and Q5_K."""
    packed = blocks[:, 4:16]
    first, second, third = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scales = np.concatenate([first & 63, (third & 15) | (first >> 6 << 4)], axis=1)
    offsets = np.concatenate([second & 63, (third >> 4) | (second >> 6 << 4)], axis=1)
    return (_half(blocks, 0) * scales)[:, :, None], (_half(blocks, 2) * offsets)[:, :, None]


def _k_nibbles(packed: Bytes) -> NDArray[np.int32]:
    """128 bytes a block of 256, as (blocks, 8, 32)."""
    pairs = packed.reshape(-1, 4, 1, 32)
    return np.concatenate([pairs & 15, pairs >> 4], axis=2).reshape(-1, 8, 32).astype(np.int32)


def _q4_k(blocks: Bytes) -> Floats:
    scales, offsets = _k_scales(blocks)
    return scales * _k_nibbles(blocks[:, 16:]) - offsets


def _q5_k(blocks: Bytes) -> Floats:
    scales, offsets = _k_scales(blocks)
    bits = blocks[:, 16:48].reshape(-1, 1, 32) >> np.arange(8, dtype=np.uint8).reshape(1, 8, 1) & 1
    return scales * (_k_nibbles(blocks[:, 48:]) | bits.astype(np.int32) << 4) - offsets


def _q2_k(blocks: Bytes) -> Floats:
    scales, offsets = (_half(blocks, 80) * (blocks[:, :16] & 15))[:, :, None], _half(blocks, 82) * (blocks[:, :16] >> 4)
    return scales * _pairs(blocks[:, 16:80]).reshape(-1, 16, 16) - offsets[:, :, None]


def _q3_k(blocks: Bytes) -> Floats:
    low, high = blocks[:, 96:104, None] >> np.array([0, 4], np.uint8) & 15, blocks[:, 104:108]
    high = high[:, None] >> np.array([0, 2, 4, 6], np.uint8)[:, None] & 3
    scales = (low.swapaxes(1, 2).reshape(-1, 16) | high.reshape(-1, 16) << 4).astype(np.int32) - 32
    bits = blocks[:, None, :32] >> np.arange(8, dtype=np.uint8)[:, None] & 1
    codes = (_pairs(blocks[:, 32:96]) | bits << 2).astype(np.int32) - 4
    return (_half(blocks, 108) * scales)[:, :, None] * codes.reshape(-1, 16, 16)


def _pairs(packed: Bytes) -> Bytes:
    """64 bytes a block of 256, as (blocks, 8, 32): of every 32 bytes the lowest pairs of bits, then those above."""
    return (packed.reshape(-1, 2, 1, 32) >> np.array([0, 2, 4, 6], np.uint8)[:, None] & 3).reshape(-1, 8, 32)


def _q6_k(blocks: Bytes) -> Floats:
    low = blocks[:, :128].reshape(-1, 2, 1, 64)
    low = np.concatenate([low & 15, low >> 4], axis=2).reshape(-1, 8, 32)
    high = blocks[:, 128:192].reshape(-1, 2, 1, 32) >> np.array([0, 2, 4, 6], np.uint8).reshape(1, 1, 4, 1) & 3
    codes = (low | high.reshape(-1, 8, 32) << 4).astype(np.int32) - 32
    scales = _half(blocks, 208) * blocks[:, 192:208].view(np.int8)
    return scales[:, :, None] * codes.reshape(-1, 16, 16)


DEFINED_HERE: dict[QuantFormat, Callable[[Bytes], Floats]] = {
    QuantFormat.Q8_0: _q8_0,
    QuantFormat.Q4_0: _q4_0,
    QuantFormat.Q4_1: _q4_1,
    QuantFormat.Q5_0: _q5_0,
    QuantFormat.Q5_1: _q5_1,
    QuantFormat.Q2_K: _q2_k,
    QuantFormat.Q3_K: _q3_k,
    QuantFormat.Q4_K: _q4_k,
    QuantFormat.Q5_K: _q5_k,
    QuantFormat.Q6_K: _q6_k,
    QuantFormat.IQ4_NL: _iq4_nl,
    QuantFormat.IQ4_XS: _iq4_xs,
    QuantFormat.MXFP4: _mxfp4,
}
