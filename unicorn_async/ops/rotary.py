"""Rotary embeddings: frequencies, and the kernel that rotates q and k and fills the cache."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from decimal import Context, Decimal
from typing import TYPE_CHECKING

from unicorn_async.gpu.kernel import KernelRequest
from unicorn_async.ops.attention_plan import AttentionPlan
from unicorn_async.rotary import RotaryConfig, RotaryScaling
from unicorn_async.tensor import DType, Tensor

if TYPE_CHECKING:
    from collections.abc import Mapping

    from unicorn_async.gpu.device_info import DeviceInfo
    from unicorn_async.gpu.recorder import Kernels, Recorder
    from unicorn_async.ops.kv_cache import AttentionShape, KVCache

_EXACT = Context(prec=50)
_TWO_PI = Decimal("6.28318530717958647692528676655900576839433879875021")


def rotary_pairs(config: RotaryConfig, head_dim: int) -> int:
    """Return how many pairs of a head rotate, the first ones."""
    return 0 if config.is_still else config.num_pairs or (config.dim or head_dim) // 2


def frequencies(config: RotaryConfig, head_dim: int) -> bytes:
    """Return the frequencies of a head's pairs as the kernel wants them, exact to 2^-64 turns per position.

    The result is (head_dim / 2, 2) u32: high and low half of the turns per position, as a 0.64 fixed-point fraction;
    zeros for pairs that do not rotate.
    Source: RoFormer (arXiv 2104.09864); scaling "llama3" as published with Llama 3.1.
    """
    turns = [
        _turns_per_position(config, pair, config.dim or head_dim) for pair in range(rotary_pairs(config, head_dim))
    ]
    fixed = [int(_EXACT.multiply(turn % 1, Decimal(2**64))) for turn in turns]
    rest = head_dim // 2 - len(fixed)
    return b"".join(struct.pack("<II", value >> 32, value & 0xFFFFFFFF) for value in fixed) + bytes(8 * rest)


def _turns_per_position(config: RotaryConfig, pair: int, dim: int) -> Decimal:
    exponent = _EXACT.divide(Decimal(2 * pair), Decimal(dim))
    turns = _EXACT.divide(_EXACT.power(Decimal(config.base), -exponent), _TWO_PI)
    if config.scaling is RotaryScaling.NONE:
        return turns
    if config.scaling is RotaryScaling.FACTORS:
        return _EXACT.divide(turns, Decimal(config.factors[pair]))
    scaled = _EXACT.divide(turns, Decimal(config.factor))
    if config.scaling is RotaryScaling.LINEAR:
        return scaled
    rotations = _EXACT.multiply(turns, Decimal(config.original_max_position))  # within the original context
    low, high = Decimal(config.low_freq_factor), Decimal(config.high_freq_factor)
    if rotations < low:
        return scaled
    if rotations > high:
        return turns
    kept = _EXACT.divide(rotations - low, high - low)
    return _EXACT.add(_EXACT.multiply(1 - kept, scaled), _EXACT.multiply(kept, turns))


@dataclass(frozen=True, slots=True)
class HeadNorms:
    """RMSNorm of each head's q and k: weights (head_dim) f32, counted from 1 with `plus_one`."""

    q_weight: Tensor
    k_weight: Tensor
    eps: float
    plus_one: bool = False


@dataclass(frozen=True, slots=True)
class HeadRotation:
    """What one layer does to its q and k: norms, the rotation, and a factor on q.

    `freqs` is the address of what `frequencies` returns. What rotates is multiplied by `amplitude`: the first
    `num_pairs` pairs of a head. A query at position n grows by 1 + q_growth * log(1 + n // q_period). Values get a norm
    without weights if `v_norm`, which goes with `norms`; if `v_from_k` they are the keys before norm and rotation.
    """

    freqs: int
    q_scale: float
    norms: HeadNorms | None = None
    amplitude: float = 1.0
    num_pairs: int = 0
    q_growth: float = 0.0
    q_period: int = 1
    v_norm: bool = False
    v_from_k: bool = False

    @property
    def constants(self) -> Mapping[str, float | bool]:
        """The `rotation_constants` of a kernel that does this in passing."""
        norms = self.norms
        if norms is None:
            constants = rotation_constants(q_scale=self.q_scale, qk_norm=False, eps=0.0, plus_one=False)
        else:
            constants = rotation_constants(q_scale=self.q_scale, qk_norm=True, eps=norms.eps, plus_one=norms.plus_one)
        return {**constants, **self.extras}

    @property
    def extras(self) -> Mapping[str, float | bool]:
        """The constants of what few models do; none for the others."""
        amplitude = {"AMPLITUDE": self.amplitude, "ROTARY_PAIRS": self.num_pairs} if self.amplitude != 1.0 else {}
        growth = {"Q_GROWTH": self.q_growth, "Q_PERIOD": self.q_period} if self.q_growth else {}
        values = {name: True for name, on in (("V_NORM", self.v_norm), ("V_FROM_K", self.v_from_k)) if on}
        return {**amplitude, **growth, **values}


