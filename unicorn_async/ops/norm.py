"""RMSNorm, alone or after the addition to the residual stream."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unicorn_async.errors import ConfigError
from unicorn_async.gpu.kernel import KernelRequest
from unicorn_async.ops.rows import RowForm, check_columns, form_fields, form_of, row_constants
from unicorn_async.tensor import DType, Tensor

if TYPE_CHECKING:
    from unicorn_async.gpu.command import CommandRecorder
    from unicorn_async.gpu.device_info import DeviceInfo
    from unicorn_async.gpu.kernel import KernelLibrary
    from unicorn_async.ops.rows import Rows

_VECTOR = 4


def _request(
    info: DeviceInfo,
    columns: int,
    *,
    form: RowForm = RowForm.FLOATS,
    residual: int,
    with_norm: bool = True,
    with_rows: bool,
    plus_one: bool,
) -> KernelRequest:
    constants: dict[str, int | bool] = {
        **row_constants(info, columns),
        "RESIDUAL": residual,
        "WITH_NORM": with_norm,
        "WITH_ROWS": with_rows,
        "PLUS_ONE": plus_one,
    }
    return KernelRequest(f"rms_norm_{form.value}", constants)


def kernels_for(
    info: DeviceInfo,
    columns: int,
    *,
    forms: frozenset[RowForm],
    head_forms: frozenset[RowForm],
    post_norms: bool,
    plus_one: bool,
) -> tuple[KernelRequest, ...]:
    """Name a decoder's pipelines: its first norm, those after an addition, and the final one on chosen rows.

    `forms` are those that a layer's linears read in steps of any size, `head_forms` the output head.
    """
    residual = 2 if post_norms else 1
    kinds = [(form, kind, False) for form in sorted(forms, key=_name) for kind in (0, residual)]
    kinds += [(form, residual, True) for form in sorted(head_forms, key=_name)]
    return tuple(
        _request(info, columns, form=form, residual=kind, with_rows=rows, plus_one=plus_one)
        for form, kind, rows in kinds
    )


def rms_norm(
    recorder: CommandRecorder,
    kernels: KernelLibrary,
    info: DeviceInfo,
    *,
    x: Tensor,
    weight: Tensor,
    out: Rows,
    eps: float,
    plus_one: bool = False,
) -> None:
    """Record out = norm(x) * weight, by rows; `plus_one` counts weights from 1.

    `x` is (tokens, columns), `weight` (columns), both f32, `out` (tokens, columns) in whatever form; it may be `x`.
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
    )


def add_rms_norm(
    recorder: CommandRecorder,
    kernels: KernelLibrary,
    info: DeviceInfo,
    *,
    x: Tensor,
    hidden: Tensor,
    post_weight: Tensor | None,
    weight: Tensor | None,
    out: Rows | None,
    eps: float,
    plus_one: bool = False,
    rows: int = 0,
    num_rows: int | None = None,
) -> None:
    """Record hidden += x, or hidden += norm(x) * post_weight where there is one; then out = norm(hidden) * weight.

    `x` and `hidden` are (tokens, columns), the weights (columns), all f32; `out` has whatever form. Without `weight`
    and `out` the addition is all. `out` may be `x`, and is not `hidden`. With `rows`, the address of `num_rows` u32,
    `out` is (num_rows, columns) and neither `x` nor `hidden`, its row i is made of row rows[i] of both, and `hidden`
    stays as it is: rows may occur more than once.
    Raises ConfigError for other shapes, UnsupportedModelError for columns that are no multiple of the form's unit.
    """
    if (weight is None) != (out is None) or (rows and (out is None or num_rows is None)):
        raise ConfigError("add_rms_norm: weight and out go together, and rows needs them and a number")
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
    )


def _record(
    recorder: CommandRecorder,
    kernels: KernelLibrary,
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
) -> None:
    num_tokens, columns = x.shape
    form = RowForm.FLOATS if out is None else form_of(out)
    check_columns("rms_norm", columns, form)
    x.expect("rms_norm: x", (num_tokens, columns), DType.F32)
    if hidden is not None:
        hidden.expect("rms_norm: hidden", x.shape, DType.F32)
    for name, tensor in (("post_weight", post_weight), ("weight", weight)):
        if tensor is not None:
            tensor.expect(f"rms_norm: {name}", (columns,), DType.F32)
    if isinstance(out, Tensor):
        out.expect("rms_norm: out", (num_rows, columns), DType.F32)
    request = _request(
        info,
        columns,
        form=form,
        residual=0 if hidden is None else 1 if post_weight is None else 2,
        with_norm=out is not None,
        with_rows=rows != 0,
        plus_one=plus_one,
    )
    kernel = kernels.get(request.name, constants=request.constants)
    push = kernel.pack(
        **form_fields(out if out is not None else x),
        x=x.address,
        hidden=hidden.address if hidden else 0,
        post_weight=post_weight.address if post_weight else 0,
        weight=weight.address if weight else 0,
        rows=rows,
        columns=columns // _VECTOR,
        eps=eps,
    )
    recorder.dispatch(kernel, push, num_rows)


def _name(form: RowForm) -> str:
    return form.value
