"""Weights as blocks by ggml's own quantiser, out of a library of llama.cpp's: libggml-base.so."""

from __future__ import annotations

import ctypes
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from tests.checkpoint.gguf.builders import Tensor
from unicorn_async.checkpoint.gguf.ggml_types import GGML_TYPES

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

_NUMBERS = {kind.name: number for number, kind in GGML_TYPES.items()}


class GgmlBlocks:
    """Encodes matrices; all columns matter alike, where a type has to be told."""

    def __init__(self, library: Path) -> None:
        """Load the library; raises OSError where that can't be done."""
        self._quantize = ctypes.CDLL(str(library)).ggml_quantize_chunk
        self._quantize.restype = ctypes.c_size_t
        pointers, sizes = (ctypes.c_void_p, ctypes.c_void_p), (ctypes.c_int64,) * 3
        self._quantize.argtypes = (ctypes.c_int, *pointers, *sizes, ctypes.c_void_p)

    def encoded(self, kind: str, values: NDArray[np.float32]) -> Tensor:
        """Return a matrix (rows, columns) as a file's tensor of a type."""
        number = _NUMBERS[kind]
        source, importance = np.ascontiguousarray(values, np.float32), np.ones(values.shape[-1], np.float32)
        _, block_elements, block_bytes = GGML_TYPES[number]
        data = np.empty(prod(values.shape) // block_elements * block_bytes, np.uint8)
        rows, columns = values.shape
        done = self._quantize(number, source.ctypes.data, data.ctypes.data, 0, rows, columns, importance.ctypes.data)
        assert done == data.nbytes, f"{kind}: {done} bytes, expected {data.nbytes}"
        return Tensor(number, values.shape, data.tobytes())
