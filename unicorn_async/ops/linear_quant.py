"""Linear layers with quantised weights: y = x · W^T + bias, optionally soft-capped.

    rows = quant_input(info, scratch, num_tokens=num_tokens, k=k)
    prepare_input(recorder, kernels, info, x=x, out=rows); recorder.barrier()
    linear_quant(recorder, kernels, info, x=rows, weight=w, out=y, num_tokens=num_tokens, scratch=scratch)

Several linears of the same input share one `prepare_input`, and none is needed where a kernel writes such rows itself.
They are blocks of 32 int8 with a scale in single precision (off by half a scale at most), or halves, as the kernel for
the number of tokens wants them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from unicorn_async.errors import UnsupportedModelError
from unicorn_async.gpu.kernel import KernelRequest
from unicorn_async.ops.linear import row_to_half, row_to_half_kernel
from unicorn_async.ops.linear_input import HalfRows, InputBlocks, InputForm
from unicorn_async.ops.linear_plan import split_grid, tuned_plan
from unicorn_async.ops.linear_quant_plan import plan_linear_quant, quant_form, quant_pipelines_for
from unicorn_async.ops.row_form import form_of
from unicorn_async.tensor import QUANT_BLOCK, Tensor

if TYPE_CHECKING:
    from collections.abc import Iterable

    from unicorn_async.config import Activation
    from unicorn_async.gpu.device_info import DeviceInfo
    from unicorn_async.gpu.recorder import Kernels, Recorder
    from unicorn_async.ops.linear_input import LinearScratch
    from unicorn_async.ops.linear_plan import LinearPlan
    from unicorn_async.tensor import QuantFormat, QuantTensor

_WORKGROUP = 64
_VECTOR = 4


def quant_input(info: DeviceInfo, scratch: LinearScratch, *, num_tokens: int, k: int) -> HalfRows | InputBlocks:
    """The scratch's room for an input (num_tokens, k), in the form that `linear_quant` reads."""
    form = quant_form(info, num_tokens, k)
    return scratch.blocks(num_tokens, k) if form is InputForm.BLOCKS else scratch.half_rows(num_tokens, k, form)


def linear_quant(
    recorder: Recorder,
    kernels: Kernels,
    info: DeviceInfo,
    *,
    x: HalfRows | InputBlocks,
    weight: QuantTensor,
    out: int | InputBlocks,
    num_tokens: int,
    scratch: LinearScratch,
    bias: Tensor | int | None = None,
    soft_cap: float = 0.0,
    activation: Activation | None = None,
    stride: int | None = None,
) -> None:
    """Record y (num_tokens, n) f32 = x (num_tokens, k) · weight (n, k)^T, plus bias (n) f32, then soft-capped.

    With an `activation`, where `fuses_gate` allows it, the output is (num_tokens, n / 2): act of y's first half of
    columns, times the second; it may be left in blocks then, and takes no bias and no soft cap. `stride` is the number
    of elements from one row of the output to the next, by default those of a row. `x` is of the form that `quant_input`
    gives; `scratch` takes what workgroups leave for each other. Addresses are aligned to 4 bytes. The caller records
    the barriers.

    Raises:
        UnsupportedModelError: the weights have a shape that no kernel takes.
        ValueError: no kernel does what is asked for.
    """
    if len(weight.shape) != 2:
        raise UnsupportedModelError(f"linear: weights have shape {weight.shape}, expected two dimensions")
    n, k = weight.shape
    rule = plan_linear_quant(
        info,
        num_tokens=num_tokens,
        n=n,
        k=k,
        quant_format=weight.format,
        has_bias=bias is not None,
        has_soft_cap=soft_cap > 0.0,
        activation=activation,
        blocked=isinstance(out, InputBlocks),
    )
    plan = tuned_plan(info, rule, num_tokens=num_tokens, n=n, k=k)
    dispatch_quant_plan(
        recorder,
        kernels,
        plan,
        x=x,
        weight=weight,
        out=out,
        num_tokens=num_tokens,
        scratch=scratch,
        bias=bias,
        soft_cap=soft_cap,
        stride=stride if stride is not None else n if activation is None else n // 2,
    )