def rotation_constants(*, q_scale: float, qk_norm: bool, eps: float, plus_one: bool) -> Mapping[str, float | bool]:
    """Return the constants of a kernel that rotates in passing; those of norms count with `qk_norm` alone."""
    return {
        "ROTATES": True,
        "WITH_NORM": qk_norm,
        "PLUS_ONE": qk_norm and plus_one,
        "EPS": eps if qk_norm else 0.0,
        "Q_SCALE": q_scale,
    }


def _constants(info: DeviceInfo, shape: AttentionShape, *, norm: bool, plus_one: bool) -> dict[str, int | bool]:
    lanes = 8  # one lane rotates four pairs
    while lanes < min(info.subgroup_size, shape.head_dim // 8):
        lanes *= 2
    return {
        "WORKGROUP": lanes,
        "HEAD_DIM": shape.head_dim,
        "BLOCK_SIZE": shape.block_size,
        "WITH_NORM": norm,
        "PLUS_ONE": plus_one,
        "LANES": AttentionPlan.of(info, shape).lanes,
    }


def kernels_for(info: DeviceInfo, shape: AttentionShape, *, qk_norm: bool, plus_one: bool) -> tuple[KernelRequest, ...]:
    """Name the pipelines that `rope_cache` will get."""
    constants = _constants(info, shape, norm=qk_norm, plus_one=qk_norm and plus_one)
    return (KernelRequest(f"rope_cache_{shape.kv_dtype.value}", constants),)


def rope_cache(
    recorder: Recorder,
    kernels: Kernels,
    info: DeviceInfo,
    *,
    shape: AttentionShape,
    qkv: Tensor,
    q: Tensor,
    cache: KVCache,
    rotation: HeadRotation,
    positions: int,
    slot_mapping: int,
    q_gated: bool = False,
    q_alone: bool = False,
) -> None:
    """Record q = rotate(norm(q)) * q_scale, and rotate(norm(k)) and v into the cache, saturating at what f16 holds.

    `qkv` is (tokens, (num_heads + 2 * num_kv_heads) * head_dim) f32: q heads, k heads, v heads, with `q_gated` behind
    each q head one that is not looked at, and without v heads where these are k's. With `q_alone` it has neither k nor
    v, and the cache stays as it is. `q` is (tokens, num_heads * head_dim) f32 and elsewhere. Pairs are a head's halves
    (NeoX style). `positions` is the
    address of (tokens) u32, `slot_mapping` of (tokens) u32, where NO_SLOT writes nothing. A cache of f32 takes every
    value. Raises ConfigError for other shapes.
    """
    num_tokens, norms = q.shape[0], rotation.norms
    total_heads = shape.num_heads + (0 if q_alone else 2 * shape.num_kv_heads)
    q.expect("rope_cache: q", (num_tokens, shape.num_heads * shape.head_dim), DType.F32)
    row_heads = (
        total_heads
        + (shape.num_heads if q_gated else 0)
        - (shape.num_kv_heads if rotation.v_from_k and not q_alone else 0)
    )
    qkv.expect("rope_cache: qkv", (num_tokens, row_heads * shape.head_dim), DType.F32)
    if norms:
        norms.q_weight.expect("rope_cache: q_weight", (shape.head_dim,), DType.F32)
        norms.k_weight.expect("rope_cache: k_weight", (shape.head_dim,), DType.F32)
    plus_one = norms is not None and norms.plus_one
    (request,) = kernels_for(info, shape, qk_norm=norms is not None, plus_one=plus_one)
    own = {"Q_GATED": True} if q_gated else {}
    kernel = kernels.get(request.name, constants={**request.constants, **rotation.extras, **own})
    push = kernel.pack(
        qkv=qkv.address,
        q=q.address,
        k_cache=cache.k,
        v_cache=cache.v,
        q_weight=norms.q_weight.address if norms else 0,
        k_weight=norms.k_weight.address if norms else 0,
        freqs=rotation.freqs,
        positions=positions,
        slot_mapping=slot_mapping,
        num_heads=shape.num_heads,
        num_kv_heads=shape.num_kv_heads,
        eps=norms.eps if norms else 0.0,
        q_scale=rotation.q_scale,
    )
    recorder.dispatch(kernel, push, total_heads, num_tokens)
