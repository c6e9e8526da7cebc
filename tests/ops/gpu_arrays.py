"""NumPy arrays on the device under test, and one submission at a time that works on them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from unicorn_async.gpu.command import CommandPool
from unicorn_async.gpu.memory import MemoryKind
from unicorn_async.tensor import DType, Tensor

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Self

    from numpy.typing import NDArray

    from unicorn_async.gpu.command import CommandRecorder
    from unicorn_async.gpu.device import Device
    from unicorn_async.gpu.memory import Buffer

POISON = np.uint8(0xFF)  # NaN in f32, f16 and bf16
TIMEOUT_S = 120.0


class GpuArrays:
    """Uploads, runs and downloads through host-visible memory; a context manager that frees all of it."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self._pool = CommandPool(device, device.compute)
        self._buffers: list[Buffer] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for buffer in self._buffers:
            buffer.close()
        self._pool.close()

    def poisoned(self, nbytes: int) -> Buffer:
        """Bytes that are NaN as whatever float they are read."""
        buffer = self.device.memory.allocate(nbytes, MemoryKind.STAGING, name="test")
        self._buffers.append(buffer)
        self.view(buffer, np.uint8)[:] = POISON
        return buffer

    def put(self, array: NDArray[Any]) -> Buffer:
        """A copy of the array."""
        buffer = self.poisoned(max(array.nbytes, 1))
        self.view(buffer, np.uint8)[: array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        return buffer

    def put_weights(self, values: NDArray[np.float64], dtype: DType) -> tuple[Tensor, NDArray[np.float64]]:
        """Weights rounded to `dtype`, and the values that they have then."""
        raw, exact = encode(values, dtype)
        return Tensor(self.put(raw).address, values.shape, dtype), exact

    def view(self, buffer: Buffer, dtype: Any) -> NDArray[Any]:
        """The buffer's present contents, not a copy."""
        assert buffer.mapped is not None
        return np.frombuffer(buffer.mapped, np.uint8)[: buffer.nbytes].view(dtype)

    def run(self, record: Callable[[CommandRecorder], None]) -> None:
        """Record, submit and wait."""
        recorder = self._pool.recorder()
        record(recorder)
        recorder.host_barrier()
        queue = self.device.compute
        queue.timeline.wait(queue.submit([recorder.end()]), TIMEOUT_S)


def encode(values: NDArray[np.float64], dtype: DType) -> tuple[NDArray[Any], NDArray[np.float64]]:
    """Bits of the values in `dtype` (bfloat16 by truncation), and the values that the bits stand for."""
    single = values.astype(np.float32)
    if dtype is DType.F32:
        return single, single.astype(np.float64)
    if dtype is DType.F16:
        half = values.astype(np.float16)
        return half, half.astype(np.float64)
    bits = (single.view(np.uint32) >> 16).astype(np.uint16)
    return bits, decode_bf16(bits)


def decode_bf16(bits: NDArray[np.uint16]) -> NDArray[np.float64]:
    """Values of bfloat16 bits."""
    return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
