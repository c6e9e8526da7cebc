"""Element types and tensors, as they are on disk and as kernels see them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from math import prod
from typing import TypeAlias

from unicorn_async.errors import ConfigError

ALIGNMENT = 256  # bytes, of what lies in one buffer: tensors, planes of quantised ones, arrays of a step


def aligned(nbytes: int, alignment: int = ALIGNMENT) -> int:
    """Return the first multiple of `alignment` that is not less than a size."""
    return -(-nbytes // alignment) * alignment


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
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self.num_elements * self.dtype.itemsize

    def expect(self, name: str, shape: tuple[int, ...], dtype: DType) -> None:
        """Check shape and element type of an operand; raises ConfigError that says what was expected."""
        if self.shape != shape or self.dtype is not dtype:
            raise ConfigError(f"{name}: expected {shape} {dtype.name}, got {self.shape} {self.dtype.name}")


@dataclass(frozen=True, slots=True)
class QuantLayout:
    """How quantised weights lie on the device: three planes, each with the rows' blocks of 32 one after the other.

    `name` is that of the format in shaders/quant. `unit` elements of a row are the smallest part that can be written
    alone, and a row is a whole number of them. `scale_bytes` are for a unit, the others for a block of 32; `high` is
    empty where four or eight bits hold a code.
    """

    name: str
    unit: int
    quant_bytes: int
    high_bytes: int
    scale_bytes: int

    def plane_bytes(self, num_elements: int) -> tuple[int, int, int]:
        """Bytes of the planes: codes, high bits of codes, scales; of a whole number of units."""
        blocks = num_elements // QUANT_BLOCK
        return blocks * self.quant_bytes, blocks * self.high_bytes, num_elements // self.unit * self.scale_bytes


QUANT_BLOCK = 32
LAYOUT_VERSION = 2  # grows when weights come to lie differently on the device, or are quantised to other values


class QuantFormat(Enum):
    """A way to quantise weights; the value is its name, for those from GGUF files the name there.

    What is meant by a code is in shaders/quant, one file a layout. `int8` and `int4` hold the values of Q8_0 and Q4_0.
    F8_E4M3 and `uint4` are of checkpoints that are quantised already, see `packing`.
    """

    INT8 = "int8"
    INT4 = "int4"
    NF4 = "nf4"
    F8_E4M3 = "F8_E4M3"
    UINT4 = "uint4"
    Q8_0 = "Q8_0"
    Q4_0 = "Q4_0"
    Q4_1 = "Q4_1"
    Q5_0 = "Q5_0"
    Q5_1 = "Q5_1"
    Q2_K = "Q2_K"
    Q3_K = "Q3_K"
    Q4_K = "Q4_K"
    Q5_K = "Q5_K"
    Q6_K = "Q6_K"
    IQ1_S = "IQ1_S"
    IQ1_M = "IQ1_M"
    IQ2_XXS = "IQ2_XXS"
    IQ2_XS = "IQ2_XS"
    IQ2_S = "IQ2_S"
    IQ3_XXS = "IQ3_XXS"
    IQ3_S = "IQ3_S"
    IQ4_NL = "IQ4_NL"
    IQ4_XS = "IQ4_XS"
    MXFP4 = "MXFP4"

    @property
    def layout(self) -> QuantLayout:
        """How the format lies on the device."""
        return _LAYOUTS[self]

    @property
    def source_bytes(self) -> int:
        """Bytes of a unit in a GGUF file; 0 for a format that no file has."""
        return _SOURCE_BYTES.get(self, 0)


_Q8 = QuantLayout("q8", 32, 32, 0, 2)
_Q4 = QuantLayout("q4", 32, 16, 0, 2)
_IQ1 = QuantLayout("iq1", 256, 8, 4, 10)
_IQ2 = QuantLayout("iq2", 256, 8, 4, 10)
_LAYOUTS = {
    QuantFormat.INT8: _Q8,
    QuantFormat.INT4: _Q4,
    QuantFormat.NF4: QuantLayout("nf4", 64, 16, 0, 2),
    QuantFormat.F8_E4M3: QuantLayout("f8", 64, 32, 0, 4),
    QuantFormat.UINT4: QuantLayout("uint4", 32, 16, 0, 4),
    QuantFormat.Q8_0: _Q8,
    QuantFormat.Q4_0: _Q4,
    QuantFormat.Q4_1: QuantLayout("q4_1", 32, 16, 0, 4),
    QuantFormat.Q5_0: QuantLayout("q5_0", 32, 16, 4, 2),
    QuantFormat.Q5_1: QuantLayout("q5_1", 32, 16, 4, 4),
    QuantFormat.Q2_K: QuantLayout("q2_k", 256, 8, 0, 20),
    QuantFormat.Q3_K: QuantLayout("q3_k", 256, 8, 4, 20),
    QuantFormat.Q4_K: QuantLayout("q4_k", 256, 16, 0, 16),
    QuantFormat.Q5_K: QuantLayout("q5_k", 256, 16, 4, 16),
    QuantFormat.Q6_K: QuantLayout("q6_k", 256, 16, 8, 20),
    QuantFormat.IQ1_S: _IQ1,
    QuantFormat.IQ1_M: _IQ1,
    QuantFormat.IQ2_XXS: _IQ2,
    QuantFormat.IQ2_XS: _IQ2,
    QuantFormat.IQ2_S: _IQ2,
    QuantFormat.IQ3_XXS: QuantLayout("iq3_xxs", 256, 16, 0, 8),
    QuantFormat.IQ3_S: QuantLayout("iq3_s", 256, 16, 0, 8),
    QuantFormat.IQ4_NL: QuantLayout("iq4_nl", 32, 16, 0, 2),
    QuantFormat.IQ4_XS: QuantLayout("iq4_xs", 256, 16, 0, 8),
    QuantFormat.MXFP4: QuantLayout("mxfp4", 32, 16, 0, 2),
}
_SOURCE_BYTES = {
    QuantFormat.Q8_0: 34,
    QuantFormat.Q4_0: 18,
    QuantFormat.Q4_1: 20,
    QuantFormat.Q5_0: 22,
    QuantFormat.Q5_1: 24,
    QuantFormat.Q2_K: 84,
    QuantFormat.Q3_K: 110,
    QuantFormat.Q4_K: 144,
    QuantFormat.Q5_K: 176,
    QuantFormat.Q6_K: 210,
    QuantFormat.IQ1_S: 50,
    QuantFormat.IQ1_M: 56,
    QuantFormat.IQ2_XXS: 66,
    QuantFormat.IQ2_XS: 74,
    QuantFormat.IQ2_S: 82,
    QuantFormat.IQ3_XXS: 98,
    QuantFormat.IQ3_S: 110,
    QuantFormat.IQ4_NL: 18,
    QuantFormat.IQ4_XS: 136,
    QuantFormat.MXFP4: 17,
}


class BlockPlane(Enum):
    """A plane of quantised weights that is a tensor of its own in a file: codes of blocks of 32, or their scales."""

    MXFP4_CODES = "MXFP4 codes"
    MXFP4_SCALES = "MXFP4 scales"

    @property
    def format(self) -> QuantFormat:
        """What both planes together are."""
        return QuantFormat.MXFP4

    @property
    def source_bytes(self) -> int:
        """Bytes of a block in the file."""
        return 16 if self is BlockPlane.MXFP4_CODES else 1


@dataclass(frozen=True, slots=True)
class QuantTensor:
    """A quantised row-major matrix in device memory; it borrows the memory and does not own it.

    `address` is a buffer device address, aligned to 256 bytes; the planes lie one after the other from there. The last
    dimension is a whole number of the layout's units.
    """

    address: int
    shape: tuple[int, ...]
    format: QuantFormat

    @property
    def num_elements(self) -> int:
        """Product of the shape."""
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Size in bytes, with the padding between the planes."""
        return self.size(self.shape, self.format)

    @property
    def planes(self) -> tuple[int, int, int]:
        """Addresses of the codes, of their high bits and of the scales."""
        return self.planes_from(0)

    def planes_from(self, element: int) -> tuple[int, int, int]:
        """Addresses of what belongs to an element, the first of a unit, and to those after it."""
        layout = self.format.layout
        quants, high, _ = layout.plane_bytes(self.num_elements)
        bases = (self.address, self.address + aligned(quants), self.address + aligned(quants) + aligned(high))
        skipped = layout.plane_bytes(element)
        return bases[0] + skipped[0], bases[1] + skipped[1], bases[2] + skipped[2]

    @staticmethod
    def size(shape: tuple[int, ...], quant_format: QuantFormat) -> int:
        """Bytes that a tensor of this shape takes."""
        quants, high, scales = quant_format.layout.plane_bytes(prod(shape))
        return aligned(quants) + aligned(high) + aligned(scales)


@dataclass(frozen=True, slots=True)
class MixedTensor:
    """A matrix whose rows come from several ones of different types, some of them quantised, one after the other."""

    parts: tuple[Tensor | QuantTensor, ...]

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of the whole."""
        return sum(part.shape[0] for part in self.parts), self.parts[0].shape[1]


Weight: TypeAlias = "Tensor | QuantTensor | MixedTensor"
ElementType: TypeAlias = "DType | QuantFormat"


def parts_of(weight: Weight) -> tuple[Tensor | QuantTensor, ...]:
    """Return what a weight consists of, from its first row on: itself, unless its rows come from several tensors."""
    return weight.parts if isinstance(weight, MixedTensor) else (weight,)


def element_of(tensor: Tensor | QuantTensor) -> ElementType:
    """Return the type of a tensor's elements, whichever kind of type that is."""
    return tensor.dtype if isinstance(tensor, Tensor) else tensor.format
