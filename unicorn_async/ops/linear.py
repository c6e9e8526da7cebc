"""Linear layers: y = x · W^T, with weights of any type, and what follows the sums at once.

    rows = input_rows(info, w, num_tokens, floats=floats, scratch=scratch)  # where whoever makes the input leaves it
    linear(recorder, kernels, info, x=rows, weight=w, out=y, num_tokens=num_tokens, scratch=scratch)

An input is in the form that the kernel for so many tokens reads: f32, halves with a scale for each row, or blocks of 32
int8 with a scale in single precision (off by half a scale at most). Several linears of one input share it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from unicorn_async.errors import UnsupportedModelError
from unicorn_async.gpu.kernel import KernelRequest
from unicorn_async.ops.gated import ACTIVATION_NUMBER
from unicorn_async.ops.grid import split_grid
from unicorn_async.ops.linear_plans.product import Product, check_rows
from unicorn_async.ops.linear_plans.rules import can_gate, pays_to_block, reads_form, tuned_plan
from unicorn_async.ops.rows import BlockRows, HalfRows, RowForm, check_columns, form_fields, form_of, row_constants
from unicorn_async.tensor import QUANT_BLOCK, MixedTensor, QuantTensor, Tensor, element_of, parts_of

if TYPE_CHECKING:
    from unicorn_async.config import Activation
    from unicorn_async.gpu.device_info import DeviceInfo
    from unicorn_async.gpu.recorder import Kernels, Recorder
    from unicorn_async.ops.linear_plans.plan import LinearPlan
    from unicorn_async.ops.linear_scratch import LinearScratch
    from unicorn_async.ops.rows import Rows
    from unicorn_async.tensor import Weight

_WORKGROUP = 64
_VECTOR = 4
_BLOCK_WRITERS = ("linear_quant_vec", "linear_quant_held")  # kernels that can leave their output in blocks of int8


@dataclass(frozen=True, slots=True)
class Epilogue:
    """What a linear does with its sums before it leaves them: adds a bias and caps, or applies a gate.

    `bias` is the address of (n) f32, aligned to 4 bytes. A `soft_cap` above zero makes cap · tanh(y / cap) of y. With a
    `gate`, where `fuses_gate` allows it, the output is act of y's first half of columns, times the second.

    Raises:
        ValueError: a gate with a bias or a soft cap, which kernels would apply to the half that is activated alone.
    """

    bias: int | None = None
    soft_cap: float = 0.0
    gate: Activation | None = None

    def __post_init__(self) -> None:
        if self.gate is not None and (self.bias is not None or self.soft_cap > 0.0):
            extra = "soft cap" if self.bias is None else "bias"
            raise ValueError(f"linear: no kernel applies a gate with a {extra}")

    @property
    def constants(self) -> dict[str, int | bool]:
        """The constants by which kernels do it."""
        if self.gate is not None:
            return {"GATED": True, "ACT": ACTIVATION_NUMBER[self.gate]}
        bias: dict[str, int | bool] = {} if self.bias is None else {"HAS_BIAS": True}
        return {**bias, "HAS_SOFT_CAP": True} if self.soft_cap > 0.0 else bias

    def from_row(self, row: int) -> Epilogue:
        """The same for the rows of the weights from one on."""
        return self if self.bias is None or not row else replace(self, bias=self.bias + 4 * row)


NO_EPILOGUE = Epilogue()


def input_form(info: DeviceInfo, weight: Weight, num_tokens: int) -> RowForm:
    """The form in which `linear` reads an input of so many tokens: f32 where a weight's parts read several forms."""
    forms = {reads_form(info, product_of(part, num_tokens)) for part in parts_of(weight)}
    return forms.pop() if len(forms) == 1 else RowForm.FLOATS


def fuses_gate(info: DeviceInfo, weight: Weight, num_tokens: int) -> bool:
    """Whether `linear` can apply the gate of a gated FFN by itself."""
    return not isinstance(weight, MixedTensor) and can_gate(info, product_of(weight, num_tokens))


