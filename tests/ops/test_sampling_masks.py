"""The sampling kernels where masks say which tokens may come: as if the vocabulary had no others."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from unicorn_async.gpu.device_info import DeviceType
from unicorn_async.ops.sample_rows import NO_STATE, SamplingPath
from unicorn_async.sampling_params import SamplingParams

from . import sampling_reference as reference
from .sampler import Sampler
from .test_sampling import FILTERS, GREEDY, RANDOM, _adversarial, _keys, _random_logits

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from unicorn_async.gpu.device import Device


def _allowed(rows: int, vocab: int) -> list[NDArray[np.bool_] | None]:
    """Masks of all kinds: half of the tokens, one, a stretch within a chunk, all but one, all, and none at all."""
    rng, tokens = np.random.default_rng(3), np.arange(vocab)
    kinds = [
        rng.random(vocab) < 0.5,
        tokens == vocab - 1,
        (tokens >= vocab // 3) & (tokens <= vocab // 3 + 20),
        tokens != vocab // 2,
        np.ones(vocab, bool),
        None,
        tokens % 31 == 0,
        tokens == 0,
    ]
    for mask in kinds:
        if mask is not None and not mask.any():
            mask[vocab - 1] = True
    return [kinds[row % len(kinds)] for row in range(rows)]


def _only(values: NDArray[np.float32], mask: NDArray[np.bool_] | None) -> tuple[NDArray[np.float32], NDArray[np.intp]]:
    """The values of the tokens that may come, and their ids."""
    ids = np.arange(values.size) if mask is None else np.flatnonzero(mask)
    return values[ids], ids


@pytest.fixture
def sample(device: Device) -> Sampler:
    return Sampler(device)


@pytest.mark.parametrize("path", SamplingPath)
@pytest.mark.parametrize("vocab", [1, 33, 2049, 5003])
def test_greedy_takes_the_best_of_the_tokens_that_may_come(sample: Sampler, path: SamplingPath, vocab: int) -> None:
    logits = np.concatenate([_adversarial(vocab), _random_logits(10, vocab)])
    allowed = _allowed(len(logits), vocab)
    outcome = sample(logits, [GREEDY] * len(logits), path=path, allowed=allowed)
    for row, (found, mask) in enumerate(zip(outcome.tokens, allowed, strict=True)):
        values, ids = _only(reference.cleaned(logits[row]), mask)
        assert found == ids[np.argmax(values)], f"row {row}"
    assert outcome.last_token[: len(logits)].tolist() == outcome.tokens


@pytest.mark.parametrize("params", FILTERS, ids=lambda p: f"t{p.temperature}-k{p.top_k}-p{p.top_p}")
@pytest.mark.parametrize("vocab", [3, 2049])
def test_top_k_and_top_p_go_by_the_tokens_that_may_come(sample: Sampler, params: SamplingParams, vocab: int) -> None:
    logits = np.concatenate([_adversarial(vocab), _random_logits(10, vocab)])
    allowed = _allowed(len(logits), vocab)
    outcome = sample(logits, [params] * len(logits), allowed=allowed)
    for row, mask in enumerate(allowed):
        values, ids = _only(reference.cleaned(logits[row]), mask)
        found = _keys(values) >= outcome.thresholds[row]
        assert np.array_equal(found, reference.kept(values, params)), f"row {row}"
        assert outcome.tokens[row] in ids


def test_every_kind_of_device_finds_the_same_thresholds_under_masks(device: Device) -> None:
    logits = np.concatenate([_adversarial(5003), _random_logits(4, 5003)])
    params = [FILTERS[i % len(FILTERS)] for i in range(len(logits))]
    first, second = (
        Sampler(device, replace(device.info, type=kind))(logits, params, allowed=_allowed(len(logits), 5003))
        for kind in (DeviceType.SOFTWARE, DeviceType.DISCRETE)
    )
    assert np.array_equal(first.thresholds, second.thresholds)
    assert first.tokens == second.tokens


def test_draws_are_those_of_the_reference_generator_among_what_may_come(sample: Sampler) -> None:
    params = [
        RANDOM,
        SamplingParams(temperature=2.0, min_p=0.2),
        SamplingParams(temperature=1.0, top_k=64, top_p=0.95, min_p=0.05),
        SamplingParams(temperature=0.7, top_p=0.9, presence_penalty=1.0, repetition_penalty=1.3),
    ] * 4
    logits = _random_logits(len(params), 5003, scale=2.0)
    allowed = _allowed(len(params), 5003)
    seen = [([5, 9, 9], [7, 31, 31, 62])] * len(params)
    outcome = sample(logits, params, seen=seen, seeds=[9] * len(params), allowed=allowed)
    for row, (request, mask) in enumerate(zip(params, allowed, strict=True)):
        values = reference.penalised(logits[row], request, *seen[row])
        if mask is not None:
            values = np.where(mask, values, np.float32(-np.inf))  # far below any filter
        assert outcome.tokens[row] == reference.drawn(values, request, seed=9, position=0), f"row {row}"


@pytest.mark.parametrize("vocab", [5, 2049, 6001])
def test_logprobs_are_of_the_distribution_over_what_may_come(sample: Sampler, vocab: int) -> None:
    params = [
        replace(GREEDY, top_logprobs=20),
        SamplingParams(temperature=0.5, top_k=50, repetition_penalty=1.5, top_logprobs=5),
        replace(RANDOM, top_logprobs=0),
        RANDOM,
    ] * 4
    logits = _random_logits(len(params), vocab)
    allowed = _allowed(len(params), vocab)
    outcome = sample(logits, params, seen=[([0, 1], [2, 2])] * len(params), allowed=allowed)
    for row, (request, result) in enumerate(zip(params, outcome.results, strict=True)):
        values, ids = _only(logits[row], allowed[row])
        assert result["token"] in ids
        if request.top_logprobs is None:
            continue
        exact = reference.log_softmax(values)
        assert result["logprob"] == pytest.approx(exact[np.flatnonzero(ids == result["token"])[0]], abs=1e-4)
        top = min(request.top_logprobs, len(ids))
        assert result["num_top"] == top
        order = np.argsort(-values, kind="stable")[:top]
        assert result["top_ids"][:top].tolist() == ids[order].tolist()
        assert np.allclose(result["top_logprobs"][:top], exact[order], atol=1e-4)


@pytest.mark.parametrize("params", [replace(RANDOM, top_p=0.9, top_logprobs=3), GREEDY], ids=["full", "greedy"])
def test_masks_of_a_large_vocabulary_leave_other_rows_alone(sample: Sampler, params: SamplingParams) -> None:
    logits = _random_logits(3, 262_208)
    mask = np.zeros(262_208, bool)
    mask[[70_000, 262_207]] = True
    path = SamplingPath.GREEDY if params is GREEDY else SamplingPath.FULL
    plain = sample(logits, [params] * 3, path=path, seeds=[1, 2, 3])
    masked = sample(logits, [params] * 3, path=path, seeds=[1, 2, 3], allowed=[None, mask, None])
    assert masked.tokens[1] in (70_000, 262_207)
    assert [masked.results[row] for row in (0, 2)] == [plain.results[row] for row in (0, 2)]


@pytest.mark.parametrize("path", SamplingPath)
def test_padded_rows_have_no_mask_to_read(sample: Sampler, path: SamplingPath) -> None:
    logits = _random_logits(2, 300)
    mask = np.arange(300) == 7
    outcome = sample(logits, [GREEDY] * 2, path=path, state_indices=[NO_STATE, 1], allowed=[None, mask])
    assert outcome.results["token"].tolist() == [0xEEEEEEEE, 7]
