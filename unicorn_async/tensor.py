"""Element types and tensors, as they are on disk and as kernels see them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from unicorn_async.errors import ConfigError


class DType(Enum):
    """Element type; the value is the name in a safetensors header."""

    F32 = "F32"
    F16 = "F16"
    BF16 = "BF16"

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return 4 if self is DType.F32 else 2


@dataclass(frozen=True, slots=True)
class Tensor:
    """A dense row-major tensor in device memory; it borrows the memory and does not own it.

    `address` is a buffer device address, aligned to 16 bytes.
    """

    address: int
    shape: tuple[int, ...]
    dtype: DType

    @property
    def num_elements(self) -> int:
        """Product of the shape."""
        count = 1
        for size in self.shape:
            count *= size
        return count

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self.num_elements * self.dtype.itemsize

    def expect(self, name: str, shape: tuple[int, ...], dtype: DType) -> None:
        """Check shape and element type of an operand; raises ConfigError that says what was expected."""
        if self.shape != shape or self.dtype is not dtype:
            raise ConfigError(f"{name}: expected {shape} {dtype.name}, got {self.shape} {self.dtype.name}")
