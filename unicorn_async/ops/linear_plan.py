"""Which linear kernel serves a shape on a device, and with which constants and grid. Pure: needs no GPU."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol, TypeAlias

from unicorn_async.errors import UnsupportedModelError
from unicorn_async.gpu.device_info import DeviceType
from unicorn_async.gpu.tuned import Work
from unicorn_async.ops.gated import ACTIVATION_NUMBER
from unicorn_async.ops.linear_input import MAX_PARTIALS, MAX_SPLIT_TILES, InputForm
from unicorn_async.tensor import DType

if TYPE_CHECKING:
    from collections.abc import Iterable

    from unicorn_async.config import Activation
    from unicorn_async.gpu.device_info import DeviceInfo

FORMATS = {DType.F16: "f16", DType.BF16: "bf16", DType.F32: "f32"}
MATRIX_FEATURE = "cooperative_matrix_f16_f32_16x16x16"
FRAGMENTS_FEATURE = "matrix_fragments"  # lanes hold what linear_quant_fragments counts on, see `find_matrix_fragments`
NARROW_FEATURE = "matrix_fragments_narrow"  # the same of matrices of 8 columns
NARROW_MATRIX_FEATURE = "cooperative_matrix_f16_f32_16x8x16"
MAX_GRID_X = 32768  # any device takes 65535; the rest goes along y

_MATRIX_SIDE = 16
_PADDING_HALVES = 8  # of a staged tile's row in the coopmat kernels


Options: TypeAlias = "tuple[tuple[str, int | bool], ...]"
Pipeline: TypeAlias = "tuple[str, Options, int | None]"


@dataclass(frozen=True, slots=True)
class LinearPlan:
    """One dispatch: the manifest entry, its constants, the subgroup size to ask for, and the number of workgroups.

    `form` is that of the activations which the kernel reads.
    """

    entry: str
    constants: Options
    grid: tuple[int, int, int]
    subgroup_size: int | None = None
    form: InputForm = InputForm.FLOATS

    @property
    def pipeline(self) -> Pipeline:
        """What tells pipelines apart."""
        return self.entry, self.constants, self.subgroup_size


@dataclass(frozen=True, slots=True)
class VecTuning:
    """For up to `tokens` tokens: lanes of a workgroup in units of the subgroup size, and weight rows that it owns."""

    tokens: int
    subgroups: int
    rows: int


@dataclass(frozen=True, slots=True)
class TileTuning:
    """For up to `tokens` tokens: a workgroup's tile, and how many parts it has along tokens and rows.

    The parts are lanes in linear_many and linear_quant_many, each with `tile / parts` elements, and subgroups in the
    coopmat kernels, which alone stage `buffers` tiles of `tile_k` columns and cut K among `splits` workgroups.
    """

    tokens: int
    tile_t: int
    tile_n: int
    parts_t: int
    parts_n: int
    tile_k: int = 16
    buffers: int = 2
    splits: int = 1


class Tile(Protocol):
    """What one workgroup of a matrix kernel makes, and how many of them share K."""

    @property
    def tile_t(self) -> int:
        """Tokens."""

    @property
    def tile_n(self) -> int:
        """Rows of weights."""

    @property
    def splits(self) -> int:
        """Workgroups that share K."""


CoopmatTable: TypeAlias = "tuple[tuple[TileTuning, int], ...]"  # with how many workgroups an H200 holds at once

_ANY = 1 << 30
_VEC_GPU = (
    VecTuning(1, 8, 2),
    VecTuning(2, 1, 2),
    VecTuning(4, 2, 4),
    VecTuning(8, 1, 4),
    VecTuning(16, 1, 2),
    VecTuning(32, 1, 2),
)
# There a barrier is dear, so a workgroup is one subgroup, and a load is too, so many rows share the input's. Longer
# steps go in groups of the largest size.
_VEC_SOFTWARE = (VecTuning(1, 1, 8), VecTuning(2, 1, 8), VecTuning(4, 1, 8), VecTuning(8, 1, 8))
_SOFTWARE_WORKGROUPS = 32  # of a product, at least
_MAX_PASSES = 16
MANY = TileTuning(_ANY, tile_t=64, tile_n=64, parts_t=16, parts_n=16)
# K is cut so that the workgroups nearly fill the device a few times.
_COOPMAT: CoopmatTable = (
    (TileTuning(16, tile_t=16, tile_n=64, parts_t=1, parts_n=4, tile_k=128, buffers=1), 528),
    (TileTuning(32, tile_t=32, tile_n=64, parts_t=1, parts_n=4, tile_k=128, buffers=1), 396),
    (TileTuning(64, tile_t=64, tile_n=64, parts_t=2, parts_n=2, tile_k=64, buffers=1), 528),
    (TileTuning(_ANY, tile_t=128, tile_n=128, parts_t=2, parts_n=2, tile_k=64, buffers=1), 264),
)
_MAX_SPLITS = 8
_SPLIT_COST = 0.03  # of a split, in shares of the device that it leaves idle
_MIN_COOPMAT_TOKENS = 3  # fewer read the same weights no faster through matrix units
_EXTRAS = ("HAS_BIAS", "HAS_SOFT_CAP", "ACT")  # constants of what costs next to nothing beside a product
_OPTIONS = (*_EXTRAS, "GATED", "BLOCKED")  # constants of what a linear does beside its product


def reads_half(info: DeviceInfo, num_tokens: int, dtype: DType) -> bool:
    """Whether a step of `num_tokens` tokens reads its activations in half precision, and so needs `row_to_half`.

    Matrix units take halves, so F32 weights, which keep their precision, are none of their business.
    """
    return dtype is not DType.F32 and num_tokens >= _MIN_COOPMAT_TOKENS and matrix_subgroup_size(info) is not None


def fuses_gate(num_tokens: int) -> bool:
    """Whether a linear of so many tokens can apply the gate of a gated FFN itself."""
    return num_tokens == 1


def matrix_subgroup_size(info: DeviceInfo) -> int | None:
    """The subgroup size that matrix kernels run with on the device; None where it can't run them."""
    if MATRIX_FEATURE not in info.features or not info.float16:
        return None
    if "subgroup_size_control" not in info.features:
        return info.subgroup_size if info.min_subgroup_size == info.max_subgroup_size else None
    return 32 if info.min_subgroup_size <= 32 <= info.max_subgroup_size else info.subgroup_size


