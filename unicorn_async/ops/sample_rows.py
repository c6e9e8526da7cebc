"""What the host tells the sampling kernels of each row, and what they tell the host."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from unicorn_async.ops.sampling import SamplingPath
from unicorn_async.sampling_params import MAX_BIAS, MAX_TOP_LOGPROBS, SamplingParams

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

NO_STATE = 0xFFFFFFFF  # state index of a padded row, mark or reset: nothing is done for it
NO_MASK = 0xFFFFFFFF  # mask of a row whose next token may be any
NO_BIASES = 0xFFFFFFFF  # biases of a row that has none
COUNTS, LOOKS = 1, 2  # of a row with penalties: its choice is counted, or the host says later what is
OUTPUT_MARK = 0x80000000  # added to a mark's token when it belongs to the output

_SMALLEST_TEMPERATURE = 1e-5  # below it a request is greedy
_SMALLEST_F32 = float(np.finfo(np.float32).min)

# `Row`, `Result`, `Mark` and `Bias` in shaders/include/sample.glsl, shaders/sample_count.comp and sample_bias.comp.
SAMPLE_ROW = np.dtype(
    [
        ("state_index", "<u4"),
        ("position", "<u4"),
        ("seed_low", "<u4"),
        ("seed_high", "<u4"),
        ("inverse_temperature", "<f4"),
        ("top_k", "<u4"),
        ("top_p", "<u4"),
        ("log_min_p", "<f4"),
        ("repetition", "<f4"),
        ("inverse_repetition", "<f4"),
        ("presence", "<f4"),
        ("frequency", "<f4"),
        ("top_logprobs", "<i4"),
        ("penalised", "<u4"),
        ("mask", "<u4"),
        ("biases", "<u4"),
        ("token", "<u4"),
        ("proposal", "<u4"),
    ]
)
SAMPLE_RESULT = np.dtype(
    [
        ("token", "<u4"),
        ("logprob", "<f4"),
        ("num_top", "<u4"),
        ("reserved", "<u4"),
        ("top_ids", "<u4", (MAX_TOP_LOGPROBS,)),
        ("top_logprobs", "<f4", (MAX_TOP_LOGPROBS,)),
    ]
)
SAMPLE_MARK = np.dtype([("state_index", "<u4"), ("token", "<u4")])
SAMPLE_BIAS = np.dtype([("token", "<u4"), ("value", "<f4")])


def mask_words(vocab_size: int) -> int:
    """Words of one mask: a bit for each token, the lowest of a word first, set where the token may come."""
    return -(-vocab_size // 32)


def sample_biases(params: SamplingParams, banned: Iterable[int]) -> NDArray[np.void]:
    """Return a row's biases as SAMPLE_BIAS, their number first; `banned` are tokens that must not come beside these."""
    values = dict(params.logit_bias) | dict.fromkeys(banned, -MAX_BIAS)
    return np.array([(len(values), 0.0), *values.items()], SAMPLE_BIAS)


def is_greedy(params: SamplingParams) -> bool:
    """Whether the most probable token is always taken."""
    return params.temperature < _SMALLEST_TEMPERATURE


def sampling_path(requests: Iterable[SamplingParams]) -> SamplingPath:
    """Return the cheapest path that serves all requests of a step."""
    for params in requests:
        if not is_greedy(params) or params.has_penalties or params.top_logprobs is not None:
            return SamplingPath.FULL
    return SamplingPath.GREEDY


def write_row(row: NDArray[np.void], params: SamplingParams, *, state_index: int, seed: int, position: int) -> None:
    """Fill one element of a SAMPLE_ROW array, given as a slice of length 1.

    `seed` has 64 bits; `position` is the new token's index in its sequence, and no two draws of a sequence share it.
    The row has neither a mask nor biases, and nothing is proposed before it.
    """
    row[0] = (
        state_index,
        position,
        seed & 0xFFFFFFFF,
        seed >> 32,
        0.0 if is_greedy(params) else 1.0 / params.temperature,
        params.top_k,
        0 if params.top_p >= 1.0 else max(1, int(params.top_p * 2**32)),
        math.log(params.min_p) if params.min_p > 0.0 else _SMALLEST_F32,
        params.repetition_penalty,
        min(1.0 / params.repetition_penalty, -_SMALLEST_F32),
        params.presence_penalty,
        params.frequency_penalty,
        -1 if params.top_logprobs is None else params.top_logprobs,
        COUNTS if params.has_penalties else 0,
        NO_MASK,
        NO_BIASES,
        0,
        0,
    )
