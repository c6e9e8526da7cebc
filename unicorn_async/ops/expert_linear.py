"""Products of rows with the weights of experts, each row with those of the expert that it was routed to.

All experts' weights are one matrix (rows, k), dense or quantised. Rows of activations are read where they lie, by the
tiles of `expert_tiles`: what is read of the weights are the experts that have rows, and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from unicorn_async.errors import ConfigError
from unicorn_async.ops.gated import ACTIVATION_NUMBER
from unicorn_async.ops.grid import split_grid
from unicorn_async.ops.linear_plans.product import Product, check_rows
from unicorn_async.ops.routing import num_tiles
from unicorn_async.ops.rows import BlockRows
from unicorn_async.ops.subgroups import asked_subgroup_size, workgroup_unit
from unicorn_async.tensor import QUANT_BLOCK, DType, QuantTensor, Tensor, element_of

if TYPE_CHECKING:
    from unicorn_async.config import Activation
    from unicorn_async.gpu.device_info import DeviceInfo
    from unicorn_async.gpu.manifest import ConstantValue
    from unicorn_async.gpu.recorder import Kernels, Recorder

MAX_TILE = 8  # pairs that share a read of the weights
_SUMS, _MOST_ROWS = 16, 4  # of a lane


@dataclass(frozen=True, slots=True)
class ExpertRows:
    """Where experts' rows lie in their matrix.

    Outputs of expert e are those of rows e * stride to e * stride + n - 1; where these are gates, what they are for is
    `up` rows behind each. So experts may have both side by side (stride 2n, up n), or all gates come before all others
    (stride n, up n * num_experts).
    """

    num_experts: int
    n: int
    stride: int
    up: int = 0

    @property
    def num_rows(self) -> int:
        """Rows that the matrix has at least."""
        return (self.num_experts - 1) * self.stride + self.up + self.n


@dataclass(frozen=True, slots=True)
class TiledPairs:
    """Pairs of a token and an expert as `expert_tiles` has left them, `tile` at most in a tile; by address."""

    num_pairs: int
    tile: int
    order: int
    tiles: int


def pairs_of_a_tile(num_pairs: int, num_experts: int) -> int:
    """Return how many pairs had better share a read of the weights: as many as an expert has on average, or more."""
    return next((tile for tile in (1, 2, 4) if num_pairs <= tile * num_experts), MAX_TILE)


def expert_linear(
    recorder: Recorder,
    kernels: Kernels,
    info: DeviceInfo,
    *,
    x: Tensor | BlockRows,
    weight: Tensor | QuantTensor,
    rows: ExpertRows,
    pairs: TiledPairs,
    shared_by: int,
    out: Tensor,
    gate: Activation | None = None,
) -> None:
    """Record out (pairs, n) f32 = x · weight^T, each pair with the weights of its expert; no barrier.

    `x` has a row for each `shared_by` pairs that follow each other: (pairs / shared_by, k) f32, or the same in blocks
    of int8 for quantised weights. With a `gate` it is act(gate) * up.

    Raises:
        UnsupportedModelError: rows of the weights have a length that no kernel takes.
        ConfigError: operands do not fit to each other.
    """
    num_rows, k = weight.shape
    check_rows(element_of(weight), k)
    out.expect("expert_linear: out", (pairs.num_pairs, rows.n), DType.F32)
    if num_rows < rows.num_rows or (gate is None) != (rows.up == 0):
        raise ConfigError(f"expert_linear: weights of {num_rows} rows do not hold {rows}, gate {gate}")
    if not 1 <= pairs.tile <= MAX_TILE or pairs.num_pairs % shared_by:
        raise ConfigError(
            f"expert_linear: expected tiles of 1 to {MAX_TILE} and rows for {shared_by} each, got {pairs}"
        )
    fields = {
        "y": out.address,
        "tiles": pairs.tiles,
        "order": pairs.order,
        "shared_by": shared_by,
        "n": rows.n,
        "stride": rows.n,
        "expert_rows": rows.stride,
        "up_rows": rows.up,
    }
    entry = f"expert_vec_{Product.of(element_of(weight), 1, rows.n, k).weights}"
    if isinstance(weight, QuantTensor):
        if not isinstance(x, BlockRows):
            raise ConfigError(f"expert_linear: quantised weights need blocks of int8, got {x}")
        entry = entry.replace("expert_vec", "expert_quant_vec")
        quants, high, scales = weight.planes
        fields |= {"x": x.codes, "x_scale": x.scales, "quants": quants, "high": high, "scales": scales}
        fields["blocks"] = k // QUANT_BLOCK
    else:
        if not isinstance(x, Tensor):
            raise ConfigError(f"expert_linear: dense weights need f32, got {x}")
        x.expect("expert_linear: x", (pairs.num_pairs // shared_by, k), DType.F32)
        fields |= {"x": x.address, "weight": weight.address, "k": k}
    constants = _constants(info, pairs.tile, gate)
    kernel = kernels.get(entry, constants=constants, subgroup_size=asked_subgroup_size(info))
    outputs = int(constants["ROWS"]) // (1 if gate is None else 2)
    tiles = num_tiles(pairs.num_pairs, rows.num_experts, pairs.tile)
    recorder.dispatch(kernel, kernel.pack(**fields), *split_grid(-(-rows.n // outputs)), tiles)


def _constants(info: DeviceInfo, tile: int, gate: Activation | None) -> dict[str, ConstantValue]:
    constants: dict[str, ConstantValue] = {
        "WORKGROUP": workgroup_unit(info),
        "ROWS": max(2, min(_MOST_ROWS, _SUMS // tile)),
        "PAIRS": tile,
    }
    return constants if gate is None else constants | {"GATED": True, "ACT": ACTIVATION_NUMBER[gate]}