def known_subgroup_size(info: DeviceInfo) -> int:
    """The subgroup size of kernels that ask for none; where the driver may choose, the smallest that it can take."""
    return info.subgroup_size if "subgroup_size_control" in info.features else info.min_subgroup_size


def plan_linear(
    info: DeviceInfo,
    *,
    num_tokens: int,
    n: int,
    k: int,
    dtype: DType,
    has_bias: bool = False,
    has_soft_cap: bool = False,
    activation: Activation | None = None,
) -> LinearPlan:
    """Choose the kernel for y (num_tokens, n) = x (num_tokens, k) · weight (n, k)^T.

    With an `activation`, where `fuses_gate` allows it, the output is act(gate) * up of the halves of y; no bias and no
    soft cap goes with it.

    Raises:
        UnsupportedModelError: the weights' type or length is not one that a kernel takes.
        ValueError: no kernel does what is asked for.
    """
    if k % 8 or k == 0:
        raise UnsupportedModelError(f"linear: rows of weights have {k} elements, expected a multiple of 8")
    if num_tokens < 1 or n < 1:
        raise ValueError(f"linear: expected at least 1 token and 1 row, got {num_tokens} and {n}")
    if activation is not None and (n % 2 or not fuses_gate(num_tokens)):
        raise ValueError(f"linear: no kernel applies the gate for {num_tokens} tokens and {n} rows")
    options = linear_options(has_bias=has_bias, has_soft_cap=has_soft_cap, activation=activation)
    if reads_half(info, num_tokens, dtype):
        tuning = coopmat_tuning(info, _COOPMAT, num_tokens, n, k)
        return coopmat_plan(info, tuning, num_tokens, n, f"linear_many_coopmat_{FORMATS[dtype]}", options)
    vec = _VEC_SOFTWARE if info.is_software else _VEC_GPU
    if num_tokens <= vec[-1].tokens or info.is_software:
        return vec_plan(info, next((t for t in vec if num_tokens <= t.tokens), vec[-1]), num_tokens, n, dtype, options)
    return many_plan(MANY, num_tokens, n, f"linear_many_{FORMATS[dtype]}", options)


