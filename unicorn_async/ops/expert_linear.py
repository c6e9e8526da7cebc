"""Products of rows with the weights of experts, each row with those of the expert that it was routed to.

All experts' weights are one matrix (rows, k), dense or quantised. Rows of activations are read where they lie, by the
tiles of `expert_tiles`: what is read of the weights are the experts that have rows, and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from unicorn_async.errors import ConfigError
from unicorn_async.ops.linear import Epilogue
from unicorn_async.ops.linear_plans.experts import plan_expert_sum, plan_experts
from unicorn_async.ops.linear_plans.product import check_rows
from unicorn_async.ops.rows import BlockRows, HalfRows, form_of
from unicorn_async.tensor import QUANT_BLOCK, DType, QuantTensor, Tensor, element_of

if TYPE_CHECKING:
    from unicorn_async.config import Activation
    from unicorn_async.gpu.device_info import DeviceInfo
    from unicorn_async.gpu.recorder import Kernels, Recorder
    from unicorn_async.ops.linear_plans.plan import LinearPlan
    from unicorn_async.ops.routing import TiledPairs
    from unicorn_async.ops.rows import Rows


@dataclass(frozen=True, slots=True)
class ExpertRows:
    """Where experts' rows lie in their matrix.

    Outputs of expert e are those of rows e * stride to e * stride + n - 1; where these are gates, what they are for is
    `up` rows behind each. So experts may have both side by side (stride 2n, up n), or all gates come before all others
    (stride n, up n * num_experts). Outputs are `step` rows apart: with gates and what they are for by turns two (stride
    2n, up 1).
    """

    num_experts: int
    n: int
    stride: int
    up: int = 0
    step: int = 1

    @property
    def num_rows(self) -> int:
        """Rows that the matrix has at least."""
        return (self.num_experts - 1) * self.stride + self.up + (self.n - 1) * self.step + 1

    @property
    def constants(self) -> dict[str, int]:
        """The constants by which kernels find outputs that are not neighbours."""
        return {} if self.step == 1 else {"STEP": self.step}


def expert_linear(
    recorder: Recorder,
    kernels: Kernels,
    info: DeviceInfo,
    *,
    x: Rows,
    weight: Tensor | QuantTensor,
    rows: ExpertRows,
    pairs: TiledPairs,
    shared_by: int,
    out: Tensor | BlockRows,
    gate: Activation | None = None,
    bias: Tensor | None = None,
) -> None:
    """Record out (pairs, n) f32 = x · weight^T, each pair with the weights of its expert; no barrier.

    `x` has a row for each `shared_by` pairs that follow each other, (pairs / shared_by, k), in the form that
    `expert_form` says. A `bias` has an element for each row of the weights, (rows) f32, which is added to what that
    makes. With a `gate` it is act(gate) * up. Of an output with more columns the first n are written. It is left in
    blocks of int8 where it is given as such, see `blocks_outputs`.

    Raises:
        UnsupportedModelError: rows of the weights have a length that no kernel takes.
        ConfigError: operands do not fit to each other.
    """
    num_rows, k = weight.shape
    element = element_of(weight)
    check_rows(element, k)
    if isinstance(out, Tensor):
        out.expect("expert_linear: out", (pairs.num_pairs, max(rows.n, out.shape[1])), DType.F32)
    if num_rows < rows.num_rows or (gate is None) != (rows.up == 0):
        raise ConfigError(f"expert_linear: weights of {num_rows} rows do not hold {rows}, gate {gate}")
    if bias is not None:
        bias.expect("expert_linear: bias", (num_rows,), DType.F32)
    plan = plan_experts(
        info,
        element,
        tile=pairs.tile,
        num_pairs=pairs.num_pairs,
        num_experts=rows.num_experts,
        n=rows.n,
        gated=gate is not None,
        blocked=isinstance(out, BlockRows),
    )
    if plan is None or pairs.num_pairs % shared_by:
        raise ConfigError(f"expert_linear: no kernel for {pairs} with rows for {shared_by} each")
    if plan.form is not form_of(x):
        raise ConfigError(f"expert_linear: {plan.entry} can't read {x}")
    if isinstance(x, Tensor):
        x.expect("expert_linear: x", (pairs.num_pairs // shared_by, k), DType.F32)
    fields = {
        "tiles": pairs.tiles,
        "order": pairs.order,
        "shared_by": shared_by,
        "n": rows.n,
        "stride": out.shape[1] if isinstance(out, Tensor) else rows.n,
        "expert_rows": rows.stride,
        "up_rows": rows.up,
        "bias": 0 if bias is None else bias.address,
        **_weight_fields(weight),
        **_input_fields(x),
        **_output_fields(plan, out),
    }
    constants = dict(plan.constants) | Epilogue(gate=gate).constants | rows.constants
    if bias is not None:
        constants["HAS_BIAS"] = True
    if isinstance(out, BlockRows):
        constants["BLOCKED"] = True
    kernel = kernels.get(plan.entry, constants=constants, subgroup_size=plan.subgroup_size)
    recorder.dispatch(kernel, kernel.pack(**fields), *plan.grid)


def expert_linear_sum(
    recorder: Recorder,
    kernels: Kernels,
    info: DeviceInfo,
    *,
    x: BlockRows,
    weight: QuantTensor,
    rows: ExpertRows,
    chosen: int,
    weights: Tensor,
    out: Tensor,
    shared: Tensor | None = None,
    gates: Tensor | None = None,
    bias: Tensor | None = None,
) -> None:
    """Record out (tokens, n) f32 = what each token's experts make of their rows, times their weights; no barrier.

    `x` is (pairs, k), `chosen` the address of (tokens, num_chosen) u32 as `route` leaves it, `weights` (tokens,
    num_chosen) f32. `shared` and `gates` are as for `expert_sum`, `bias` as for `expert_linear`.

    Raises:
        UnsupportedModelError: rows of the weights have a length that no kernel takes.
        ConfigError: operands do not fit to each other.
    """
    num_rows, k = weight.shape
    num_tokens, num_chosen = weights.shape
    check_rows(weight.format, k)
    weights.expect("expert_linear_sum: weights", (num_tokens, num_chosen), DType.F32)
    out.expect("expert_linear_sum: out", (num_tokens, rows.n), DType.F32)
    if num_rows < rows.num_rows or rows.up or rows.step != 1:
        raise ConfigError(f"expert_linear_sum: weights of {num_rows} rows do not hold {rows}")
    if shared is not None:
        shared.expect("expert_linear_sum: shared", (num_tokens, rows.n), DType.F32)
    if gates is not None:
        gates.expect("expert_linear_sum: gates", (num_tokens, *gates.shape[1:]), DType.F32)
    if bias is not None:
        bias.expect("expert_linear_sum: bias", (num_rows,), DType.F32)
    plan = plan_expert_sum(info, weight.format, num_tokens=num_tokens, num_chosen=num_chosen, n=rows.n, k=k)
    tail = {"HAS_SHARED": shared is not None, "IS_GATED": gates is not None}
    if bias is not None:
        tail["HAS_BIAS"] = True
    kernel = kernels.get(plan.entry, constants={**dict(plan.constants), **tail}, subgroup_size=plan.subgroup_size)
    push = kernel.pack(
        chosen=chosen,
        weights=weights.address,
        shared_output=0 if shared is None else shared.address,
        gates=0 if gates is None else gates.address,
        y=out.address,
        n=rows.n,
        expert_rows=rows.stride,
        gate_stride=0 if gates is None else gates.shape[1],
        bias=0 if bias is None else bias.address,
        **_weight_fields(weight),
        **_input_fields(x),
    )
    recorder.dispatch(kernel, push, *plan.grid)


def _weight_fields(weight: Tensor | QuantTensor) -> dict[str, int]:
    k = weight.shape[1]
    if isinstance(weight, Tensor):
        return {"weight": weight.address, "k": k}
    quants, high, scales = weight.planes
    return {"quants": quants, "high": high, "scales": scales, "blocks": k // QUANT_BLOCK}


def _input_fields(x: Rows) -> dict[str, int]:
    if isinstance(x, HalfRows):
        return {"xh": x.values, "scale": x.scales}
    return {"x": x.codes, "x_scale": x.scales} if isinstance(x, BlockRows) else {"x": x.address}


def _output_fields(plan: LinearPlan, out: Tensor | BlockRows) -> dict[str, int]:
    if isinstance(out, BlockRows):
        return {"y": 0, "y_codes": out.codes, "y_scale": out.scales}
    blocks = {"y_codes": 0, "y_scale": 0} if plan.entry.startswith("expert_quant_vec") else {}
    return {"y": out.address, **blocks}
