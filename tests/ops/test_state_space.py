"""Mamba-2's recurrence against double precision, token by token and in chunks, however sequences are cut."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from unicorn_async.errors import ConfigError, UnsupportedModelError
from unicorn_async.ops.chunk_cut import CUTS, ChunkCut
from unicorn_async.ops.runs import LAST_OF_RUN, TOKEN_RUN
from unicorn_async.ops.sample_rows import NO_STATE
from unicorn_async.ops.state_space import SsmShape, SsmTokens, gated_norm, ssm_conv, ssm_conv_state, ssm_scan
from unicorn_async.ops.state_space_chunks import ssm_chunk, ssm_chunks

from .formed_rows import FORMS, FormedRows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from unicorn_async.ops.rows import RowForm

    from .arrays import Arrays

    Doubles = NDArray[np.float64]

NUM_STATES = 4
SMALL = SsmShape(num_groups=2, num_heads=4, state_dim=16, head_dim=12, num_taps=4)


def silu(x: Doubles) -> Doubles:
    return x / (1 + np.exp(-x))


class Recurrence:
    """Made weights, sequences' inputs, what heads find in them, and the states that steps leave."""

    def __init__(
        self,
        arrays: Arrays,
        shape: SsmShape,
        num_tokens: int,
        *,
        num_states: int = NUM_STATES,
        is_chunked: bool = False,
        has_bias: bool = True,
        steps: Sequence[float] = (),
        log_rate: float = 0.0,
    ) -> None:
        """Make them; tokens have one of the `steps` before the softplus, or without these such as models have.

        Logarithms of rates are about `log_rate`.
        """
        rng = np.random.default_rng([shape.columns, num_tokens])
        self.arrays, self.shape, self.is_chunked = arrays, shape, is_chunked
        self.cut: ChunkCut | None = None

        def drawn(*size: int) -> NDArray[np.float32]:
            return rng.standard_normal(size).astype(np.float32)

        heads = shape.num_heads
        self.taps = arrays.put(drawn(shape.columns, shape.num_taps))
        self.bias = arrays.put(drawn(shape.columns)) if has_bias else None
        logs = drawn(heads) + np.float32(log_rate)
        self.rates = np.exp(logs.astype(np.float64))
        self.given_rates = arrays.put(-self.rates.astype(np.float32) if shape.has_rates else logs)
        self.step_bias, self.skips = arrays.put(drawn(heads) - 2), arrays.put(drawn(heads))
        self.inputs = drawn(num_states, num_tokens, shape.projected)
        if steps:
            self.inputs[:, :, -heads:] = rng.choice(np.float32(steps), (num_states, num_tokens, heads))
        # of sequences that were there before, and two copies
        self.state = arrays.poisoned(num_states + 2, shape.state_bytes // 4)
        self.kept: dict[tuple[int, int], int] = {}  # rows by a sequence and how many of its tokens come before
        self.sources: dict[int, int] = {}  # of sequences that begin with another state than their own
        self.targets: dict[int, int] = {}  # of those that leave it elsewhere
        self.expected = [self._reference(index) for index in range(num_states)]

    def _reference(self, index: int) -> Doubles:
        """What heads find in a whole sequence, (tokens, inner)."""
        shape, taps = self.shape, self.taps.values.astype(np.float64)
        rows = self.inputs[index].astype(np.float64)
        x, num_tokens, inner = rows[:, shape.inner : -shape.num_heads], len(rows), shape.inner
        padded = np.concatenate([np.zeros((shape.num_taps - 1, shape.columns)), x])
        summed = sum(padded[tap : tap + num_tokens] * taps[:, tap] for tap in range(shape.num_taps))
        convolved = silu(summed + (0 if self.bias is None else self.bias.values))
        values = convolved[:, :inner].reshape(num_tokens, -1, shape.head_dim)
        keys, queries = (
            np.repeat(part.reshape(num_tokens, shape.num_groups, -1), shape.num_heads // shape.num_groups, axis=1)
            for part in np.split(convolved[:, inner:], 2, axis=1)
        )
        steps = np.logaddexp(0, rows[:, -shape.num_heads :] + self.step_bias.values)
        steps = np.clip(steps, shape.least_step, shape.most_step)
        state, found = np.zeros((shape.num_heads, shape.head_dim, shape.state_dim)), np.empty_like(values)
        for token in range(num_tokens):
            added = steps[token][:, None] * values[token]
            state *= np.exp(-self.rates * steps[token])[:, None, None]
            state += added[:, :, None] * keys[token][:, None, :]
            found[token] = (state @ queries[token][:, :, None])[:, :, 0]
        return (found + self.skips.values[:, None] * values).reshape(num_tokens, -1)

    def step(self, parts: Sequence[tuple[int, int, int]], *, num_rows: int) -> NDArray[Any]:
        """Run a step of parts, each a state index, the first position and a number of tokens; padded to some rows."""
        shape, arrays = self.shape, self.arrays
        runs, positions = np.zeros(num_rows, TOKEN_RUN), np.zeros(num_rows, np.uint32)
        runs["state_index"] = runs["kept"] = NO_STATE
        rows = np.full((num_rows, self.inputs.shape[2]), np.nan, np.float32)
        row = 0
        for index, start, count in parts:
            span = slice(row, row + count)
            runs["state_index"][span], runs["offset"][span] = self.targets.get(index, index), np.arange(count)
            runs["offset"][span.stop - 1] |= LAST_OF_RUN
            runs["source"][span] = self.sources.get(index, index)
            for (sequence, position), kept in self.kept.items():
                if sequence == index and start < position <= start + count:
                    runs["kept"][row + position - start - 1] = kept
            positions[span] = np.arange(start, start + count)
            rows[span] = self.inputs[index, start : start + count]
            row = span.stop
        projected, runs_at, at = (arrays.put(values) for values in (rows, runs, positions))
        out = arrays.poisoned(num_rows, shape.inner)
        chunks = arrays.poisoned(num_rows, shape.chunk_columns) if self.is_chunked else None
        kernels, info = arrays.device.kernels, arrays.device.info
        tokens = SsmTokens(
            shape,
            projected=projected.tensor,
            xbc=arrays.poisoned(num_rows, shape.columns).tensor,
            rates=self.given_rates.tensor,
            step_bias=self.step_bias.tensor,
            skips=self.skips.tensor,
            state=self.state.address,
            runs=runs_at.address,
            positions=at.address,
        )

        def record(recorder: Any) -> None:
            bias = None if self.bias is None else self.bias.tensor
            ssm_conv(recorder, kernels, tokens, taps=self.taps.tensor, bias=bias)
            recorder.barrier()
            ssm_conv_state(recorder, kernels, tokens)
            if chunks is not None:
                ssm_chunk(recorder, kernels, info, tokens, out=chunks.tensor)
                recorder.barrier()
                ssm_chunks(recorder, kernels, info, tokens, chunks=chunks.tensor, out=out.tensor, cut=self.cut)
            ssm_scan(recorder, kernels, info, tokens, out=out.tensor, is_beside_chunks=chunks is not None)

        arrays.run(record)
        return out.values

    def check(self, parts: Sequence[tuple[int, int, int]], *, num_rows: int, rtol: float = 2e-5) -> None:
        """Run a step and compare it."""
        found, row = self.step(parts, num_rows=num_rows), 0
        for index, start, count in parts:
            expected = self.expected[index][start : start + count]
            error = np.abs(found[row : row + count] - expected).max() / self.expected[index].std()
            assert error < rtol, (index, start, count)
            row += count
        assert np.isnan(found[row:]).all()


@pytest.mark.parametrize(
    ("shape", "has_bias"),
    [
        (SMALL, True),
        (SsmShape(1, 4, 128, 64, 4), True),
        (SsmShape(4, 4, 48, 20, 5), False),
        (replace(SMALL, has_rates=True, least_step=0.05, most_step=0.2), True),
    ],
    ids=["small", "as large as models have them", "odd", "as GGUF files have them, and with bounds"],
)
@pytest.mark.parametrize("is_chunked", [False, True], ids=["one by one", "in chunks"])
def test_a_prompt_equals_the_recurrence(arrays: Arrays, shape: SsmShape, has_bias: bool, is_chunked: bool) -> None:
    Recurrence(arrays, shape, 40, is_chunked=is_chunked, has_bias=has_bias).check([(2, 0, 40)], num_rows=48)


def test_states_too_long_for_chunks_go_token_by_token(arrays: Arrays) -> None:
    shape = SsmShape(1, 4, 256, 8, 4)
    assert not shape.takes_chunks(512)
    Recurrence(arrays, shape, 18).check([(1, 0, 18)], num_rows=18)


def test_runs_of_any_lengths_lie_side_by_side_in_a_step(arrays: Arrays) -> None:
    made = Recurrence(arrays, SMALL, 120, is_chunked=True)
    made.check([(0, 0, 17), (1, 0, 1), (2, 0, 33), (3, 0, 15)], num_rows=72)
    made.check([(3, 15, 64), (2, 33, 16), (0, 17, 1), (1, 1, 65)], num_rows=146)
    made.check([(1, 66, 1), (0, 18, 97), (2, 49, 3), (3, 79, 40)], num_rows=141)


@pytest.mark.parametrize("cut", CUTS, ids=lambda cut: f"{cut.columns}-{cut.lanes}-{cut.ahead}")
def test_every_cut_of_a_state_gives_each_run_its_own(arrays: Arrays, cut: ChunkCut) -> None:
    made = Recurrence(arrays, SsmShape(1, 4, 48, 20, 4), 130)
    made.is_chunked, made.cut, made.kept = True, cut, {(1, 64): NUM_STATES}
    made.check([(0, 0, 17), (1, 0, 97), (2, 0, 3)], num_rows=120)
    made.kept, made.sources = {}, {1: NUM_STATES}
    made.check([(2, 3, 64), (1, 64, 66), (0, 17, 1)], num_rows=131)


@pytest.mark.parametrize(
    ("steps", "log_rate"), [((-30.0,), 0.0), ((300.0,), 0.0), ((1e34,), 12.0), ((-30.0, 0.0, 900.0), 0.0)], ids=str
)
def test_steps_of_any_size_neither_overflow_nor_lose_what_follows_them(
    arrays: Arrays, steps: tuple[float, ...], log_rate: float
) -> None:
    for is_chunked in (False, True):
        made = Recurrence(arrays, SMALL, 70, is_chunked=is_chunked, steps=steps, log_rate=log_rate)
        made.check([(0, 0, 70)], num_rows=70)


@pytest.mark.parametrize("is_chunked", [False, True], ids=["one by one", "in chunks"])
def test_a_sequence_goes_on_from_copies_of_its_state(arrays: Arrays, is_chunked: bool) -> None:
    made = Recurrence(arrays, SMALL, 130, is_chunked=is_chunked)
    made.kept = {(1, 64): NUM_STATES, (1, 97): NUM_STATES + 1}
    made.check([(0, 0, 3), (1, 0, 97)], num_rows=100)
    np.testing.assert_array_equal(made.state.values[NUM_STATES + 1], made.state.values[1])
    made.kept, made.sources = {(1, 65): NUM_STATES + 1}, {1: NUM_STATES}
    made.check([(1, 64, 1)], num_rows=2)
    made.kept, made.sources = {}, {1: NUM_STATES + 1}
    made.check([(1, 65, 65)], num_rows=65)


def test_a_sequence_goes_on_behind_any_token_of_a_run_that_left_its_state_alone(arrays: Arrays) -> None:
    made = Recurrence(arrays, SMALL, 40)
    made.check([(0, 0, 7), (1, 0, 9)], num_rows=16)
    for first, row in ((8, NUM_STATES), (9, NUM_STATES + 1), (10, 3)):
        made.kept, made.sources, made.targets = {(0, 8): NUM_STATES, (0, 9): NUM_STATES + 1}, {}, {0: 3}
        made.check([(0, 7, 3)], num_rows=4)
        made.kept, made.sources, made.targets = {}, {0: row}, {0: row}
        made.check([(1, first + 1, 1), (0, first, 1)], num_rows=2)
        made.check([(0, first + 1, 4)], num_rows=4)


def test_a_state_that_is_used_again_has_nothing_of_the_sequence_before(arrays: Arrays) -> None:
    made = Recurrence(arrays, SMALL, 9)
    for start, count in ((0, 9), (0, 1), (1, 1), (2, 5)):
        before = made.state.values.copy()
        made.check([(2, start, count)], num_rows=count)
        np.testing.assert_array_equal(made.state.values[[0, 1, 3]], before[[0, 1, 3]])


def test_errors_do_not_grow_over_16384_tokens_and_both_ways_agree(arrays: Arrays) -> None:
    made = Recurrence(arrays, SsmShape(1, 4, 16, 8, 4), 16_384, num_states=1)
    found = []
    for made.is_chunked in (False, True):
        for start in range(0, 16_384, 4096):
            made.check([(0, start, 4096)], num_rows=4096)
        found.append(made.state.values[0].copy())
    np.testing.assert_allclose(found[0], found[1], rtol=0, atol=2e-5 * np.abs(found[0]).max())


@pytest.mark.parametrize("num_groups", [1, 4])
@pytest.mark.parametrize("form", [None, *FORMS])
def test_what_is_gated_and_normed_has_the_form_that_a_linear_reads(
    arrays: Arrays, form: RowForm | None, num_groups: int
) -> None:
    rng = np.random.default_rng(3)
    x, rows = (rng.uniform(0.5, 1, (5, columns)).astype(np.float32) for columns in (640, 644))
    weight = rng.uniform(0.5, 1, 640).astype(np.float32)
    gated = (x.astype(np.float64) * silu(rows[:, :640].astype(np.float64))).reshape(5, num_groups, -1)
    expected = (gated / np.sqrt((gated**2).mean(-1, keepdims=True) + 1e-6)).reshape(5, -1) * weight
    at, gate, norm = arrays.put(x), arrays.put(rows), arrays.put(weight)
    formed = None if form is None else FormedRows(arrays, form, 5, 640)
    arrays.run(
        lambda recorder: gated_norm(
            recorder,
            arrays.device.kernels,
            arrays.device.info,
            x=at.tensor,
            gate=gate.tensor,
            weight=norm.tensor,
            num_groups=num_groups,
            eps=1e-6,
            out=at.tensor if formed is None else formed.place,
        )
    )
    if formed is None:
        np.testing.assert_allclose(at.values, expected, rtol=1e-5)
    else:
        formed.check(expected)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_groups": 3}, "4 heads, expected a multiple of 4 and of 3 groups"),
        ({"num_heads": 6}, "6 heads, expected a multiple of 4"),
        ({"state_dim": 24}, "states of 24 and heads of 12"),
        ({"state_dim": 272}, "states of 272 and heads of 12"),
        ({"head_dim": 10}, "states of 16 and heads of 10"),
        ({"num_taps": 1}, "1 taps of the convolution, expected 2 to 32"),
        ({"num_taps": 33}, "33 taps of the convolution, expected 2 to 32"),
        ({"least_step": 1.0, "most_step": 0.5}, "steps from 1.0 to 0.5"),
    ],
)
def test_heads_that_no_kernel_takes_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedModelError, match=f"Mamba-2: {message}"):
        replace(SMALL, **changes)


def test_rows_of_another_shape_are_refused_by_name(arrays: Arrays) -> None:
    made = Recurrence(arrays, SMALL, 1)
    made.inputs = np.concatenate([made.inputs, made.inputs[:, :, :4]], axis=2)
    with pytest.raises(ConfigError, match="ssm_conv: projected"):
        made.step([(0, 0, 1)], num_rows=1)
