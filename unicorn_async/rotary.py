"""Rotary embeddings: what a model's file says of its positions, and kernels are told."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum


class RotaryScaling(Enum):
    """How a rotary embedding's frequencies are changed for longer contexts."""

    NONE = "none"
    LINEAR = "linear"
    LLAMA3 = "llama3"
    FACTORS = "factors"


@dataclass(frozen=True, slots=True)
class RotaryConfig:
    """One rotary embedding: base, the scaling of its frequencies, and which part of a head it rotates.

    `dim` elements of a head rotate, 0 = all of them, and are multiplied by `amplitude`.
    """

    base: float
    scaling: RotaryScaling = RotaryScaling.NONE
    factor: float = 1.0
    low_freq_factor: float = 1.0  # llama3 alone
    high_freq_factor: float = 4.0  # llama3 alone
    original_max_position: int = 8192  # llama3, and factors that have long ones
    factors: tuple[float, ...] = ()  # factors alone: divisors of the frequencies, one a pair
    long_factors: tuple[float, ...] = ()  # in place of them where a sequence may exceed `original_max_position`
    dim: int = 0
    num_pairs: int = 0  # that rotate, the first ones, each as it would if all of `dim` did; 0 = all
    amplitude: float = 1.0
    is_still: bool = False  # nothing rotates: a layer without positions

    def for_context(self, max_context: int) -> RotaryConfig:
        """Choose between short and long factors, once for all sequences, by what the longest may have."""
        if not self.long_factors:
            return self
        chosen = self.long_factors if max_context > self.original_max_position else self.factors
        return replace(self, factors=chosen, long_factors=())