def dispatch_quant_plan(
    recorder: Recorder,
    kernels: Kernels,
    plan: LinearPlan,
    *,
    x: HalfRows | InputBlocks,
    weight: QuantTensor,
    out: int | InputBlocks,
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
        "y": out if isinstance(out, int) else 0,
        "tokens": num_tokens,
        "n": n,
        "blocks": k // QUANT_BLOCK,
        "stride": n if stride is None else stride,
        "soft_cap": soft_cap,
    }
    if plan.form is not form_of(x):
        raise ValueError(f"linear: {plan.entry} can't read {x}")
    kernel = kernels.get(plan.entry, constants=dict(plan.constants), subgroup_size=plan.subgroup_size)
    if isinstance(x, HalfRows):
        fields |= {"xh": x.values, "scale": x.scales, "partials": scratch.partials, "counters": x.counters}
    else:
        fields |= {"x": x.codes, "x_scale": x.scales}
    if plan.entry.startswith(("linear_quant_vec", "linear_quant_held")):
        blocks = out if isinstance(out, InputBlocks) else InputBlocks(0, 0)
        fields |= {"y_codes": blocks.codes, "y_scale": blocks.scales}
    recorder.dispatch(kernel, kernel.pack(**fields), *plan.grid)


def prepare_input(
    recorder: Recorder,
    kernels: Kernels,
    info: DeviceInfo,
    *,
    x: Tensor,
    out: HalfRows | InputBlocks,
) -> None:
    """Record bringing x (tokens, k) f32, aligned to 16 bytes, into the form that `linear_quant` reads."""
    if isinstance(out, HalfRows):
        row_to_half(recorder, kernels, info, x=x, out=out)
    else:
        quantize_activations(recorder, kernels, x=x, out=out)


def quantize_activations(recorder: Recorder, kernels: Kernels, *, x: Tensor, out: InputBlocks) -> None:
    """Record bringing x (tokens, k) f32 into blocks of 32 int8, k a multiple of 32."""
    num_tokens, k = x.shape
    kernel = kernels.get("quantize_activations", constants={"WORKGROUP": _WORKGROUP})
    push = kernel.pack(x=x.address, codes=out.codes, scale=out.scales, rows=num_tokens, blocks=k // QUANT_BLOCK)
    recorder.dispatch(kernel, push, *split_grid(-(-num_tokens * k // (_VECTOR * _WORKGROUP))))


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
    blocked: bool = False,
) -> tuple[KernelRequest, ...]:
    """List the pipelines that steps of these sizes want, for `Kernels.prepare`.

    An `activation` is applied, and the output `blocked`, by those sizes for which `fuses_gate` and `leaves_blocks`
    allow it.
    """
    plans = quant_pipelines_for(
        info,
        num_tokens=num_tokens,
        n=n,
        k=k,
        quant_format=quant_format,
        has_bias=has_bias,
        has_soft_cap=has_soft_cap,
        activation=activation,
        blocked=blocked,
    )
    return tuple(KernelRequest(plan.entry, dict(plan.constants), plan.subgroup_size) for plan in plans)


def input_kernels_for(info: DeviceInfo, *, num_tokens: Iterable[int], k: int) -> tuple[KernelRequest, ...]:
    """List the pipelines that `prepare_input` will get for inputs of these sizes."""
    forms = dict.fromkeys(quant_form(info, size, k) for size in num_tokens)
    blocks = KernelRequest("quantize_activations", {"WORKGROUP": _WORKGROUP})
    return tuple(blocks if form is InputForm.BLOCKS else row_to_half_kernel(info, k, form) for form in forms)
