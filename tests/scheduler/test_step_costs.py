"""How many tokens are worth proposing, by what steps take."""

from __future__ import annotations

from functools import partial
from itertools import pairwise

import pytest

from unicorn_async.scheduler.proposer import HitRate
from unicorn_async.scheduler.step_costs import StepCosts, expected_right

SIZES = (1, 2, 4, 8, 12, 16, 24, 32)


def costs_of(seconds: dict[int, float], gap_s: float = 0.0) -> StepCosts:
    costs = StepCosts(SIZES)
    for _ in range(5):
        for size, step_s in seconds.items():
            costs.observe(size, step_s)
        costs.observe_gap(gap_s)
    return costs


def worth(costs: StepCosts, rate: float, *, others: int = 0, ahead: int = 0, most: int = 15) -> int:
    return costs.worth(1 + others, 1.0 + others, rate, most, ahead=ahead, is_alone=not others)


FLAT = {1: 1.0, 2: 1.02, 4: 1.05, 8: 1.1, 12: 1.2, 16: 1.3, 24: 1.4, 32: 1.5}
STEEP = {1: 1.0, 2: 2.0, 4: 4.0, 8: 8.0, 12: 12.0, 16: 16.0, 24: 24.0, 32: 32.0}


def test_nothing_is_known_before_steps_of_one_token_were_seen() -> None:
    costs = StepCosts(SIZES)
    assert costs.seconds(1) == 0.0
    assert worth(costs, 0.9) == 0


def test_sizes_that_were_not_seen_are_tried_from_the_smallest_on_and_then_judged() -> None:
    costs = costs_of({1: 1.0})
    assert costs.seconds(16) == 1.0
    found = []
    for size in (2, 4, 8, 12, 16):
        found.append(worth(costs, 0.9))
        for _ in range(2):
            costs.observe(size, FLAT[size])
    assert found == [1, 3, 7, 11, 15]
    assert worth(costs, 0.9) > 7
    slow = costs_of({1: 1.0, 2: 1.9})
    assert worth(slow, 0.5) == 0  # what is tried next would have to be no slower than this
    assert worth(slow, 0.9) == 3
    for size in (4, 8):
        for _ in range(2):
            slow.observe(size, 0.9 * size)
    assert worth(slow, 0.9) == 0
    assert slow.most_tried(1) == 12
    assert slow.seconds(3) == slow.seconds(4) == 3.6


def test_a_size_between_known_ones_is_taken_to_lie_between_them() -> None:
    costs = costs_of({1: 1.0, 4: 1.6, 24: 3.6})
    assert costs.seconds(2) == pytest.approx(1.2)
    assert costs.seconds(16) == pytest.approx(2.8)
    assert costs.seconds(32) == 3.6
    assert costs.most_tried(1) == 32


def test_what_does_not_help_costs_a_step_or_two() -> None:
    """Answers whose steps take as long as they have tokens, and that repeat what comes to nothing."""
    costs, seconds, without = costs_of({1: 1.0}), 0.0, 128.0
    rate = HitRate()
    for _ in range(128):
        size = 1 + worth(costs, rate.value)
        seconds += STEEP[size]
        costs.observe(size, STEEP[size])
        rate.note(is_right=False)
    assert seconds <= 1.02 * without


def test_one_slow_step_alone_condemns_no_size() -> None:
    costs = costs_of({1: 1.0, 2: 1.0, 4: 1.0})
    costs.observe(8, 50.0)
    assert costs.seconds(8) == 1.0
    for _ in range(4):
        costs.observe(8, 1.1)
    assert costs.seconds(8) == 1.1


def test_what_was_not_seen_for_long_is_tried_again() -> None:
    costs = costs_of({1: 1.0, 16: 9.0})
    for _ in range(600):
        costs.observe(1, 1.0)
    assert costs.seconds(16) == 1.0


