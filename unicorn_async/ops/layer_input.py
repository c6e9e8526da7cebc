"""What a layer gets of its tokens themselves, behind a gate that the stream opens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unicorn_async.ops.gated import ACTIVATION_NUMBER
from unicorn_async.ops.rows import check_columns, form_fields, form_of, row_constants
from unicorn_async.tensor import DType, Tensor

if TYPE_CHECKING:
    from unicorn_async.config import Activation
    from unicorn_async.gpu.device_info import DeviceInfo
    from unicorn_async.gpu.recorder import Kernels, Recorder
    from unicorn_async.ops.rows import Rows

_VECTOR = 4
_SCALE = 2**-0.5  # of the sum of two that are as large


def layer_input(
    recorder: Recorder,
    kernels: Kernels,
    info: DeviceInfo,
    *,
    gate: Tensor,
    context: Tensor,
    identity: Tensor,
    weight: Tensor,
    eps: float,
    out: Rows,
    activation: Activation,
) -> None:
    """Record out = act(gate) * ((rms_norm(context) * weight + identity) * 2^-0.5); no barrier.

    `gate`, `context` and `identity` are (tokens, columns) f32, `weight` (columns) f32, `out` (tokens, columns) in
    whatever form and elsewhere. Raises ConfigError for other shapes, UnsupportedModelError for columns that are no
    multiple of the form's unit.
    """
    num_tokens, columns = gate.shape
    check_columns("layer_input", columns, form_of(out))
    for name, tensor in (("gate", gate), ("context", context), ("identity", identity)):
        tensor.expect(f"layer_input: {name}", (num_tokens, columns), DType.F32)
    weight.expect("layer_input: weight", (columns,), DType.F32)
    if isinstance(out, Tensor):
        out.expect("layer_input: out", (num_tokens, columns), DType.F32)
    constants = {**row_constants(info, columns), "ACT": ACTIVATION_NUMBER[activation], "SCALE": _SCALE}
    kernel = kernels.get(f"layer_input_{form_of(out).value}", constants=constants)
    push = kernel.pack(
        **form_fields(out),
        gate=gate.address,
        context=context.address,
        identity=identity.address,
        weight=weight.address,
        columns=columns // _VECTOR,
        eps=eps,
    )
    recorder.dispatch(kernel, push, num_tokens)
