"""Linear layers: y = x · W^T + bias, optionally soft-capped.

    if reads_half(info, num_tokens, w.dtype):
        rows = scratch.half_rows(num_tokens, k)
        row_to_half(recorder, kernels, info, x=x, out=rows); recorder.barrier()
    linear(recorder, kernels, info, x=rows or x, weight=w, out_address=y, num_tokens=num_tokens, scratch=scratch)

Several linears of the same input share one `row_to_half`, and none is needed where a kernel writes such rows itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from unicorn_async.errors import UnsupportedModelError
from unicorn_async.gpu.kernel import KernelRequest
from unicorn_async.ops.linear_input import HalfRows, InputForm
from unicorn_async.ops.linear_plan import LinearPlan, pipelines_for, plan_linear, tuned_plan
from unicorn_async.ops.row_form import check_columns, form_fields, form_of, row_constants

if TYPE_CHECKING:
    from collections.abc import Iterable

    from unicorn_async.config import Activation
    from unicorn_async.gpu.device_info import DeviceInfo
    from unicorn_async.gpu.recorder import Kernels, Recorder
    from unicorn_async.ops.linear_input import LinearScratch
    from unicorn_async.tensor import DType, Tensor

_VECTOR = 4


def linear(
    recorder: Recorder,
    kernels: Kernels,
    info: DeviceInfo,
    *,
    x: Tensor | HalfRows,
    weight: Tensor,
    out_address: int,
    num_tokens: int,
    bias: Tensor | int | None = None,
    soft_cap: float = 0.0,
    scratch: LinearScratch | None = None,
    activation: Activation | None = None,
) -> None:
    """Record y (num_tokens, n) f32 = x (num_tokens, k) f32 · weight (n, k)^T, plus bias (n) f32, then soft-capped.

    With an `activation`, where `fuses_gate` allows it, the output is (num_tokens, n / 2): act of y's first half of
    columns, times the second; it takes no bias and no soft cap.
    Addresses: `x` aligned to 16 bytes, the others to 4. Where `reads_half` says so, `x` is in half precision, and what
    workgroups leave for each other goes to `scratch`. The caller records the barriers.

    Raises:
        UnsupportedModelError: the weights have a shape or type that no kernel takes.
        ValueError: no kernel does what is asked for.
    """
    if len(weight.shape) != 2:
        raise UnsupportedModelError(f"linear: weights have shape {weight.shape}, expected two dimensions")
    n, k = weight.shape
    rule = plan_linear(
        info,
        num_tokens=num_tokens,
        n=n,
        k=k,
        dtype=weight.dtype,
        has_bias=bias is not None,
        has_soft_cap=soft_cap > 0.0,
        activation=activation,
    )
    plan = tuned_plan(info, rule, num_tokens=num_tokens, n=n, k=k)
    dispatch_plan(
        recorder,
        kernels,
        plan,
        x=x,
        weight=weight,
        out_address=out_address,
        num_tokens=num_tokens,
        bias=bias,
        soft_cap=soft_cap,
        scratch=scratch,
    )


def dispatch_plan(
    recorder: Recorder,
    kernels: Kernels,
    plan: LinearPlan,
    *,
    x: Tensor | HalfRows,
    weight: Tensor,
    out_address: int,
    num_tokens: int,
    bias: Tensor | int | None = None,
    soft_cap: float = 0.0,
    scratch: LinearScratch | None = None,
) -> None:
    """Record a linear by a plan that the caller chose; arguments as for `linear`."""
    n, k = weight.shape
    fields: dict[str, int | float] = {
        "weight": weight.address,
        "bias": 0 if bias is None else bias if isinstance(bias, int) else bias.address,
        "y": out_address,
        "tokens": num_tokens,
        "n": n,
        "k": k,
        "soft_cap": soft_cap,
    }
    if plan.form is not form_of(x):
        raise ValueError(f"linear: {plan.entry} can't read {x}")
    if isinstance(x, HalfRows):
        assert scratch is not None, "linear: matrix kernels need a scratch"
        fields |= {"xh": x.values, "scale": x.scales, "partials": scratch.partials, "counters": x.counters}
    else:
        fields["x"] = x.address
    kernel = kernels.get(plan.entry, constants=dict(plan.constants), subgroup_size=plan.subgroup_size)
    recorder.dispatch(kernel, kernel.pack(**fields), *plan.grid)


def row_to_half(recorder: Recorder, kernels: Kernels, info: DeviceInfo, *, x: Tensor, out: HalfRows) -> None:
    """Record bringing x (tokens, k) f32 into half precision, each row divided by a power of two of its own.

    Raises UnsupportedModelError for k that is no multiple of the form's unit.
    """
    num_tokens, k = x.shape
    request = row_to_half_kernel(info, k, out.form)
    check_columns("linear", k, out.form)
    kernel = kernels.get(request.name, constants=request.constants)
    recorder.dispatch(kernel, kernel.pack(**form_fields(out), x=x.address, columns=k // _VECTOR), num_tokens)


def kernels_for(
    info: DeviceInfo,
    *,
    num_tokens: Iterable[int],
    n: int,
    k: int,
    dtype: DType,
    has_bias: bool = False,
    has_soft_cap: bool = False,
    activation: Activation | None = None,
) -> tuple[KernelRequest, ...]:
    """List the pipelines that steps of these sizes want, for `Kernels.prepare`.

    An `activation` is applied by those sizes for which `fuses_gate` allows it.
    """
    sizes = tuple(num_tokens)
    plans = pipelines_for(
        info,
        num_tokens=sizes,
        n=n,
        k=k,
        dtype=dtype,
        has_bias=has_bias,
        has_soft_cap=has_soft_cap,
        activation=activation,
    )
    return tuple(KernelRequest(plan.entry, dict(plan.constants), plan.subgroup_size) for plan in plans)


def row_to_half_kernel(info: DeviceInfo, k: int, form: InputForm = InputForm.HALVES) -> KernelRequest:
    """Name the pipeline that `row_to_half` will get for rows of `k` elements."""
    return KernelRequest(f"row_to_half_{form.value}", row_constants(info, k))
