"""The gated delta rule against double precision, however sequences are cut and shared among steps."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from unicorn_async.errors import UnsupportedModelError
from unicorn_async.ops.delta_rule import DeltaShape, delta_conv, delta_conv_state, delta_rule
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

    def __init__(self, arrays: Arrays, shape: DeltaShape, num_tokens: int, *, num_states: int = NUM_STATES) -> None:
        rng = np.random.default_rng([shape.columns, num_tokens])
        self.arrays, self.shape = arrays, shape
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
        self.state = arrays.poisoned(num_states, shape.state_bytes // 4)  # of sequences that were there before
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
        rates = self.rates * np.log1p(np.exp(a + self.decay_bias.values))
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
        runs["state_index"] = NO_STATE
        rows = np.full((num_rows, self.inputs.shape[2]), np.nan, np.float32)
        ba, positions = np.full((num_rows, self.ba.shape[2]), np.nan, np.float32), np.zeros(num_rows, np.uint32)
        row = 0
        for index, start, count in parts:
            span, tokens = slice(row, row + count), slice(start, start + count)
            runs["state_index"][span], runs["offset"][span] = index, np.arange(count)
            runs["offset"][span.stop - 1] |= LAST_OF_RUN
            positions[span] = np.arange(start, start + count)
            rows[span], ba[span] = self.inputs[index, tokens], self.ba[index, tokens]
            row = span.stop
        projected, ba_at, runs_at, at = (arrays.put(values) for values in (rows, ba, runs, positions))
        convolved, out = arrays.poisoned(num_rows, shape.columns), arrays.poisoned(num_rows, shape.value_columns)
        kernels, info = arrays.device.kernels, arrays.device.info
        common: dict[str, Any] = {"state": self.state.address, "runs": runs_at.address}

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
            delta_rule(
                recorder,
                kernels,
                shape,
                qkv=convolved.tensor,
                ba=ba_at.tensor,
                decays=self.decays.tensor,
                decay_bias=self.decay_bias.tensor,
                positions=at.address,
                out=out.tensor,
                **common,
            )

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
def test_a_prompt_equals_the_recurrence(arrays: Arrays, shape: DeltaShape) -> None:
    Rule(arrays, shape, 40).check([(2, 0, 40)], num_rows=48)


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


def test_a_state_that_is_used_again_has_nothing_of_the_sequence_before(arrays: Arrays) -> None:
    rule = Rule(arrays, SMALL, 9)
    for start, count in ((0, 9), (0, 1), (1, 1), (2, 5)):
        before = rule.state.values.copy()
        rule.check([(2, start, count)], num_rows=count)
        np.testing.assert_array_equal(rule.state.values[[0, 1, 3]], before[[0, 1, 3]])


def test_errors_do_not_grow_over_16384_tokens(arrays: Arrays) -> None:
    rule = Rule(arrays, DeltaShape(1, 1, 16, 8, 4), 16_384, num_states=1)
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


@pytest.mark.parametrize("sizes", [(2, 3, 16, 16), (1, 1, 24, 16), (1, 1, 272, 16), (1, 1, 16, 10)])
def test_heads_that_no_kernel_takes_are_refused(sizes: tuple[int, int, int, int]) -> None:
    with pytest.raises(UnsupportedModelError, match="delta rule: "):
        DeltaShape(*sizes, num_taps=4)
