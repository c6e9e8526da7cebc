"""RWKV-7's recurrence in chunks against double precision and token by token, however sequences are cut."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from unicorn_async.ops.chunk_cut import CUTS, ChunkCut
from unicorn_async.ops.runs import LAST_OF_RUN, TOKEN_RUN
from unicorn_async.ops.sample_rows import NO_STATE
from unicorn_async.ops.time_mix import MixedRows, TimeMixShape, time_mix
from unicorn_async.ops.time_mix_chunks import time_mix_chunk, time_mix_chunks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from .arrays import Arrays

    Doubles = NDArray[np.float64]

NUM_STATES = 4
LEAST_DECAY = np.exp(-np.exp(-0.5))  # that a model can have
SMALL = TimeMixShape(2, 16)


class Mixing:
    """Made rows of sequences, what heads find in them, and the states that steps leave."""

    def __init__(
        self,
        arrays: Arrays,
        shape: TimeMixShape,
        num_tokens: int,
        *,
        num_states: int = NUM_STATES,
        decays: Sequence[float] = (),
        is_correlated: bool = False,
    ) -> None:
        """Make them; decays are some of those given, or else such as models have.

        If they are correlated, tokens of a head are all but alike, and each takes out what the one before left.
        """
        rng = np.random.default_rng([shape.columns, num_tokens])
        self.arrays, self.shape, self.num_states = arrays, shape, num_states
        size = (num_states, num_tokens, shape.num_heads, shape.head_dim)
        made = {name: rng.standard_normal(size) for name in MixedRows._fields}
        sizes = rng.choice(decays, size) if decays else LEAST_DECAY ** (1 / (1 + np.exp(-2 * made["w"])))
        if is_correlated:
            made["direction"] = 1 + 0.01 * made["direction"]
        made["w"] = sizes
        made["direction"] /= np.linalg.norm(made["direction"], axis=-1, keepdims=True)
        rates = np.ones(size) if is_correlated else 1 / (1 + np.exp(-made["a"]))
        made["a"] = rates * made["direction"]
        self.rows = {name: values.astype(np.float32) for name, values in made.items()}
        self.state = arrays.poisoned(num_states + 2, shape.state_bytes // 4)
        self.matrices = slice(shape.matrices_offset // 4, shape.channel_offset // 4)
        self.cut: ChunkCut | None = None
        self.kept: dict[tuple[int, int], int] = {}  # rows by a sequence and how many of its tokens come before
        self.sources: dict[int, int] = {}  # of sequences that begin with another state than their own
        found = [self._reference(index) for index in range(num_states)]
        self.expected, self.states = [values for values, _ in found], [states for _, states in found]

    def _reference(self, index: int) -> tuple[Doubles, dict[int, Doubles]]:
        """What heads find, (tokens, columns), and their states by how many tokens come before."""
        w, r, k, v, b, d = (
            self.rows[name][index].astype(np.float64)[:, :, None] for name in ("w", "r", "k", "v", "a", "direction")
        )
        state = np.zeros((self.shape.num_heads, self.shape.head_dim, self.shape.head_dim))
        found, states = np.empty((len(w), self.shape.columns)), {}
        for token in range(len(w)):
            taken = state @ d[token].swapaxes(1, 2)
            state = state * w[token] - taken * b[token] + v[token].swapaxes(1, 2) * k[token]
            found[token] = (state @ r[token].swapaxes(1, 2)).ravel()
            if (token + 1) % 16 == 0 or token + 1 == len(w):
                states[token + 1] = state.ravel()
        return found, states

    def step(
        self, parts: Sequence[tuple[int, int, int]], *, num_rows: int, is_chunked: bool = True
    ) -> NDArray[np.float32]:
        """Run a step of parts, each a state index, the first position and a number of tokens; padded to some rows."""
        shape, arrays = self.shape, self.arrays
        runs, positions = np.zeros(num_rows, TOKEN_RUN), np.zeros(num_rows, np.uint32)
        runs["state_index"] = runs["kept"] = NO_STATE
        made = {name: np.full((num_rows, shape.columns), np.nan, np.float32) for name in MixedRows._fields}
        row = 0
        for index, start, count in parts:
            span = slice(row, row + count)
            runs["state_index"][span], runs["offset"][span] = index, np.arange(count)
            runs["offset"][span.stop - 1] |= LAST_OF_RUN
            runs["source"][span] = self.sources.get(index, index)
            for (sequence, position), kept in self.kept.items():
                if sequence == index and start < position <= start + count:
                    runs["kept"][row + position - start - 1] = kept
            positions[span] = np.arange(start, start + count)
            for name, values in made.items():
                values[span] = self.rows[name][index, start : start + count].reshape(count, -1)
            row = span.stop
        rows = MixedRows(**{name: arrays.put(values).tensor for name, values in made.items()})
        out = arrays.poisoned(num_rows, shape.columns)
        chunks = arrays.poisoned(num_rows, shape.chunk_columns).tensor
        kernels, info = arrays.device.kernels, arrays.device.info
        runs_at, positions_at = arrays.put(runs).address, arrays.put(positions).address
        common: dict[str, Any] = {"state": self.state.address, "runs": runs_at, "positions": positions_at}

        def record(recorder: Any) -> None:
            if is_chunked:
                time_mix_chunk(recorder, kernels, info, shape, rows=rows, runs=runs_at, out=chunks)
                recorder.barrier()
                time_mix_chunks(
                    recorder, kernels, info, shape, rows=rows, chunks=chunks, out=out.tensor, cut=self.cut, **common
                )
            time_mix(recorder, kernels, info, shape, rows=rows, out=out.tensor, is_beside_chunks=is_chunked, **common)

        arrays.run(record)
        return out.values

    def check(
        self,
        parts: Sequence[tuple[int, int, int]],
        *,
        num_rows: int,
        is_chunked: bool = True,
        rtol: float = 2e-5,
    ) -> None:
        """Run a step, and compare what it finds and the states behind it."""
        found, row = self.step(parts, num_rows=num_rows, is_chunked=is_chunked), 0
        for index, start, count in parts:
            expected = self.expected[index]
            error = np.abs(found[row : row + count] - expected[start : start + count]).max() / expected.std()
            assert error < rtol, (index, start, count)
            state = self.states[index].get(start + count)
            if state is not None:
                error = np.abs(self.state.values[index, self.matrices] - state).max() / state.std()
                assert error < rtol, (index, start, count)
            row += count
        assert np.isnan(found[row:]).all()


@pytest.mark.parametrize(("num_heads", "head_dim"), [(2, 64), (1, 16), (3, 48), (1, 128)])
def test_a_prompt_equals_the_recurrence(arrays: Arrays, num_heads: int, head_dim: int) -> None:
    Mixing(arrays, TimeMixShape(num_heads, head_dim), 70, num_states=1).check([(0, 0, 70)], num_rows=75)


@pytest.mark.parametrize("count", [15, 16, 17, 31, 32, 33, 64, 65, 96])
def test_a_run_of_any_length_begins_with_the_state_that_the_run_before_left(arrays: Arrays, count: int) -> None:
    mixing = Mixing(arrays, SMALL, 16 + count)
    mixing.check([(1, 0, 16)], num_rows=16)
    mixing.check([(1, 16, count)], num_rows=count)


def test_runs_of_any_lengths_lie_side_by_side_in_a_step(arrays: Arrays) -> None:
    mixing = Mixing(arrays, SMALL, 120)
    mixing.check([(0, 0, 17), (1, 0, 1), (2, 0, 33), (3, 0, 15)], num_rows=72)
    mixing.check([(3, 15, 64), (2, 33, 16), (0, 17, 1), (1, 1, 65)], num_rows=146)
    mixing.check([(1, 66, 1), (0, 18, 97), (2, 49, 3), (3, 79, 40)], num_rows=141)


@pytest.mark.parametrize("cut", CUTS, ids=lambda cut: f"{cut.columns}-{cut.lanes}-{cut.ahead}")
def test_every_cut_of_a_state_gives_each_run_its_own(arrays: Arrays, cut: ChunkCut) -> None:
    mixing = Mixing(arrays, TimeMixShape(2, 48), 130)
    mixing.cut, mixing.kept = cut, {(1, 64): NUM_STATES}
    mixing.check([(0, 0, 17), (1, 0, 97), (2, 0, 3)], num_rows=120)
    mixing.kept, mixing.sources = {}, {1: NUM_STATES}
    mixing.check([(2, 3, 64), (1, 64, 66), (0, 17, 1)], num_rows=131)


@pytest.mark.parametrize("decays", [(LEAST_DECAY,), (1.0,), (LEAST_DECAY, 1.0)], ids=["all", "none", "both"])
@pytest.mark.parametrize("is_correlated", [False, True], ids=["free", "correlated"])
def test_decays_of_any_size_neither_overflow_nor_lose_what_follows_them(
    arrays: Arrays, decays: Sequence[float], is_correlated: bool
) -> None:
    Mixing(arrays, SMALL, 200, num_states=1, decays=decays, is_correlated=is_correlated).check(
        [(0, 0, 200)], num_rows=200
    )


def test_a_sequence_goes_on_from_copies_of_its_state(arrays: Arrays) -> None:
    mixing = Mixing(arrays, SMALL, 130)
    mixing.kept = {(1, 64): NUM_STATES, (1, 97): NUM_STATES + 1}
    mixing.check([(0, 0, 3), (1, 0, 97)], num_rows=100)
    copies, own = mixing.state.values[:, mixing.matrices], mixing.state.values[1, mixing.matrices]
    np.testing.assert_array_equal(copies[NUM_STATES + 1], own)
    mixing.kept, mixing.sources = {}, {1: NUM_STATES}
    mixing.check([(1, 64, 33)], num_rows=33)
    mixing.sources = {1: NUM_STATES + 1}
    mixing.check([(1, 97, 33)], num_rows=33)


def test_a_state_that_is_used_again_has_nothing_of_the_sequence_before(arrays: Arrays) -> None:
    mixing = Mixing(arrays, SMALL, 40)
    for start, count in ((0, 40), (0, 16), (16, 24)):
        before = mixing.state.values.copy()
        mixing.check([(2, start, count)], num_rows=count)
        np.testing.assert_array_equal(mixing.state.values[[0, 1, 3]], before[[0, 1, 3]])


@pytest.mark.parametrize("is_chunked", [False, True], ids=["one by one", "in chunks"])
def test_errors_do_not_grow_over_16384_tokens(arrays: Arrays, is_chunked: bool) -> None:
    mixing = Mixing(arrays, TimeMixShape(1, 16), 16_384, num_states=1)
    for start in range(0, 16_384, 4096):
        mixing.check([(0, start, 4096)], num_rows=4096, is_chunked=is_chunked)
