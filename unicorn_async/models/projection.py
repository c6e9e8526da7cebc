"""A decoder's products with its weights, whatever form these have."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unicorn_async.errors import UnsupportedModelError
from unicorn_async.ops import linear as dense
from unicorn_async.ops import linear_plan as dense_plan
from unicorn_async.ops import linear_quant as quant
from unicorn_async.ops import linear_quant_plan as quant_plan
from unicorn_async.ops.gated import kernels_for as gated_kernels_for
from unicorn_async.tensor import QuantTensor, RowParts, Tensor

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from unicorn_async.config import Activation
    from unicorn_async.gpu.command import CommandRecorder
    from unicorn_async.gpu.device_info import DeviceInfo
    from unicorn_async.gpu.kernel import KernelLibrary, KernelRequest
    from unicorn_async.ops.linear import LinearScratch
    from unicorn_async.tensor import Weight


def fuses_gate(info: DeviceInfo, weight: Weight, num_tokens: int) -> bool:
    """Whether `project` can apply the gate of a gated FFN by itself."""
    if isinstance(weight, Tensor):
        return dense_plan.fuses_gate(info, num_tokens)
    return isinstance(weight, QuantTensor) and quant_plan.fuses_gate(info, num_tokens)


def project(
    recorder: CommandRecorder,
    kernels: KernelLibrary,
    info: DeviceInfo,
    *,
    x: Tensor,
    weight: Weight,
    out: Tensor,
    scratch: LinearScratch,
    bias: Tensor | None = None,
    soft_cap: float = 0.0,
    activation: Activation | None = None,
) -> None:
    """Record out (tokens, n) = x (tokens, k) · weight^T, with what its input needs before it, and barriers after both.

    Bias, soft cap and activation as for `linear`; all but `weight` f32.
    """
    num_tokens, columns = x.shape
    if isinstance(weight, Tensor):
        if dense_plan.reads_half(info, num_tokens):
            dense.row_to_half(recorder, kernels, info, x=x, scratch=scratch, num_tokens=num_tokens, k=columns)
            recorder.barrier()
        dense.linear(
            recorder,
            kernels,
            info,
            x=x,
            weight=weight,
            out_address=out.address,
            num_tokens=num_tokens,
            bias=bias,
            soft_cap=soft_cap,
            scratch=scratch,
            activation=activation,
        )
        recorder.barrier()
        return
    quant.prepare_input(recorder, kernels, info, x=x, scratch=scratch, num_tokens=num_tokens, k=columns)
    recorder.barrier()
    first_row = 0
    for part in _parts(weight):
        if first_row and quant_plan.reads_half(info, num_tokens):
            recorder.barrier()  # what the parts before it have left in the scratch must have been read
        quant.linear_quant(
            recorder,
            kernels,
            info,
            weight=part,
            out_address=out.address + 4 * first_row,
            num_tokens=num_tokens,
            scratch=scratch,
            bias=None if bias is None else bias.address + 4 * first_row,
            soft_cap=soft_cap,
            activation=activation,
            stride=out.shape[1],
        )
        first_row += part.shape[0]
    recorder.barrier()


def kernels_for(
    info: DeviceInfo,
    weight: Weight,
    *,
    num_tokens: Iterable[int],
    has_bias: bool = False,
    has_soft_cap: bool = False,
    activation: Activation | None = None,
) -> Iterator[KernelRequest]:
    """List the pipelines that `project` will get for steps of these sizes; an activation's are among them."""
    sizes = tuple(num_tokens)
    if isinstance(weight, Tensor):
        n, k = _matrix(weight)
        yield from dense.kernels_for(
            info,
            num_tokens=sizes,
            n=n,
            k=k,
            dtype=weight.dtype,
            has_bias=has_bias,
            has_soft_cap=has_soft_cap,
            activation=activation,
        )
    else:
        for part in _parts(weight):
            n, k = _matrix(part)
            yield from quant.kernels_for(
                info,
                num_tokens=sizes,
                n=n,
                k=k,
                quant_format=part.format,
                has_bias=has_bias,
                has_soft_cap=has_soft_cap,
                activation=activation if isinstance(weight, QuantTensor) else None,
            )
    if activation is not None and not all(fuses_gate(info, weight, size) for size in sizes):
        yield from gated_kernels_for(activation)


def _parts(weight: QuantTensor | RowParts) -> tuple[QuantTensor, ...]:
    return weight.parts if isinstance(weight, RowParts) else (weight,)


def _matrix(weight: Tensor | QuantTensor) -> tuple[int, int]:
    if len(weight.shape) != 2:
        raise UnsupportedModelError(f"linear: weights have shape {weight.shape}, expected two dimensions")
    return weight.shape[0], weight.shape[1]
