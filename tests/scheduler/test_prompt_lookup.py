"""What is proposed from the text itself."""

from __future__ import annotations

from random import Random

from unicorn_async.config import SamplingParams
from unicorn_async.scheduler.prompt_lookup import PromptLookup
from unicorn_async.scheduler.sequence import Sequence


def lookup_of(prompt: list[int], output: list[int]) -> PromptLookup:
    sequence = Sequence("r", tuple(prompt), SamplingParams(), seed=0)
    lookup = PromptLookup(sequence.prompt_ids)
    lookup.follow(sequence.output_ids)
    for token in output:
        sequence.output_ids.append(token)
        lookup.follow(sequence.output_ids)
    return lookup


def test_what_stood_behind_the_same_three_tokens_is_proposed() -> None:
    prompt = [1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert lookup_of(prompt, [3, 4]).propose(0, 3) == ()
    assert lookup_of(prompt, [3, 4, 5]).propose(0, 3) == (6, 7, 8)
    assert lookup_of(prompt, [3, 4, 5]).propose(1, 2) == (7, 8)
    assert lookup_of([*prompt, 2, 3, 4], []).propose(0, 2) == (5, 6)


def test_of_several_places_the_latest_is_followed_and_kept_as_long_as_it_is_right() -> None:
    prompt = [1, 2, 3, 10, 11, 12, 1, 2, 3, 20, 11, 12, 30]
    assert lookup_of(prompt, [1, 2, 3]).propose(0, 4) == (20, 11, 12, 30)
    assert lookup_of(prompt, [1, 2, 3, 10]).propose(0, 3) == (11, 12, 1)
    assert lookup_of(prompt, [1, 2, 3, 99]).propose(0, 3) == ()
    assert lookup_of(prompt, [1, 2, 3, 20, 11]).propose(0, 2) == (12, 30)


def test_what_ends_with_the_text_goes_on_by_itself() -> None:
    assert lookup_of([7, 8, 9, 7, 8, 9], []).propose(0, 7) == (7, 8, 9, 7, 8, 9, 7)
    assert lookup_of([5, 5, 5, 5], [5]).propose(2, 3) == (5, 5, 5)


def test_nothing_is_proposed_before_all_of_an_answer_was_read() -> None:
    answer = [1, 2, 3] * 200
    lookup = PromptLookup([1, 2, 3])
    lookup.follow(answer)
    assert lookup.rate == 0.0  # after a time in which nobody asked
    lookup.follow(answer)
    lookup.follow(answer)
    assert lookup.rate > 0.8
    assert lookup.propose(0, 3) == (1, 2, 3)


def test_the_rate_is_of_all_tokens_that_were_foreseen() -> None:
    prompt = list(range(1, 100))
    assert lookup_of(prompt, [200]).rate == 0.0  # nothing to go by
    first = lookup_of(prompt, [3, 4, 5])
    assert first.rate == 0.5
    assert 0.9 < lookup_of(prompt, list(range(3, 80))).rate < 1.0
    wrong = [token for number in range(20) for token in (4 * number + 1, 4 * number + 2, 4 * number + 3, 900 + number)]
    assert lookup_of(prompt, [*wrong, 93, 94, 95]).rate < 0.2


def test_a_long_prompt_is_indexed_from_its_end_some_tokens_at_a_time() -> None:
    sequence = Sequence("r", tuple(range(10_000)), SamplingParams(), seed=0)
    lookup = PromptLookup(sequence.prompt_ids)
    lookup.follow(sequence.output_ids)
    sequence.output_ids += [9_900, 9_901, 9_902]
    lookup.follow(sequence.output_ids)
    assert lookup.propose(0, 1) == (9_903,)
    sequence.output_ids += [50, 51, 52]
    for _ in range(40):
        lookup.follow(sequence.output_ids)
    sequence.output_ids += [50, 51, 52]
    lookup.follow(sequence.output_ids)
    assert lookup.propose(0, 2) == (50, 51)  # the answer's own, which is later
    sequence.output_ids += [70, 71, 72]
    lookup.follow(sequence.output_ids)
    assert lookup.propose(0, 2) == (73, 74)


def test_what_is_proposed_always_stood_behind_the_same_tokens() -> None:
    random = Random(3)
    prompt = [random.randrange(6) for _ in range(400)]
    sequence = Sequence("r", tuple(prompt), SamplingParams(), seed=0)
    lookup, followed = PromptLookup(sequence.prompt_ids), 0
    for _ in range(400):
        lookup.follow(sequence.output_ids)
        text = [*prompt, *sequence.output_ids]
        proposed = lookup.propose(0, 1)
        if proposed:
            followed += 1
            places = range(3, len(text))
            assert any(text[end - 3 : end] == text[-3:] and text[end] == proposed[0] for end in places)
        sequence.output_ids.append(proposed[0] if proposed and random.random() < 0.6 else random.randrange(6))
    assert followed > 300
