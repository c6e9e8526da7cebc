"""Sampling in NumPy: float32 where the definition is about equal logits, float64 everywhere else."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from unicorn_async.sampling_params import SamplingParams

LARGEST = np.finfo(np.float32).max
_MASK = np.uint64(0xFFFFFFFF)


def cleaned(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    return np.nan_to_num(logits, nan=-LARGEST, posinf=LARGEST, neginf=-LARGEST) + np.float32(0.0)


def biased(
    logits: NDArray[np.float32], params: SamplingParams, banned: frozenset[int] = frozenset()
) -> NDArray[np.float32]:
    values = cleaned(logits)
    for token, bias in params.logit_bias:
        values[token] = values[token].astype(np.float64) + bias
    gone = banned | {token for token, bias in params.logit_bias if bias == -100}
    values[sorted(gone)] = -LARGEST
    return cleaned(values)


def penalised(
    logits: NDArray[np.float32], params: SamplingParams, prompt: list[int], output: list[int]
) -> NDArray[np.float32]:
    values = cleaned(logits)
    seen = sorted({*prompt, *output})
    repetition, inverse = np.float32(params.repetition_penalty), np.float32(1.0 / params.repetition_penalty)
    with np.errstate(over="ignore"):
        values[seen] = np.where(values[seen] > 0, values[seen] * inverse, values[seen] * repetition)
    for token in set(output):
        frequency = np.float32(params.frequency_penalty) * np.float32(output.count(token))
        values[token] -= frequency + np.float32(params.presence_penalty)
    return cleaned(values)


def distances(values: NDArray[np.float32], temperature: float) -> NDArray[np.float64]:
    """Distance to the largest value, at most 0, divided by the temperature."""
    wide = values.astype(np.float64)
    return (wide - wide.max()) * np.float64(np.float32(1.0 / temperature))


def kept(values: NDArray[np.float32], params: SamplingParams, *, min_p: bool = True) -> NDArray[np.bool_]:
    """Which tokens may be chosen."""
    scaled = distances(values, params.temperature)
    keep = np.ones(values.shape, dtype=bool)
    if 0 < params.top_k < values.size:
        keep &= values >= np.sort(values)[::-1][params.top_k - 1]
    if params.top_p < 1.0:
        mass = np.where(keep, np.exp(scaled), 0.0)
        order = np.argsort(-values, kind="stable")
        reached = np.flatnonzero(np.cumsum(mass[order]) >= params.top_p * mass.sum() * (1 - 1e-12))[0]
        keep &= values >= values[order[reached]]
    if min_p and params.min_p > 0.0:
        keep &= scaled >= np.log(params.min_p)
    return keep


def philox(ids: NDArray[np.uint64], position: int, seed: int) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """The first two words of Philox4x32-10 for counters (id, position, 0, 0)."""
    a, b = ids.astype(np.uint64), np.full(ids.shape, position, dtype=np.uint64)
    c, d = np.zeros_like(a), np.zeros_like(a)
    key_0, key_1 = seed & 0xFFFFFFFF, seed >> 32
    for _ in range(10):
        first, second = a * np.uint64(0xD2511F53), c * np.uint64(0xCD9E8D57)
        a, b, c, d = (
            (second >> np.uint64(32)) ^ b ^ np.uint64(key_0),
            second & _MASK,
            (first >> np.uint64(32)) ^ d ^ np.uint64(key_1),
            first & _MASK,
        )
        key_0, key_1 = (key_0 + 0x9E3779B9) & 0xFFFFFFFF, (key_1 + 0xBB67AE85) & 0xFFFFFFFF
    return a, b


def drawn(values: NDArray[np.float32], params: SamplingParams, *, seed: int, position: int) -> int:
    """The token that the Gumbel-max trick chooses."""
    high, low = philox(np.arange(values.size, dtype=np.uint64), position, seed)
    uniform = (high.astype(np.float64) + low.astype(np.float64) / 2**32) / 2**32
    scores = distances(values, params.temperature) - np.log(-np.log1p(-uniform))
    return int(np.argmax(np.where(kept(values, params), scores, -np.inf)))


def log_softmax(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    wide = cleaned(logits).astype(np.float64)
    wide -= wide.max()
    result: NDArray[np.float64] = wide - np.log(np.exp(wide).sum())
    return result
