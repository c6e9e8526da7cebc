"""NumPy arrays in memory that a kernel sees."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from unicorn_async.gpu.command import CommandPool
from unicorn_async.gpu.memory import Buffer, MemoryKind
from unicorn_async.tensor import DType, Tensor

if TYPE_CHECKING:
    from collections.abc import Callable

    from unicorn_async.gpu.command import CommandRecorder
    from unicorn_async.gpu.device import Device

_DTYPES = {np.dtype(np.float32): DType.F32, np.dtype(np.float16): DType.F16, np.dtype(np.uint16): DType.BF16}


class Array:
    """A buffer and the NumPy array that is its memory."""

    def __init__(self, buffer: Buffer, values: np.ndarray[Any, Any]) -> None:
        self.buffer = buffer
        self.values = values

    @property
    def address(self) -> int:
        return self.buffer.address

    @property
    def tensor(self) -> Tensor:
        """The array as an operand; uint16 stands for the bits of bf16."""
        return Tensor(self.address, self.values.shape, _DTYPES[self.values.dtype])


class Arrays:
    """Makes arrays on a device, runs what is recorded and frees them all at the end."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self._arrays: list[Array] = []

    def put(self, values: np.ndarray[Any, Any]) -> Array:
        """A copy of `values`."""
        buffer = self.device.memory.allocate(max(16, values.nbytes), MemoryKind.ARGUMENTS, name="test")
        assert buffer.mapped is not None
        view = np.frombuffer(buffer.mapped, dtype=values.dtype, count=values.size).reshape(values.shape)
        view[...] = values
        array = Array(buffer, view)
        self._arrays.append(array)
        return array

    def poisoned(self, *shape: int) -> Array:
        """An f32 array of NaNs, for outputs."""
        return self.put(np.full(shape, np.nan, np.float32))

    def run(self, record: Callable[[CommandRecorder], None]) -> None:
        """Record, submit and wait."""
        pool = CommandPool(self.device, self.device.compute)
        recorder = pool.recorder()
        record(recorder)
        recorder.host_barrier()
        self.device.compute.timeline.wait(self.device.compute.submit([recorder.end()]), timeout_s=600)
        pool.close()

    def close(self) -> None:
        for array in self._arrays:
            del array.values
            array.buffer.close()
        self._arrays.clear()


def bf16(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The bits of the nearest bf16 towards zero."""
    return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


def from_bf16(bits: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return (bits.astype(np.uint32) << 16).view(np.float32)
