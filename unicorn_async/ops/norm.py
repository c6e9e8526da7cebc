"""RMSNorm, alone or after the addition to the residual stream."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unicorn_async.errors import ConfigError, UnsupportedModelError
from unicorn_async.gpu.kernel import KernelRequest
from unicorn_async.tensor import DType, Tensor

if TYPE_CHECKING:
    from unicorn_async.gpu.command import CommandRecorder
    from unicorn_async.gpu.device_info import DeviceInfo
    from unicorn_async.gpu.kernel import Kernel, KernelLibrary

_VECTOR = 4
_LANES = 1024  # of a row on a GPU, if it can; a software device takes one subgroup, because its barriers are slow
_MAX_SUBGROUPS = 32  # of a workgroup: the fewest that a driver takes; shaders/reduce/workgroup.glsl has room for 64


def _lanes(info: DeviceInfo) -> int:
    if info.is_software:
        return info.subgroup_size
    return min(_LANES, info.max_workgroup_invocations, _MAX_SUBGROUPS * info.min_subgroup_size)


def _request(info: DeviceInfo, *, residual: int, with_norm: bool, with_rows: bool, plus_one: bool) -> KernelRequest:
    constants: dict[str, int | bool] = {
        "WORKGROUP": _lanes(info),
        "RESIDUAL": residual,
        "WITH_NORM": with_norm,
        "WITH_ROWS": with_rows,
        "PLUS_ONE": plus_one,
    }
    return KernelRequest("rms_norm", constants)


def kernels_for(info: DeviceInfo, *, post_norms: bool, plus_one: bool) -> tuple[KernelRequest, ...]:
    """Name a decoder's pipelines: its first norm, those after an addition, and the final one on chosen rows."""
    residual = 2 if post_norms else 1
    forms = ((0, False), (residual, False), (residual, True))
    return tuple(
        _request(info, residual=form, with_norm=True, with_rows=rows, plus_one=plus_one) for form, rows in forms
    )


def rms_norm(
    recorder: CommandRecorder,
    kernels: KernelLibrary,
    info: DeviceInfo,
    *,
    x: Tensor,
    weight: Tensor,
    out: Tensor,
    eps: float,
    plus_one: bool = False,
    rows: int = 0,
) -> None:
    """Record out = norm(x) * weight, by rows; `plus_one` counts weights from 1.

    `x` is (tokens, columns), `weight` (columns), `out` (tokens, columns), all f32; `out` may be `x`. With `rows`, the
    address of (selected) u32, `out` is (selected, columns), its row i is made of x's row rows[i], and is not `x`.
    Raises ConfigError for other shapes.
    """
    request = _request(info, residual=0, with_norm=True, with_rows=rows != 0, plus_one=plus_one)
    kernel = kernels.get(request.name, constants=request.constants)
    _dispatch(recorder, kernel, x=x, hidden=None, post_weight=None, weight=weight, out=out, rows=rows, eps=eps)


def add_rms_norm(
    recorder: CommandRecorder,
    kernels: KernelLibrary,
    info: DeviceInfo,
    *,
    x: Tensor,
    hidden: Tensor,
    post_weight: Tensor | None,
    weight: Tensor | None,
    out: Tensor | None,
    eps: float,
    plus_one: bool = False,
    rows: int = 0,
) -> None:
    """Record hidden += x, or hidden += norm(x) * post_weight where there is one; then out = norm(hidden) * weight.

    `x` and `hidden` are (tokens, columns), the weights (columns), all f32. Without `weight` and `out` the addition is
    all. `out` may be `x`, and is not `hidden`. With `rows`, the address of (selected) u32, `out` is (selected, columns)
    and neither `x` nor `hidden`, its row i is made of row rows[i] of both, and `hidden` stays as it is: rows may occur
    more than once. Raises ConfigError for other shapes.
    """
    if (weight is None) != (out is None) or (rows and out is None):
        raise ConfigError("add_rms_norm: weight and out go together, and rows needs them")
    residual = 1 if post_weight is None else 2
    with_norm, with_rows = weight is not None, rows != 0
    request = _request(info, residual=residual, with_norm=with_norm, with_rows=with_rows, plus_one=plus_one)
    kernel = kernels.get(request.name, constants=request.constants)
    _dispatch(recorder, kernel, x=x, hidden=hidden, post_weight=post_weight, weight=weight, out=out, rows=rows, eps=eps)


def _dispatch(
    recorder: CommandRecorder,
    kernel: Kernel,
    *,
    x: Tensor,
    hidden: Tensor | None,
    post_weight: Tensor | None,
    weight: Tensor | None,
    out: Tensor | None,
    rows: int,
    eps: float,
) -> None:
    num_rows, columns = x.shape
    if columns % _VECTOR:
        raise UnsupportedModelError(f"rms_norm: expected a hidden size that is a multiple of {_VECTOR}, got {columns}")
    x.expect("rms_norm: x", (num_rows, columns), DType.F32)
    if hidden is not None:
        hidden.expect("rms_norm: hidden", x.shape, DType.F32)
    for name, tensor in (("post_weight", post_weight), ("weight", weight)):
        if tensor is not None:
            tensor.expect(f"rms_norm: {name}", (columns,), DType.F32)
    if out is not None:
        num_rows = out.shape[0] if rows else num_rows
        out.expect("rms_norm: out", (num_rows, columns), DType.F32)
    push = kernel.pack(
        x=x.address,
        hidden=hidden.address if hidden else 0,
        post_weight=post_weight.address if post_weight else 0,
        weight=weight.address if weight else 0,
        y=out.address if out else 0,
        rows=rows,
        columns=columns // _VECTOR,
        eps=eps,
    )
    recorder.dispatch(kernel, push, num_rows)
