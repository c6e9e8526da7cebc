"""Arrays in one block of mapped memory, each with its address on the device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from unicorn_async.tensor import aligned

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import ExitStack

    from numpy.typing import DTypeLike, NDArray

    from unicorn_async.gpu.device import Device
    from unicorn_async.gpu.memory import Buffer, MemoryKind


@dataclass(frozen=True, slots=True)
class Field:
    """An array of a block: its element type and shape."""

    dtype: DTypeLike
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return int(np.dtype(self.dtype).itemsize * np.prod(self.shape, dtype=np.int64))


class MappedArrays:
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
            start += aligned(field.nbytes)

    def close(self) -> None:
        """Drop the views, so that the mapping can be released."""
        self.arrays.clear()


def made_block(
    made: ExitStack, device: Device, fields: Mapping[str, Field], kind: MemoryKind, name: str
) -> MappedArrays:
    """Allocate a block for the fields; `made` gets what has to be closed.

    Raises:
        OutOfMemoryError: it does not fit.
    """
    buffer = device.memory.allocate(_block_bytes(fields), kind, name=name)
    made.callback(buffer.close)
    block = MappedArrays(buffer, fields)
    made.callback(block.close)  # drops the views before the buffer goes
    return block


def _block_bytes(fields: Mapping[str, Field]) -> int:
    return sum(aligned(field.nbytes) for field in fields.values())
