"""Norms of rows, alone or after the addition to the residual stream; and of a step's queries and keys."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unicorn_async.errors import ConfigError
from unicorn_async.gpu.kernel import KernelRequest
from unicorn_async.ops.rows import RowForm, check_columns, form_fields, form_of, row_constants
from unicorn_async.tensor import DType, Tensor

if TYPE_CHECKING:
    from unicorn_async.gpu.device_info import DeviceInfo
    from unicorn_async.gpu.recorder import Kernels, Recorder
    from unicorn_async.ops.rows import Rows

_VECTOR = 4
_RMS_NORM, _LAYER_NORM, NO_NORM = 0, 1, 2  # KIND in shaders/rms_norm.comp
_NO_RESIDUAL, _ADDED, _NORMED, _ADDED_AFTER = 0, 1, 2, 3  # RESIDUAL in it


def _request(
    info: DeviceInfo,
    columns: int,
    *,
    form: RowForm = RowForm.FLOATS,
    residual: int,
    with_norm: bool = True,
    with_rows: bool,
    plus_one: bool,
    kind: int = _RMS_NORM,
    branch_scale: float = 1.0,
    out_scale: float = 1.0,
    with_factor: bool = False,
    has_bias: bool = False,
) -> KernelRequest:
    constants: dict[str, int | float | bool] = {
        **row_constants(info, columns),
        "RESIDUAL": residual,
        "WITH_NORM": with_norm,
        "WITH_ROWS": with_rows,
        "PLUS_ONE": plus_one,
        "KIND": kind,
        "BRANCH_SCALE": branch_scale,
        "OUT_SCALE": out_scale,
        **({"WITH_FACTOR": True} if with_factor else {}),
        **({"HAS_BIAS": True} if has_bias else {}),
    }
    return KernelRequest(f"rms_norm_{form.value}", constants)


def rms_norm(
    recorder: Recorder,
    kernels: Kernels,
    info: DeviceInfo,
    *,
    x: Tensor,
    weight: Tensor | None,
    out: Rows,
    eps: float,
    plus_one: bool = False,
    centred: bool = False,
    bias: Tensor | None = None,
    scale: float = 1.0,
    row_columns: int | None = None,
) -> None:
    """Record out = norm(x) * weight * scale, by rows, or out = x without a weight; `plus_one` counts weights from 1.

    The norm is RMSNorm, or with `centred` LayerNorm; a `bias`, (columns) f32, is added before the scale.
    `x` is (tokens, columns), `weight` (columns), both f32, `out` (tokens, columns) in whatever form; it may be `x`.
    Rows of `x` begin `row_columns` elements apart, a multiple of 4; None = they follow each other.
    Raises ConfigError for other shapes, UnsupportedModelError for columns that are no multiple of the form's unit.
    """
    _record(
        recorder,
        kernels,
        info,
        x=x,
        hidden=None,
        post_weight=None,
        weight=weight,
        out=out,
        num_rows=x.shape[0],
        rows=0,
        eps=eps,
        plus_one=plus_one,
        centred=centred,
        bias=bias,
        out_scale=scale,
        row_columns=row_columns,
    )


def add_rms_norm(
    recorder: Recorder,
    kernels: Kernels,
    info: DeviceInfo,
    *,
    x: Tensor,
    hidden: Tensor,
    post_weight: Tensor | None,
    weight: Tensor | None,
    out: Rows | None,
    eps: float,
    plus_one: bool = False,
    centred: bool = False,
    bias: Tensor | None = None,
    branch_scale: float = 1.0,
    factor: Tensor | None = None,
    scale: float = 1.0,
    adds_after: bool = False,
    rows: int = 0,
    num_rows: int | None = None,
) -> None:
    """Record hidden += x, or hidden += norm(x) * post_weight where there is one; then `rms_norm` of hidden into `out`.

    What is added is multiplied by `branch_scale`, and its norm is RMSNorm; the sum is multiplied by `factor`, (1) f32,
    where there is one. With `adds_after` (and no `post_weight`) `out` is made of `hidden` before the addition.
    `x` and `hidden` are (tokens, columns), the weights (columns), all f32; `out` has whatever form. Without `weight`
    `out` is hidden itself, without `out` the addition is all. `out` may be `x`, and is not `hidden`. With `rows`, the
    address of `num_rows` u32, `out` is (num_rows, columns) and neither `x` nor `hidden`, its row i is made of row
    rows[i] of both, and `hidden` stays as it is: rows may occur more than once.
    Raises ConfigError for other shapes, UnsupportedModelError for columns that are no multiple of the form's unit.
    """
    if (weight is not None and out is None) or (rows and (out is None or num_rows is None)):
        raise ConfigError("add_rms_norm: weight needs out, and rows needs it and a number")
    if adds_after and (post_weight is not None or rows):
        raise ConfigError("add_rms_norm: an addition after the norm goes with neither a norm of its own nor rows")
    _record(
        recorder,
        kernels,
        info,
        x=x,
        hidden=hidden,
        post_weight=post_weight,
        weight=weight,
        out=out,
        num_rows=num_rows if rows and num_rows is not None else x.shape[0],
        rows=rows,
        eps=eps,
        plus_one=plus_one,
        centred=centred,
        bias=bias,
        branch_scale=branch_scale,
        factor=factor,
        out_scale=scale,
        adds_after=adds_after,
    )


def _record(
    recorder: Recorder,
    kernels: Kernels,
    info: DeviceInfo,
    *,
    x: Tensor,
    hidden: Tensor | None,
    post_weight: Tensor | None,
    weight: Tensor | None,
    out: Rows | None,
    num_rows: int,
    rows: int,
    eps: float,
    plus_one: bool,
    centred: bool,
    bias: Tensor | None = None,
    branch_scale: float = 1.0,
    factor: Tensor | None = None,
    out_scale: float = 1.0,
    adds_after: bool = False,
    row_columns: int | None = None,
) -> None:
    num_tokens, columns = x.shape
    form = RowForm.FLOATS if out is None else form_of(out)
    check_columns("rms_norm", columns, form)
    x.expect("rms_norm: x", (num_tokens, columns), DType.F32)
    if hidden is not None:
        hidden.expect("rms_norm: hidden", x.shape, DType.F32)
    for name, tensor in (("post_weight", post_weight), ("weight", weight), ("bias", bias)):
        if tensor is not None:
            tensor.expect(f"rms_norm: {name}", (columns,), DType.F32)
    if factor is not None:
        factor.expect("rms_norm: factor", (1,), DType.F32)
    if isinstance(out, Tensor):
        out.expect("rms_norm: out", (num_rows, columns), DType.F32)
    added = _ADDED_AFTER if adds_after else _ADDED if post_weight is None else _NORMED
    request = _request(
        info,
        columns,
        form=form,
        residual=_NO_RESIDUAL if hidden is None else added,
        with_norm=out is not None,
        with_rows=rows != 0,
        plus_one=plus_one,
        kind=NO_NORM if out is not None and weight is None else _LAYER_NORM if centred else _RMS_NORM,
        branch_scale=branch_scale,
        out_scale=out_scale,
        with_factor=factor is not None,
        has_bias=bias is not None,
    )
    kernel = kernels.get(request.name, constants=request.constants)
    push = kernel.pack(
        **form_fields(out if out is not None else x),
        x=x.address,
        hidden=hidden.address if hidden else 0,
        post_weight=post_weight.address if post_weight else 0,
        weight=weight.address if weight else 0,
        bias=bias.address if bias else 0,
        rows=rows,
        factor=factor.address if factor else 0,
        columns=columns // _VECTOR,
        x_columns=(columns if row_columns is None else row_columns) // _VECTOR,
        eps=eps,
    )
    recorder.dispatch(kernel, push, num_rows)


def qk_norm_kernel(info: DeviceInfo, q_columns: int) -> KernelRequest:
    """Name the pipeline that `qk_norm` will get; a token has `q_columns` of queries, and no more of keys."""
    return KernelRequest("qk_norm", row_constants(info, q_columns))


def qk_norm(
    recorder: Recorder,
    kernels: Kernels,
    info: DeviceInfo,
    *,
    qkv: Tensor,
    q_weight: Tensor,
    k_weight: Tensor,
    eps: float,
) -> None:
    """Record RMSNorm over all heads of a token's queries, and over all of its keys, in place.

    `qkv` is (tokens, queries + keys + values) f32, the weights (queries) and (keys) f32.
    Raises ConfigError for other shapes.
    """
    (q_columns,), (k_columns,) = q_weight.shape, k_weight.shape
    num_tokens, columns = qkv.shape
    qkv.expect("qk_norm: qkv", (num_tokens, q_columns + 2 * k_columns), DType.F32)
    q_weight.expect("qk_norm: q_weight", (q_columns,), DType.F32)
    k_weight.expect("qk_norm: k_weight", (k_columns,), DType.F32)
    request = qk_norm_kernel(info, q_columns)
    kernel = kernels.get(request.name, constants=request.constants)
    push = kernel.pack(
        qkv=qkv.address,
        q_weight=q_weight.address,
        k_weight=k_weight.address,
        q_columns=q_columns // _VECTOR,
        k_columns=k_columns // _VECTOR,
        row_columns=columns // _VECTOR,
        eps=eps,
    )
    recorder.dispatch(kernel, push, 2, num_tokens)
