"""Which kernel multiplies by quantised weights on a device, and with which constants and grid. Pure: needs no GPU.

Up to some number of tokens activations become blocks of int8, and integer dot products do the work; above it matrix
units multiply halves, where the device has them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

from unicorn_async.errors import UnsupportedModelError
from unicorn_async.ops.gated import ACTIVATION_NUMBER
from unicorn_async.ops.linear_plan import (
    MAX_PARTIALS,
    MAX_SPLIT_TILES,
    known_subgroup_size,
    matrix_subgroup_size,
    split_grid,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from unicorn_async.config import Activation
    from unicorn_async.gpu.device_info import DeviceInfo
    from unicorn_async.tensor import QuantFormat

Options: TypeAlias = "tuple[tuple[str, int | bool], ...]"

_MATRIX_SIDE = 16
_PADDING_HALVES = 8  # of a staged tile's row in linear_quant_coopmat
_ANY = 1 << 30


@dataclass(frozen=True, slots=True)
class QuantPlan:
    """One dispatch: the manifest entry, its constants, the subgroup size to ask for, and the number of workgroups.

    `reads_half` tells that the kernel reads activations in half precision, else in blocks of int8.
    """

    entry: str
    constants: Options
    grid: tuple[int, int, int]
    subgroup_size: int | None = None
    reads_half: bool = False

    @property
    def pipeline(self) -> tuple[str, Options, int | None]:
        """What tells pipelines apart."""
        return self.entry, self.constants, self.subgroup_size


@dataclass(frozen=True, slots=True)
class QuantVecTuning:
    """For up to `tokens` tokens: lanes of a workgroup in units of the subgroup size, and weight rows that it owns."""

    tokens: int
    subgroups: int
    rows: int


@dataclass(frozen=True, slots=True)
class QuantTileTuning:
    """For up to `tokens` tokens: a workgroup's tile, and how many parts it has along tokens and rows.

    The parts are lanes in linear_quant_many, each with `tile / parts` elements, and subgroups in linear_quant_coopmat,
    which alone stages `buffers` tiles of `tile_k` columns and cuts K among `splits` workgroups.
    """

    tokens: int
    tile_t: int
    tile_n: int
    parts_t: int
    parts_n: int
    tile_k: int = 32
    buffers: int = 2
    splits: int = 1


_VEC_GPU = (
    QuantVecTuning(1, 4, 2),
    QuantVecTuning(2, 2, 2),
    QuantVecTuning(4, 2, 2),
    QuantVecTuning(8, 2, 2),
)
# There a load is dear, lane by lane as it is, so many rows share the input's. Longer steps go in groups of the largest
# size.
_VEC_SOFTWARE = (QuantVecTuning(1, 1, 8), QuantVecTuning(4, 1, 8), QuantVecTuning(8, 1, 8))
_MANY = QuantTileTuning(_ANY, tile_t=64, tile_n=64, parts_t=16, parts_n=16)
_COOPMAT = (
    QuantTileTuning(16, tile_t=16, tile_n=64, parts_t=1, parts_n=4, tile_k=64),
    QuantTileTuning(32, tile_t=32, tile_n=64, parts_t=1, parts_n=4, tile_k=64),
    QuantTileTuning(64, tile_t=64, tile_n=64, parts_t=2, parts_n=2, tile_k=64),
    QuantTileTuning(_ANY, tile_t=128, tile_n=128, parts_t=2, parts_n=2, tile_k=32),
)
_MIN_COOPMAT_TOKENS = 9  # up to 8, integer dot products read each weight once as well, and nearer to memory's speed
_MAX_VEC_TOKENS = 32  # on devices without matrix units; each 8 of them read the weights again
_MIN_WORKGROUPS = 256  # below it a tile of half the size, or splits, keep more of the device busy
_MAX_SPLITS = 8
_MIN_SPLIT_K = 1024


def reads_half(info: DeviceInfo, num_tokens: int) -> bool:
    """Whether a step of `num_tokens` tokens reads its activations in half precision, else in blocks of int8."""
    return num_tokens >= _MIN_COOPMAT_TOKENS and matrix_subgroup_size(info) is not None


def fuses_gate(info: DeviceInfo, num_tokens: int) -> bool:
    """Whether a linear of so many tokens can apply the gate of a gated FFN itself."""
    return not reads_half(info, num_tokens) and (info.is_software or num_tokens <= _MAX_VEC_TOKENS)


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
) -> QuantPlan:
    """Choose the kernel for y (num_tokens, n) = x (num_tokens, k) · weight (n, k)^T.

    With an `activation`, where `fuses_gate` allows it, the output is act(gate) * up of the halves of y.

    Raises:
        UnsupportedModelError: rows of weights are no whole number of the format's units.
    """
    unit = quant_format.layout.unit
    if k % unit or k == 0:
        raise UnsupportedModelError(
            f"linear: rows of {quant_format.value} weights have {k} elements, expected a multiple of {unit}"
        )
    if num_tokens < 1 or n < 1:
        raise ValueError(f"linear: expected at least 1 token and 1 row, got {num_tokens} and {n}")
    if activation is not None and (n % 2 or not fuses_gate(info, num_tokens)):
        raise ValueError(f"linear: no kernel applies the gate for {num_tokens} tokens and {n} rows")
    options = _options(has_bias, has_soft_cap, activation)
    if reads_half(info, num_tokens):
        return quant_coopmat_plan(info, _coopmat_tuning(info, num_tokens, n, k), num_tokens, n, quant_format, options)
    if num_tokens <= _MAX_VEC_TOKENS or info.is_software:
        vec = _VEC_SOFTWARE if info.is_software else _VEC_GPU
        tuning = next((t for t in vec if num_tokens <= t.tokens), vec[-1])
        return quant_vec_plan(info, tuning, num_tokens, n, quant_format, options)
    return quant_many_plan(_MANY, num_tokens, n, quant_format, options)


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
) -> tuple[QuantPlan, ...]:
    """One plan for each different pipeline that steps of these sizes want, in their order."""
    plans = (
        plan_linear_quant(
            info,
            num_tokens=t,
            n=n,
            k=k,
            quant_format=quant_format,
            has_bias=has_bias,
            has_soft_cap=has_soft_cap,
            activation=activation if fuses_gate(info, t) else None,
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
) -> QuantPlan:
    """linear_quant_vec with the given tuning."""
    workgroup = min(tuning.subgroups * info.subgroup_size, info.max_workgroup_invocations)
    constants = {
        "WORKGROUP": workgroup,
        "ROWS": tuning.rows,
        "TOKENS": tuning.tokens,
        "MAX_SUBGROUPS": -(-workgroup // known_subgroup_size(info)),
    }
    x, y = split_grid(-(-n // tuning.rows))
    grid = (x, y, -(-num_tokens // tuning.tokens))
    return QuantPlan(f"linear_quant_vec_{quant_format.layout.name}", (*constants.items(), *options), grid)


def quant_many_plan(
    tuning: QuantTileTuning,
    num_tokens: int,
    n: int,
    quant_format: QuantFormat,
    options: Options = (),
) -> QuantPlan:
    """linear_quant_many with the given tuning."""
    constants = {
        "WORKGROUP": tuning.parts_t * tuning.parts_n,
        "TILE_T": tuning.tile_t,
        "TILE_N": tuning.tile_n,
        "LANE_T": tuning.tile_t // tuning.parts_t,
        "LANE_N": tuning.tile_n // tuning.parts_n,
    }
    grid = (-(-num_tokens // tuning.tile_t), -(-n // tuning.tile_n), 1)
    return QuantPlan(f"linear_quant_many_{quant_format.layout.name}", (*constants.items(), *options), grid)


def quant_coopmat_plan(
    info: DeviceInfo,
    tuning: QuantTileTuning,
    num_tokens: int,
    n: int,
    quant_format: QuantFormat,
    options: Options = (),
) -> QuantPlan:
    """linear_quant_coopmat with the given tuning; the device must have a `matrix_subgroup_size`."""
    subgroup_size = matrix_subgroup_size(info)
    assert subgroup_size is not None
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
    entry = f"linear_quant_coopmat_{quant_format.layout.name}"
    return QuantPlan(entry, (*constants.items(), *options), grid, wanted, reads_half=True)


def quant_coopmat_shared_bytes(tuning: QuantTileTuning) -> int:
    """Shared memory of a linear_quant_coopmat workgroup: staged tiles, a result per subgroup, a flag."""
    staged = tuning.buffers * (tuning.tile_t + tuning.tile_n) * (tuning.tile_k + _PADDING_HALVES) * 2
    return staged + tuning.parts_t * tuning.parts_n * _MATRIX_SIDE * _MATRIX_SIDE * 4 + 4


def can_split(tuning: QuantTileTuning, num_tokens: int, n: int) -> bool:
    """Whether what the splits of a linear_quant_coopmat leave for each other has room in a scratch."""
    tiles = -(-num_tokens // tuning.tile_t) * -(-n // tuning.tile_n)
    partials = tiles * tuning.splits * tuning.tile_t * tuning.tile_n
    return tuning.splits == 1 or (tiles <= MAX_SPLIT_TILES and partials <= MAX_PARTIALS)


def _options(has_bias: bool, has_soft_cap: bool, activation: Activation | None) -> Options:
    flags = (("HAS_BIAS", has_bias), ("HAS_SOFT_CAP", has_soft_cap), ("GATED", activation is not None))
    options = tuple((name, True) for name, wanted in flags if wanted)
    return options if activation is None else (*options, ("ACT", ACTIVATION_NUMBER[activation]))


def _coopmat_tuning(info: DeviceInfo, num_tokens: int, n: int, k: int) -> QuantTileTuning:
    fitting = [t for t in _COOPMAT if quant_coopmat_shared_bytes(t) <= info.max_shared_memory]
    chosen = next((t for t in fitting if num_tokens <= t.tokens), fitting[-1])
    while chosen.tile_t > 64 and -(-num_tokens // chosen.tile_t) * -(-n // chosen.tile_n) < _MIN_WORKGROUPS:
        chosen = fitting[fitting.index(chosen) - 1]
    return _with_splits(chosen, num_tokens, n, k)


def _with_splits(tuning: QuantTileTuning, num_tokens: int, n: int, k: int) -> QuantTileTuning:
    tiles = -(-num_tokens // tuning.tile_t) * -(-n // tuning.tile_n)
    for splits in (2, 4, _MAX_SPLITS):
        more = replace(tuning, splits=splits)
        if tiles * tuning.splits >= _MIN_WORKGROUPS or k // splits < _MIN_SPLIT_K or not can_split(more, num_tokens, n):
            break
        tuning = more
    return tuning
