"""How much is drafted, and to whom."""

from __future__ import annotations

import pytest

from unicorn_async.sampling_params import SamplingParams
from unicorn_async.scheduler.draft_wishes import GAIN_BEHIND, LEAST_GAIN, DraftRates, wished_drafts
from unicorn_async.scheduler.sequence import Sequence

from .test_step_costs import FLAT, STEEP, costs_of


def sequences(count: int) -> list[Sequence]:
    return [Sequence(str(number), (1, 2), SamplingParams(), seed=0) for number in range(count)]


def wished(rates: list[float], step_s: float, *, costs: dict[int, float] = FLAT, room: int = 16) -> list[int]:
    known = sequences(len(rates))
    found = wished_drafts(
        dict(zip(known, rates, strict=True)),
        dict.fromkeys(known, 15),
        costs_of(costs),
        step_s,
        num_decodes=len(rates),
        room=room,
    )
    return [found.get(sequence, 0) for sequence in known]


def test_more_is_drafted_the_more_often_it_is_right_and_the_less_it_costs() -> None:
    by_rate = [wished([rate], 0.1)[0] for rate in (0.05, 0.4, 0.7, 0.95)]
    assert by_rate == sorted(by_rate) and by_rate[0] == 0 and by_rate[-1] >= 7
    by_cost = [wished([0.8], step_s)[0] for step_s in (0.01, 0.1, 0.4, 2.0)]
    assert by_cost == sorted(by_cost, reverse=True) and by_cost[-1] == 0
    assert wished([0.9], 0.1, costs=STEEP) == [0]


def test_the_number_that_is_chosen_gives_the_most_tokens_a_second() -> None:
    rate, step_s, costs = 0.8, 0.07, costs_of(FLAT)
    speed = {0: 1.05}
    for count in range(1, 16):
        tokens = 1 + sum(rate**number for number in range(1, count + 1))
        speed[count] = tokens / (costs.seconds(1 + count) + count * step_s)
    assert wished([rate], step_s) == [max(speed, key=lambda count: speed[count])]


def test_who_is_right_more_often_gets_more_and_all_together_no_more_than_there_is_room_for() -> None:
    well, badly = wished([0.95, 0.3], 0.02)
    assert well > badly
    assert sum(wished([0.95] * 4, 0.01, room=7)) <= 7
    assert wished([0.9], 0.1, room=0) == [0]


def test_nothing_is_drafted_before_the_model_s_own_steps_were_timed() -> None:
    assert wished([0.99], 0.0, costs={}) == [0]


def test_a_rate_is_a_sequence_s_own_and_one_without_begins_with_that_of_all() -> None:
    rates, (one, other) = DraftRates(), sequences(2)
    for _ in range(40):
        rates.note(one, is_right=False)
    assert rates.rate(one) < 0.15
    assert rates.rate(other) == pytest.approx((rates.rate(one) + 0.5) / 2, abs=0.05)  # others' misfortune counts half
    before = rates.rate(other)
    rates.note(other, is_right=True)
    assert rates.rate(other) > before
    one.output_ids += [5] * 64  # long without a draft
    assert rates.rate(one) == 0.75
    rates.keep([other])
    one.output_ids.clear()
    assert 0.25 < rates.rate(one) < 0.5


def test_a_draft_s_cost_is_known_after_two() -> None:
    rates = DraftRates()
    rates.observe(4, 2.0)
    rates.observe(4, 0.0)  # which says nothing
    assert rates.step_s == 0.0
    rates.observe(2, 1.2)
    assert rates.step_s == pytest.approx(0.5)
    rates.observe(1, 0.7)
    rates.observe(1, 0.8)
    assert rates.step_s == pytest.approx(0.6)  # the second of four
    for _ in range(512):
        rates.pass_step()
    assert rates.step_s == 0.0  # and is tried again
    rates.observe(1, 0.1)
    rates.observe(1, 0.2)
    assert rates.step_s == pytest.approx(0.1)


def test_what_the_device_waits_beside_a_draft_counts_once_and_is_soon_doubted_while_little_is_known() -> None:
    rates = DraftRates()
    for wait_s in (9.0, 3.0):
        rates.observe(4, 2.0, wait_s)
    assert (rates.step_s, rates.first_s) == (pytest.approx(0.5), pytest.approx(3.5))
    for _ in range(32):
        rates.pass_step()
    assert rates.step_s == rates.first_s == pytest.approx(0.5)  # the first ones may have waited for what is there now
    for wait_s in (1.0, 2.0, 1.5):
        rates.observe(4, 2.0, wait_s)
    for _ in range(32):
        rates.pass_step()
    assert (rates.step_s, rates.first_s) == (pytest.approx(0.5), pytest.approx(2.0))  # the second of five


def test_a_wait_before_a_draft_makes_few_tokens_not_worth_it_and_many_as_before() -> None:
    def counts(rate: float, wait_s: float) -> int:
        (sequence,) = known = sequences(1)
        found = wished_drafts(
            {sequence: rate},
            dict.fromkeys(known, 15),
            costs_of(FLAT),
            0.05,
            num_decodes=1,
            room=16,
            first_s=0.05 + wait_s,
        )
        return found.get(sequence, 0)

    assert 0 < counts(0.8, 0.0) <= counts(0.8, 0.3)  # a wait is worth more tokens
    assert counts(0.3, 0.0) > 0 == counts(0.3, 2.0)


def test_more_has_to_be_gained_where_a_draft_model_has_to_catch_up_first() -> None:
    (sequence,) = known = sequences(1)
    rates, most = {sequence: 0.5}, dict.fromkeys(known, 1)
    gains = [
        wished_drafts(rates, most, costs_of(FLAT), 0.37, num_decodes=1, room=16, least_gain=least_gain)
        for least_gain in (LEAST_GAIN, GAIN_BEHIND)
    ]
    assert gains == [{sequence: 1}, {}]  # 1.08 times as fast
