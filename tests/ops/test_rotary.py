from __future__ import annotations

import struct
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from unicorn_async.config import KVDType
from unicorn_async.errors import ConfigError, UnsupportedModelError
from unicorn_async.ops.kv_cache import NO_SLOT, AttentionShape, KVCache
from unicorn_async.ops.rotary import HeadNorms, HeadRotation, frequencies, rope_cache
from unicorn_async.rotary import RotaryConfig, RotaryScaling
from unicorn_async.tensor import DType, Tensor

from .far_blocks import far_blocks
from .int8_cache import LARGEST, Int8Cache, check_codes, dequantised, quantised

if TYPE_CHECKING:
    from unicorn_async.gpu.device import Device

    from .arrays import Arrays

EPS = 1e-6
BLOCKS = 6
FORMATS = {KVDType.F16: np.float16, KVDType.F32: np.float32}


def turns(config: RotaryConfig, head_dim: int) -> list[Fraction]:
    values = struct.unpack(f"<{head_dim}I", frequencies(config, head_dim))
    return [Fraction(values[i] << 32 | values[i + 1], 1 << 64) for i in range(0, head_dim, 2)]


def rotated(x: np.ndarray[Any, Any], positions: list[int], config: RotaryConfig) -> np.ndarray[Any, Any]:
    """x is (tokens, heads, head_dim); angles are reduced exactly before they become floats."""
    freqs = turns(config, x.shape[-1])
    angles = np.array([[float(position * freq % 1) for freq in freqs] for position in positions]) * 2 * np.pi
    cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
    low, high = np.split(x.astype(np.float64), 2, axis=-1)
    return np.concatenate([low * cos - high * sin, high * cos + low * sin], axis=-1)


def normed(x: np.ndarray[Any, Any], weight: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    x = x.astype(np.float64)
    return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + EPS) * weight


def test_frequencies_are_those_of_the_definition() -> None:
    expected = 10000.0 ** (-np.arange(0, 128, 2) / 128) / (2 * np.pi)
    found = [float(turn) for turn in turns(RotaryConfig(base=10000.0), 128)]
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-19)
    scaled = RotaryConfig(base=1e6, scaling=RotaryScaling.LINEAR, factor=8.0)
    expected = 1e6 ** (-np.arange(0, 64, 2) / 64) / (2 * np.pi) / 8
    np.testing.assert_allclose([float(turn) for turn in turns(scaled, 64)], expected, rtol=1e-12, atol=1e-19)


def test_llama3_scaling_keeps_high_frequencies_and_blends_into_the_divided_low_ones() -> None:
    config = RotaryConfig(500000.0, RotaryScaling.LLAMA3, 8.0, 1.0, 4.0, 8192)
    plain = 500000.0 ** (-np.arange(0, 128, 2) / 128)
    wavelength = 2 * np.pi / plain
    kept = (8192 / wavelength - 1.0) / (4.0 - 1.0)
    blended = (1 - kept) * plain / 8 + kept * plain
    expected = np.where(wavelength < 8192 / 4, plain, np.where(wavelength > 8192, plain / 8, blended))
    found = [float(turn) * 2 * np.pi for turn in turns(config, 128)]
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-19)


def test_factors_divide_the_frequency_of_their_pair() -> None:
    factors = tuple(1.0 + 0.5 * pair for pair in range(32))
    config = RotaryConfig(10000.0, RotaryScaling.FACTORS, factors=factors)
    expected = 10000.0 ** (-np.arange(0, 64, 2) / 64) / (2 * np.pi) / np.array(factors)
    np.testing.assert_allclose([float(turn) for turn in turns(config, 64)], expected, rtol=1e-12, atol=1e-19)


def test_pairs_behind_the_rotary_dimension_stand_still() -> None:
    expected = 10000.0 ** (-np.arange(0, 48, 2) / 48) / (2 * np.pi)
    found = [float(turn) for turn in turns(RotaryConfig(base=10000.0, dim=48), 128)]
    np.testing.assert_allclose(found[:24], expected, rtol=1e-12, atol=1e-19)
    assert found[24:] == [0.0] * 40
    assert not any(frequencies(RotaryConfig(base=10000.0, is_still=True), 128))


