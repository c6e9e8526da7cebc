"""Rows of activations in the forms that linears read, on a device, and what they stand for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.ops.quant_arrays import read_blocks
from unicorn_async.ops.rows import MAX_SPLIT_TILES, BlockRows, HalfRows, RowForm

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .arrays import Arrays

FORMS = [form for form in RowForm if form is not RowForm.FLOATS]


class FormedRows:
    """Poisoned memory for rows in a form other than floats."""

    def __init__(self, arrays: Arrays, form: RowForm, num_rows: int, columns: int) -> None:
        if form is not RowForm.BLOCKS and not arrays.device.info.float16:
            pytest.skip(f"{arrays.device.info.name} has no shaderFloat16")
        self.shape = num_rows, columns
        self.room = (-(-num_rows // 16) * 16 if form is RowForm.FRAGMENTS else num_rows) * columns * 2
        self.values = arrays.put(np.full(self.room + 64, 0xFF, np.uint8))
        self.scales = arrays.poisoned(num_rows)
        self.counters = arrays.put(np.full(MAX_SPLIT_TILES, 7, np.uint32))
        self.place: HalfRows | BlockRows = HalfRows(
            self.values.address, self.scales.address, self.counters.address, form
        )
        if form is RowForm.BLOCKS:
            self.place = BlockRows.at(self.values.address, num_rows, columns)

    def check_unscaled(self, expected: NDArray[np.float64], rtol: float, atol: float) -> None:
        """Raise where rows whose scale in half precision is 1 are not what was expected; rows of NaN are left alone."""
        rows, columns = self.shape
        live = ~np.isnan(expected).any(axis=1)
        close = atol + rtol * np.abs(expected[live])
        if isinstance(self.place, BlockRows):
            memory = self.values.values.copy()
            for part in (memory[: rows * columns], memory[rows * columns : BlockRows.size(rows, columns)]):
                dead = part.reshape(rows, -1)[~live]
                assert (dead == 0xFF).all()
                part.reshape(rows, -1)[~live] = 0
            codes, scales = read_blocks(memory, rows, columns)
            steps = np.repeat(scales, 32, axis=1)[live]
            assert (np.abs(codes[live] * steps - expected[live]) <= 0.501 * steps + close).all()
            assert (np.abs(codes[live]).reshape(live.sum(), -1, 32).max(axis=2) == 127).all()
            assert (self.values.values[BlockRows.size(rows, columns) :] == 0xFF).all()
            return
        assert (self.scales.values[live] == 1).all() and np.isnan(self.scales.values[~live]).all()
        error = np.abs(self._halves()[live].astype(np.float64) - expected[live])
        assert (error <= np.abs(expected[live]) * 2**-11 + 2**-25 + close).all()
        assert (self.values.values[self.room :] == 0xFF).all()
        assert (self.counters.values == 0).all()

    def check(self, expected: NDArray[np.float64]) -> None:
        """Raise where they are not what was expected, as far as the form holds it, or where more was written."""
        rows, columns = self.shape
        if isinstance(self.place, BlockRows):
            codes, scales = read_blocks(self.values.values, rows, columns)
            steps = np.repeat(scales, 32, axis=1)
            largest = np.abs(expected.reshape(rows, -1, 32)).max(axis=2)
            np.testing.assert_allclose(scales, largest / 127, rtol=1e-5, atol=1e-9)
            assert (np.abs(codes * steps - expected) <= 0.501 * steps + 1e-5 * np.abs(expected)).all()
            assert (self.values.values[BlockRows.size(rows, columns) :] == 0xFF).all()
            return
        halves = self._halves().astype(np.float64)
        scales = self.scales.values
        assert (np.frexp(scales)[0] == 0.5).all()
        largest = np.abs(halves).max(axis=1)
        assert ((largest >= 2**13 * 0.999) & (largest <= 2**14)).all()
        error = np.abs(halves * scales[:, None] - expected)
        assert (error <= np.abs(expected) * (2**-11 + 1e-5) + scales[:, None] * 2**-25).all()
        assert (self.values.values[self.room :] == 0xFF).all()
        assert (self.counters.values == 0).all()

    def _halves(self) -> NDArray[np.float16]:
        rows, columns = self.shape
        found = self.values.values[: self.room].view(np.float16)
        assert isinstance(self.place, HalfRows)
        if self.place.form is RowForm.HALVES:
            return found.reshape(rows, columns)
        parts = found.reshape(-1, columns // 128, 8, 8, 4, 2, 4)  # tiles, chunks, matrices, g, q, row half, elements
        return parts.transpose(0, 5, 3, 1, 4, 2, 6).reshape(-1, columns)[:rows]
