"""How hidden states of a text become one embedding of it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Pooling(Enum):
    """What is made of the hidden states of all tokens."""

    MEAN = "mean"
    LAST = "last"  # that of the last token, which has seen all others


@dataclass(frozen=True, slots=True)
class Pooler:
    """How a model's embeddings are made, of its hidden states behind the last norm.

    Where it `normalises`, an embedding has the length of 1. With a `refusal` its files ask for what is not supported.
    """

    pooling: Pooling = Pooling.MEAN
    normalises: bool = True
    refusal: str | None = None


@dataclass(frozen=True, slots=True)
class Embedded:
    """What is wanted of a sequence: the first `dimensions` of its embedding."""

    pooling: Pooling
    normalises: bool
    dimensions: int