def test_long_factors_are_for_contexts_that_exceed_the_original() -> None:
    config = RotaryConfig(
        10000.0, RotaryScaling.FACTORS, original_max_position=64, factors=(1.0, 2.0), long_factors=(4.0, 8.0)
    )
    assert config.for_context(64).factors == (1.0, 2.0)
    assert config.for_context(65).factors == (4.0, 8.0)
    assert RotaryConfig(10000.0).for_context(65) == RotaryConfig(10000.0)


def test_rotating_pairs_have_an_amplitude_and_queries_grow_with_their_position(device: Device, arrays: Arrays) -> None:
    rng = np.random.default_rng(1)
    config, positions = RotaryConfig(base=10000.0, dim=32), [0, 99, 100, 5000]
    qkv = rng.standard_normal((4, 3, 64)).astype(np.float32)
    given, q = arrays.put(qkv.reshape(4, -1)), arrays.poisoned(4, 64)
    k_cache, v_cache = (arrays.put(np.zeros((1, 1, 8, 64), np.float32)) for _ in "kv")
    freqs = arrays.put(np.frombuffer(frequencies(config, 64), np.uint32))
    position_array, slots = arrays.put(np.array(positions, np.uint32)), arrays.put(np.arange(4, dtype=np.uint32))
    arrays.run(
        lambda rec: rope_cache(
            rec,
            device.kernels,
            device.info,
            shape=AttentionShape(1, 1, 64, 8, KVDType.F32),
            qkv=given.tensor,
            q=q.tensor,
            cache=KVCache(k_cache.address, v_cache.address),
            rotation=HeadRotation(freqs.address, 0.125, amplitude=1.19, num_pairs=16, q_growth=0.1, q_period=100),
            positions=position_array.address,
            slot_mapping=slots.address,
        )
    )
    amplitude = np.tile(np.where(np.arange(32) < 16, 1.19, 1.0), 2)
    expected = rotated(qkv[:, :2], positions, config) * amplitude
    growth = 1 + 0.1 * np.log(1 + np.array(positions) // 100)
    np.testing.assert_allclose(q.values, expected[:, 0] * 0.125 * growth[:, None], rtol=4e-6, atol=2e-6)
    np.testing.assert_allclose(k_cache.values[0, 0, :4], expected[:, 1], rtol=2e-6, atol=5e-6)
    np.testing.assert_array_equal(v_cache.values[0, 0, :4], qkv[:, 2])


@pytest.mark.parametrize("from_k", [False, True])
@pytest.mark.parametrize("head_dim", [64, 512])
def test_values_are_normed_without_weights_and_may_be_the_raw_keys(
    device: Device, arrays: Arrays, head_dim: int, from_k: bool
) -> None:
    rng = np.random.default_rng(head_dim)
    shape, positions = AttentionShape(4, 2, head_dim, 8, KVDType.F32), [3, 70]
    config = RotaryConfig(base=1e6, num_pairs=head_dim // 8)
    qkv = (3 * rng.standard_normal((2, 6 if from_k else 8, head_dim))).astype(np.float32)
    weights = rng.standard_normal((2, head_dim)).astype(np.float32)
    given, q = arrays.put(qkv.reshape(2, -1)), arrays.poisoned(2, 4 * head_dim)
    k_cache, v_cache = (arrays.put(np.zeros((1, 2, 8, head_dim), np.float32)) for _ in "kv")
    freqs = arrays.put(np.frombuffer(frequencies(config, head_dim), np.uint32))
    position_array, slots = arrays.put(np.array(positions, np.uint32)), arrays.put(np.array([5, 2], np.uint32))
    norms = HeadNorms(*(arrays.put(weight).tensor for weight in weights), EPS)
    arrays.run(
        lambda rec: rope_cache(
            rec,
            device.kernels,
            device.info,
            shape=shape,
            qkv=given.tensor,
            q=q.tensor,
            cache=KVCache(k_cache.address, v_cache.address),
            rotation=HeadRotation(freqs.address, 1.0, norms, v_norm=True, v_from_k=from_k),
            positions=position_array.address,
            slot_mapping=slots.address,
        )
    )
    expected_q, expected_k = normed(qkv[:, :4], weights[0]), normed(qkv[:, 4:6], weights[1])
    expected_v = normed(qkv[:, 4:6] if from_k else qkv[:, 6:], np.ones(head_dim))
    found = q.values.reshape(expected_q.shape)
    np.testing.assert_allclose(found, rotated(expected_q, positions, config), rtol=4e-6, atol=4e-6)
    for token, slot in enumerate((5, 2)):
        expected = rotated(expected_k, positions, config)[token]
        np.testing.assert_allclose(k_cache.values[0, :, slot], expected, rtol=4e-6, atol=4e-6)
        np.testing.assert_allclose(v_cache.values[0, :, slot], expected_v[token], rtol=2e-6, atol=2e-6)


def test_pairs_that_rotate_of_a_whole_head_have_the_frequencies_that_they_have_among_all() -> None:
    found, whole = turns(RotaryConfig(1e6, num_pairs=8), 64), turns(RotaryConfig(1e6), 64)
    assert found == [*whole[:8], *[0] * 24]


@pytest.mark.combinations("every shape of heads with every norm and type of a cache")
@pytest.mark.parametrize("kv_dtype", FORMATS)
@pytest.mark.parametrize("norm", ["none", "plain", "plus_one"])
@pytest.mark.parametrize(
    ("head_dim", "num_heads", "num_kv_heads"),
    [(32, 4, 1), (64, 2, 2), (80, 3, 1), (128, 4, 2), (256, 4, 1), (512, 2, 1)],
)
def test_q_is_rotated_and_k_and_v_reach_their_slots(
    device: Device,
    arrays: Arrays,
    head_dim: int,
    num_heads: int,
    num_kv_heads: int,
    norm: str,
    kv_dtype: KVDType,
) -> None:
    rng = np.random.default_rng(head_dim)
    shape = AttentionShape(num_heads, num_kv_heads, head_dim, 8, kv_dtype)
    config = RotaryConfig(base=10000.0)
    positions = [0, 1, 7, 1000, 131071, 1_000_003, 3]
    slots = [5, 0, 47, 23, 8, 31, NO_SLOT]
    qkv = rng.standard_normal((7, num_heads + 2 * num_kv_heads, head_dim)).astype(np.float32)
    q_weight, k_weight = rng.standard_normal((2, head_dim)).astype(np.float32)
    given, q = arrays.put(qkv.reshape(7, -1)), arrays.poisoned(7, num_heads * head_dim)
    k_cache, v_cache = (
        arrays.put(np.full((BLOCKS, num_kv_heads, 8, head_dim), np.nan, FORMATS[kv_dtype])) for _ in "kv"
    )
    freqs = arrays.put(np.frombuffer(frequencies(config, head_dim), np.uint32))
    cache, first_block = far_blocks(k_cache.address, v_cache.address, shape)
    far = [slot + first_block * 8 for slot in slots[:-1]]
    position_array, slot_array = (arrays.put(np.array(each, np.uint32)) for each in (positions, [*far, NO_SLOT]))
    norms = HeadNorms(arrays.put(q_weight).tensor, arrays.put(k_weight).tensor, EPS, norm == "plus_one")

    arrays.run(
        lambda rec: rope_cache(
            rec,
            device.kernels,
            device.info,
            shape=shape,
            qkv=given.tensor,
            q=q.tensor,
            cache=cache,
            rotation=HeadRotation(freqs.address, 0.125, None if norm == "none" else norms),
            positions=position_array.address,
            slot_mapping=slot_array.address,
        )
    )

    expected_q, expected_k, expected_v = np.split(qkv, [num_heads, num_heads + num_kv_heads], axis=1)
    if norm != "none":
        extra = 1 if norm == "plus_one" else 0
        expected_q, expected_k = normed(expected_q, q_weight + extra), normed(expected_k, k_weight + extra)
    expected_q, expected_k = rotated(expected_q, positions, config) * 0.125, rotated(expected_k, positions, config)
    np.testing.assert_allclose(q.values.reshape(expected_q.shape), expected_q, rtol=2e-6, atol=2e-6)

    tolerance = {"rtol": 2**-11, "atol": 1e-5} if kv_dtype is KVDType.F16 else {"rtol": 2e-6, "atol": 5e-6}
    expected_cache = np.full((2, *k_cache.values.shape), np.nan)
    for token, slot in enumerate(slots[:-1]):
        expected_cache[:, slot // 8, :, slot % 8] = expected_k[token], expected_v[token]
    np.testing.assert_allclose(k_cache.values, expected_cache[0], **tolerance)
    np.testing.assert_allclose(v_cache.values, expected_cache[1], **tolerance)


def write_int8(
    device: Device, arrays: Arrays, qkv: np.ndarray[Any, Any], positions: list[int], slots: list[int]
) -> tuple[Int8Cache, Int8Cache]:
    """What becomes of k and v in a cache of int8; all heads of `qkv`, (tokens, heads, head_dim), but two are q's."""
    tokens, heads, head_dim = qkv.shape
    caches = [Int8Cache(BLOCKS, 1, 8, head_dim) for _ in "kv"]
    k_cache, v_cache = (arrays.put(cache.memory) for cache in caches)
    given, q = arrays.put(qkv.reshape(tokens, -1)), arrays.poisoned(tokens, (heads - 2) * head_dim)
    freqs = arrays.put(np.frombuffer(frequencies(RotaryConfig(base=10000.0), head_dim), np.uint32))
    position_array, slot_array = arrays.put(np.array(positions, np.uint32)), arrays.put(np.array(slots, np.uint32))
    arrays.run(
        lambda rec: rope_cache(
            rec,
            device.kernels,
            device.info,
            shape=AttentionShape(heads - 2, 1, head_dim, 8, KVDType.INT8),
            qkv=given.tensor,
            q=q.tensor,
            cache=KVCache(k_cache.address, v_cache.address),
            rotation=HeadRotation(freqs.address, 1.0),
            positions=position_array.address,
            slot_mapping=slot_array.address,
        )
    )
    found_k, found_v = (Int8Cache(BLOCKS, 1, 8, head_dim, array.values) for array in (k_cache, v_cache))
    return found_k, found_v


@pytest.mark.parametrize("head_dim", [64, 128, 192, 256, 512])
def test_k_and_v_become_int8_in_their_slots(device: Device, arrays: Arrays, head_dim: int) -> None:
    rng = np.random.default_rng(head_dim)
    slots = [5, 0, 47, 23, 8, 31, NO_SLOT]
    positions = [0, 1, 7, 1000, 131071, 1_000_003, 3]
    qkv = (rng.standard_normal((7, 4, head_dim)) * np.exp(3 * rng.standard_normal((7, 4, 1)))).astype(np.float32)
    qkv[1, 2:, :32] = 0  # a block without a magnitude
    qkv[1, 2:, head_dim // 2 : head_dim // 2 + 32] = 0
    k_cache, v_cache = write_int8(device, arrays, qkv, positions, slots)

    _, scales = quantised(qkv[:, 3])
    untouched = np.ones((BLOCKS, 8), bool)
    for token, slot in enumerate(slots[:-1]):
        place = slot // 8, 0, slot % 8
        untouched[slot // 8, slot % 8] = False
        check_codes(v_cache.codes[place], qkv[token, 3])
        np.testing.assert_array_equal(v_cache.scales[place], scales[token])
        rotated_k = rotated(qkv[token : token + 1, 2:3], positions[token : token + 1], RotaryConfig(base=10000.0))[0, 0]
        found = dequantised(k_cache.codes[place], k_cache.scales[place])
        largest = np.abs(rotated_k.reshape(-1, 32)).max(axis=1)
        steps = np.repeat(largest / 127, 32)
        assert (np.abs(found - rotated_k) <= 0.501 * steps + 2e-6 * np.repeat(largest, 32)).all()
    for cache in (k_cache, v_cache):
        assert (cache.codes[:, 0][untouched] == -1).all() and np.isnan(cache.scales[:, 0][untouched]).all()


def test_what_int8_cannot_hold_saturates_in_the_cache_and_small_values_keep_their_block_s_scale(
    device: Device, arrays: Arrays
) -> None:
    qkv = np.zeros((3, 3, 64), np.float32)
    qkv[0, 2] = np.tile([1e6, -1e6], 32)
    qkv[1, 2] = 3e-6 * np.linspace(-1, 1, 64)  # scales that are no normal halves
    qkv[2, 2, 5] = 1e-12
    _, cache = write_int8(device, arrays, qkv, [0, 1, 2], [0, 1, 2])
    found = dequantised(cache.codes[0, 0, :3], cache.scales[0, 0, :3])
    np.testing.assert_array_equal(found[0], np.tile([LARGEST, -LARGEST], 32))
    assert (np.abs(found[1] - qkv[1, 2]) <= np.float32(2**-25)).all()
    assert (np.abs(found[2] - qkv[2, 2]) <= 2**-25).all()


def test_what_f16_cannot_hold_saturates_in_the_cache(device: Device, arrays: Arrays) -> None:
    shape = AttentionShape(1, 1, 32, 8, KVDType.F16)
    qkv = arrays.put(np.tile(np.array([1e6, -1e6] * 16, np.float32), (1, 3)))
    q, freqs = arrays.poisoned(1, 32), arrays.put(np.zeros(32, np.uint32))
    k_cache, v_cache = (arrays.put(np.zeros((1, 1, 8, 32), np.float16)) for _ in "kv")
    zero = arrays.put(np.zeros(1, np.uint32))
    arrays.run(
        lambda rec: rope_cache(
            rec,
            device.kernels,
            device.info,
            shape=shape,
            qkv=qkv.tensor,
            q=q.tensor,
            cache=KVCache(k_cache.address, v_cache.address),
            rotation=HeadRotation(freqs.address, 1.0),
            positions=zero.address,
            slot_mapping=zero.address,
        )
    )
    for cache in (k_cache, v_cache):
        np.testing.assert_array_equal(cache.values[0, 0, 0], [65504, -65504] * 16)
        assert not cache.values[0, 0, 1:].any()


def test_values_become_the_nearest_halves_in_the_cache(device: Device, arrays: Arrays) -> None:
    rng = np.random.default_rng(0)
    wide = np.exp2(rng.uniform(-26, 15.9, 240)) * rng.choice([-1, 1], 240)
    ties = np.array([1 + 2**-11, 1 + 3 * 2**-11, 3 * 2**-25, -5 * 2**-25, 65519, 2**-14 - 2**-26, 2**-25, 0])
    values = np.concatenate([wide, ties, np.zeros(8)]).astype(np.float32)
    qkv = arrays.put(np.concatenate([np.zeros(512), values]).astype(np.float32).reshape(1, -1))
    q, freqs = arrays.poisoned(1, 256), arrays.put(np.zeros(256, np.uint32))
    cache, zero = arrays.put(np.zeros((2, 256), np.float16)), arrays.put(np.zeros(1, np.uint32))
    arrays.run(
        lambda rec: rope_cache(
            rec,
            device.kernels,
            device.info,
            shape=AttentionShape(1, 1, 256, 1, KVDType.F16),
            qkv=qkv.tensor,
            q=q.tensor,
            cache=KVCache(cache.address, cache.address + 512),
            rotation=HeadRotation(freqs.address, 1.0),
            positions=zero.address,
            slot_mapping=zero.address,
        )
    )
    np.testing.assert_array_equal(cache.values[1], values.astype(np.float16))


def test_shapes_that_the_kernels_do_not_do_are_refused(device: Device, arrays: Arrays) -> None:
    with pytest.raises(UnsupportedModelError, match="got 36"):
        AttentionShape(1, 1, 36, 16, KVDType.F16)
    with pytest.raises(UnsupportedModelError, match="int8 takes a multiple of 64, got 96"):
        AttentionShape(1, 1, 96, 16, KVDType.INT8)
    with pytest.raises(UnsupportedModelError, match="num_kv_heads = 2, got 3"):
        AttentionShape(3, 2, 64, 16, KVDType.F16)
    q = Tensor(0, (2, 64), DType.F32)
    with pytest.raises(ConfigError, match=r"qkv: expected \(2, 192\)"):
        arrays.run(
            lambda rec: rope_cache(
                rec,
                device.kernels,
                device.info,
                shape=AttentionShape(1, 1, 64, 16, KVDType.F16),
                qkv=q,
                q=q,
                cache=KVCache(0, 0),
                rotation=HeadRotation(0, 1.0),
                positions=0,
                slot_mapping=0,
            )
        )
