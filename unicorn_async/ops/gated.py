"""The gate of a gated FFN."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unicorn_async.config import Activation
from unicorn_async.errors import UnsupportedModelError
from unicorn_async.gpu.kernel import KernelRequest
from unicorn_async.tensor import DType, Tensor

if TYPE_CHECKING:
    from unicorn_async.gpu.command import CommandRecorder
    from unicorn_async.gpu.kernel import KernelLibrary

_WORKGROUP = 64
_VECTOR = 4
ACTIVATION_NUMBER = {Activation.GELU_TANH: 0, Activation.SILU: 1}


def kernels_for(activation: Activation) -> tuple[KernelRequest, ...]:
    """Name the pipelines that `gated` will get."""
    return (KernelRequest("gated", {"WORKGROUP": _WORKGROUP, "ACT": ACTIVATION_NUMBER[activation]}),)


def gated(
    recorder: CommandRecorder, kernels: KernelLibrary, *, gate_up: Tensor, out: Tensor, activation: Activation
) -> None:
    """Record out = act(gate) * up.

    `gate_up` is (tokens, 2 * columns) f32, the gate's columns first; `out` (tokens, columns) f32 and elsewhere.
    Raises ConfigError for other shapes, UnsupportedModelError for columns that are not a multiple of 4.
    """
    num_tokens, columns = out.shape
    if columns % _VECTOR:
        raise UnsupportedModelError(f"gated: expected an FFN size that is a multiple of {_VECTOR}, got {columns}")
    out.expect("gated: out", (num_tokens, columns), DType.F32)
    gate_up.expect("gated: gate_up", (num_tokens, 2 * columns), DType.F32)
    (request,) = kernels_for(activation)
    kernel = kernels.get(request.name, constants=request.constants)
    push = kernel.pack(gate_up=gate_up.address, y=out.address, columns=columns // _VECTOR)
    recorder.dispatch(kernel, push, -(-columns // (_VECTOR * _WORKGROUP)), num_tokens)
