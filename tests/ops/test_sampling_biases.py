"""The sampling kernels where single tokens have biases, or are banned."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from unicorn_async.ops.sample_rows import NO_STATE, SamplingPath
from unicorn_async.sampling_params import SamplingParams

from . import sampling_reference as reference
from .sampler import Sampler
from .test_sampling import FILTERS, GREEDY, RANDOM, _adversarial, _keys, _random_logits

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from unicorn_async.gpu.device import Device

NONE: frozenset[int] = frozenset()


def _biases(row: int, vocab: int) -> dict[int, float]:
    """Biases of all kinds, in every third row none at all."""
    rng = np.random.default_rng(row)
    if row % 3 == 2:
        return {}
    tokens = rng.choice(vocab, min(vocab, 200), replace=False).tolist()
    values = np.where(rng.random(len(tokens)) < 0.2, -100.0, rng.uniform(-9, 9, len(tokens))).tolist()
    return dict(zip(tokens, values, strict=True))


def _banned(row: int, vocab: int) -> frozenset[int]:
    return frozenset({row % vocab, vocab - 1}) if row % 2 else NONE


def _case(
    params: SamplingParams, logits: NDArray[np.float32]
) -> tuple[list[SamplingParams], list[frozenset[int]], list[NDArray[np.float32]]]:
    """Parameters and bans of each row, and the logits that they make."""
    vocab = logits.shape[1]
    biased = [replace(params, logit_bias=_biases(row, vocab)) for row in range(len(logits))]
    banned = [_banned(row, vocab) for row in range(len(logits))]
    return biased, banned, [reference.biased(*row) for row in zip(logits, biased, banned, strict=True)]


@pytest.fixture
def sample(device: Device) -> Sampler:
    return Sampler(device)


@pytest.mark.parametrize("path", SamplingPath)
@pytest.mark.parametrize("vocab", [1, 33, 2049, 5003])
def test_greedy_takes_the_largest_logit_after_biases(sample: Sampler, path: SamplingPath, vocab: int) -> None:
    logits = np.concatenate([_adversarial(vocab), _random_logits(10, vocab)])
    params, banned, values = _case(GREEDY, logits)
    outcome = sample(logits, params, path=path, banned=banned)
    assert outcome.tokens == [int(np.argmax(row)) for row in values]


@pytest.mark.parametrize("params", FILTERS, ids=lambda p: f"t{p.temperature}-k{p.top_k}-p{p.top_p}")
def test_top_k_and_top_p_go_by_logits_after_biases(sample: Sampler, params: SamplingParams) -> None:
    logits = _random_logits(9, 2049)
    biased, banned, values = _case(params, logits)
    outcome = sample(logits, biased, banned=banned)
    for row, found in enumerate(outcome.thresholds):
        assert np.array_equal(_keys(values[row]) >= found, reference.kept(values[row], params)), f"row {row}"


def test_draws_are_those_of_the_reference_after_biases_penalties_and_masks(sample: Sampler) -> None:
    request = SamplingParams(temperature=0.9, top_k=64, top_p=0.95, min_p=0.02, presence_penalty=1.0)
    request = replace(request, repetition_penalty=1.3)
    logits = _random_logits(12, 5003, scale=2.0)
    params, banned, values = _case(request, logits)
    rng = np.random.default_rng(1)
    allowed = [rng.random(5003) < 0.5 if row % 4 == 0 else None for row in range(12)]
    seen = [([5, 9, 9], [7, 31, 31, 62])] * 12
    outcome = sample(logits, params, seen=seen, seeds=[9] * 12, allowed=allowed, banned=banned)
    for row, mask in enumerate(allowed):
        found = reference.penalised(values[row], params[row], *seen[row])
        if mask is not None:
            found = np.where(mask, found, np.float32(-np.inf))
        assert outcome.tokens[row] == reference.drawn(found, request, seed=9, position=0), f"row {row}"
        assert outcome.tokens[row] not in banned[row]


@pytest.mark.parametrize("request_", [replace(RANDOM, top_logprobs=20), replace(GREEDY, top_logprobs=20)])
def test_logprobs_are_those_after_biases(sample: Sampler, request_: SamplingParams) -> None:
    logits = _random_logits(9, 6001)
    params, banned, values = _case(request_, logits)
    outcome = sample(logits, params, banned=banned)
    for row, result in enumerate(outcome.results):
        exact = reference.log_softmax(values[row])
        assert result["logprob"] == pytest.approx(exact[result["token"]], abs=1e-4)
        order = np.argsort(-values[row], kind="stable")[:20]
        assert result["top_ids"].tolist() == order.tolist()
        assert np.allclose(result["top_logprobs"], exact[order], atol=1e-4)


@pytest.mark.parametrize("params", [GREEDY, replace(RANDOM, top_logprobs=2), replace(RANDOM, top_k=3, top_p=0.5)])
def test_where_a_mask_leaves_banned_tokens_alone_one_of_them_comes(sample: Sampler, params: SamplingParams) -> None:
    logits = _random_logits(2, 300)
    only, two = np.arange(300) == 7, np.isin(np.arange(300), (8, 260))
    outcome = sample(logits, [params] * 2, allowed=[only, two], banned=[frozenset({7, 9}), frozenset({8, 260})])
    assert outcome.tokens[0] == 7 and outcome.tokens[1] in (8, 260)


def test_every_token_may_be_banned(sample: Sampler) -> None:
    outcome = sample(_random_logits(2, 40), [GREEDY, RANDOM], banned=[frozenset(range(40))] * 2)
    assert outcome.tokens[0] == 0 and 0 <= outcome.tokens[1] < 40


@pytest.mark.parametrize("path", SamplingPath)
def test_padded_rows_and_tokens_beyond_the_vocabulary_are_left_alone(sample: Sampler, path: SamplingPath) -> None:
    logits = np.zeros((3, 300), np.float32)
    outcome = sample(
        logits, [GREEDY] * 3, path=path, state_indices=[NO_STATE, 1, 2], banned=[frozenset({0}), frozenset({300}), NONE]
    )
    assert outcome.results["token"].tolist() == [0xEEEEEEEE, 0, 0]