def leaves_blocks(info: DeviceInfo, weight: Weight, num_tokens: int) -> bool:
    """Whether `linear` had better leave what it gated in blocks of int8, if the next linear reads these."""
    return not isinstance(weight, MixedTensor) and pays_to_block(info, product_of(weight, num_tokens))


def input_rows(info: DeviceInfo, weight: Weight, num_tokens: int, *, floats: Tensor, scratch: LinearScratch) -> Rows:
    """Where to put an input of `weight`: `floats`, (tokens, k) f32, or the scratch's room for the form it wants."""
    form = input_form(info, weight, num_tokens)
    return floats if form is RowForm.FLOATS else scratch.rows(floats, form)


def linear(
    recorder: Recorder,
    kernels: Kernels,
    info: DeviceInfo,
    *,
    x: Rows,
    weight: Weight,
    out: Tensor | BlockRows,
    num_tokens: int,
    scratch: LinearScratch,
    epilogue: Epilogue = NO_EPILOGUE,
    waits: bool = True,
) -> None:
    """Record out (tokens, n) f32 = x (tokens, k) · weight (n, k)^T and its epilogue, with a barrier if it `waits`.

    `x` is as `input_rows` gave it, or f32 aligned to 16 bytes, and brought into the scratch then. With a gate the
    output is (tokens, n / 2), and blocks of int8 where it is given as such, see `leaves_blocks`. `scratch` takes what
    workgroups leave for each other.

    Raises:
        UnsupportedModelError: the weights have a shape that no kernel takes.
        ValueError: no kernel does what is asked for.
    """
    parts = parts_of(weight)
    for part in parts:
        if len(part.shape) != 2:
            raise UnsupportedModelError(f"linear: weights have shape {part.shape}, expected two dimensions")
    if epilogue.gate is not None and len(parts) > 1:
        raise ValueError("linear: no kernel applies the gate to weights in several parts")
    first_row, ready = 0, x
    for part in parts:
        if first_row and isinstance(ready, HalfRows):
            recorder.barrier()  # what the parts before it have left in the scratch must have been read
        product = product_of(part, num_tokens, gated=epilogue.gate is not None, blocked=isinstance(out, BlockRows))
        plan = tuned_plan(info, product)
        if isinstance(x, Tensor) and form_of(ready) is not plan.form:
            ready = _prepared(recorder, kernels, info, x=x, form=plan.form, scratch=scratch, waits=first_row > 0)
        dispatch_plan(
            recorder,
            kernels,
            plan,
            x=ready,
            weight=part,
            out=replace(out, address=out.address + 4 * first_row) if isinstance(out, Tensor) and first_row else out,
            num_tokens=num_tokens,
            scratch=scratch,
            epilogue=epilogue.from_row(first_row),
        )
        first_row += part.shape[0]
    if waits:
        recorder.barrier()


def product_of(part: Tensor | QuantTensor, num_tokens: int, *, gated: bool = False, blocked: bool = False) -> Product:
    """Name the product of so many tokens with a weight, or a part of one.

    Raises:
        UnsupportedModelError: rows of the weights have a length that no kernel takes.
    """
    n, k = part.shape
    element = element_of(part)
    check_rows(element, k)  # before the name is as good for weights of another format that lie alike
    return Product.of(element, num_tokens, n, k, gated=gated, blocked=blocked)


def kernel_request(plan: LinearPlan, epilogue: Epilogue = NO_EPILOGUE, *, blocked: bool = False) -> KernelRequest:
    """Name the pipeline of a plan with an epilogue, and an output that is `blocked` or not."""
    constants = dict(plan.constants) | epilogue.constants
    if blocked:
        constants["BLOCKED"] = True
    return KernelRequest(plan.entry, constants, plan.subgroup_size)


