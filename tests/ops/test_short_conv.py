from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from unicorn_async.errors import ConfigError, UnsupportedModelError
from unicorn_async.ops.rows import BlockRows
from unicorn_async.ops.runs import LAST_OF_RUN, TOKEN_RUN
from unicorn_async.ops.sample_rows import NO_STATE
from unicorn_async.ops.short_conv import short_conv, short_conv_state, short_conv_state_bytes
from unicorn_async.tensor import DType, Tensor

from .formed_rows import FORMS, FormedRows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from unicorn_async.gpu.device import Device
    from unicorn_async.ops.rows import RowForm

    from .arrays import Arrays

NUM_STATES = 5


@dataclass(frozen=True)
class Part:
    """What a step has of a sequence: `num_tokens` from position `start` on."""

    state_index: int
    start: int
    num_tokens: int


def reference(projected: NDArray[Any], taps: NDArray[Any], bias: NDArray[Any] | None) -> NDArray[np.float64]:
    """The outputs of a whole sequence, (tokens, columns), in double precision."""
    b, c, x = np.split(projected.astype(np.float64), 3, axis=1)
    num_tokens, columns = b.shape
    padded = np.concatenate([np.zeros((taps.shape[1] - 1, columns)), b * x])
    summed = sum(padded[tap : tap + num_tokens] * taps[:, tap].astype(np.float64) for tap in range(taps.shape[1]))
    return c * (summed + (0 if bias is None else bias.astype(np.float64)))