def pipelines_for(
    info: DeviceInfo,
    *,
    num_tokens: Iterable[int],
    n: int,
    k: int,
    dtype: DType,
    has_bias: bool = False,
    has_soft_cap: bool = False,
    activation: Activation | None = None,
) -> tuple[LinearPlan, ...]:
    """One plan for each different pipeline that steps of these sizes want, in their order."""
    plans = (
        tuned_plan(
            info,
            plan_linear(
                info,
                num_tokens=t,
                n=n,
                k=k,
                dtype=dtype,
                has_bias=has_bias,
                has_soft_cap=has_soft_cap,
                activation=activation if fuses_gate(t) else None,
            ),
            num_tokens=t,
            n=n,
            k=k,
        )
        for t in num_tokens
    )
    return tuple({plan.pipeline: plan for plan in plans}.values())


def tuned_plan(info: DeviceInfo, rule: LinearPlan, *, num_tokens: int, n: int, k: int) -> LinearPlan:
    """What was measured on the device to be faster than the rules' plan for this product; without that, their plan."""
    found = info.tuned.get(work_of(rule, num_tokens, n, k)) if info.tuned else None
    if found is None:
        return rule
    options = tuple((name, value) for name, value in rule.constants if name in _OPTIONS)
    return LinearPlan(found.entry, (*found.constants, *options), found.grid, found.subgroup_size, rule.form)


def work_of(rule: LinearPlan, num_tokens: int, n: int, k: int) -> Work:
    """The name of a product in a device's `tuned`, by the rules' plan for it."""
    constants = tuple((name, value) for name, value in rule.constants if name not in _EXTRAS)
    return Work(rule.entry, constants, (num_tokens, n, k))


def cut_of(plan: LinearPlan) -> Options:
    """The constants that say how the product is cut, without those of what is done beside it."""
    return tuple((name, value) for name, value in plan.constants if name not in _OPTIONS)


