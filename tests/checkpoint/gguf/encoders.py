"""Weights as blocks of GGUF files: by the `gguf` package where it can, else by plain least squares.

The package's K-quants, IQ4_NL and IQ4_XS can only be read. What is made here instead has no weights for what matters
more (llama.cpp's tools have them), so its error is an upper bound of what these formats lose.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from gguf import GGMLQuantizationType, quants

from unicorn_async.checkpoint.gguf.ggml_types import GGML_TYPES

from .builders import Tensor, array

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    Bytes: TypeAlias = NDArray[np.uint8]
    Floats: TypeAlias = NDArray[np.float32]

_NUMBERS = {kind.name: number for number, kind in GGML_TYPES.items()}
_DENSE = ("F32", "F16", "BF16")
IQ4_NL_LEVELS = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32)
_STEPS = 24  # candidates for a scale
_SLAB = 1 << 15  # numbers that a cache holds, with all that is made of them
_ROUNDS = 6  # of fitting codes, then scale and offset


def encoded(kind: str, values: Floats) -> Tensor:
    """Return a matrix (rows, columns) as a file's tensor of a type, "F32" to "IQ4_XS"."""
    if kind in _DENSE:
        return array(kind, values)
    number = _NUMBERS[kind]
    if kind in _ENCODERS:
        units = np.ascontiguousarray(values, np.float32).reshape(-1, GGML_TYPES[number].block_elements)
        data = _ENCODERS[kind](units)
    else:
        data = quants.quantize(values, GGMLQuantizationType(number))
    return Tensor(number, values.shape, data.tobytes())


def decoded(tensor: Tensor) -> Floats:
    """Return what a tensor of blocks stands for, as the `gguf` package reads it."""
    assert isinstance(tensor.kind, int)
    rows = np.frombuffer(tensor.data, np.uint8).reshape(tensor.shape[0], -1)
    result: Floats = quants.dequantize(rows, GGMLQuantizationType(tensor.kind))
    return result


def _q4_k(units: Floats) -> Bytes:
    head, codes = _scaled_and_offset(units, 15)
    return np.concatenate([head, _k_nibbles(codes)], axis=1)


def _q5_k(units: Floats) -> Bytes:
    head, codes = _scaled_and_offset(units, 31)
    fifth = np.zeros((len(units), 32), np.uint8)
    for index in range(8):
        fifth |= codes[:, index] >> 4 << index
    return np.concatenate([head, fifth, _k_nibbles(codes & 15)], axis=1)


def _q6_k(units: Floats) -> Bytes:
    parts = units.reshape(-1, 16, 16)
    ideal = _best_scale(parts, np.arange(-32, 32, dtype=np.float32), 32)
    largest = np.take_along_axis(ideal, np.abs(ideal).argmax(axis=1)[:, None], axis=1)
    shared = _half(largest / -128)
    scales = np.clip(_rounded_ratio(ideal, shared), -128, 127)
    codes = np.clip(_rounded_ratio(parts, (shared * scales)[:, :, None]), -32, 31).astype(np.int8) + 32
    quarters = codes.astype(np.uint8).reshape(-1, 2, 4, 32)
    low = quarters & 15
    low_bytes = np.concatenate([low[:, :, 0] | low[:, :, 2] << 4, low[:, :, 1] | low[:, :, 3] << 4], axis=2)
    high = quarters >> 4
    high_bytes = high[:, :, 0] | high[:, :, 1] << 2 | high[:, :, 2] << 4 | high[:, :, 3] << 6
    count = len(units)
    return np.concatenate(
        [
            low_bytes.reshape(count, 128),
            high_bytes.reshape(count, 64),
            scales.astype(np.int8).view(np.uint8).reshape(count, 16),
            _half_bytes(shared),
        ],
        axis=1,
    )


def _iq4_nl(units: Floats) -> Bytes:
    scale = _half(_best_scale(units[:, None], IQ4_NL_LEVELS, 127)[:, 0])
    codes = Nearest(IQ4_NL_LEVELS).indices(units / _nonzero(scale)[:, None]).astype(np.uint8)
    return np.concatenate([_half_bytes(scale[:, None]), codes[:, :16] | codes[:, 16:] << 4], axis=1)


def _iq4_xs(units: Floats) -> Bytes:
    parts = units.reshape(-1, 8, 32)
    ideal = _best_scale(parts, IQ4_NL_LEVELS, 127)
    largest = np.take_along_axis(ideal, np.abs(ideal).argmax(axis=1)[:, None], axis=1)
    shared = _half(largest / -32)
    scales = np.clip(_rounded_ratio(ideal, shared), -32, 31)
    steps = _nonzero(shared * scales)[:, :, None]
    codes = Nearest(IQ4_NL_LEVELS).indices(parts / steps).astype(np.uint8)
    sixes = (scales + 32).astype(np.uint8)
    high = ((sixes >> 4).astype(np.uint16) << np.arange(0, 16, 2, dtype=np.uint16)).sum(axis=1, dtype=np.uint16)
    low = sixes[:, 0::2] & 15 | (sixes[:, 1::2] & 15) << 4
    nibbles = (codes[:, :, :16] | codes[:, :, 16:] << 4).reshape(-1, 128)
    return np.concatenate([_half_bytes(shared), high[:, None].view(np.uint8), low, nibbles], axis=1)


_ENCODERS: Mapping[str, Callable[[Floats], Bytes]] = {
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
    "IQ4_NL": _iq4_nl,
    "IQ4_XS": _iq4_xs,
}


