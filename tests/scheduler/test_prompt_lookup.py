"""What is proposed from the text itself."""

from __future__ import annotations

from random import Random

from unicorn_async.sampling_params import SamplingParams
from unicorn_async.scheduler.prompt_lookup import PromptLookup
from unicorn_async.scheduler.sequence import Sequence


def lookup_of(prompt: list[int], output: list[int], prediction: tuple[int, ...] = ()) -> PromptLookup:
    sequence = Sequence("r", tuple(prompt), SamplingParams(), seed=0)
    lookup = PromptLookup(sequence.prompt_ids, prediction)
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


PREDICTION = (50, 51, 52, 53, 54, 55, 56)


def test_a_prediction_is_followed_from_its_beginning_and_again_behind_what_is_not_in_it() -> None:
    begun = lookup_of([1, 2, 3], [], PREDICTION)
    assert (begun.propose(0, 3), begun.propose(1, 2), begun.is_predicted) == ((50, 51, 52), (51, 52), True)
    wrong = lookup_of([1, 2, 3], [50, 70], PREDICTION)
    assert (wrong.propose(0, 3), wrong.rate, wrong.is_predicted) == ((), 0.0, False)
    assert lookup_of([1, 2, 3], [50, 70, 51, 52, 53], PREDICTION).propose(0, 2) == (54, 55)


def test_nothing_is_foreseen_behind_a_predictions_end() -> None:
    prompt = [56, 1, 2, 3, 4]
    assert lookup_of(prompt, [50, 51, 52, 53, 54], PREDICTION).propose(0, 9) == (55, 56)
    ended = lookup_of(prompt, list(PREDICTION), PREDICTION)
    assert (ended.propose(0, 3), ended.rate) == ((), 0.0)
    assert lookup_of(prompt, [*PREDICTION, 1, 2], PREDICTION).propose(0, 2) == (3, 4)  # as the prompt has it


def test_a_prediction_goes_before_the_prompt() -> None:
    prompt = [51, 52, 53, 90, 91, 92]
    found = lookup_of(prompt, [70, 51, 52, 53], PREDICTION)
    assert (found.propose(0, 2), found.is_predicted) == ((54, 55), True)
    other = lookup_of(prompt, [70, 90, 91, 92, 90, 91, 92], PREDICTION)
    assert (other.propose(0, 1), other.is_predicted) == ((90,), False)