def vec_plan(
    info: DeviceInfo,
    tuning: VecTuning,
    num_tokens: int,
    n: int,
    dtype: DType,
    options: Options = (),
) -> LinearPlan:
    """linear_vec with the given tuning."""
    workgroup = min(tuning.subgroups * info.subgroup_size, info.max_workgroup_invocations)
    max_subgroups = -(-workgroup // known_subgroup_size(info))
    groups = -(-n // tuning.rows)
    passes = software_passes(groups) if info.is_software and max_subgroups == 1 else 1
    constants = {
        "WORKGROUP": workgroup,
        "ROWS": tuning.rows,
        "TOKENS": tuning.tokens,
        "MAX_SUBGROUPS": max_subgroups,
        "PASSES": passes,
        "PREFETCH": dtype.itemsize if info.is_software else 0,
    }
    x, y = split_grid(-(-groups // passes))
    grid = (x, y, -(-num_tokens // tuning.tokens))
    return LinearPlan(f"linear_vec_{FORMATS[dtype]}", (*constants.items(), *options), grid)


def many_plan(
    tuning: TileTuning,
    num_tokens: int,
    n: int,
    entry: str,
    options: Options = (),
    form: InputForm = InputForm.FLOATS,
) -> LinearPlan:
    """linear_many or linear_quant_many, an entry of theirs, with the given tuning."""
    constants = {
        "WORKGROUP": tuning.parts_t * tuning.parts_n,
        "TILE_T": tuning.tile_t,
        "TILE_N": tuning.tile_n,
        "LANE_T": tuning.tile_t // tuning.parts_t,
        "LANE_N": tuning.tile_n // tuning.parts_n,
    }
    grid = (-(-num_tokens // tuning.tile_t), -(-n // tuning.tile_n), 1)
    return LinearPlan(entry, (*constants.items(), *options), grid, form=form)


def coopmat_plan(
    info: DeviceInfo,
    tuning: TileTuning,
    num_tokens: int,
    n: int,
    entry: str,
    options: Options = (),
) -> LinearPlan:
    """linear_many_coopmat or linear_quant_coopmat, an entry of theirs, with the given tuning.

    The device must have a `matrix_subgroup_size`.
    """
    subgroup_size = matrix_subgroup_size(info)
    assert subgroup_size is not None
    staged_rows = tuning.buffers * tuning.tile_n * (tuning.tile_k + _PADDING_HALVES) * 2
    assert staged_rows >= tuning.parts_t * tuning.parts_n * _MATRIX_SIDE**2 * 4, f"{tuning}: no room for the sums"
    constants = {
        "WORKGROUP": subgroup_size * tuning.parts_t * tuning.parts_n,
        "TILE_T": tuning.tile_t,
        "TILE_N": tuning.tile_n,
        "TILE_K": tuning.tile_k,
        "SUBGROUPS_T": tuning.parts_t,
        "SUBGROUPS_N": tuning.parts_n,
        "BUFFERS": tuning.buffers,
        "SPLITS": tuning.splits,
    }
    wanted = subgroup_size if "subgroup_size_control" in info.features else None
    grid = (-(-num_tokens // tuning.tile_t), -(-n // tuning.tile_n), tuning.splits)
    return LinearPlan(entry, (*constants.items(), *options), grid, wanted, InputForm.HALVES)


def linear_options(*, has_bias: bool, has_soft_cap: bool, activation: Activation | None) -> Options:
    """The constants of what a linear does beside its product.

    Raises:
        ValueError: a gate with a bias or a soft cap, which kernels would apply to the half that is activated alone.
    """
    if activation is not None and (has_bias or has_soft_cap):
        raise ValueError(f"linear: no kernel applies a gate with a {'bias' if has_bias else 'soft cap'}")
    flags = (("HAS_BIAS", has_bias), ("HAS_SOFT_CAP", has_soft_cap), ("GATED", activation is not None))
    options = tuple((name, True) for name, wanted in flags if wanted)
    return options if activation is None else (*options, ("ACT", ACTIVATION_NUMBER[activation]))


def software_passes(groups: int) -> int:
    """Groups of rows of a workgroup on a device that is a CPU: a workgroup is dear there, but every core wants some."""
    return max(1, min(_MAX_PASSES, groups // _SOFTWARE_WORKGROUPS))


def split_grid(count: int) -> tuple[int, int]:
    """Spread `count` workgroups along x and y; the product may exceed the count."""
    x = min(count, MAX_GRID_X)
    return x, -(-count // x)


def coopmat_tuning(info: DeviceInfo, table: CoopmatTable, num_tokens: int, n: int, k: int) -> TileTuning:
    """The table's tile for so many tokens that fits the device, with K cut so that the workgroups fill it."""
    fitting = [(t, slots) for t, slots in table if coopmat_shared_bytes(t) <= info.max_shared_memory]
    tuning, slots = next((pair for pair in fitting if num_tokens <= pair[0].tokens), fitting[-1])
    return replace(tuning, splits=chosen_splits(info, tuning, num_tokens, n, k // (2 * tuning.tile_k), slots))


def chosen_splits(info: DeviceInfo, tile: Tile, num_tokens: int, n: int, most: int, slots: int) -> int:
    """Into how many parts, `most` at most, to cut K so that the workgroups fill a device that holds `slots` at once."""
    if info.type is not DeviceType.DISCRETE:
        return 1
    tiles = -(-num_tokens // tile.tile_t) * -(-n // tile.tile_n)
    most = min(_MAX_SPLITS, most, MAX_PARTIALS // (tiles * tile.tile_t * tile.tile_n))
    if tiles > MAX_SPLIT_TILES or most < 2:
        return 1
    return max(range(1, most + 1), key=lambda splits: _fill(tiles * splits, splits, slots))


def _fill(workgroups: int, splits: int, slots: int) -> float:
    """How much of the device the workgroups use on the average, less what splits cost."""
    return workgroups / (-(-workgroups // slots) * slots) - _SPLIT_COST * (splits - 1)


def coopmat_shared_bytes(tuning: TileTuning) -> int:
    """Shared memory of a coopmat kernel's workgroup: staged tiles of both factors, and a flag."""
    return tuning.buffers * (tuning.tile_t + tuning.tile_n) * (tuning.tile_k + _PADDING_HALVES) * 2 + 4


def can_split(tuning: Tile, num_tokens: int, n: int) -> bool:
    """Whether what the splits of a coopmat kernel leave for each other has room in a scratch."""
    tiles = -(-num_tokens // tuning.tile_t) * -(-n // tuning.tile_n)
    partials = tiles * tuning.splits * tuning.tile_t * tuning.tile_n
    return tuning.splits == 1 or (tiles <= MAX_SPLIT_TILES and partials <= MAX_PARTIALS)
