"""What each kind of weight becomes on the device: the one place that says so. Pure.

                     auto                     f16   int8   int4   nf4
norms, biases        F32                      F32   F32    F32    F32
embeddings, head     as the file              F16   int8   int8   int8
other matrices       as the file              F16   int8   int4   nf4
those of latents     as the file              as the file

"As the file" holds for F32, F16, BF16 and the blocks of GGUF files. Blocks are never quantised again, and nothing is
blended into them. A matrix of latents' keys and values that is packed as one is taken apart: keys become F16, since
they have rows for columns, and so do values whose rows are no whole blocks or whose columns are sorted by groups. A
blended weight is rounded once, from F32 to the type in the table. What a type can't hold (beyond 65504 for F16, beyond
65000 for quantised weights, infinities, NaNs) is counted by the kernel that finds it, and fails the load.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from unicorn_async.config import WeightScheme
from unicorn_async.tensor import DType, QuantFormat

if TYPE_CHECKING:
    from unicorn_async.tensor import ElementType


class WeightKind(Enum):
    """What a weight is for the rules."""

    VECTOR = "vector"  # norm weights and biases
    TABLE = "table"  # embeddings and output head
    MATRIX = "matrix"
    KEPT = "kept"  # a matrix that a head of latent attention has: parts of these have rows for columns in some files


_MATRIX_FORMATS = {
    WeightScheme.INT8: QuantFormat.INT8,
    WeightScheme.INT4: QuantFormat.INT4,
    WeightScheme.NF4: QuantFormat.NF4,
}


def device_type(kind: WeightKind, source: ElementType, scheme: WeightScheme) -> ElementType:
    """Return what a weight of this kind becomes, which has type `source` in the file.

    Blocks keep their type; who asks for another one has to be refused, see `make_plan`.
    """
    if kind is WeightKind.VECTOR:
        return DType.F32
    if isinstance(source, QuantFormat):
        return source
    if scheme is WeightScheme.AUTO or kind is WeightKind.KEPT:
        return source
    if scheme is WeightScheme.F16:
        return DType.F16
    return QuantFormat.INT8 if kind is WeightKind.TABLE else _MATRIX_FORMATS[scheme]


def largest_value(kind: ElementType) -> float:
    """Return the largest magnitude that a type of weights can hold."""
    if isinstance(kind, QuantFormat):
        return 65000.0
    return {DType.F16: 65504.0, DType.BF16: 3.3895313892515355e38, DType.F32: 3.4028234663852886e38}[kind]
