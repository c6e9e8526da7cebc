"""Rows of a frame that few batches need."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Generic, TypeVar

import numpy as np

from unicorn_async.background import run_to_end

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from unicorn_async.gpu.device import Device
    from unicorn_async.gpu.memory import Buffer, MemoryKind

_Item = TypeVar("_Item", bound=np.generic)


class SeldomRows(Generic[_Item]):
    """An array in mapped memory, for one frame; close it when no step uses it.

    Most engines never need it: it has no memory before `allocate`.
    """

    def __init__(self, device: Device, kind: MemoryKind, name: str) -> None:
        self._device = device
        self._kind = kind
        self._name = name
        self._buffer: Buffer | None = None
        self._array: NDArray[_Item] | None = None
        self._nbytes = 0

    @property
    def is_there(self) -> bool:
        """Whether it was allocated."""
        return self._buffer is not None

    @property
    def array(self) -> NDArray[_Item]:
        """The rows; they are allocated."""
        assert self._array is not None
        return self._array

    @property
    def address(self) -> int:
        """Where the device finds them; they are allocated."""
        assert self._buffer is not None
        return self._buffer.address

    @property
    def nbytes(self) -> int:
        """Size of the memory; 0 until it is allocated."""
        return self._nbytes

    async def allocate(self, dtype: np.dtype[_Item], shape: tuple[int, ...]) -> None:
        """Allocate it, in a thread.

        Raises:
            OutOfMemoryError: it can't be allocated.
        """
        await run_to_end(lambda: self._allocate(dtype, shape))

    def close(self) -> None:
        """Free the memory."""
        self._array = None  # first, so that the mapping can be released
        if self._buffer is not None:
            self._buffer.close()
            self._buffer = None

    def _allocate(self, dtype: np.dtype[_Item], shape: tuple[int, ...]) -> None:
        # Before: who compares it with what is allocated never finds more than that.
        nbytes = self._nbytes = dtype.itemsize * prod(shape)
        try:
            buffer = self._device.memory.allocate(nbytes, self._kind, name=self._name)
        except BaseException:
            self._nbytes = 0
            raise
        assert buffer.mapped is not None
        self._array = np.frombuffer(buffer.mapped[:nbytes], dtype).reshape(shape)
        self._buffer = buffer
