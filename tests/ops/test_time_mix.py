"""RWKV-7's kernels against double precision."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from unicorn_async.errors import UnsupportedModelError
from unicorn_async.ops.activate import Function, activate
from unicorn_async.ops.rows import RowForm
from unicorn_async.ops.runs import LAST_OF_RUN, TOKEN_RUN
from unicorn_async.ops.sample_rows import NO_STATE
from unicorn_async.ops.time_mix import MixedRows, TimeMixShape, time_mix, time_mix_keys, time_mix_out
from unicorn_async.ops.token_shift import ShiftState, token_shift, token_shift_state

from .formed_rows import FORMS, FormedRows

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .arrays import Array, Arrays

    Doubles = NDArray[np.float64]

COPY, SPARE, NUM_STATES = 3, 4, 5
LENGTHS = (23, 9)  # tokens of two sequences
STEPS = (((0, 0, 7), (1, 0, 1)), ((1, 1, 5), (0, 7, 1)), ((0, 8, 15), (1, 6, 3)))  # sequence, start, tokens
TARGETS = {(1, 6): 2}  # where a run from there on leaves its state, if not where it was before
KEPT = {(0, 12): COPY, (1, 6): SPARE}  # rows for states behind tokens of sequences
LEFT = ((0, 0, 22), (1, 1, 5), (2, 1, 8), (COPY, 0, 12), (SPARE, 1, 6))  # row, sequence, last token that it is behind


def sigmoid(x: Doubles) -> Doubles:
    return 1 / (1 + np.exp(-x))


def runs_of(parts: tuple[tuple[int, int, int], ...], num_rows: int) -> tuple[NDArray[Any], NDArray[np.uint32]]:
    """What a step says of its tokens: how they follow each other, and their positions."""
    runs, positions = np.zeros(num_rows, TOKEN_RUN), np.zeros(num_rows, np.uint32)
    runs["state_index"] = runs["kept"] = NO_STATE
    row = 0
    for sequence, start, count in parts:
        span = slice(row, row + count)
        runs["source"][span], runs["state_index"][span] = sequence, TARGETS.get((sequence, start), sequence)
        runs["offset"][span] = np.arange(count)
        runs["offset"][span.stop - 1] |= LAST_OF_RUN
        positions[span] = np.arange(start, start + count)
        for offset in range(count):
            runs["kept"][row + offset] = KEPT.get((sequence, start + offset), NO_STATE)
        row += count
    return runs, positions


def gathered(values: NDArray[Any], parts: tuple[tuple[int, int, int], ...], num_rows: int) -> NDArray[np.float32]:
    """The rows of a step, padded with NaN; `values` are (sequences, tokens, columns)."""
    rows = np.concatenate([values[sequence, start : start + count] for sequence, start, count in parts])
    return np.concatenate([rows, np.full((num_rows - len(rows), rows.shape[1]), np.nan)]).astype(np.float32)


def recurrence(
    w: Doubles, r: Doubles, k: Doubles, v: Doubles, direction: Doubles, b: Doubles
) -> tuple[Doubles, Doubles]:
    """What heads find in each token of one sequence, and the states behind each; all (tokens, heads, elements)."""
    state = np.zeros((*w.shape[1:], w.shape[2]))
    found, states = [], []
    for t in range(len(w)):
        taken = np.einsum("hij,hj->hi", state, direction[t])
        state = state * w[t, :, None] - taken[..., None] * b[t, :, None] + v[t, ..., None] * k[t, :, None]
        found.append(np.einsum("hij,hj->hi", state, r[t]))
        states.append(state)
    return np.array(found), np.array(states)


@pytest.mark.parametrize(("num_heads", "head_dim"), [(3, 64), (1, 16)])
def test_heads_recur_over_steps_as_in_double_precision(arrays: Arrays, num_heads: int, head_dim: int) -> None:
    shape = TimeMixShape(num_heads, head_dim)
    rng = np.random.default_rng(head_dim)
    made = {name: rng.standard_normal((2, max(LENGTHS), shape.columns)) for name in MixedRows._fields}
    made["w"] = np.exp(-0.6 * sigmoid(made["w"]))
    heads = made["direction"].reshape(2, -1, num_heads, head_dim)
    made["direction"] = (heads / np.linalg.norm(heads, axis=-1, keepdims=True)).reshape(made["w"].shape)
    made["a"] = sigmoid(made["a"]) * made["direction"]
    made = {name: values.astype(np.float32) for name, values in made.items()}
    split = {name: values.astype(np.float64).reshape(2, -1, num_heads, head_dim) for name, values in made.items()}
    expected = [
        recurrence(*(split[name][sequence] for name in ("w", "r", "k", "v", "direction", "a"))) for sequence in (0, 1)
    ]
    state = arrays.poisoned(NUM_STATES, shape.state_bytes // 4)
    for parts in STEPS:
        num_rows = sum(count for *_, count in parts) + 2
        runs, positions = (arrays.put(values) for values in runs_of(parts, num_rows))
        rows = MixedRows(*(arrays.put(gathered(made[name], parts, num_rows)).tensor for name in MixedRows._fields))
        out = arrays.poisoned(num_rows, shape.columns)
        arrays.run(
            lambda recorder, rows=rows, runs=runs, positions=positions, out=out: time_mix(
                recorder,
                arrays.device.kernels,
                arrays.device.info,
                shape,
                rows=rows,
                state=state.address,
                runs=runs.address,
                positions=positions.address,
                out=out.tensor,
            )
        )
        wanted = gathered(np.stack([found.reshape(-1, shape.columns) for found, _ in expected]), parts, num_rows)
        np.testing.assert_allclose(out.values, wanted, rtol=1e-4, atol=1e-4)
    matrices = slice(shape.matrices_offset // 4, shape.channel_offset // 4)
    for row, sequence, token in LEFT:
        wanted = expected[sequence][1][token].ravel()
        np.testing.assert_allclose(state.values[row, matrices], wanted, rtol=1e-4, atol=1e-4)
    state.values[:, matrices] = np.nan
    assert np.isnan(state.values).all()


@pytest.mark.parametrize("num_mixes", [1, 6])
def test_tokens_are_mixed_with_the_one_before_over_steps(arrays: Arrays, num_mixes: int) -> None:
    columns, stride = 36, 4 * 52  # rows of vec4s lie where vec4s may
    rng = np.random.default_rng(num_mixes)
    x = rng.standard_normal((2, max(LENGTHS), columns)).astype(np.float32)
    mixes = arrays.put(rng.random((num_mixes, columns)).astype(np.float32))
    before = np.concatenate([np.zeros((2, 1, columns)), x[:, :-1]], axis=1).astype(np.float64)
    state = arrays.poisoned(NUM_STATES, stride // 4)
    for parts in STEPS:
        num_rows = sum(count for *_, count in parts) + 2
        runs, positions = (arrays.put(values) for values in runs_of(parts, num_rows))
        rows, out = arrays.put(gathered(x, parts, num_rows)), arrays.poisoned(num_mixes * num_rows, columns)
        kept = ShiftState(state.address, stride, runs.address)

        def record(
            recorder: Any, rows: Array = rows, out: Array = out, at: Array = positions, kept: Any = kept
        ) -> None:
            token_shift(
                recorder,
                arrays.device.kernels,
                x=rows.tensor,
                mixes=mixes.tensor,
                num_mixes=num_mixes,
                state=kept,
                positions=at.address,
                out=out.tensor,
            )
            recorder.barrier()
            token_shift_state(recorder, arrays.device.kernels, x=rows.tensor, state=kept)

        arrays.run(record)
        for number, mix in enumerate(mixes.values.astype(np.float64)):
            wanted = gathered(x + (before - x) * mix, parts, num_rows)
            found = out.values[number * num_rows : (number + 1) * num_rows]
            np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-6)
    for row, sequence, token in LEFT:
        np.testing.assert_array_equal(state.values[row, :columns], x[sequence, token])


@pytest.mark.parametrize("blends", [False, True])
def test_keys_decays_rates_and_values_are_those_of_double_precision(arrays: Arrays, blends: bool) -> None:
    shape, num_tokens = TimeMixShape(2, 48), 5
    rng = np.random.default_rng(blends)
    rows = MixedRows(
        *(arrays.put(rng.standard_normal((num_tokens, shape.columns)).astype(np.float32)) for _ in MixedRows._fields)
    )
    rows.w.values[0], rows.a.values[1], rows.k.values[2] = 200.0, -200.0, 0.0
    first, blend = (arrays.put(rng.standard_normal((num_tokens, shape.columns)).astype(np.float32)) for _ in range(2))
    k_k, k_a = (arrays.put(rng.standard_normal(shape.columns).astype(np.float32)) for _ in range(2))
    given = {name: array.values.astype(np.float64) for name, array in rows._asdict().items()}
    rate = sigmoid(given["a"])
    direction = (given["k"] * k_k.values).reshape(num_tokens, shape.num_heads, -1)
    direction /= np.maximum(np.linalg.norm(direction, axis=-1, keepdims=True), 1e-12)
    direction = direction.reshape(num_tokens, -1)
    expected = {
        "r": given["r"],
        "w": np.exp(-np.exp(-np.log1p(np.exp(-given["w"])) - 0.5)),
        "k": given["k"] * (1 + (rate - 1) * k_a.values),
        "v": given["v"],
        "a": rate * direction,
        "direction": direction,
    }
    values = first.values.astype(np.float64)
    if blends:
        expected["v"] = given["v"] + (values - given["v"]) * sigmoid(blend.values.astype(np.float64))
    arrays.run(
        lambda recorder: time_mix_keys(
            recorder,
            arrays.device.kernels,
            arrays.device.info,
            shape,
            rows=MixedRows(*(array.tensor for array in rows)),
            first=first.tensor,
            blend=blend.tensor if blends else None,
            k_k=k_k.tensor,
            k_a=k_a.tensor,
        )
    )
    for name, array in rows._asdict().items():
        np.testing.assert_allclose(array.values, expected[name], rtol=1e-5, atol=1e-6, err_msg=name)
    np.testing.assert_allclose(first.values, values if blends else given["v"], rtol=0)


@pytest.mark.parametrize("form", [RowForm.FLOATS, *FORMS])
def test_what_heads_leave_is_normed_added_to_and_gated(arrays: Arrays, form: RowForm) -> None:
    shape, num_tokens, eps = TimeMixShape(2, 64), 3, 64e-5
    rng = np.random.default_rng(7)
    rows = MixedRows(
        *(arrays.put(rng.standard_normal((num_tokens, shape.columns)).astype(np.float32)) for _ in MixedRows._fields)
    )
    x, gate = (arrays.put(rng.standard_normal((num_tokens, shape.columns)).astype(np.float32)) for _ in range(2))
    r_k, weight, bias = (arrays.put(rng.standard_normal(shape.columns).astype(np.float32)) for _ in range(3))
    heads = x.values.astype(np.float64).reshape(num_tokens, shape.num_heads, -1)
    normed = (heads - heads.mean(-1, keepdims=True)) / np.sqrt(heads.var(-1, keepdims=True) + eps)
    bonus = (rows.r.values.astype(np.float64) * rows.k.values * r_k.values).reshape(heads.shape).sum(-1, keepdims=True)
    added = normed.reshape(num_tokens, -1) * weight.values + bias.values
    added += (bonus * rows.v.values.reshape(heads.shape)).reshape(num_tokens, -1)
    expected = added * gate.values
    floats = arrays.poisoned(num_tokens, shape.columns)
    formed = None if form is RowForm.FLOATS else FormedRows(arrays, form, num_tokens, shape.columns)
    arrays.run(
        lambda recorder: time_mix_out(
            recorder,
            arrays.device.kernels,
            arrays.device.info,
            shape,
            x=x.tensor,
            rows=MixedRows(*(array.tensor for array in rows)),
            gate=gate.tensor,
            r_k=r_k.tensor,
            weight=weight.tensor,
            bias=bias.tensor,
            eps=eps,
            out=floats.tensor if formed is None else formed.place,
        )
    )
    if formed is None:
        np.testing.assert_allclose(floats.values, expected, rtol=1e-4, atol=1e-4)
    else:
        check_formed(formed, form, expected)


def check_formed(formed: FormedRows, form: RowForm, expected: Doubles) -> None:
    """Compare rows whose values may lie near 0, where f32 is not relatively exact."""
    if form is RowForm.BLOCKS:
        formed.check_unscaled(expected, rtol=1e-4, atol=1e-4)
    else:
        formed.check(expected)


@pytest.mark.parametrize(
    ("function", "form"),
    [*((function, RowForm.FLOATS) for function in Function), *((Function.SQUARED_RELU, form) for form in FORMS)],
)
def test_activations_are_those_of_double_precision(arrays: Arrays, function: Function, form: RowForm) -> None:
    x = arrays.put((5 * np.random.default_rng(3).standard_normal((3, 128))).astype(np.float32))
    x.values[0, :2] = 300.0, -300.0
    if function is Function.SQUARED_RELU:
        x.values[:, 0::32] = 9.0  # so that no block of 32 is all zeros
    given = x.values.astype(np.float64)
    expected = {
        Function.TANH: np.tanh(given),
        Function.SIGMOID: sigmoid(np.maximum(given, -700)),
        Function.SQUARED_RELU: np.maximum(given, 0) ** 2,
    }[function]
    floats = arrays.poisoned(3, 128)
    formed = None if form is RowForm.FLOATS else FormedRows(arrays, form, 3, 128)
    out = floats.tensor if formed is None else formed.place
    arrays.run(
        lambda recorder: activate(
            recorder, arrays.device.kernels, arrays.device.info, x=x.tensor, function=function, out=out
        )
    )
    if formed is None:
        np.testing.assert_allclose(floats.values, expected, rtol=2e-6, atol=3e-7)
    else:
        formed.check(expected)


@pytest.mark.parametrize("head_dim", [0, 24, 512])
def test_heads_that_no_kernel_takes_are_refused(head_dim: int) -> None:
    with pytest.raises(UnsupportedModelError, match=f"heads of {head_dim} elements"):
        TimeMixShape(2, head_dim)
