"""The gate of a gated FFN."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from unicorn_async.config import Activation
from unicorn_async.gpu.kernel import KernelRequest
from unicorn_async.ops.rows import RowForm, check_columns, form_fields, form_of, row_constants
from unicorn_async.tensor import DType, Tensor

if TYPE_CHECKING:
    from unicorn_async.gpu.device_info import DeviceInfo
    from unicorn_async.gpu.recorder import Kernels, Recorder
    from unicorn_async.ops.rows import Rows

_WORKGROUP = 64
_MOST_ROWS = 1 << 15  # of a dispatch: any device takes so many in its second dimension
_VECTOR = 4
ACTIVATION_NUMBER = {Activation.GELU_TANH: 0, Activation.SILU: 1, Activation.CLAMPED_SWIGLU: 2}


def _kernel_request(info: DeviceInfo, columns: int, activation: Activation, form: RowForm) -> KernelRequest:
    """Name the pipeline that `gated` will get."""
    lanes = {"WORKGROUP": _WORKGROUP, "VECTORS": 1}
    if form in (RowForm.HALVES, RowForm.FRAGMENTS):  # rows have a scale, so workgroups have rows
        lanes = row_constants(info, columns)
    return KernelRequest(f"gated_{form.value}", {**lanes, "ACT": ACTIVATION_NUMBER[activation]})


def gated(
    recorder: Recorder,
    kernels: Kernels,
    info: DeviceInfo,
    *,
    gate_up: Tensor,
    out: Rows,
    activation: Activation,
) -> None:
    """Record out = act(gate) * up.

    `gate_up` is (tokens, 2 * columns) f32, the gate's columns first; `out` (tokens, columns) in whatever form and
    elsewhere. Raises ConfigError for other shapes, UnsupportedModelError for columns that are no multiple of the form's
    unit.
    """
    num_tokens, columns = gate_up.shape[0], gate_up.shape[1] // 2
    check_columns("gated", columns, form_of(out))
    gate_up.expect("gated: gate_up", (num_tokens, 2 * columns), DType.F32)
    if isinstance(out, Tensor):
        out.expect("gated: out", (num_tokens, columns), DType.F32)
    request = _kernel_request(info, columns, activation, form_of(out))
    kernel = kernels.get(request.name, constants=request.constants)
    owned = _VECTOR * int(request.constants["WORKGROUP"]) * int(request.constants["VECTORS"])
    # Only rows of f32 are so many: tokens' pairs with their experts.
    most, row_bytes = _MOST_ROWS if isinstance(out, Tensor) else num_tokens, DType.F32.itemsize * columns
    for first in range(0, num_tokens, most):
        part = replace(out, address=out.address + first * row_bytes) if isinstance(out, Tensor) else out
        source = gate_up.address + 2 * first * row_bytes
        push = kernel.pack(**form_fields(part), gate_up=source, columns=columns // _VECTOR)
        recorder.dispatch(kernel, push, -(-columns // owned), min(most, num_tokens - first))
