"""Arrays in one block of mapped memory, each with its address on the device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import DTypeLike, NDArray

    from unicorn_async.gpu.memory import Buffer

_ALIGNMENT = 256


@dataclass(frozen=True, slots=True)
class Field:
    """An array of a block: its element type and shape."""

    dtype: DTypeLike
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return int(np.dtype(self.dtype).itemsize * np.prod(self.shape, dtype=np.int64))


class FrameBlock:
    """A mapped buffer divided into named arrays; it borrows the buffer.

    `arrays[name]` is a NumPy view into the mapped memory, `address[name]` the same place as the device sees it and
    `offset[name]` its offset in the buffer.
    """

    def __init__(self, buffer: Buffer, fields: Mapping[str, Field]) -> None:
        assert buffer.mapped is not None
        self.buffer = buffer
        self.arrays: dict[str, NDArray[Any]] = {}
        self.address: dict[str, int] = {}
        self.offset: dict[str, int] = {}
        start = 0
        for name, field in fields.items():
            view = np.frombuffer(buffer.mapped[start : start + field.nbytes], dtype=field.dtype)
            self.arrays[name] = view.reshape(field.shape)
            self.address[name] = buffer.address + start
            self.offset[name] = start
            start += _aligned(field.nbytes)

    def close(self) -> None:
        """Drop the views, so that the mapping can be released."""
        self.arrays.clear()


def block_bytes(fields: Mapping[str, Field]) -> int:
    """Return the size of the buffer that the fields need."""
    return sum(_aligned(field.nbytes) for field in fields.values())


def _aligned(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT
