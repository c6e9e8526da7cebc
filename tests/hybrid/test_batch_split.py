"""How a batch becomes two halves."""

from __future__ import annotations

import pytest

from unicorn_async.hybrid.batch_split import num_keys, split_batch
from unicorn_async.sampling_params import SamplingParams
from unicorn_async.scheduler.batch import Batch, ScheduledSequence
from unicorn_async.scheduler.sequence import Sequence


def item(num_tokens: int, start: int = 0, *, samples: bool = True) -> ScheduledSequence:
    """A sequence's part of a step."""
    prompt = tuple(range(start + num_tokens))
    sequence = Sequence(f"{num_tokens} from {start}", prompt, SamplingParams(), 0)
    return ScheduledSequence(sequence, start, num_tokens, prompt[start:], samples, is_decode=num_tokens == 1)


def batch(*items: ScheduledSequence) -> Batch:
    return Batch(items, sum(one.num_tokens for one in items), step=7)


def sizes(halves: tuple[Batch, ...]) -> list[list[int]]:
    return [[one.num_tokens for one in half.scheduled] for half in halves]


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        ([1], [[1]]),
        ([31], [[31]]),  # too short to be cut
        ([32], [[16], [16]]),
        ([100], [[50], [50]]),
        ([1, 1], [[1], [1]]),
        ([1, 1, 1], [[1], [1, 1]]),
        ([1, 1, 1, 1], [[1, 1], [1, 1]]),
        ([1, 1, 100], [[1, 1, 49], [51]]),
        ([1, 20], [[1], [20]]),
        ([40, 1], [[20], [20, 1]]),
        ([20, 3], [[20], [3]]),  # nearer to half with it than without it
        ([8, 8, 8, 8], [[8, 8], [8, 8]]),
    ],
    ids=str,
)
def test_halves_have_about_equally_many_tokens(tokens: list[int], expected: list[list[int]]) -> None:
    whole = batch(*(item(count) for count in tokens))
    halves = split_batch(whole)
    assert sizes(halves) == expected
    assert [half.num_tokens for half in halves] == [sum(half) for half in expected]
    assert all(half.step == 7 for half in halves)


def test_no_token_and_no_sample_is_lost_or_doubled() -> None:
    whole = batch(item(1, 40), item(1, 9), item(90, 30), item(17, samples=False))
    halves = split_batch(whole)
    tokens = [
        (one.sequence, position, token)
        for half in halves
        for one in half.scheduled
        for position, token in enumerate(one.token_ids, one.start)
    ]
    assert tokens == [
        (one.sequence, position, token)
        for one in whole.scheduled
        for position, token in enumerate(one.token_ids, one.start)
    ]
    assert sum(half.num_samples for half in halves) == whole.num_samples == 3
    first = halves[0].scheduled[-1]
    assert not first.samples and first.sequence is whole.scheduled[2].sequence


def test_keys_are_counted_up_to_the_last_query() -> None:
    assert num_keys(batch(item(1, 99), item(10, 20))) == 100 + 10 * 30
