"""Products with weights, as rules, tuning and reports name them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from unicorn_async.errors import ConfigError, UnsupportedModelError
from unicorn_async.gpu.tuned import Input
from unicorn_async.tensor import QUANT_BLOCK, DType, QuantFormat, QuantTensor

if TYPE_CHECKING:
    from collections.abc import Mapping

    from unicorn_async.gpu.tuned import Constants
    from unicorn_async.tensor import ElementType

_DENSE = {"f16": DType.F16, "bf16": DType.BF16, "f32": DType.F32}
_QUANTISED = {kind.layout.name: kind for kind in reversed(QuantFormat)}  # of equal layouts one; kernels see no other
WEIGHTS = (*_DENSE, *_QUANTISED)  # names of weights' types, as in the names of kernels
_NAMES: Mapping[ElementType, str] = {
    **{dtype: name for name, dtype in _DENSE.items()},
    **{kind: kind.layout.name for kind in QuantFormat},
}
_DENSE_UNIT = 8  # elements of a dense row that a lane reads at once
_KERNELS = (
    "linear_vec",
    "linear_many",
    "linear_few_rows",
    "linear_many_coopmat",
    "linear_quant_vec",
    "linear_quant_held",
    "linear_quant_many",
    "linear_quant_coopmat",
    "linear_quant_fragments",
)
_ENTRIES = {f"{kernel}_{weights}": weights for kernel in _KERNELS for weights in WEIGHTS}


class Product(NamedTuple):
    """y (tokens, n) = x (tokens, k) · weights (n, k)^T, with what its plan depends on.

    `weights` is one of WEIGHTS. With `gated` the halves of y are a gate and what it is for, and the output has half of
    the columns; with `blocked` it is left in blocks of int8.
    """

    weights: str
    tokens: int
    n: int
    k: int
    gated: bool = False
    blocked: bool = False

    @classmethod
    def of(
        cls, element: ElementType, tokens: int, n: int, k: int, *, gated: bool = False, blocked: bool = False
    ) -> Product:
        """Name the product with weights (n, k) of a type."""
        return cls(_NAMES[element], tokens, n, k, gated, blocked)

    @classmethod
    def recorded(
        cls, kernel: str, constants: Mapping[str, int | float | bool], fields: Mapping[str, int | float]
    ) -> Product | None:
        """Name the product that a dispatch makes, by its kernel's name and constants and its push constants by name.

        None where the kernel is none of those that make products.
        """
        weights = _ENTRIES.get(kernel)
        if weights is None:
            return None
        k = fields["k"] if "k" in fields else fields["blocks"] * QUANT_BLOCK
        gated, blocked = (bool(constants.get(name, False)) for name in ("GATED", "BLOCKED"))
        return cls(weights, int(fields["tokens"]), int(fields["n"]), int(k), gated, blocked)

    @property
    def input(self) -> Input:
        """Name what it reads."""
        return Input(self.weights, self.tokens, self.k)

    @property
    def is_quantised(self) -> bool:
        """Whether the weights are codes with scales."""
        return self.weights not in _DENSE

    @property
    def has_float_codes(self) -> bool:
        """Whether codes are floats, whose products take many more registers than those of integers."""
        return self.weights == QuantFormat.F8_E4M3.layout.name

    @property
    def element(self) -> ElementType:
        """The weights' type; of those that lie alike on the device one.

        Raises:
            ConfigError: no kernel's name has the name of this type.
        """
        found = _DENSE.get(self.weights) or _QUANTISED.get(self.weights)
        if found is None:
            raise ConfigError(f"weights {self.weights!r}: expected one of {', '.join(WEIGHTS)}")
        return found

    @property
    def quant_bytes(self) -> int:
        """Bytes of a block's codes, of quantised weights."""
        return _QUANTISED[self.weights].layout.quant_bytes

    @property
    def num_outputs(self) -> int:
        """Columns of the output."""
        return self.n // 2 if self.gated else self.n

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights on a device."""
        element = self.element
        if isinstance(element, QuantFormat):
            return QuantTensor.size((self.n, self.k), element)
        return self.n * self.k * element.itemsize

    @property
    def options(self) -> Constants:
        """The constants by which a kernel gates its sums, and leaves them in blocks."""
        options: Constants = (("GATED", True),) if self.gated else ()
        return (*options, ("BLOCKED", True)) if self.blocked else options


def check_rows(element: ElementType, k: int) -> None:
    """Raise UnsupportedModelError for rows of weights that are no whole number of what kernels take."""
    unit = element.layout.unit if isinstance(element, QuantFormat) else _DENSE_UNIT
    if k % unit or k == 0:
        name = f"{element.value} weights" if isinstance(element, QuantFormat) else "weights"
        raise UnsupportedModelError(f"linear: rows of {name} have {k} elements, expected a multiple of {unit}")
