"""Linear layers with quantised weights: y = x · W^T + bias, optionally soft-capped.

    prepare_input(recorder, kernels, info, x=x, scratch=scratch, num_tokens=num_tokens, k=k); recorder.barrier()
    linear_quant(recorder, kernels, info, weight=w, out_address=y, num_tokens=num_tokens, scratch=scratch)

Several linears of the same input share one `prepare_input`. It brings activations into blocks of 32 int8 with a scale
in single precision (off by half a scale at most), or into halves, as the kernel for the number of tokens wants them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from unicorn_async.errors import UnsupportedModelError
from unicorn_async.gpu.kernel import KernelRequest
from unicorn_async.ops.linear import kernels_for as dense_kernels_for
from unicorn_async.ops.linear import row_to_half
from unicorn_async.ops.linear_plan import split_grid
from unicorn_async.ops.linear_quant_plan import QuantPlan, plan_linear_quant, quant_pipelines_for, reads_half
from unicorn_async.tensor import QUANT_BLOCK, DType, Tensor

if TYPE_CHECKING:
    from collections.abc import Iterable

    from unicorn_async.config import Activation
    from unicorn_async.gpu.command import CommandRecorder
    from unicorn_async.gpu.device_info import DeviceInfo
    from unicorn_async.gpu.kernel import KernelLibrary
    from unicorn_async.ops.linear import LinearScratch
    from unicorn_async.tensor import QuantFormat, QuantTensor

_WORKGROUP = 64


def linear_quant(
    recorder: CommandRecorder,
    kernels: KernelLibrary,
    info: DeviceInfo,
    *,
    weight: QuantTensor,
    out_address: int,
    num_tokens: int,
    scratch: LinearScratch,
    bias: Tensor | int | None = None,
    soft_cap: float = 0.0,
    activation: Activation | None = None,
    stride: int | None = None,
) -> None:
    """Record y (num_tokens, n) f32 = x (num_tokens, k) · weight (n, k)^T, plus bias (n) f32, then soft-capped.

    With an `activation`, where `fuses_gate` allows it, the output is (num_tokens, n / 2): act of y's first half of
    columns, times the second. `stride` is the number of floats from one row of the output to the next, by default those
    of a row. `scratch` holds x by an earlier `prepare_input`. The other addresses are aligned to 4 bytes. The caller
    records the barriers.

    Raises:
        UnsupportedModelError: the weights have a shape that no kernel takes.
    """
    if len(weight.shape) != 2:
        raise UnsupportedModelError(f"linear: weights have shape {weight.shape}, expected two dimensions")
    n, k = weight.shape
    plan = plan_linear_quant(
        info,
        num_tokens=num_tokens,
        n=n,
        k=k,
        quant_format=weight.format,
        has_bias=bias is not None,
        has_soft_cap=soft_cap > 0.0,
        activation=activation,
    )
    dispatch_quant_plan(
        recorder,
        kernels,
        plan,
        weight=weight,
        out_address=out_address,
        num_tokens=num_tokens,
        scratch=scratch,
        bias=bias,
        soft_cap=soft_cap,
        stride=stride if stride is not None else n if activation is None else n // 2,
    )


def dispatch_quant_plan(
    recorder: CommandRecorder,
    kernels: KernelLibrary,
    plan: QuantPlan,
    *,
    weight: QuantTensor,
    out_address: int,
    num_tokens: int,
    scratch: LinearScratch,
    bias: Tensor | int | None = None,
    soft_cap: float = 0.0,
    stride: int | None = None,
) -> None:
    """Record a linear by a plan that the caller chose; arguments as for `linear_quant`."""
    n, k = weight.shape
    quants, high, scales = weight.planes
    fields: dict[str, int | float] = {
        "quants": quants,
        "high": high,
        "scales": scales,
        "bias": 0 if bias is None else bias if isinstance(bias, int) else bias.address,
        "y": out_address,
        "tokens": num_tokens,
        "n": n,
        "blocks": k // QUANT_BLOCK,
        "stride": n if stride is None else stride,
        "soft_cap": soft_cap,
    }
    if plan.reads_half:
        fields |= {"xh": scratch.halves, "scale": scratch.scales}
        fields |= {"partials": scratch.partials, "counters": scratch.counters}
    else:
        codes, input_scales = _input_blocks(scratch, num_tokens, k)
        fields |= {"x": codes, "x_scale": input_scales}
    kernel = kernels.get(plan.entry, constants=dict(plan.constants), subgroup_size=plan.subgroup_size)
    recorder.dispatch(kernel, kernel.pack(**fields), *plan.grid)


def prepare_input(
    recorder: CommandRecorder,
    kernels: KernelLibrary,
    info: DeviceInfo,
    *,
    x: Tensor | int,
    scratch: LinearScratch,
    num_tokens: int,
    k: int,
) -> None:
    """Record bringing x (num_tokens, k) f32, aligned to 16 bytes, into the form that `linear_quant` reads."""
    if reads_half(info, num_tokens):
        row_to_half(recorder, kernels, info, x=x, scratch=scratch, num_tokens=num_tokens, k=k)
    else:
        quantize_activations(recorder, kernels, x=x, scratch=scratch, num_tokens=num_tokens, k=k)


def quantize_activations(
    recorder: CommandRecorder,
    kernels: KernelLibrary,
    *,
    x: Tensor | int,
    scratch: LinearScratch,
    num_tokens: int,
    k: int,
) -> None:
    """Record bringing x (num_tokens, k) f32 into blocks of 32 int8, k a multiple of 32."""
    codes, scales = _input_blocks(scratch, num_tokens, k)
    blocks = num_tokens * k // QUANT_BLOCK
    kernel = kernels.get("quantize_activations", constants={"WORKGROUP": _WORKGROUP})
    push = kernel.pack(x=x if isinstance(x, int) else x.address, codes=codes, scale=scales, blocks=blocks)
    recorder.dispatch(kernel, push, *split_grid(-(-blocks // _WORKGROUP)))


def kernels_for(
    info: DeviceInfo,
    *,
    num_tokens: Iterable[int],
    n: int,
    k: int,
    quant_format: QuantFormat,
    has_bias: bool = False,
    has_soft_cap: bool = False,
    activation: Activation | None = None,
) -> tuple[KernelRequest, ...]:
    """List the pipelines that steps of these sizes want, for `KernelLibrary.prepare`.

    An `activation` is applied by those sizes for which `fuses_gate` allows it.
    """
    sizes = tuple(num_tokens)
    plans = quant_pipelines_for(
        info,
        num_tokens=sizes,
        n=n,
        k=k,
        quant_format=quant_format,
        has_bias=has_bias,
        has_soft_cap=has_soft_cap,
        activation=activation,
    )
    wanted = [KernelRequest(plan.entry, dict(plan.constants), plan.subgroup_size) for plan in plans]
    if any(not reads_half(info, size) for size in sizes):
        wanted.append(KernelRequest("quantize_activations", {"WORKGROUP": _WORKGROUP}))
    halves = [size for size in sizes if reads_half(info, size)]
    if halves:
        dense = dense_kernels_for(info, num_tokens=halves, n=n, k=k, dtype=DType.F16)
        wanted += [request for request in dense if request.name == "row_to_half"]
    return tuple(wanted)


def _input_blocks(scratch: LinearScratch, num_tokens: int, k: int) -> tuple[int, int]:
    """Where an input's codes and scales lie: 40 bytes for 32 elements, in the 64 that their halves would take."""
    if k % QUANT_BLOCK:
        raise UnsupportedModelError(f"linear: inputs have {k} elements a row, expected a multiple of {QUANT_BLOCK}")
    if num_tokens * k > scratch.max_tokens * scratch.max_k:
        room = f"({scratch.max_tokens}, {scratch.max_k})"
        raise ValueError(f"linear: an input of ({num_tokens}, {k}) needs a scratch, got one for {room}")
    return scratch.halves, scratch.halves + num_tokens * k
