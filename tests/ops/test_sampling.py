"""The sampling kernels, against NumPy."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from unicorn_async.errors import ConfigError
from unicorn_async.gpu.device_info import DeviceType
from unicorn_async.ops import sample_rows
from unicorn_async.ops.sample_rows import NO_STATE
from unicorn_async.ops.sampling import SampleArguments, SamplingPath
from unicorn_async.sampling_params import SamplingParams
from unicorn_async.tensor import DType, Tensor

from . import sampling_reference as reference
from .sampler import Sampler

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from unicorn_async.gpu.device import Device

GREEDY = SamplingParams()
RANDOM = SamplingParams(temperature=1.0)


def _keys(values: NDArray[np.float32]) -> NDArray[np.uint32]:
    bits = reference.cleaned(values).view(np.uint32)
    return np.where(bits >> 31, ~bits, bits | np.uint32(0x80000000))


def _random_logits(rows: int, vocab: int, *, seed: int = 0, scale: float = 4.0) -> NDArray[np.float32]:
    return (np.random.default_rng(seed).standard_normal((rows, vocab)) * scale).astype(np.float32)


def _adversarial(vocab: int) -> NDArray[np.float32]:
    rng = np.random.default_rng(5)
    rows = [
        np.zeros(vocab),
        np.where(np.arange(vocab) == vocab // 3, 30.0, -30.0),
        np.where(np.arange(vocab) == vocab // 2, 1e30, rng.standard_normal(vocab)),
        np.full(vocab, -np.inf),
        np.where(np.arange(vocab) % 3 == 1, 0.5, -np.inf),
        np.where(np.arange(vocab) % 5 == 2, np.nan, rng.standard_normal(vocab)),
        np.full(vocab, np.nan),
        np.where(np.arange(vocab) % 7 == 3, np.inf, 1.0),
        rng.integers(-3, 3, vocab) * 1.0,
        rng.standard_normal(vocab) * 1e30,
        np.where(rng.random(vocab) < 0.5, -0.0, 0.0),
        rng.standard_normal(vocab) * 1e-30,
        1000.0 + rng.standard_normal(vocab) * 1e-3,
        -5e4 + rng.standard_normal(vocab) * 100.0,
    ]
    return np.array(rows, np.float32)


@pytest.fixture
def sample(device: Device) -> Sampler:
    return Sampler(device)


@pytest.mark.parametrize("path", SamplingPath)
@pytest.mark.parametrize("vocab", [1, 7, 2047, 2048, 2049, 5003])
def test_greedy_takes_the_lowest_id_of_the_largest_logits(sample: Sampler, path: SamplingPath, vocab: int) -> None:
    logits = np.concatenate([_adversarial(vocab), _random_logits(4, vocab)])
    outcome = sample(logits, [GREEDY] * len(logits), path=path)
    expected = [int(np.argmax(reference.cleaned(row))) for row in logits]
    assert outcome.tokens == expected
    assert outcome.last_token[: len(logits)].tolist() == expected


def test_greedy_paths_agree_on_a_large_vocabulary(sample: Sampler) -> None:
    logits = np.round(_random_logits(2, 262_208), 1)
    expected = [int(np.argmax(row)) for row in logits]
    assert sample(logits, [GREEDY] * 2, path=SamplingPath.GREEDY).tokens == expected
    assert sample(logits, [GREEDY] * 2).tokens == expected


FILTERS = [
    SamplingParams(temperature=1.0, top_k=1),
    SamplingParams(temperature=0.7, top_k=5),
    SamplingParams(temperature=1.0, top_k=64, top_p=0.95),
    SamplingParams(temperature=1.5, top_k=1000, top_p=0.3),
    SamplingParams(temperature=1.0, top_p=0.9),
    SamplingParams(temperature=0.3, top_p=0.5),
    SamplingParams(temperature=3.0, top_p=0.999),
    SamplingParams(temperature=1.0, top_p=1e-6),
    SamplingParams(temperature=100.0, top_p=0.5),
    SamplingParams(temperature=1e-3, top_k=3, top_p=0.9),
]


@pytest.mark.parametrize("params", FILTERS, ids=lambda p: f"t{p.temperature}-k{p.top_k}-p{p.top_p}")
@pytest.mark.parametrize("vocab", [3, 2049])
def test_top_k_and_top_p_keep_what_the_reference_keeps(sample: Sampler, params: SamplingParams, vocab: int) -> None:
    logits = np.concatenate([_adversarial(vocab), _random_logits(4, vocab), _random_logits(2, vocab, scale=30.0)])
    outcome = sample(logits, [params] * len(logits))
    for i, row in enumerate(logits):
        values = reference.cleaned(row)
        found = _keys(row) >= outcome.thresholds[i]
        assert np.array_equal(found, reference.kept(values, params)), f"row {i}"


def test_every_kind_of_device_finds_the_same_thresholds(device: Device) -> None:
    logits = np.concatenate([_adversarial(5003), _random_logits(4, 5003)])
    params = [FILTERS[i % len(FILTERS)] for i in range(len(logits))]
    first, second = (
        Sampler(device, replace(device.info, type=kind))(logits, params)
        for kind in (DeviceType.SOFTWARE, DeviceType.DISCRETE)
    )
    assert np.array_equal(first.thresholds, second.thresholds)
    assert first.tokens == second.tokens


def test_filters_are_exact_on_a_large_vocabulary(sample: Sampler) -> None:
    logits = _random_logits(1, 262_208, scale=2.5)
    params = SamplingParams(temperature=1.0, top_k=64, top_p=0.95, min_p=0.01)
    outcome = sample(logits, [params], seeds=[9])
    assert np.array_equal(_keys(logits[0]) >= outcome.thresholds[0], reference.kept(logits[0], params, min_p=False))
    assert outcome.tokens == [reference.drawn(logits[0], params, seed=9, position=0)]


@pytest.mark.parametrize(
    "params",
    [
        RANDOM,
        SamplingParams(temperature=0.5),
        SamplingParams(temperature=2.0, min_p=0.2),
        SamplingParams(temperature=1.0, min_p=1.0),
        SamplingParams(temperature=1.0, top_k=64, top_p=0.95, min_p=0.05),
    ],
    ids=lambda p: f"t{p.temperature}-k{p.top_k}-p{p.top_p}-m{p.min_p}",
)
def test_draws_are_those_of_the_reference_generator(sample: Sampler, params: SamplingParams) -> None:
    logits = np.concatenate([_random_logits(60, 3001, scale=2.0), _adversarial(3001)])
    seeds = [(i * 0x9E3779B97F4A7C15) % 2**64 for i in range(len(logits))]
    positions = [i * i for i in range(len(logits))]
    outcome = sample(logits, [params] * len(logits), seeds=seeds, positions=positions)
    expected = [
        reference.drawn(reference.cleaned(row), params, seed=seed, position=position)
        for row, seed, position in zip(logits, seeds, positions, strict=True)
    ]
    assert outcome.tokens == expected


@pytest.mark.parametrize(
    "params", [RANDOM, SamplingParams(temperature=0.6, top_k=12), SamplingParams(temperature=1.3, top_p=0.8)]
)
def test_many_seeds_draw_by_the_probabilities(sample: Sampler, params: SamplingParams) -> None:
    logits, draws = _random_logits(1, 40, seed=3, scale=1.0)[0], 4096
    outcome = sample(np.tile(logits, (draws, 1)), [params] * draws, seeds=range(1, draws + 1))
    mass = np.where(reference.kept(logits, params), np.exp(reference.distances(logits, params.temperature)), 0.0)
    expected = mass / mass.sum() * draws
    observed = np.bincount(outcome.tokens, minlength=40)
    assert not observed[expected == 0].any()
    used = expected > 0
    chi_square = float(((observed - expected)[used] ** 2 / expected[used]).sum())
    freedom = int(used.sum()) - 1
    assert chi_square < freedom + 4 * math.sqrt(2 * freedom)


def test_a_sequence_draws_anew_at_every_position(sample: Sampler) -> None:
    outcome = sample(np.zeros((64, 5000), np.float32), [RANDOM] * 64, seeds=[7] * 64, positions=range(64))
    assert len(set(outcome.tokens)) > 60


def test_a_row_does_not_depend_on_its_neighbours(sample: Sampler) -> None:
    logits = _random_logits(64, 4099, scale=3.0)
    kinds = [
        SamplingParams(temperature=0.8, top_k=40, top_p=0.9, top_logprobs=3),
        GREEDY,
        replace(RANDOM, top_logprobs=20),
        SamplingParams(temperature=1.2, min_p=0.05, repetition_penalty=1.2, top_logprobs=0),
    ]
    params = [kinds[i % 4] for i in range(64)]
    seen = [([1, 2, 3], [i, i, i + 7]) for i in range(64)]
    together = sample(logits, params, seeds=range(64), positions=range(64), seen=seen)
    for i in (0, 1, 2, 3, 62, 63):
        alone = sample(logits[i : i + 1], params[i : i + 1], seeds=[i], positions=[i], seen=seen[i : i + 1])
        top = alone.results["num_top"][0]
        for name in ("token", "logprob", "num_top"):
            assert alone.results[name].tobytes() == together.results[name][i : i + 1].tobytes()
        for name in ("top_ids", "top_logprobs"):
            assert alone.results[name][0, :top].tobytes() == together.results[name][i, :top].tobytes()


def test_penalties_change_logits_as_the_reference_does(sample: Sampler) -> None:
    logits = _random_logits(5, 2500, scale=2.0)
    best = [int(token) for token in np.argsort(-logits[0])[:6]]
    worst = [int(token) for token in np.argsort(logits[0])[:6]]
    logits[:] = logits[0]
    seen = [(best[:3] + worst[:2], best[2:5] * 3 + worst[1:3])] * 5
    params = [
        replace(GREEDY, repetition_penalty=1.7),
        replace(GREEDY, presence_penalty=1.1, frequency_penalty=0.3),
        replace(GREEDY, repetition_penalty=0.6, frequency_penalty=-0.5),
        replace(RANDOM, repetition_penalty=1.3, presence_penalty=-0.7, top_k=20),
        GREEDY,
    ]
    outcome = sample(logits, params, seen=seen, seeds=[4] * 5)
    for i, request in enumerate(params):
        values = reference.penalised(logits[i], request, *seen[i])
        assert outcome.max_keys[i] == _keys(values).max()
        is_greedy = request.temperature == 0.0
        expected = int(np.argmax(values)) if is_greedy else reference.drawn(values, request, seed=4, position=0)
        assert outcome.tokens[i] == expected


def test_counts_hold_prompt_output_and_the_sampled_token(sample: Sampler) -> None:
    logits = np.zeros((2, 50), np.float32)
    logits[:, 9] = 20.0
    penalty = replace(GREEDY, frequency_penalty=0.1)
    outcome = sample(logits, [penalty, GREEDY], seen=[([3, 3, 9], [9, 9, 4, 60]), ([49], [49, 0])])
    assert outcome.counts is not None
    expected = np.zeros((2, 50), np.uint32)
    expected[0, [3, 9, 4]] = [0x80000000, 0x80000003, 1]
    expected[1, [49, 0]] = [0x80000001, 1]
    assert np.array_equal(outcome.counts, expected)


def test_behind_proposed_tokens_penalties_count_them_and_the_table_does_not(sample: Sampler) -> None:
    logits = _random_logits(1, 2500, scale=2.0).repeat(8, axis=0)
    best = [int(token) for token in np.argsort(-logits[0])[:6]]
    proposed = [best[0], best[1], 7, best[1], 2400, best[0]]  # behind the second row
    seen = (best[1:3], [7, best[3]])
    for chosen in (GREEDY, replace(RANDOM, top_k=30, min_p=0.01)):
        params = replace(chosen, repetition_penalty=1.3, presence_penalty=0.7, frequency_penalty=0.6)
        states = [2, *[5] * 7]
        positions = [3, *range(9, 16)]
        outcome = sample(
            logits,
            [GREEDY, *[params] * 7],
            seen=[([], [])] * 2 + [seen] * 6,
            state_indices=states,
            positions=positions,
            seeds=[4] * 8,
            proposed=proposed,
        )
        for row, position in enumerate(positions[1:], 1):
            values = reference.penalised(logits[0], params, seen[0] * 6, seen[1] * 6 + proposed[: row - 1])
            is_greedy = params.temperature == 0.0
            expected = int(np.argmax(values))
            if not is_greedy:
                expected = reference.drawn(values, params, seed=4, position=position)
            assert outcome.max_keys[row] == _keys(values).max()
            assert outcome.tokens[row] == expected
        assert outcome.counts is not None
        assert outcome.counts[5].sum() == 2 * 6 + 1 + 2 * 0x80000000  # with the choice behind no proposed token


@pytest.mark.parametrize("vocab", [5, 2049, 6001])
def test_logprobs_are_those_of_the_raw_distribution(sample: Sampler, vocab: int) -> None:
    logits = np.concatenate([_random_logits(4, vocab), np.zeros((1, vocab)), np.round(_random_logits(1, vocab))])
    params = [
        replace(GREEDY, top_logprobs=20),
        SamplingParams(temperature=0.5, top_k=50, repetition_penalty=1.5, top_logprobs=5),
        replace(RANDOM, top_logprobs=0),
        RANDOM,
        replace(RANDOM, top_logprobs=20),
        replace(GREEDY, top_logprobs=20),
    ]
    outcome = sample(logits.astype(np.float32), params, seen=[([0, 1], [2, 2])] * 6)
    for row, request, result in zip(logits.astype(np.float32), params, outcome.results, strict=True):
        exact = reference.log_softmax(row)
        if request.top_logprobs is None:
            assert result["logprob"] == 0.0
            assert result["num_top"] == 0
            continue
        assert result["logprob"] == pytest.approx(exact[result["token"]], abs=1e-4)
        top = min(request.top_logprobs, vocab)
        assert result["num_top"] == top
        ids = np.argsort(-row, kind="stable")[:top]
        assert result["top_ids"][:top].tolist() == ids.tolist()
        assert np.allclose(result["top_logprobs"][:top], exact[ids], atol=1e-4)


def test_logprobs_of_broken_logits_are_no_nan(sample: Sampler) -> None:
    logits = _adversarial(2100)
    outcome = sample(logits, [replace(RANDOM, top_k=3, top_p=0.9, top_logprobs=20)] * len(logits))
    assert (outcome.results["num_top"] == 20).all()
    assert not np.isnan(outcome.results["logprob"]).any()
    assert not np.isnan(outcome.results["top_logprobs"]).any()
    assert (outcome.results["top_ids"] < 2100).all()
    assert (outcome.results["token"] < 2100).all()


@pytest.mark.parametrize("path", SamplingPath)
def test_padded_rows_change_nothing(sample: Sampler, path: SamplingPath) -> None:
    logits = _random_logits(3, 300)
    outcome = sample(
        logits, [RANDOM if path is SamplingPath.FULL else GREEDY] * 3, path=path, state_indices=[4, NO_STATE, 1]
    )
    assert outcome.results["token"][1] == 0xEEEEEEEE
    assert outcome.last_token[4] == outcome.tokens[0]
    assert outcome.last_token[1] == outcome.tokens[2]
    assert outcome.last_token[[0, 2, 3, 5, 6, 7]].tolist() == [77] * 6


@pytest.mark.parametrize(
    ("params", "path"),
    [
        (GREEDY, SamplingPath.GREEDY),
        (SamplingParams(top_k=5, top_p=0.5), SamplingPath.GREEDY),
        (RANDOM, SamplingPath.FULL),
        (SamplingParams(presence_penalty=0.1), SamplingPath.FULL),
        (SamplingParams(top_logprobs=0), SamplingPath.FULL),
    ],
)
def test_the_greedy_path_serves_plain_greedy_requests(params: SamplingParams, path: SamplingPath) -> None:
    assert sample_rows.sampling_path([GREEDY, params]) is path


def test_host_structs_have_the_shaders_sizes() -> None:
    assert (sample_rows.SAMPLE_ROW.itemsize, sample_rows.SAMPLE_RESULT.itemsize, sample_rows.SAMPLE_MARK.itemsize) == (
        72,
        176,
        8,
    )


def test_logits_of_another_type_are_refused() -> None:
    with pytest.raises(ConfigError, match="F16"):
        SampleArguments(Tensor(16, (1, 8), DType.F16), rows=0, scratch=0, last_token=0, results=0)
