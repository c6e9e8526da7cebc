"""What latent attention does beside attention, beside NumPy in float64."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from unicorn_async.config import KVDType
from unicorn_async.errors import UnsupportedModelError
from unicorn_async.ops.kv_cache import NO_SLOT, AttentionShape
from unicorn_async.ops.latent import PAIR_WORDS, LatentRotation, head_tiles, latent_keys, latent_queries
from unicorn_async.ops.rotary import frequencies
from unicorn_async.ops.routing import TiledPairs, num_tiles
from unicorn_async.ops.rows import RowForm
from unicorn_async.rotary import RotaryConfig
from unicorn_async.tensor import DType, Tensor

from .formed_rows import FormedRows
from .int8_cache import Int8Cache, dequantised
from .test_rotary import EPS, FORMATS, normed, rotated

if TYPE_CHECKING:
    from unicorn_async.gpu.device import Device

    from .arrays import Array, Arrays

POSITIONS = [0, 1, 7, 300, 100_000]
ROTARY = RotaryConfig(base=10_000.0)


def as_halves(x: np.ndarray[Any, Any], *, interleaved: bool) -> np.ndarray[Any, Any]:
    """What rotates, with pairs in halves as the result has them."""
    return np.concatenate([x[..., ::2], x[..., 1::2]], axis=-1) if interleaved else x


def rotation(arrays: Arrays, dim: int, **others: Any) -> LatentRotation:
    freqs = arrays.put(np.frombuffer(frequencies(ROTARY, dim), np.uint32))
    return LatentRotation(dim, freqs.address, **{"q_scale": 0.3, "is_interleaved": True, **others})


def words(arrays: Arrays, values: list[int]) -> int:
    return arrays.put(np.array(values, np.uint32)).address


@pytest.mark.parametrize(
    ("form", "plain", "dim", "interleaved"),
    [
        (RowForm.FLOATS, 192, 64, True),
        (RowForm.FLOATS, 40, 16, False),
        (RowForm.HALVES, 128, 64, True),
        (RowForm.BLOCKS, 192, 32, False),
    ],
)
def test_queries_are_scaled_and_what_has_a_position_rotates_behind_the_latent(
    device: Device, arrays: Arrays, form: RowForm, plain: int, dim: int, interleaved: bool
) -> None:
    rng = np.random.default_rng(plain)
    heads, latent, tokens = 3, 72, len(POSITIONS)
    q = rng.standard_normal((tokens, heads, plain + dim)).astype(np.float32)
    behind = np.zeros((tokens, 8), np.float32)  # as where keys are made by the same product
    source = arrays.put(np.concatenate([q.reshape(tokens, -1), behind], axis=1))
    turned = arrays.poisoned(tokens * heads, latent + dim)
    rows = arrays.poisoned(tokens * heads, plain)
    formed = None if form is RowForm.FLOATS else FormedRows(arrays, form, tokens * heads, plain)
    growth, period = 0.2, 64
    told = rotation(
        arrays, dim, is_interleaved=interleaved, amplitude=1.2, num_pairs=dim // 2, q_growth=growth, q_period=period
    )
    arrays.run(
        lambda recorder: latent_queries(
            recorder,
            device.kernels,
            device.info,
            q=source.tensor,
            plain_dim=plain,
            rotation=told,
            positions=words(arrays, POSITIONS),
            out=rows.tensor if formed is None else formed.place,
            rotated=turned.tensor,
        )
    )
    scale = 0.3 * (1 + growth * np.log(1 + np.array(POSITIONS) // period))[:, None, None]
    expected = (q[..., :plain] * scale).reshape(tokens * heads, plain)
    if formed is None:
        np.testing.assert_allclose(rows.values, expected, rtol=1e-6)
    else:
        formed.check(expected)
    with_position = 1.2 * scale * rotated(as_halves(q[..., plain:], interleaved=interleaved), POSITIONS, ROTARY)
    np.testing.assert_allclose(turned.values[:, latent:], with_position.reshape(-1, dim), rtol=1e-5, atol=1e-5)
    assert np.isnan(turned.values[:, :latent]).all()


@pytest.mark.parametrize(("latent", "dim", "interleaved"), [(512, 64, True), (96, 32, False)])
@pytest.mark.parametrize("kv_dtype", KVDType)
def test_keys_are_normed_latents_and_rotated_parts_behind_them(
    device: Device, arrays: Arrays, latent: int, dim: int, interleaved: bool, kv_dtype: KVDType
) -> None:
    rng = np.random.default_rng(latent)
    tokens, first, blocks = len(POSITIONS), 12, 4
    kv = rng.standard_normal((tokens, first + latent + dim)).astype(np.float32)
    weight = rng.uniform(0.5, 2, latent).astype(np.float32)
    slots = [5, NO_SLOT, 16, 40, 47]
    shape = AttentionShape(3, 1, latent + dim, 16, kv_dtype, latent)
    bytewise = Int8Cache(blocks, 1, 16, latent + dim)
    format_ = FORMATS.get(kv_dtype, np.uint8)
    memory = bytewise.memory if kv_dtype is KVDType.INT8 else np.full((blocks, 16, latent + dim), np.nan, format_)
    cache, source = arrays.put(memory), arrays.put(kv)
    arrays.run(
        lambda recorder: latent_keys(
            recorder,
            device.kernels,
            device.info,
            shape=shape,
            kv=Tensor(source.address + 4 * first, (tokens, latent + dim), DType.F32),
            weight=arrays.put(weight).tensor,
            eps=EPS,
            rotation=rotation(arrays, dim, is_interleaved=interleaved),
            cache=cache.address,
            positions=words(arrays, POSITIONS),
            slot_mapping=words(arrays, slots),
            row_columns=first + latent + dim,
        )
    )
    turned = rotated(as_halves(kv[:, None, first + latent :], interleaved=interleaved), POSITIONS, ROTARY)[:, 0]
    expected = np.concatenate([normed(kv[:, first : first + latent], weight), turned], axis=1)
    for token, slot in enumerate(slots):
        if slot != NO_SLOT:
            found = _row(cache, bytewise, kv_dtype, slot)
            if kv_dtype is KVDType.INT8:
                step = np.repeat(np.abs(expected[token]).reshape(-1, 32).max(axis=1) / 127, 32)
                assert (np.abs(found - expected[token]) <= 0.51 * step + 1e-3 * np.abs(expected[token])).all()
            else:
                exact = {"rtol": 1e-5, "atol": 1e-5} if kv_dtype is KVDType.F32 else {"rtol": 1e-3, "atol": 1e-5}
                np.testing.assert_allclose(found, expected[token], **exact)
    if kv_dtype is not KVDType.INT8:
        assert np.isnan(cache.values).any(axis=2).sum() == blocks * 16 - tokens + 1


def _row(cache: Array, bytewise: Int8Cache, kv_dtype: KVDType, slot: int) -> np.ndarray[Any, Any]:
    if kv_dtype is not KVDType.INT8:
        return np.asarray(cache.values[slot // 16, slot % 16], np.float64)
    bytewise.memory[...] = cache.values
    place = slot // 16, slice(None), slot % 16
    return np.asarray(dequantised(bytewise.codes[place], bytewise.scales[place]), np.float64)[0]


@pytest.mark.parametrize(("tokens", "heads", "tile"), [(1, 20, 1), (7, 3, 4), (300, 16, 64), (5, 128, 8)])
def test_every_head_of_every_token_is_in_one_tile_of_its_head(
    device: Device, arrays: Arrays, tokens: int, heads: int, tile: int
) -> None:
    room = arrays.put(np.full(tokens * heads * PAIR_WORDS + 8, 0xFFFFFFFF, np.uint32))
    pairs = TiledPairs(tokens * heads, tile, room.address, room.address + 4 * tokens * heads)
    arrays.run(lambda recorder: head_tiles(recorder, device.kernels, pairs=pairs, num_heads=heads))
    order, count = room.values[: tokens * heads], num_tiles(tokens * heads, heads, tile)
    tiles = room.values[tokens * heads :][: 3 * count].reshape(count, 3)
    np.testing.assert_array_equal(order, np.arange(tokens * heads).reshape(tokens, heads).T.ravel())
    found = [pair for head, first, size in tiles for pair in order[first : first + size] if pair % heads == head]
    assert sorted(found) == list(range(tokens * heads)) and tiles[:, 2].max() <= tile
    assert (room.values[tokens * heads + 3 * count :] == 0xFFFFFFFF).all()


def test_parts_that_rotate_in_odd_sizes_are_refused(device: Device, arrays: Arrays) -> None:
    odd = rotation(arrays, 12)
    with pytest.raises(UnsupportedModelError, match=r"qk_rope_head_dim: expected a multiple of 8 .* got 12"):
        arrays.run(
            lambda recorder: latent_queries(
                recorder,
                device.kernels,
                device.info,
                q=arrays.poisoned(1, 44).tensor,
                plain_dim=32,
                rotation=odd,
                positions=0,
                out=arrays.poisoned(1, 32).tensor,
                rotated=arrays.poisoned(1, 76).tensor,
            )
        )
