"""A decoder's products with its weights, whatever form these have."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unicorn_async.errors import UnsupportedModelError
from unicorn_async.ops import linear as dense
from unicorn_async.ops import linear_plan as dense_plan
from unicorn_async.ops import linear_quant as quant
from unicorn_async.ops import linear_quant_plan as quant_plan
from unicorn_async.ops.linear_input import HalfRows, InputBlocks, InputForm
from unicorn_async.tensor import QuantTensor, RowParts, Tensor

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from unicorn_async.config import Activation
    from unicorn_async.gpu.device_info import DeviceInfo
    from unicorn_async.gpu.kernel import KernelRequest
    from unicorn_async.gpu.recorder import Kernels, Recorder
    from unicorn_async.ops.linear_input import LinearInput, LinearScratch
    from unicorn_async.tensor import Weight


def fuses_gate(info: DeviceInfo, weight: Weight, num_tokens: int) -> bool:
    """Whether `project` can apply the gate of a gated FFN by itself."""
    if isinstance(weight, Tensor):
        return dense_plan.fuses_gate(num_tokens)
    return isinstance(weight, QuantTensor) and quant_plan.fuses_gate(info, num_tokens, weight.shape[1])


def leaves_blocks(info: DeviceInfo, weight: Weight, num_tokens: int) -> bool:
    """Whether `project` had better leave what it gated in blocks of int8, if the next linear reads these."""
    return isinstance(weight, QuantTensor) and quant_plan.leaves_blocks(info, num_tokens, weight.shape[1])


def input_form(info: DeviceInfo, weight: Weight, num_tokens: int) -> InputForm:
    """The form in which `project` reads an input of so many tokens."""
    if isinstance(weight, Tensor):
        return InputForm.HALVES if dense_plan.reads_half(info, num_tokens, weight.dtype) else InputForm.FLOATS
    return quant_plan.quant_form(info, num_tokens, weight.shape[1])


def input_rows(
    info: DeviceInfo, weight: Weight, num_tokens: int, *, floats: Tensor, scratch: LinearScratch
) -> LinearInput:
    """Where to put an input of `weight`: `floats`, (tokens, k) f32, or the scratch's room for the form it wants."""
    form, columns = input_form(info, weight, num_tokens), floats.shape[1]
    if form is InputForm.FLOATS:
        return floats
    return (
        scratch.blocks(num_tokens, columns)
        if form is InputForm.BLOCKS
        else scratch.half_rows(num_tokens, columns, form)
    )


def project(
    recorder: Recorder,
    kernels: Kernels,
    info: DeviceInfo,
    *,
    x: LinearInput,
    weight: Weight,
    out: Tensor | InputBlocks,
    num_tokens: int,
    scratch: LinearScratch,
    bias: Tensor | None = None,
    soft_cap: float = 0.0,
    activation: Activation | None = None,
) -> None:
    """Record out (tokens, n) = x (tokens, k) · weight^T, with what its input needs before it, and barriers after both.

    `x` is as `input_rows` gave it, or f32, and brought into the scratch then. Bias, soft cap, activation and blocks as
    output as for `linear_quant`.
    """
    if isinstance(x, Tensor):
        x = _prepared(recorder, kernels, info, x=x, weight=weight, scratch=scratch)
    if isinstance(weight, Tensor):
        assert not isinstance(x, InputBlocks) and isinstance(out, Tensor)
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
    assert not isinstance(x, Tensor)
    first_row = 0
    for part in _parts(weight):
        if first_row and isinstance(x, HalfRows):
            recorder.barrier()  # what the parts before it have left in the scratch must have been read
        quant.linear_quant(
            recorder,
            kernels,
            info,
            x=x,
            weight=part,
            out=out.address + 4 * first_row if isinstance(out, Tensor) else out,
            num_tokens=num_tokens,
            scratch=scratch,
            bias=None if bias is None else bias.address + 4 * first_row,
            soft_cap=soft_cap,
            activation=activation,
            stride=out.shape[1] if isinstance(out, Tensor) else None,
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
    blocked: bool = False,
) -> Iterator[KernelRequest]:
    """List the pipelines that `project` will get for steps of these sizes.

    An `activation` is applied, and the output `blocked`, by those sizes for which `fuses_gate` and `leaves_blocks`
    allow it.
    """
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
        return
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
            blocked=blocked and isinstance(weight, QuantTensor),
        )


def input_kernels_for(info: DeviceInfo, weight: Weight, *, num_tokens: Iterable[int]) -> Iterator[KernelRequest]:
    """List the pipelines that `project` will get for inputs that come in f32."""
    columns = weight.shape[1]
    if not isinstance(weight, Tensor):
        yield from quant.input_kernels_for(info, num_tokens=num_tokens, k=columns)
    elif any(dense_plan.reads_half(info, size, weight.dtype) for size in num_tokens):
        yield dense.row_to_half_kernel(info, columns)


def _prepared(
    recorder: Recorder,
    kernels: Kernels,
    info: DeviceInfo,
    *,
    x: Tensor,
    weight: Weight,
    scratch: LinearScratch,
) -> LinearInput:
    rows = input_rows(info, weight, x.shape[0], floats=x, scratch=scratch)
    if not isinstance(rows, Tensor):
        quant.prepare_input(recorder, kernels, info, x=x, out=rows)
        recorder.barrier()
    return rows


def _parts(weight: QuantTensor | RowParts) -> tuple[QuantTensor, ...]:
    return weight.parts if isinstance(weight, RowParts) else (weight,)


def _matrix(weight: Tensor | QuantTensor) -> tuple[int, int]:
    if len(weight.shape) != 2:
        raise UnsupportedModelError(f"linear: weights have shape {weight.shape}, expected two dimensions")
    return weight.shape[0], weight.shape[1]