class Conv:
    """A convolution of made weights, its sequences' inputs, and the states that steps leave."""

    def __init__(
        self, arrays: Arrays, columns: int, num_taps: int, *, has_bias: bool = False, only_adds: bool = False
    ) -> None:
        """Make them; one that `only_adds` has no sums near 0, whose errors would be large beside them."""
        rng = np.random.default_rng([columns, num_taps])
        self.arrays, self.device = arrays, arrays.device
        taps = rng.standard_normal((columns, num_taps)).astype(np.float32)
        self.taps = arrays.put(np.abs(taps) if only_adds else taps)
        self.bias = arrays.put(rng.standard_normal(columns).astype(np.float32)) if has_bias else None
        inputs = rng.standard_normal((NUM_STATES, 40, 3 * columns)).astype(np.float32)
        self.inputs = np.abs(inputs) if only_adds else inputs
        assert short_conv_state_bytes(columns, num_taps) == 4 * (num_taps - 1) * columns
        self.state = arrays.poisoned(NUM_STATES + 1, num_taps - 1, columns)  # of sequences that were there before
        self.kept: tuple[int, int] = (
            -1,
            -1,
        )  # a sequence, and how many of its tokens come before a copy in the last row
        self.begins_with_copy = False
        bias = None if self.bias is None else self.bias.values
        self.expected = np.stack([reference(inputs, self.taps.values, bias) for inputs in self.inputs])

    def step(self, parts: Sequence[Part], *, num_rows: int, out: Any = None) -> NDArray[Any]:
        """Run a step, padded to some rows; returns its outputs, or leaves them in `out`."""
        runs = np.zeros(num_rows, TOKEN_RUN)
        runs["state_index"] = runs["kept"] = NO_STATE
        rows = np.full((num_rows, self.inputs.shape[2]), np.nan, np.float32)
        positions = np.zeros(num_rows, np.uint32)
        row = 0
        for part in parts:
            span = slice(row, row + part.num_tokens)
            runs["state_index"][span] = part.state_index
            runs["offset"][span] = np.arange(part.num_tokens)
            runs["offset"][span.stop - 1] |= LAST_OF_RUN
            runs["source"][span] = NUM_STATES if self.begins_with_copy else part.state_index
            kept = row + self.kept[1] - part.start - 1
            if part.state_index == self.kept[0] and row <= kept < span.stop:
                runs["kept"][kept] = NUM_STATES
            positions[span] = np.arange(part.start, part.start + part.num_tokens)
            rows[span] = self.inputs[part.state_index, part.start : part.start + part.num_tokens]
            row = span.stop
        projected, runs_at, at = (self.arrays.put(values) for values in (rows, runs, positions))
        result = self.arrays.poisoned(num_rows, self.inputs.shape[2] // 3)
        common: dict[str, Any] = {
            "projected": projected.tensor,
            "taps": self.taps.tensor,
            "state": self.state.address,
            "runs": runs_at.address,
        }

        def record(recorder: Any) -> None:
            short_conv(
                recorder,
                self.device.kernels,
                self.device.info,
                bias=None if self.bias is None else self.bias.tensor,
                positions=at.address,
                out=result.tensor if out is None else out,
                **common,
            )
            recorder.barrier()
            short_conv_state(recorder, self.device.kernels, **common)

        self.arrays.run(record)
        return result.values

    def check(self, parts: Sequence[Part], *, num_rows: int) -> None:
        """Run a step and compare it."""
        found, row = self.step(parts, num_rows=num_rows), 0
        for part in parts:
            expected = self.expected[part.state_index, part.start : part.start + part.num_tokens]
            np.testing.assert_allclose(found[row : row + part.num_tokens], expected, rtol=1e-5, atol=1e-5)
            row += part.num_tokens


@pytest.mark.combinations("every number of taps with every number of columns")
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("num_taps", [2, 3, 4, 16])
@pytest.mark.parametrize("columns", [4, 128, 1028])
def test_a_prompt_equals_the_convolution(arrays: Arrays, columns: int, num_taps: int, has_bias: bool) -> None:
    Conv(arrays, columns, num_taps, has_bias=has_bias).check([Part(2, 0, 40)], num_rows=64)


@pytest.mark.parametrize("num_taps", [2, 3, 5])
def test_however_a_sequence_is_cut_its_outputs_are_the_same(arrays: Arrays, num_taps: int) -> None:
    conv = Conv(arrays, 36, num_taps)
    start = 0
    for count in (1, 1, 2, 1, 3, 7, 1, 1, 9, 2, 1):
        conv.check([Part(3, start, count)], num_rows=16)
        start += count


def test_prompts_and_tokens_of_many_sequences_share_a_step(arrays: Arrays) -> None:
    conv = Conv(arrays, 12, 3)
    conv.check([Part(0, 0, 5), Part(1, 0, 1), Part(4, 0, 2)], num_rows=8)
    conv.check([Part(1, 1, 1), Part(4, 2, 4), Part(3, 0, 3), Part(0, 5, 1)], num_rows=16)
    conv.check([Part(index, start, 1) for index, start in ((0, 6), (1, 2), (3, 3), (4, 6))], num_rows=4)
    conv.check([Part(1, 3, 30), Part(3, 4, 1)], num_rows=32)


def test_a_state_that_is_used_again_has_nothing_of_the_sequence_before(arrays: Arrays) -> None:
    conv = Conv(arrays, 8, 4)
    conv.check([Part(2, 0, 9)], num_rows=16)
    for start, count in ((0, 1), (1, 1), (2, 5)):
        conv.check([Part(2, start, count)], num_rows=8)


@pytest.mark.parametrize("num_taps", [2, 4])
@pytest.mark.parametrize("kept", [32, 37])
def test_a_sequence_goes_on_from_a_copy_of_its_state(arrays: Arrays, num_taps: int, kept: int) -> None:
    conv = Conv(arrays, 12, num_taps)
    conv.kept = (1, kept)
    conv.check([Part(0, 0, 2), Part(1, 0, 37)], num_rows=48)
    conv.kept, conv.begins_with_copy = (1, kept + 1), True
    conv.check([Part(1, kept, 1)], num_rows=2)
    conv.check([Part(1, kept + 1, 2)], num_rows=2)


def test_a_step_leaves_the_states_of_others_alone(arrays: Arrays) -> None:
    conv = Conv(arrays, 8, 3)
    conv.check([Part(0, 0, 4), Part(1, 0, 4)], num_rows=8)
    before = conv.state.values.copy()
    conv.check([Part(1, 4, 2)], num_rows=4)
    kept = [0, 2, 3, 4]
    np.testing.assert_array_equal(conv.state.values[kept], before[kept])
    products = conv.inputs[1, 4:6, :8] * conv.inputs[1, 4:6, 16:]
    np.testing.assert_array_equal(conv.state.values[1], products)


@pytest.mark.parametrize("form", FORMS)
def test_the_output_has_the_form_that_a_linear_reads(arrays: Arrays, form: RowForm) -> None:
    conv = Conv(arrays, 2048, 3, only_adds=True)
    rows = FormedRows(arrays, form, 18, 2048)
    conv.step([Part(0, 0, 18)], num_rows=18, out=rows.place)
    rows.check(conv.expected[0, :18])


def test_operands_of_other_shapes_are_refused(device: Device, arrays: Arrays) -> None:
    conv = Conv(arrays, 8, 3)
    with pytest.raises(ConfigError, match=r"short_conv: out: expected \(4, 8\)"):
        conv.step([Part(0, 0, 4)], num_rows=4, out=Tensor(0, (4, 12), DType.F32))
    with pytest.raises(UnsupportedModelError, match="multiple of 32, got 8"):
        conv.step([Part(0, 0, 4)], num_rows=4, out=BlockRows(0, 0))
    projected, taps = Tensor(0, (4, 24), DType.F32), Tensor(0, (12, 3), DType.F32)
    with pytest.raises(ConfigError, match=r"taps: expected \(8, 3\)"):
        arrays.run(lambda rec: short_conv_state(rec, device.kernels, projected=projected, taps=taps, state=0, runs=0))
