"""The forms in which linear layers read activations."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from itertools import accumulate
from typing import TypeAlias

from unicorn_async.errors import UnsupportedModelError
from unicorn_async.tensor import QUANT_BLOCK, Tensor, aligned

MAX_SPLIT_TILES = 1024  # of a matrix kernel whose workgroups share K
MAX_PARTIALS = 8 << 20  # f32 that these leave for each other
_MATRIX_SIDE = 16


class InputForm(Enum):
    """A form of activations; the value is its file's name in shaders/form, and the suffix of kernels that write it."""

    FLOATS = "floats"  # f32
    HALVES = "halves"  # f16 with a scale for each row
    FRAGMENTS = "fragments"  # the same in the order of matrices' parts in lanes
    BLOCKS = "blocks"  # int8 with a scale for 32


@dataclass(frozen=True, slots=True)
class HalfRows:
    """Rows in half precision, for matrix units: `values` (tokens, k) f16 times `scales` (tokens) f32, by address.

    `counters` are zeros for matrix kernels whose workgroups share K; whoever writes the rows sees to that. In the form
    of fragments there is room for whole tiles of 16 tokens.
    """

    values: int
    scales: int
    counters: int
    form: InputForm = InputForm.HALVES


@dataclass(frozen=True, slots=True)
class InputBlocks:
    """Rows in blocks of 32 int8, for integer dot products, by address; see shaders/include/block_store.glsl.

    `codes` is (tokens, 2, k / 32, 16) bytes, `scales` (tokens, k / 32) pairs of an f32 scale and two sums of codes.
    """

    codes: int
    scales: int

    @staticmethod
    def size(num_tokens: int, k: int) -> int:
        """Bytes that they take."""
        return num_tokens * (k + k // QUANT_BLOCK * 8)

    @classmethod
    def at(cls, address: int, num_tokens: int, k: int) -> InputBlocks:
        """Lay them out in `size(num_tokens, k)` bytes at an address aligned to 16 bytes.

        Raises:
            UnsupportedModelError: a row is no whole number of blocks.
        """
        if k % QUANT_BLOCK:
            raise UnsupportedModelError(f"linear: inputs have {k} elements a row, expected a multiple of {QUANT_BLOCK}")
        return cls(address, address + num_tokens * k)


LinearInput: TypeAlias = "Tensor | HalfRows | InputBlocks"


@dataclass(frozen=True, slots=True)
class LinearScratch:
    """Room for one input in the form that its linears read, and for what workgroups that share K leave for each other.

    By address: `values` and `scales` hold the input, `partials` and `counters` the rest. The memory is the caller's;
    linears that use it must not run side by side.
    """

    values: int
    scales: int
    partials: int
    counters: int
    max_tokens: int
    max_k: int

    @staticmethod
    def size(max_tokens: int, max_k: int) -> int:
        """Bytes that inputs of up to (max_tokens, max_k) need."""
        return sum(LinearScratch._sizes(max_tokens, max_k))

    @classmethod
    def at(cls, address: int, max_tokens: int, max_k: int) -> LinearScratch:
        """Lay a scratch out in `size(max_tokens, max_k)` bytes at an address aligned to 16 bytes."""
        values, scales, partials, counters = accumulate(cls._sizes(max_tokens, max_k)[:-1], initial=address)
        return cls(values, scales, partials, counters, max_tokens, max_k)

    def half_rows(self, num_tokens: int, k: int, form: InputForm = InputForm.HALVES) -> HalfRows:
        """The room for an input (num_tokens, k) in half precision."""
        self._check(num_tokens, k)
        return HalfRows(self.values, self.scales, self.counters, form)

    def blocks(self, num_tokens: int, k: int) -> InputBlocks:
        """The room for an input (num_tokens, k) in blocks of int8: 40 bytes for 32 elements, of 64.

        Raises:
            UnsupportedModelError: a row is no whole number of blocks.
        """
        self._check(num_tokens, k)
        return InputBlocks.at(self.values, num_tokens, k)

    def _check(self, num_tokens: int, k: int) -> None:
        if num_tokens > self.max_tokens or k > self.max_k:
            room = f"({self.max_tokens}, {self.max_k})"
            raise ValueError(f"linear: an input of ({num_tokens}, {k}) needs a scratch, got one for {room}")

    @staticmethod
    def _sizes(max_tokens: int, max_k: int) -> tuple[int, int, int, int]:
        tokens = aligned(max_tokens, _MATRIX_SIDE)
        return aligned(tokens * max_k * 2), aligned(max_tokens * 4), MAX_PARTIALS * 4, MAX_SPLIT_TILES * 4
