"""Which kernel multiplies by quantised weights on a device, and with which constants and grid. Pure: needs no GPU.

Up to some number of tokens activations become blocks of int8, and integer dot products do the work; above it matrix
units multiply halves, where the device has them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from unicorn_async.errors import UnsupportedModelError
from unicorn_async.ops.linear_held_plan import can_hold, held_plan, held_tuning
from unicorn_async.ops.linear_input import InputForm
from unicorn_async.ops.linear_plan import (
    FRAGMENTS_FEATURE,
    MANY,
    LinearPlan,
    coopmat_plan,
    linear_options,
    many_plan,
    matrix_subgroup_size,
    software_passes,
    split_grid,
    tuned_plan,
)
from unicorn_async.ops.quant_tiles import (
    FRAGMENT_COLUMNS,
    MAX_FRAGMENT_TOKENS,
    FragmentTuning,
    fragment_tuning,
    quant_coopmat_tuning,
)
from unicorn_async.tensor import QUANT_BLOCK

if TYPE_CHECKING:
    from collections.abc import Iterable

    from unicorn_async.config import Activation
    from unicorn_async.gpu.device_info import DeviceInfo
    from unicorn_async.ops.linear_plan import Options
    from unicorn_async.tensor import QuantFormat


@dataclass(frozen=True, slots=True)
class QuantVecTuning:
    """For up to `tokens` tokens: how linear_quant_vec is cut.

    A workgroup has `subgroups` subgroups, each of which takes `rows` weight rows at a time, `passes` times all
    together, and has `unroll` blocks of each row under way in a lane.
    """

    tokens: int
    subgroups: int
    rows: int
    passes: int = 1
    unroll: int = 1


_VEC_GPU = (
    QuantVecTuning(1, 1, 4),
    QuantVecTuning(2, 1, 2),
    QuantVecTuning(4, 1, 2),
    QuantVecTuning(8, 2, 4, 2, 2),
)
_BLOCKED_SUBGROUPS = 8  # of a workgroup that leaves its output in blocks, and so has many rows
_MIN_SUBGROUPS = 2048  # below it, fewer rows for each keep more of the device busy
# By the most tokens of a step. There a load is dear, lane by lane as it is, so many rows share the input's, as far as
# there are registers. Longer steps go in groups of eight, but for up to 12 tokens, where groups of four fit better.
_VEC_SOFTWARE = {
    1: QuantVecTuning(1, 1, 8),
    2: QuantVecTuning(2, 1, 4),
    4: QuantVecTuning(4, 1, 4),
    8: QuantVecTuning(8, 1, 8),
    12: QuantVecTuning(4, 1, 4),
}
_MIN_FRAGMENT_TOKENS = 3  # fewer read the same weights no faster through matrix units
_MIN_COOPMAT_TOKENS = 9  # up to 8, integer dot products read each weight once as well, and nearer to memory's speed
_MAX_VEC_TOKENS = 32  # on devices without matrix units; each 8 of them read the weights again
_MIN_SUBGROUP = 8  # lanes that quantise a block of activations together


def quant_form(info: DeviceInfo, num_tokens: int, k: int) -> InputForm:
    """The form in which linears read activations (num_tokens, k)."""
    fits = FRAGMENTS_FEATURE in info.features and k % FRAGMENT_COLUMNS == 0
    if fits and _MIN_FRAGMENT_TOKENS <= num_tokens <= MAX_FRAGMENT_TOKENS:
        return InputForm.FRAGMENTS
    if num_tokens < _MIN_COOPMAT_TOKENS or matrix_subgroup_size(info) is None:
        return InputForm.BLOCKS
    return InputForm.HALVES


def fuses_gate(info: DeviceInfo, num_tokens: int, k: int) -> bool:
    """Whether a linear of so many tokens can apply the gate of a gated FFN itself."""
    reads_blocks = quant_form(info, num_tokens, k) is InputForm.BLOCKS
    return reads_blocks and (info.is_software or num_tokens <= _MAX_VEC_TOKENS)


def leaves_blocks(info: DeviceInfo, num_tokens: int, k: int) -> bool:
    """Whether a linear that applies the gate had better leave its output in blocks of int8 for the next.

    The large workgroups that this takes cost more than a dispatch from two tokens on.
    """
    return fuses_gate(info, num_tokens, k) and (info.is_software or num_tokens == 1)


def plan_linear_quant(
    info: DeviceInfo,
    *,
    num_tokens: int,
    n: int,
    k: int,
    quant_format: QuantFormat,
    has_bias: bool = False,
    has_soft_cap: bool = False,
    activation: Activation | None = None,
    blocked: bool = False,
) -> LinearPlan:
    """Choose the kernel for y (num_tokens, n) = x (num_tokens, k) · weight (n, k)^T.

    With an `activation`, where `fuses_gate` allows it, the output is act(gate) * up of the halves of y, and may be
    `blocked`: it is left in blocks of int8 then. No bias and no soft cap goes with it.

    Raises:
        UnsupportedModelError: rows of weights are no whole number of the format's units, or the device's subgroups are
            too small for any kernel.
        ValueError: no kernel does what is asked for.
    """
    unit = quant_format.layout.unit
    if k % unit or k == 0:
        raise UnsupportedModelError(
            f"linear: rows of {quant_format.value} weights have {k} elements, expected a multiple of {unit}"
        )
    if info.min_subgroup_size < _MIN_SUBGROUP:
        raise UnsupportedModelError(
            f"linear: quantised weights need subgroups of {_MIN_SUBGROUP} lanes, "
            f"{info.name} has {info.min_subgroup_size}"
        )
    if num_tokens < 1 or n < 1:
        raise ValueError(f"linear: expected at least 1 token and 1 row, got {num_tokens} and {n}")
    if activation is not None and (n % 2 or not fuses_gate(info, num_tokens, k)):
        raise ValueError(f"linear: no kernel applies the gate for {num_tokens} tokens and {n} rows")
    if blocked and (activation is None or n // 2 % QUANT_BLOCK):
        raise ValueError(f"linear: no kernel leaves the outputs of {n} rows in blocks")
    options = linear_options(has_bias=has_bias, has_soft_cap=has_soft_cap, activation=activation)
    form, name = quant_form(info, num_tokens, k), quant_format.layout.name
    if form is InputForm.FRAGMENTS:
        fragments = fragment_tuning(info, num_tokens, n, k)
        return fragment_plan(info, fragments, num_tokens, n, quant_format, options)
    if form is InputForm.HALVES:
        tuning = quant_coopmat_tuning(info, num_tokens, n, k)
        return coopmat_plan(info, tuning, num_tokens, n, f"linear_quant_coopmat_{name}", options)
    if can_hold(info, num_tokens, k):
        held = held_tuning(info, num_tokens, n, k, quant_format, gated=activation is not None, blocked=blocked)
        return held_plan(info, held, num_tokens, n, k, quant_format, options, blocked=blocked)
    if num_tokens <= _MAX_VEC_TOKENS or info.is_software:
        if info.is_software:
            choice = next((t for most, t in _VEC_SOFTWARE.items() if num_tokens <= most), _VEC_SOFTWARE[8])
            choice = replace(choice, passes=software_passes(n // choice.rows))
        else:
            choice = next((t for t in _VEC_GPU if num_tokens <= t.tokens), _VEC_GPU[-1])
            choice = _spread(choice, n, blocked=blocked, gated=activation is not None)
        return quant_vec_plan(info, choice, num_tokens, n, quant_format, options, blocked=blocked)
    return many_plan(MANY, num_tokens, n, f"linear_quant_many_{name}", options, InputForm.BLOCKS)


def quant_pipelines_for(
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
) -> tuple[LinearPlan, ...]:
    """One plan for each different pipeline that steps of these sizes want, in their order."""
    plans = (
        tuned_plan(
            info,
            plan_linear_quant(
                info,
                num_tokens=t,
                n=n,
                k=k,
                quant_format=quant_format,
                has_bias=has_bias,
                has_soft_cap=has_soft_cap,
                activation=activation if fuses_gate(info, t, k) else None,
                blocked=blocked and leaves_blocks(info, t, k),
            ),
            num_tokens=t,
            n=n,
            k=k,
        )
        for t in num_tokens
    )
    return tuple({plan.pipeline: plan for plan in plans}.values())


def quant_vec_plan(
    info: DeviceInfo,
    tuning: QuantVecTuning,
    num_tokens: int,
    n: int,
    quant_format: QuantFormat,
    options: Options = (),
    *,
    blocked: bool = False,
) -> LinearPlan:
    """linear_quant_vec with the given tuning; a `blocked` output has at least a block for each workgroup."""
    gated = dict(options).get("GATED", False)
    outputs = tuning.rows // 2 if gated else tuning.rows
    passes = tuning.passes
    if blocked:
        per_block = max(1, QUANT_BLOCK // outputs)
        passes = -(-passes // per_block) * per_block
    constants = {
        "WORKGROUP": min(tuning.subgroups * info.subgroup_size, info.max_workgroup_invocations),
        "ROWS": tuning.rows,
        "TOKENS": tuning.tokens,
        "PASSES": passes,
        "UNROLL": tuning.unroll,
        "PREFETCH": quant_format.layout.quant_bytes if info.is_software else 0,
    }
    options = (*options, ("BLOCKED", True)) if blocked else options
    x, y = split_grid(-(-(n // 2 if gated else n) // (outputs * passes)))
    grid = (x, y, -(-num_tokens // tuning.tokens))
    entry = f"linear_quant_vec_{quant_format.layout.name}"
    return LinearPlan(entry, (*constants.items(), *options), grid, form=InputForm.BLOCKS)


def _spread(tuning: QuantVecTuning, n: int, *, blocked: bool, gated: bool) -> QuantVecTuning:
    """The tuning with fewer rows where there are few, and with more subgroups where a workgroup makes blocks."""
    rows = tuning.rows
    while rows > 1 + gated and n // rows < _MIN_SUBGROUPS:
        rows //= 2
    subgroups = _BLOCKED_SUBGROUPS if blocked else tuning.subgroups
    return replace(tuning, rows=rows, subgroups=subgroups, passes=max(tuning.passes, subgroups))


def fragment_plan(
    info: DeviceInfo,
    tuning: FragmentTuning,
    num_tokens: int,
    n: int,
    quant_format: QuantFormat,
    options: Options = (),
) -> LinearPlan:
    """linear_quant_fragments with the given tuning; the device must have FRAGMENTS_FEATURE."""
    subgroup_size = matrix_subgroup_size(info)
    assert subgroup_size is not None
    constants = {
        "WORKGROUP": subgroup_size * tuning.subgroups_n * tuning.subgroups_k,
        "FRAGMENTS_T": tuning.fragments_t,
        "FRAGMENTS_N": tuning.fragments_n,
        "SUBGROUPS_N": tuning.subgroups_n,
        "SUBGROUPS_K": tuning.subgroups_k,
        "SPLITS": tuning.splits,
        "FRAGMENT_TOKENS": tuning.fragment_tokens,
    }
    wanted = subgroup_size if "subgroup_size_control" in info.features else None
    grid = (-(-num_tokens // tuning.tile_t), -(-n // tuning.tile_n), tuning.splits)
    entry = f"linear_quant_fragments_{quant_format.layout.name}"
    return LinearPlan(entry, (*constants.items(), *options), grid, wanted, InputForm.FRAGMENTS)