@pytest.mark.parametrize("rate", [0.05, 0.3, 0.6, 0.9, 0.99])
def test_more_is_proposed_the_more_often_it_is_right(rate: float) -> None:
    found = [worth(costs_of(FLAT), other) for other in (0.01, rate, 0.999)]
    assert found == sorted(found)
    assert found[0] == 0 and found[-1] == 15
    assert worth(costs_of(STEEP), rate) == 0


def test_the_number_that_is_chosen_gives_the_most_tokens_a_second() -> None:
    rate, gap_s = 0.7, 0.1
    speed = {size - 1: (1 + expected_right(rate, size - 1)) / (FLAT[size] + gap_s) for size in SIZES if 1 < size <= 16}
    assert worth(costs_of(FLAT, gap_s), rate) == max(speed, key=lambda count: speed[count])


def test_a_wait_of_the_device_and_tokens_that_nobody_has_seen_count() -> None:
    assert worth(costs_of(FLAT), 0.2) > 0 == worth(costs_of(FLAT, 0.5), 0.2)
    assert worth(costs_of(FLAT), 0.2, ahead=3) == 0


def test_beside_others_a_sequence_loses_a_turn_for_what_is_proposed() -> None:
    assert worth(costs_of(FLAT), 0.5) > 0 == worth(costs_of(FLAT), 0.5, others=1)
    assert worth(costs_of(FLAT), 0.9, others=1) > 0
    gains = [expected_right(0.9, worth(costs_of(FLAT), 0.9, others=others)) for others in range(4)]
    assert all(one >= other for one, other in pairwise(gains))


def test_no_more_is_proposed_than_may_be() -> None:
    for most in range(1, 16):
        assert 0 < worth(costs_of(FLAT), 0.95, most=most) <= most


def test_a_time_of_nothing_says_nothing() -> None:
    costs = costs_of(FLAT)
    for _ in range(5):
        costs.observe(16, 0.0)
    assert costs.seconds(16) == FLAT[16]


def test_of_few_gaps_the_shortest_counts_and_not_for_long() -> None:
    costs = costs_of(FLAT)
    costs._gaps.clear()
    costs.observe_gap(100.0)
    assert (costs.gap_s, worth(costs, 0.9)) == (100.0, 0)
    costs.observe_gap(0.1)
    costs.observe_gap(50.0)
    assert costs.gap_s == 0.1 and worth(costs, 0.9) > 0
    for _ in range(32):
        costs.observe(1, 1.0)
    assert costs.gap_s == 0.0
    for _ in range(3):
        costs.observe_gap(0.2)
    assert costs.gap_s == 0.2  # the median of many


def test_a_gap_of_long_ago_keeps_nobody_from_trying() -> None:
    costs = costs_of(FLAT, gap_s=100.0)
    assert worth(costs, 0.9) == 0
    for _ in range(512):
        costs.observe(1, 1.0)
    assert costs.gap_s == 0.0
    assert worth(costs, 0.9) > 0


def test_a_gap_much_shorter_than_those_of_long_ago_counts_alone() -> None:
    costs = costs_of(FLAT, gap_s=100.0)
    for short, expected in ((0.1, 100.0), (60.0, 100.0), (0.1, 0.1)):
        costs.observe_gap(short)  # the first while the others are fresh
        assert costs.gap_s == expected
        for _ in range(512 if expected == 100.0 else 0):
            costs.observe(1, 1.0)
    assert worth(costs, 0.9) > 0


def test_who_is_waited_for_in_any_case_loses_no_turn_and_no_time() -> None:
    costs = costs_of(FLAT, gap_s=100.0)
    beside_one = partial(costs.worth, 2, 2.0, 0.5, 14, is_alone=False, ahead=0)
    assert costs.worth(1, 1.0, 0.2, 15, is_alone=True, ahead=0, is_awaited=True) > 0
    assert beside_one(is_awaited=True) > 0 == beside_one(is_awaited=False)