def _scaled_and_offset(units: Floats, steps: int) -> tuple[Bytes, Bytes]:
    """The first 16 bytes of Q4_K and Q5_K blocks, and the codes (blocks, 8, 32)."""
    parts = units.reshape(-1, 8, 32)
    scale, offset = _fitted(parts, steps)
    shared, shared_offset = _half(scale.max(axis=1) / 63)[:, None], _half(offset.max(axis=1) / 63)[:, None]
    scales = np.clip(_rounded_ratio(scale, shared), 0, 63).astype(np.uint8)
    offsets = np.clip(_rounded_ratio(offset, shared_offset), 0, 63).astype(np.uint8)
    shifted = parts + (shared_offset * offsets)[:, :, None]
    codes = np.clip(_rounded_ratio(shifted, (shared * scales)[:, :, None]), 0, steps).astype(np.uint8)
    packed = [
        scales[:, :4] | scales[:, 4:] >> 4 << 6,
        offsets[:, :4] | offsets[:, 4:] >> 4 << 6,
        scales[:, 4:] & 15 | (offsets[:, 4:] & 15) << 4,
    ]
    return np.concatenate([_half_bytes(shared), _half_bytes(shared_offset), *packed], axis=1), codes


def _fitted(parts: Floats, steps: int) -> tuple[Floats, Floats]:
    """Scale and offset (blocks, parts), neither negative, that make codes * scale - offset come close."""
    low = np.minimum(parts.min(axis=2), 0)
    scale, offset = (parts.max(axis=2) - low) / steps, -low
    best = np.full(scale.shape, np.inf, np.float32)
    best_scale, best_offset = scale, offset
    for _ in range(_ROUNDS):
        codes = np.clip(_rounded_ratio(parts + offset[:, :, None], scale[:, :, None]), 0, steps)
        error = ((codes * scale[:, :, None] - offset[:, :, None] - parts) ** 2).sum(axis=2)
        better = error < best
        best = np.where(better, error, best)
        best_scale, best_offset = np.where(better, scale, best_scale), np.where(better, offset, best_offset)
        mean_code, mean = codes.mean(axis=2), parts.mean(axis=2)
        spread = ((codes - mean_code[:, :, None]) ** 2).sum(axis=2)
        slope = ((codes - mean_code[:, :, None]) * parts).sum(axis=2) / _nonzero(spread)
        scale = np.maximum(slope, 0)
        offset = np.maximum(scale * mean_code - mean, 0)
    return best_scale, best_offset


def _best_scale(parts: Floats, levels: Floats, largest: float) -> Floats:
    """The scale (blocks, parts) at which the nearest of `levels` lie closest, of some around extreme / largest."""
    nearest = Nearest(levels)
    slabs = np.array_split(parts, -(-parts.size // _SLAB) or 1)
    return np.concatenate([_best_scale_of(slab, nearest, largest) for slab in slabs])


def _best_scale_of(parts: Floats, nearest: Nearest, largest: float) -> Floats:
    extreme = np.take_along_axis(parts, np.abs(parts).argmax(axis=2)[:, :, None], axis=2)[:, :, 0]
    best, chosen = np.full(extreme.shape, np.inf, np.float32), extreme / -largest
    for sign in (-1, 1):
        for factor in np.linspace(0.85, 1.15, _STEPS, dtype=np.float32):
            scale = extreme * (sign * factor / largest)
            near = nearest.levels(parts / _nonzero(scale)[:, :, None])
            scale = (near * parts).sum(axis=2) / _nonzero((near**2).sum(axis=2))
            error = ((near * scale[:, :, None] - parts) ** 2).sum(axis=2)
            chosen, best = np.where(error < best, scale, chosen), np.minimum(error, best)
    return chosen


class Nearest:
    """The nearest of some levels, the lower one of two: they are whole numbers, so that a table of halves knows it."""

    def __init__(self, levels: Floats) -> None:
        edges = levels[1:] + levels[:-1]  # twice what lies between two levels
        self._low, self._high = float(edges[0]), float(edges[-1]) + 1
        halves = np.arange(self._low, self._high + 1, dtype=np.float32)
        self._index = np.searchsorted(edges, halves)
        self._level = levels[self._index]

    def indices(self, values: Floats) -> NDArray[np.int64]:
        """Return which level each is nearest to."""
        return self._index[self._places(values)]

    def levels(self, values: Floats) -> Floats:
        """Return the level that each is nearest to."""
        return self._level[self._places(values)]

    def _places(self, values: Floats) -> NDArray[np.int64]:
        # Twice an edge is a whole number: it lies below twice the value where it lies below that rounded up.
        places: NDArray[np.int64] = (np.clip(np.ceil(values * 2), self._low, self._high) - self._low).astype(np.intp)
        return places


def _k_nibbles(codes: Bytes) -> Bytes:
    """128 bytes a block: codes of two parts in each 32."""
    pairs = (codes & 15).reshape(-1, 4, 2, 32)
    return (pairs[:, :, 0] | pairs[:, :, 1] << 4).reshape(-1, 128)


def _rounded_ratio(values: Floats, step: Floats) -> Floats:
    return np.where(step == 0, 0, np.rint(values / _nonzero(step)))


def _nonzero(values: Floats) -> Floats:
    return np.where(values == 0, 1, values)


def _half(values: Floats) -> Floats:
    return values.astype(np.float16).astype(np.float32)


def _half_bytes(column: Floats) -> Bytes:
    return np.ascontiguousarray(column, np.float16).view(np.uint8)
