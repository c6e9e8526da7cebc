"""The kinds of products that kernels can be built with, and how far off they leave answers that are right."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Products(Enum):
    """What the operands of the matrix unit's products are."""

    BF16 = "bf16"
    BFP16 = "bfp16"  # eight values with one exponent, into which the kernels round bf16 as they go


@dataclass(frozen=True, slots=True)
class Precision:
    """How far off answers may be.

    `mean_error` is against the answers' mean size, for random keys and values. `largest` is that of values
    within ±1 to the self-check's questions, and `bias` a mean with its sign: of small weights, or of all answers where
    a weight alone is too coarse to tell how it was rounded.
    """

    mean_error: float
    largest: float
    bias: float
    weights_tell: bool


PRECISIONS = {
    # A weight and the sum of weights are off by 2^-9 each, at most. The bias is 2e-4 at most; where a core rounds down
    # it is -1e-3 or more, mostly -3e-3.
    Products.BF16: Precision(3e-3, 5e-3, 8e-4, weights_tell=True),
    # Of the largest in a block, a value has seven bits. Others measured 3.9e-2 to 5.5e-2; what g++ built is off by
    # 1.5e-2, and by 2.9e-2 at most where it is asked. Where a core rounds down, answers shift by -9e-3 of their
    # size and more, and by 6e-4 at most where it does not.
    Products.BFP16: Precision(4e-2, 4e-2, 3e-3, weights_tell=False),
}
