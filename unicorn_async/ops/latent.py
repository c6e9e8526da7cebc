"""What latent attention does beside attention: its queries, its keys, and which rows meet which head's matrix.

Source: DeepSeek-V2 (arXiv 2405.04434), whose products of queries with keys' matrices come before attention here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from unicorn_async.errors import UnsupportedModelError
from unicorn_async.ops.linear_plans.experts import expert_form, pairs_of_a_tile
from unicorn_async.ops.routing import TILE_WORDS, TiledPairs, num_tiles
from unicorn_async.ops.rows import BlockRows, HalfRows, RowForm, check_columns, form_fields, form_of, row_constants
from unicorn_async.tensor import DType, Tensor, element_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from unicorn_async.gpu.device_info import DeviceInfo
    from unicorn_async.gpu.recorder import Kernels, Recorder
    from unicorn_async.ops.kv_cache import AttentionShape
    from unicorn_async.ops.rows import Rows
    from unicorn_async.tensor import QuantTensor

_VECTOR = 4
_WORKGROUP = 64
PAIR_WORDS = 1 + TILE_WORDS  # of a pair: its place in the order, and a tile at most


@dataclass(frozen=True, slots=True)
class LatentRotation:
    """The rotation of the last `dim` elements of queries and of keys.

    `freqs` is the address of what `frequencies` returns for a head of so many elements, of which the first `num_pairs`
    pairs are multiplied by `amplitude`. Pairs are neighbours if `is_interleaved`, otherwise they lie in halves. A query
    at position n is multiplied by `q_scale` and by 1 + q_growth * log(1 + n // q_period).
    """

    dim: int
    freqs: int
    q_scale: float
    is_interleaved: bool
    amplitude: float = 1.0
    num_pairs: int = 0
    q_growth: float = 0.0
    q_period: int = 1

    @property
    def constants(self) -> dict[str, int | float | bool]:
        """The constants of kernels that rotate."""
        amplitude = {"AMPLITUDE": self.amplitude, "ROTARY_PAIRS": self.num_pairs} if self.amplitude != 1.0 else {}
        return {"ROTARY_DIM": self.dim, "IS_INTERLEAVED": self.is_interleaved, **amplitude}


def head_pairs(
    info: DeviceInfo, weights: Sequence[Tensor | QuantTensor], *, num_tokens: int, num_heads: int, address: int
) -> TiledPairs:
    """Return how all tokens' heads meet their own matrices of each of the `weights`, which have a row for each output.

    `address` is that of `PAIR_WORDS` u32 for each pair of a token and a head.
    """
    num_pairs = num_tokens * num_heads
    tile = pairs_of_a_tile(info, [element_of(weight) for weight in weights], num_pairs, num_heads)
    return TiledPairs(num_pairs, tile, address, address + 4 * num_pairs)


def head_tiles(recorder: Recorder, kernels: Kernels, *, pairs: TiledPairs, num_heads: int) -> None:
    """Record what `pairs` point to, pairs numbered token by token; no barrier."""
    kernel = kernels.get("head_tiles", constants={"WORKGROUP": _WORKGROUP})
    push = kernel.pack(
        order=pairs.order,
        tiles=pairs.tiles,
        tokens=pairs.num_pairs // num_heads,
        heads=num_heads,
        tile=pairs.tile,
        num_tiles=num_tiles(pairs.num_pairs, num_heads, pairs.tile),
    )
    recorder.dispatch(kernel, push, -(-pairs.num_pairs // _WORKGROUP))


def head_rows(weight: Tensor | QuantTensor, tile: int, address: int, num_rows: int) -> Rows:
    """Return where rows belong that tiles of so many pairs multiply with a weight, in the form that this takes.

    At the `address` there is room for as many floats.
    """
    form, columns = expert_form(element_of(weight), tile), weight.shape[1]
    if form is RowForm.FLOATS:
        return Tensor(address, (num_rows, columns), DType.F32)
    return (BlockRows if form is RowForm.BLOCKS else HalfRows).at(address, num_rows, columns)


def latent_queries(
    recorder: Recorder,
    kernels: Kernels,
    info: DeviceInfo,
    *,
    q: Tensor,
    plain_dim: int,
    rotation: LatentRotation,
    positions: int,
    out: Rows,
    rotated: Tensor,
) -> None:
    """Record what becomes of queries before their product with latents, scaled; no barrier.

    `q` is (tokens, columns) f32, of which the first ones are heads of `plain_dim` and then `rotation.dim` elements.
    `rotated` is (tokens * heads, latent + rotation.dim) f32, and gets what rotates behind the latent's place; `out` the
    rest, (tokens * heads, plain_dim), in whatever form. `positions` is the address of (tokens) u32.

    Raises:
        ConfigError: shapes do not fit to each other.
        UnsupportedModelError: `plain_dim` is no multiple of the form's unit, or `rotation.dim` of 8.
    """
    num_tokens, (num_rows, columns) = q.shape[0], rotated.shape
    num_heads = num_rows // num_tokens
    check_columns("latent_queries", plain_dim, form_of(out))
    _check_rotary(rotation)
    q.expect("latent_queries: q", (num_tokens, max(q.shape[1], num_heads * (plain_dim + rotation.dim))), DType.F32)
    rotated.expect("latent_queries: rotated", (num_tokens * num_heads, columns), DType.F32)
    if isinstance(out, Tensor):
        out.expect("latent_queries: out", (num_tokens * num_heads, plain_dim), DType.F32)
    growth = {"Q_GROWTH": rotation.q_growth, "Q_PERIOD": rotation.q_period} if rotation.q_growth else {}
    constants: dict[str, int | float | bool] = {
        **row_constants(info, plain_dim),
        "PLAIN_DIM": plain_dim,
        "LATENT": columns - rotation.dim,
        **rotation.constants,
        **growth,
    }
    kernel = kernels.get(f"latent_queries_{form_of(out).value}", constants=constants)
    push = kernel.pack(
        **form_fields(out),
        q=q.address,
        rotated=rotated.address,
        freqs=rotation.freqs,
        positions=positions,
        row_columns=q.shape[1] // _VECTOR,
        q_scale=rotation.q_scale,
    )
    recorder.dispatch(kernel, push, num_heads, num_tokens)


def latent_keys(
    recorder: Recorder,
    kernels: Kernels,
    info: DeviceInfo,
    *,
    shape: AttentionShape,
    kv: Tensor,
    weight: Tensor,
    eps: float,
    rotation: LatentRotation,
    cache: int,
    positions: int,
    slot_mapping: int,
    row_columns: int,
) -> None:
    """Record the norm of latents and the rotation of what is behind them, into the cache at an address; no barrier.

    `kv` is (tokens, head_dim) f32, whose rows begin `row_columns` elements apart; `weight` (latent_dim) f32 is the
    norm's. `positions` and `slot_mapping` are as for `rope_cache`.

    Raises:
        ConfigError: shapes do not fit to each other.
        UnsupportedModelError: `rotation.dim` is no multiple of 8.
    """
    _check_rotary(rotation)
    kv.expect("latent_keys: kv", (kv.shape[0], shape.latent_dim + rotation.dim), DType.F32)
    weight.expect("latent_keys: weight", (shape.latent_dim,), DType.F32)
    constants: dict[str, int | float | bool] = {
        **row_constants(info, shape.latent_dim),
        "LATENT": shape.latent_dim,
        "BLOCK_SIZE": shape.block_size,
        **rotation.constants,
    }
    kernel = kernels.get(f"latent_keys_{shape.kv_dtype.value}", constants=constants)
    push = kernel.pack(
        kv=kv.address,
        weight=weight.address,
        cache=cache,
        freqs=rotation.freqs,
        positions=positions,
        slot_mapping=slot_mapping,
        row_columns=row_columns // _VECTOR,
        eps=eps,
    )
    recorder.dispatch(kernel, push, kv.shape[0])


def _check_rotary(rotation: LatentRotation) -> None:
    if rotation.dim % 8:
        raise UnsupportedModelError(
            f"qk_rope_head_dim: expected a multiple of 8 elements that rotate, got {rotation.dim}"
        )
