"""An activation of each element, where nothing is gated."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from unicorn_async.ops.rows import RowForm, check_columns, form_fields, form_of, row_constants
from unicorn_async.tensor import DType, Tensor

if TYPE_CHECKING:
    from unicorn_async.gpu.device_info import DeviceInfo
    from unicorn_async.gpu.recorder import Kernels, Recorder
    from unicorn_async.ops.rows import Rows

_WORKGROUP = 64
_VECTOR = 4


class Function(Enum):
    """What becomes of an element; the value is its number in shaders/activate.comp."""

    TANH = 0
    SIGMOID = 1
    SQUARED_RELU = 2


def activate(
    recorder: Recorder, kernels: Kernels, info: DeviceInfo, *, x: Tensor, function: Function, out: Rows
) -> None:
    """Record out = function(x); `x` is (tokens, columns) f32, `out` like it, in whatever form and elsewhere.

    Raises ConfigError for other shapes, UnsupportedModelError for columns that are no multiple of the form's unit.
    """
    num_tokens, columns = x.shape
    check_columns("activate", columns, form_of(out))
    x.expect("activate: x", (num_tokens, columns), DType.F32)
    if isinstance(out, Tensor):
        out.expect("activate: out", (num_tokens, columns), DType.F32)
    lanes = {"WORKGROUP": _WORKGROUP, "VECTORS": 1}
    if form_of(out) in (RowForm.HALVES, RowForm.FRAGMENTS):  # rows have a scale, so workgroups have rows
        lanes = row_constants(info, columns)
    kernel = kernels.get(f"activate_{form_of(out).value}", constants={**lanes, "FUNCTION": function.value})
    push = kernel.pack(**form_fields(out), x=x.address, columns=columns // _VECTOR)
    recorder.dispatch(kernel, push, -(-columns // (_VECTOR * lanes["WORKGROUP"] * lanes["VECTORS"])), num_tokens)