def dispatch_plan(
    recorder: Recorder,
    kernels: Kernels,
    plan: LinearPlan,
    *,
    x: Rows,
    weight: Tensor | QuantTensor,
    out: Tensor | BlockRows,
    num_tokens: int,
    scratch: LinearScratch,
    epilogue: Epilogue = NO_EPILOGUE,
) -> None:
    """Record a product by a plan that the caller chose, which reads `x` as it is; no barrier.

    Other arguments as for `linear`; `out` may have more columns than the weights have rows.

    Raises:
        ValueError: the kernel reads another form, or can't write such an output.
    """
    if plan.form is not form_of(x):
        raise ValueError(f"linear: {plan.entry} can't read {x}")
    n, k = weight.shape
    width = n if epilogue.gate is None else n // 2
    blocks = out if isinstance(out, BlockRows) else None
    y, stride = (0, width) if isinstance(out, BlockRows) else (out.address, out.shape[1])
    fields: dict[str, int | float] = {
        "bias": epilogue.bias or 0,
        "y": y,
        "tokens": num_tokens,
        "n": n,
        "soft_cap": epilogue.soft_cap,
    }
    if isinstance(weight, QuantTensor):
        quants, high, scales = weight.planes
        fields |= {"quants": quants, "high": high, "scales": scales, "blocks": k // QUANT_BLOCK, "stride": stride}
        if plan.entry.startswith(_BLOCK_WRITERS):
            fields |= {"y_codes": blocks.codes if blocks else 0, "y_scale": blocks.scales if blocks else 0}
    elif blocks is not None:
        raise ValueError(f"linear: {plan.entry} can't write {width} columns to {out}")
    else:
        fields |= {"weight": weight.address, "k": k, "stride": stride}
    if isinstance(x, HalfRows):
        fields |= {"xh": x.values, "scale": x.scales, "partials": scratch.partials, "counters": x.counters}
    elif isinstance(x, BlockRows):
        fields |= {"x": x.codes, "x_scale": x.scales}
    else:
        fields["x"] = x.address
    request = kernel_request(plan, epilogue, blocked=blocks is not None)
    kernel = kernels.get(request.name, constants=request.constants, subgroup_size=request.subgroup_size)
    recorder.dispatch(kernel, kernel.pack(**fields), *plan.grid)


def prepare_input(
    recorder: Recorder, kernels: Kernels, info: DeviceInfo, *, x: Tensor, out: HalfRows | BlockRows
) -> None:
    """Record bringing x (tokens, k) f32, aligned to 16 bytes, into a form that kernels read; no barrier.

    Each row of halves is divided by a power of two of its own.

    Raises:
        UnsupportedModelError: k is no multiple of the form's unit.
    """
    num_tokens, k = x.shape
    check_columns("linear", k, form_of(out))
    request = input_kernel(info, k, form_of(out))
    kernel = kernels.get(request.name, constants=request.constants)
    if isinstance(out, BlockRows):
        push = kernel.pack(x=x.address, codes=out.codes, scale=out.scales, rows=num_tokens, blocks=k // QUANT_BLOCK)
        recorder.dispatch(kernel, push, *split_grid(-(-num_tokens * k // (_VECTOR * _WORKGROUP))))
        return
    recorder.dispatch(kernel, kernel.pack(**form_fields(out), x=x.address, columns=k // _VECTOR), num_tokens)


def input_kernel(info: DeviceInfo, k: int, form: RowForm) -> KernelRequest:
    """Name the pipeline that `prepare_input` will get for rows of `k` elements."""
    if form is RowForm.BLOCKS:
        return KernelRequest("quantize_activations", {"WORKGROUP": _WORKGROUP})
    return KernelRequest(f"row_to_half_{form.value}", row_constants(info, k))


def _prepared(
    recorder: Recorder,
    kernels: Kernels,
    info: DeviceInfo,
    *,
    x: Tensor,
    form: RowForm,
    scratch: LinearScratch,
    waits: bool,
) -> Rows:
    rows = scratch.rows(x, form)
    if not isinstance(rows, Tensor):
        if waits:
            recorder.barrier()  # the parts before must have read what was there
        prepare_input(recorder, kernels, info, x=x, out=rows)
        recorder.barrier()
    return rows
