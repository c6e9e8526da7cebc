"""Memory that linears use beside their operands."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

from unicorn_async.ops.rows import MAX_SPLIT_TILES, BlockRows, HalfRows, RowForm
from unicorn_async.tensor import aligned

if TYPE_CHECKING:
    from unicorn_async.ops.rows import Rows
    from unicorn_async.tensor import Tensor

MAX_PARTIALS = 8 << 20  # f32 that workgroups which share K leave for each other
_MATRIX_SIDE = 16


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

    def rows(self, floats: Tensor, form: RowForm) -> Rows:
        """Where an input goes in a form: `floats`, (tokens, k) f32, for floats, else the room for so much."""
        num_tokens, k = floats.shape
        if form is RowForm.FLOATS:
            return floats
        return self.blocks(num_tokens, k) if form is RowForm.BLOCKS else self.half_rows(num_tokens, k, form)

    def half_rows(self, num_tokens: int, k: int, form: RowForm = RowForm.HALVES) -> HalfRows:
        """The room for an input (num_tokens, k) in half precision."""
        self._check(num_tokens, k)
        return HalfRows(self.values, self.scales, self.counters, form)

    def blocks(self, num_tokens: int, k: int) -> BlockRows:
        """The room for an input (num_tokens, k) in blocks of int8: 40 bytes for 32 elements, of 64.

        Raises:
            UnsupportedModelError: a row is no whole number of blocks.
        """
        self._check(num_tokens, k)
        return BlockRows.at(self.values, num_tokens, k)

    def _check(self, num_tokens: int, k: int) -> None:
        if num_tokens > self.max_tokens or k > self.max_k:
            room = f"({self.max_tokens}, {self.max_k})"
            raise ValueError(f"linear: an input of ({num_tokens}, {k}) needs a scratch, got one for {room}")

    @staticmethod
    def _sizes(max_tokens: int, max_k: int) -> tuple[int, int, int, int]:
        tokens = -(-max_tokens // _MATRIX_SIDE) * _MATRIX_SIDE
        return aligned(tokens * max_k * 2), aligned(max_tokens * 4), MAX_PARTIALS * 4, MAX_SPLIT_TILES * 4
