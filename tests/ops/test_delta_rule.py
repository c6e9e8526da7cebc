"""The gated delta rule against double precision, however sequences are cut and shared among steps."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from unicorn_async.errors import UnsupportedModelError
from unicorn_async.ops.chunk_cut import CUTS, ChunkCut
from unicorn_async.ops.delta_chunks import delta_chunk, delta_chunks
from unicorn_async.ops.delta_rule import DeltaShape, DeltaTokens, delta_conv, delta_conv_state, delta_rule
from unicorn_async.ops.head_gate import HeadGate, head_gate
from unicorn_async.ops.runs import LAST_OF_RUN, TOKEN_RUN
from unicorn_async.ops.sample_rows import NO_STATE

from .formed_rows import FORMS, FormedRows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from unicorn_async.ops.rows import RowForm

    from .arrays import Arrays

    Doubles = NDArray[np.float64]

NUM_STATES = 4
SMALL = DeltaShape(num_key_heads=2, num_value_heads=4, key_dim=16, value_dim=12, num_taps=4)
GATE_COLUMNS = 20  # of a row, behind what the convolution reads


def sigmoid(x: Doubles) -> Doubles:
    return 1 / (1 + np.exp(-x))


class Rule:
    """A recurrence of made weights, its sequences' inputs, and the states that steps leave."""

    def __init__(
        self,
        arrays: Arrays,
        shape: DeltaShape,
        num_tokens: int,
        *,
        num_states: int = NUM_STATES,
        is_chunked: bool = False,
        gates: Sequence[float] = (),
    ) -> None:
        """Make them; tokens have one of the `gates` before the softplus, or without these such as models have."""
        rng = np.random.default_rng([shape.columns, num_tokens])
        self.arrays, self.shape, self.is_chunked = arrays, shape, is_chunked
        self.cut: ChunkCut | None = None
        heads = shape.num_value_heads

        def drawn(*size: int) -> NDArray[np.float32]:
            return rng.standard_normal(size).astype(np.float32)

        self.taps = arrays.put(drawn(shape.columns, shape.num_taps))
        logs = drawn(heads) - 2
        self.rates = np.exp(logs.astype(np.float64))
        self.decays = arrays.put(-self.rates.astype(np.float32) if shape.has_rates else logs)
        self.decay_bias = arrays.put(drawn(heads) - 2)
        self.inputs, self.ba = (
            drawn(num_states, num_tokens, shape.columns + GATE_COLUMNS),
            drawn(num_states, num_tokens, 2 * heads),
        )
        if gates:
            self.ba[:, :, heads:] = rng.choice(np.float32(gates), (num_states, num_tokens, heads))
        # of sequences that were there before, and two copies
        self.state = arrays.poisoned(num_states + 2, shape.state_bytes // 4)
        self.kept: dict[tuple[int, int], int] = {}  # rows by a sequence and how many of its tokens come before
        self.sources: dict[int, int] = {}  # of sequences that begin with another state than their own
        self.targets: dict[int, int] = {}  # of those that leave it elsewhere
        self.expected = [self._reference(index) for index in range(num_states)]

    def _reference(self, index: int) -> Doubles:
        """What heads of values find in a whole sequence, (tokens, heads, value_dim)."""
        shape, taps = self.shape, self.taps.values.astype(np.float64)
        x = self.inputs[index, :, : shape.columns].astype(np.float64)
        num_tokens = len(x)
        padded = np.concatenate([np.zeros((shape.num_taps - 1, shape.columns)), x])
        summed = sum(padded[tap : tap + num_tokens] * taps[:, tap] for tap in range(shape.num_taps))
        convolved = summed * sigmoid(summed)
        keys = shape.num_key_heads * shape.key_dim
        group = shape.num_value_heads // shape.num_key_heads
        q, k = (part.reshape(num_tokens, -1, shape.key_dim) for part in np.split(convolved[:, : 2 * keys], 2, axis=1))
        q, k = (p / np.sqrt((p**2).sum(-1, keepdims=True) + 1e-6) for p in (q, k))
        q, k = (np.tile(p, (1, group, 1)) if shape.is_tiled else np.repeat(p, group, axis=1) for p in (q, k))
        v = convolved[:, 2 * keys :].reshape(num_tokens, -1, shape.value_dim)
        b, a = np.split(self.ba[index].astype(np.float64), 2, axis=1)
        rates = self.rates * np.logaddexp(0, a + self.decay_bias.values)
        kept = np.zeros((shape.num_value_heads, shape.value_dim, shape.key_dim))
        found = np.empty_like(v)
        for token in range(num_tokens):
            kept *= np.exp(-rates[token])[:, None, None]
            delta = sigmoid(b[token])[:, None] * (v[token] - np.einsum("hvk,hk->hv", kept, k[token]))
            kept += delta[:, :, None] * k[token][:, None, :]
            found[token] = np.einsum("hvk,hk->hv", kept, q[token]) * shape.key_dim**-0.5
        return found

    def step(self, parts: Sequence[tuple[int, int, int]], *, num_rows: int) -> NDArray[Any]:
        """Run a step of parts, each a state index, the first position and a number of tokens; padded to some rows."""
        shape, arrays = self.shape, self.arrays
        runs = np.zeros(num_rows, TOKEN_RUN)
        runs["state_index"] = runs["kept"] = NO_STATE
        rows = np.full((num_rows, self.inputs.shape[2]), np.nan, np.float32)
        ba, positions = np.full((num_rows, self.ba.shape[2]), np.nan, np.float32), np.zeros(num_rows, np.uint32)
        row = 0
        for index, start, count in parts:
            span, tokens = slice(row, row + count), slice(start, start + count)
            runs["state_index"][span], runs["offset"][span] = self.targets.get(index, index), np.arange(count)
            runs["offset"][span.stop - 1] |= LAST_OF_RUN
            runs["source"][span] = self.sources.get(index, index)
            for (sequence, position), kept in self.kept.items():
                if sequence == index and start < position <= start + count:
                    runs["kept"][row + position - start - 1] = kept
            positions[span] = np.arange(start, start + count)
            rows[span], ba[span] = self.inputs[index, tokens], self.ba[index, tokens]
            row = span.stop
        projected, ba_at, runs_at, at = (arrays.put(values) for values in (rows, ba, runs, positions))
        convolved, out = arrays.poisoned(num_rows, shape.columns), arrays.poisoned(num_rows, shape.value_columns)
        chunks = arrays.poisoned(num_rows, shape.chunk_columns) if self.is_chunked else None
        kernels, info = arrays.device.kernels, arrays.device.info
        common: dict[str, Any] = {"state": self.state.address, "runs": runs_at.address}
        tokens = DeltaTokens(
            shape,
            qkv=convolved.tensor,
            ba=ba_at.tensor,
            decays=self.decays.tensor,
            decay_bias=self.decay_bias.tensor,
            positions=at.address,
            **common,
        )

        def record(recorder: Any) -> None:
            delta_conv(
                recorder,
                kernels,
                info,
                shape,
                projected=projected.tensor,
                taps=self.taps.tensor,
                positions=at.address,
                out=convolved.tensor,
                **common,
            )
            recorder.barrier()
            delta_conv_state(recorder, kernels, shape, projected=projected.tensor, **common)
            if chunks is not None:
                delta_chunk(recorder, kernels, info, tokens, out=chunks.tensor)
                recorder.barrier()
                delta_chunks(recorder, kernels, info, tokens, chunks=chunks.tensor, out=out.tensor, cut=self.cut)
            delta_rule(recorder, kernels, info, tokens, out=out.tensor, is_beside_chunks=chunks is not None)

        arrays.run(record)
        return out.values

    def check(self, parts: Sequence[tuple[int, int, int]], *, num_rows: int, rtol: float = 2e-5) -> None:
        """Run a step and compare it."""
        found, row = self.step(parts, num_rows=num_rows), 0
        for index, start, count in parts:
            expected = self.expected[index][start : start + count].reshape(count, -1)
            error = np.abs(found[row : row + count] - expected).max() / self.expected[index].std()
            assert error < rtol, (index, start, count)
            row += count
        assert np.isnan(found[row:]).all()


@pytest.mark.parametrize(
    "shape",
    [
        SMALL,
        DeltaShape(1, 1, 128, 128, 2),
        DeltaShape(1, 3, 48, 20, 5),
        replace(SMALL, is_tiled=True, has_rates=True),
    ],
    ids=["small", "as large as models have them", "odd", "as GGUF files have them"],
)
@pytest.mark.parametrize("is_chunked", [False, True], ids=["one by one", "in chunks"])
def test_a_prompt_equals_the_recurrence(arrays: Arrays, shape: DeltaShape, is_chunked: bool) -> None:
    Rule(arrays, shape, 40, is_chunked=is_chunked).check([(2, 0, 40)], num_rows=48)


@pytest.mark.parametrize("count", [15, 16, 17, 31, 32, 33, 64, 65, 96])
def test_a_run_of_any_length_begins_with_the_state_that_the_run_before_left(arrays: Arrays, count: int) -> None:
    rule = Rule(arrays, SMALL, 16 + count, is_chunked=True)
    rule.check([(1, 0, 16)], num_rows=16)
    rule.check([(1, 16, count)], num_rows=count)


def test_runs_of_any_lengths_lie_side_by_side_in_a_step(arrays: Arrays) -> None:
    rule = Rule(arrays, SMALL, 120, is_chunked=True)
    rule.check([(0, 0, 17), (1, 0, 1), (2, 0, 33), (3, 0, 15)], num_rows=72)
    rule.check([(3, 15, 64), (2, 33, 16), (0, 17, 1), (1, 1, 65)], num_rows=146)
    rule.check([(1, 66, 1), (0, 18, 97), (2, 49, 3), (3, 79, 40)], num_rows=141)


@pytest.mark.parametrize("cut", CUTS, ids=lambda cut: f"{cut.columns}-{cut.lanes}-{cut.ahead}")
def test_every_cut_of_a_state_gives_each_run_its_own(arrays: Arrays, cut: ChunkCut) -> None:
    rule = Rule(arrays, DeltaShape(1, 2, 48, 20, 4), 130)
    rule.is_chunked, rule.cut, rule.kept = True, cut, {(1, 64): NUM_STATES}
    rule.check([(0, 0, 17), (1, 0, 97), (2, 0, 3)], num_rows=120)
    rule.kept, rule.sources = {}, {1: NUM_STATES}
    rule.check([(2, 3, 64), (1, 64, 66), (0, 17, 1)], num_rows=131)


@pytest.mark.parametrize("gates", [(-30.0,), (300.0,), (1e30,), (-30.0, 0.0, 900.0)], ids=str)
def test_decays_of_any_size_neither_overflow_nor_lose_what_follows_them(
    arrays: Arrays, gates: tuple[float, ...]
) -> None:
    for is_chunked in (False, True):
        Rule(arrays, SMALL, 70, is_chunked=is_chunked, gates=gates).check([(0, 0, 70)], num_rows=70)


def test_steps_of_many_sequences_cut_anywhere_give_each_its_own(arrays: Arrays) -> None:
    rule = Rule(arrays, SMALL, 64)
    rng = np.random.default_rng(5)
    done = [0] * NUM_STATES
    while min(done) < 64:
        left = [index for index in rng.permutation(NUM_STATES) if done[index] < 64]
        parts = []
        for index in left[: rng.integers(1, len(left) + 1)]:
            count = int(min(rng.choice([1, 1, 2, 3, 9]), 64 - done[index]))
            parts.append((int(index), done[index], count))
            done[index] += count
        rule.check(parts, num_rows=sum(count for *_, count in parts) + int(rng.integers(0, 3)))


@pytest.mark.parametrize("is_chunked", [False, True], ids=["one by one", "in chunks"])
def test_a_sequence_goes_on_from_copies_of_its_state(arrays: Arrays, is_chunked: bool) -> None:
    rule = Rule(arrays, SMALL, 130, is_chunked=is_chunked)
    rule.kept = {(1, 64): NUM_STATES, (1, 97): NUM_STATES + 1}
    rule.check([(0, 0, 3), (1, 0, 97)], num_rows=100)
    np.testing.assert_array_equal(rule.state.values[NUM_STATES + 1], rule.state.values[1])
    rule.kept, rule.sources = {(1, 65): NUM_STATES + 1}, {1: NUM_STATES}
    rule.check([(1, 64, 1)], num_rows=2)
    rule.kept = {}
    rule.check([(1, 64, 33)], num_rows=33)
    rule.sources = {1: NUM_STATES + 1}
    rule.check([(1, 65, 65)], num_rows=65)
    rule.check([(1, 65, 2)], num_rows=2)


def test_a_sequence_goes_on_behind_any_token_of_a_run_that_left_its_state_alone(arrays: Arrays) -> None:
    rule = Rule(arrays, SMALL, 40)
    rule.check([(0, 0, 7), (1, 0, 9)], num_rows=16)
    for first, row in ((8, NUM_STATES), (9, NUM_STATES + 1), (10, 3)):
        rule.kept = {(0, 8): NUM_STATES, (0, 9): NUM_STATES + 1}
        rule.sources, rule.targets = {}, {0: 3}
        rule.check([(0, 7, 3)], num_rows=4)
        rule.kept, rule.sources, rule.targets = {}, {0: row}, {0: row}
        rule.check([(1, first + 1, 1), (0, first, 1)], num_rows=2)
        rule.check([(0, first + 1, 4)], num_rows=4)


def test_a_state_that_is_used_again_has_nothing_of_the_sequence_before(arrays: Arrays) -> None:
    rule = Rule(arrays, SMALL, 9)
    for start, count in ((0, 9), (0, 1), (1, 1), (2, 5)):
        before = rule.state.values.copy()
        rule.check([(2, start, count)], num_rows=count)
        np.testing.assert_array_equal(rule.state.values[[0, 1, 3]], before[[0, 1, 3]])


def test_errors_do_not_grow_over_16384_tokens(arrays: Arrays) -> None:
    rule = Rule(arrays, DeltaShape(1, 1, 16, 8, 4), 16_384, num_states=1)
    for rule.is_chunked in (False, True):
        for start in range(0, 16_384, 4096):
            rule.check([(0, start, 4096)], num_rows=4096)


@pytest.mark.parametrize("has_norm", [False, True])
@pytest.mark.parametrize("form", [None, *FORMS])
def test_a_gate_leaves_the_form_that_a_linear_reads(arrays: Arrays, form: RowForm | None, has_norm: bool) -> None:
    rng = np.random.default_rng(3)
    x, rows = (rng.uniform(0.5, 1, (5, columns)).astype(np.float32) for columns in (128, 300))
    weight = rng.uniform(0.5, 1, 32).astype(np.float32)
    heads = x.astype(np.float64).reshape(5, 4, 32)
    gates = np.stack([rows[:, 8 + 64 * head :][:, :32] for head in range(4)], axis=1).astype(np.float64)
    expected = heads * sigmoid(gates)
    if has_norm:
        scale = 1 / np.sqrt((heads**2).mean(-1, keepdims=True) + 1e-6)
        expected *= scale * weight * gates
    at, gate, norm = arrays.put(x), arrays.put(rows), arrays.put(weight)
    formed = None if form is None else FormedRows(arrays, form, 5, 128)
    arrays.run(
        lambda recorder: head_gate(
            recorder,
            arrays.device.kernels,
            arrays.device.info,
            x=at.tensor,
            gate=HeadGate(gate.tensor, first=8, stride=64),
            num_heads=4,
            out=at.tensor if formed is None else formed.place,
            norm=norm.tensor if has_norm else None,
            eps=1e-6,
        )
    )
    if formed is None:
        np.testing.assert_allclose(at.values.reshape(5, 4, 32), expected, rtol=1e-5)
    else:
        formed.check(expected.reshape(5, 128))


def test_one_gate_may_be_for_all_of_a_head(arrays: Arrays) -> None:
    rng = np.random.default_rng(4)
    x, gates = (rng.uniform(-2, 2, (5, columns)).astype(np.float32) for columns in (96, 3))
    at, rows = arrays.put(x), arrays.put(gates)
    kernels, info = arrays.device.kernels, arrays.device.info
    arrays.run(
        lambda recorder: head_gate(
            recorder, kernels, info, x=at.tensor, gate=HeadGate(rows.tensor), num_heads=3, out=at.tensor
        )
    )
    expected = x.astype(np.float64).reshape(5, 3, 32) * sigmoid(gates.astype(np.float64))[..., None]
    np.testing.assert_allclose(at.values.reshape(5, 3, 32), expected, rtol=1e-5)


@pytest.mark.parametrize("sizes", [(2, 3, 16, 16), (1, 1, 24, 16), (1, 1, 272, 16), (1, 1, 16, 10)])
def test_heads_that_no_kernel_takes_are_refused(sizes: tuple[int, int, int, int]) -> None:
    with pytest.raises(UnsupportedModelError, match="delta rule: "):
        DeltaShape(*sizes, num_taps=4)


def test_more_taps_than_tokens_before_a_copy_are_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="delta rule: 33 taps of the convolution, at most 32"):
        replace(SMALL, num_taps=33)
