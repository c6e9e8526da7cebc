from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from unicorn_async.config import Activation
from unicorn_async.errors import ConfigError
from unicorn_async.ops.gated import gated
from unicorn_async.tensor import DType, Tensor

from .formed_rows import FORMS, FormedRows

if TYPE_CHECKING:
    from unicorn_async.gpu.device import Device
    from unicorn_async.ops.rows import RowForm

    from .arrays import Arrays


def reference(gate_up: np.ndarray[Any, Any], activation: Activation) -> np.ndarray[Any, Any]:
    gate, up = np.split(gate_up.astype(np.float64), 2, axis=1)
    if activation is Activation.CLAMPED_SWIGLU:
        gate, up = np.minimum(gate, 7), np.clip(up, -7, 7) + 1
        return gate * np.exp(-np.logaddexp(0, -1.702 * gate)) * up
    if activation is Activation.SILU:
        return gate * np.exp(-np.logaddexp(0, -gate)) * up
    inner = math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3)
    return gate * np.exp(-np.logaddexp(0, -2 * inner)) * up


@pytest.mark.parametrize("activation", list(Activation))
@pytest.mark.parametrize(("tokens", "columns"), [(1, 4), (3, 172), (2, 2048)])
def test_the_gate_multiplies(device: Device, arrays: Arrays, activation: Activation, tokens: int, columns: int) -> None:
    values = np.random.default_rng(columns).standard_normal((tokens, 2 * columns)) * 4
    gate_up, out = arrays.put(values.astype(np.float32)), arrays.poisoned(tokens, columns)
    arrays.run(
        lambda rec: gated(
            rec, device.kernels, device.info, gate_up=gate_up.tensor, out=out.tensor, activation=activation
        )
    )
    np.testing.assert_allclose(out.values, reference(gate_up.values, activation), rtol=1e-5, atol=1e-6)


def test_more_rows_than_a_dispatch_takes_come_in_several(
    device: Device, arrays: Arrays, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("unicorn_async.ops.gated._MOST_ROWS", 3)
    test_the_gate_multiplies(device, arrays, Activation.SILU, 7, 8)


@pytest.mark.parametrize("activation", list(Activation))
def test_huge_gates_do_not_overflow_on_the_way(device: Device, arrays: Arrays, activation: Activation) -> None:
    gates = np.array([1e5, -1e5, 1e15, -1e15, 1e30, -1e30, 0, 90, -90, 20, -20, 9], np.float32)
    values = np.concatenate([gates, np.full(12, 2, np.float32)])[None]
    gate_up, out = arrays.put(values), arrays.poisoned(1, 12)
    arrays.run(
        lambda rec: gated(
            rec, device.kernels, device.info, gate_up=gate_up.tensor, out=out.tensor, activation=activation
        )
    )
    np.testing.assert_allclose(out.values, reference(values, activation), rtol=1e-3, atol=1e-3)


def test_operands_of_other_shapes_are_refused(device: Device, arrays: Arrays) -> None:
    x = Tensor(0, (1, 8), DType.F32)
    with pytest.raises(ConfigError, match=r"out: expected \(1, 4\)"):
        arrays.run(lambda rec: gated(rec, device.kernels, device.info, gate_up=x, out=x, activation=Activation.SILU))


@pytest.mark.combinations("every form of every length of rows")
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("tokens", "columns"), [(1, 128), (3, 21504), (18, 2048)])
def test_the_output_has_the_form_that_a_linear_reads(
    device: Device, arrays: Arrays, form: RowForm, tokens: int, columns: int
) -> None:
    values = np.random.default_rng(columns).standard_normal((tokens, 2 * columns)) * 4
    gate_up, rows = arrays.put(values.astype(np.float32)), FormedRows(arrays, form, tokens, columns)
    arrays.run(
        lambda rec: gated(
            rec, device.kernels, device.info, gate_up=gate_up.tensor, out=rows.place, activation=Activation.SILU
        )
    )
    rows.check(reference(gate_up.values, Activation.SILU))
