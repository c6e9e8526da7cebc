"""How weights lie in checkpoints that have codes, scales and zero points of quantised ones as tensors of their own."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from unicorn_async.tensor import QUANT_BLOCK, QuantFormat


class Codes(Enum):
    """Where a file has which code of a matrix; the value is the name of the shader's file in shaders/codes."""

    E4M3 = "e4m3"  # a row after the other
    BYTES = "bytes"  # likewise, signed
    BIASED_BYTES = "biased_bytes"  # likewise, 128 more than they stand for
    NIBBLES = "nibbles"  # likewise, the first of two in a byte's lower half
    NF4 = "nf4"  # likewise, the first of two in a byte's upper half
    GPTQ4 = "gptq4"  # words of eight columns of a row, of all rows one after the other
    GPTQ8 = "gptq8"  # words of four columns of a row
    AWQ = "awq"  # words of eight rows of a column, in AWQ's order

    @property
    def is_by_rows(self) -> bool:
        """Whether each row lies in one piece."""
        return self.columns_of_word == 0

    @property
    def source_bytes(self) -> int:
        """Bytes of 32 codes."""
        nibbles = self in (Codes.NIBBLES, Codes.NF4, Codes.GPTQ4, Codes.AWQ)
        return QUANT_BLOCK // 2 if nibbles else QUANT_BLOCK

    @property
    def columns_of_word(self) -> int:
        """Columns of a row that a word has; 0 where rows lie in one piece."""
        return {Codes.GPTQ4: 8, Codes.GPTQ8: 4, Codes.AWQ: 1}.get(self, 0)

    @property
    def rows_of_word(self) -> int:
        """Rows that a word has."""
        return 8 if self is Codes.AWQ else 1


class PlaneUse(Enum):
    """What a tensor beside the codes is for."""

    CODES = "codes"  # that lie by columns
    VALUES = "codes of which dense values are made"
    SCALES = "scales"
    ZEROS = "zero points"
    CHECKED_ZEROS = "zero points that the format has of itself"
    GROUPS = "groups of columns"
    ORDER = "groups by which columns are sorted"

    @property
    def is_for_units(self) -> bool:
        """Whether there is one for each unit of a row."""
        return self in (PlaneUse.SCALES, PlaneUse.ZEROS)


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes of a file."""

    file: int
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Nested:
    """What bytes of scales stand for: of 256 `levels` the one that they choose, times one of `scales`, plus `offset`.

    Each `block` bytes have a scale of theirs. Both tensors are F32.
    """

    levels: Piece
    scales: Piece
    block: int
    offset: float


@dataclass(frozen=True, slots=True)
class Plane:
    """A tensor of a file that has something for rows and columns of a matrix; `name` is the file's.

    A value (of zero points a word) is for `row_block` rows and `column_block` columns, and a line of the tensor has
    `width` of them: those of the same rows, or where `is_turned` those of the same columns. Zero points have `bits`
    each, `added` is to be added to them, and those that are checked have to be `expected`; `even_first` is AWQ's order.
    Of groups `expected` is how many columns each has. Scales of U8 are `nested`. Codes whose columns the device sorts
    have the `groups` of these, those of which values are made the planes that they are made with as `others`.
    """

    use: PlaneUse
    name: str
    dtype: str
    file: int
    offset: int
    nbytes: int
    width: int
    row_block: int
    column_block: int
    is_turned: bool = False
    bits: int = 4
    added: int = 0
    expected: int = 0
    even_first: bool = False
    nested: Nested | None = None
    groups: Piece | None = None
    others: tuple[Plane, ...] = ()

    @property
    def line_bytes(self) -> int:
        """Bytes of a line."""
        return self.width * {"U8": 1, "F16": 2, "BF16": 2}.get(self.dtype, 4)

    @property
    def beside(self) -> tuple[Piece, ...]:
        """What is needed wherever lines of it are."""
        if self.groups is not None:
            return (self.groups,)
        own = () if self.nested is None else (self.nested.levels, self.nested.scales)
        return (*own, *(piece for other in self.others for piece in (other.piece, *other.beside)))

    @property
    def piece(self) -> Piece:
        """All of its bytes."""
        return Piece(self.file, self.offset, self.nbytes)

    @property
    def least_lines(self) -> int:
        """The fewest lines that are of whole units of any format, where they are not of rows."""
        return max(1, MOST_UNIT // self.column_block) if self.is_turned else 1


MOST_UNIT = 64  # columns of a unit of the formats below


@dataclass(frozen=True, slots=True)
class Packing:
    """How a matrix lies in a file: its codes, and the tensors beside them.

    Its columns are sorted by the groups of the plane `order`, where there is one. Equal orders have equal digests.
    """

    codes: Codes
    planes: tuple[Plane, ...]
    order: Plane | None = None
    order_digest: str = ""

    @property
    def plane_bytes(self) -> int:
        """Bytes of all planes."""
        own = sum(
            plane.nbytes + sum(piece.nbytes for piece in plane.beside if piece is not plane.groups)
            for plane in self.planes
        )
        return own + (0 if self.order is None else self.order.nbytes)

    def rounding(self, quant_format: QuantFormat) -> str:
        """What becomes of scales that the device keeps in another type, and how far off that may be; "" if in none."""
        if quant_format is QuantFormat.F8_E4M3:
            return ""
        if quant_format is QuantFormat.NF4:
            return "levels in whole 127ths, off by a block's 270th part at most, scales to F16"
        dtypes = {plane.dtype for plane in self.planes if plane.use is PlaneUse.SCALES}
        return ", ".join(_ROUNDINGS[dtype] for dtype in sorted(dtypes) if dtype in _ROUNDINGS)


# A half has eleven bits, and none below 2^-24.
_ROUNDINGS = {
    "F32": "scales F32 to F16, off by their 2,048th part at most",
    "BF16": "scales BF16 to F16, exact from 2^-17 on",
}


LARGEST_CODES = {
    QuantFormat.F8_E4M3: 448.0,
    QuantFormat.UINT4: 16.0,
    QuantFormat.INT4: 8.0,
    QuantFormat.INT8: 128.0,
    QuantFormat.NF4: 1.0,
}
