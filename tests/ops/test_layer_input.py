from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import pytest

from unicorn_async.config import Activation
from unicorn_async.errors import ConfigError
from unicorn_async.ops.layer_input import layer_input
from unicorn_async.tensor import DType, Tensor

from .formed_rows import FORMS, FormedRows

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from unicorn_async.gpu.device import Device
    from unicorn_async.ops.rows import RowForm

    from .arrays import Arrays

EPS = 1e-5


def reference(
    gate: NDArray[np.float32], context: NDArray[np.float32], identity: NDArray[np.float32], weight: NDArray[np.float32]
) -> NDArray[np.float64]:
    values = gate.astype(np.float64)
    opened = values * np.exp(-np.logaddexp(0, -2 * math.sqrt(2 / math.pi) * (values + 0.044715 * values**3)))
    rows = context.astype(np.float64)
    normed = rows / np.sqrt((rows**2).mean(axis=1, keepdims=True) + EPS) * weight
    return opened * (normed + identity) / math.sqrt(2)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("tokens", "columns"), [(1, 128), (5, 256), (3, 512)])
def test_gated_inputs_are_those_of_double_precision(
    device: Device, arrays: Arrays, form: RowForm, tokens: int, columns: int
) -> None:
    rng = np.random.default_rng(columns)
    gate, context, identity = (3 * rng.standard_normal((3, tokens, columns))).astype(np.float32)
    weight = rng.standard_normal(columns).astype(np.float32)
    given = [arrays.put(each).tensor for each in (gate, context, identity, weight)]
    out = FormedRows(arrays, form, tokens, columns)
    arrays.run(
        lambda rec: layer_input(
            rec,
            device.kernels,
            device.info,
            gate=given[0],
            context=given[1],
            identity=given[2],
            weight=given[3],
            eps=EPS,
            out=out.place,
            activation=Activation.GELU_TANH,
        )
    )
    out.check(reference(gate, context, identity, weight))


def test_operands_of_other_shapes_are_refused(device: Device, arrays: Arrays) -> None:
    rows, other = Tensor(0, (2, 32), DType.F32), Tensor(0, (2, 64), DType.F32)
    with pytest.raises(ConfigError, match=r"identity: expected \(2, 32\)"):
        arrays.run(
            lambda rec: layer_input(
                rec,
                device.kernels,
                device.info,
                gate=rows,
                context=rows,
                identity=other,
                weight=Tensor(0, (32,), DType.F32),
                eps=EPS,
                out=rows,
                activation=Activation.SILU,
            )
        )
