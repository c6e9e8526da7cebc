"""Clients take turns."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.scheduler.made_scheduler import make_scheduler
from unicorn_async.errors import QueueFullError
from unicorn_async.round_robin import RoundRobin
from unicorn_async.sampling_params import SamplingParams
from unicorn_async.scheduler.request import FinishReason
from unicorn_async.scheduler.sequence import Sequence
from unicorn_async.scheduler.waiting_queue import MOST_PASSED_OVER, WaitingQueue

OWNERS = st.sampled_from("abcd")


def sequence(client: str, name: str = "r") -> Sequence:
    return Sequence(name, (1, 2, 3), SamplingParams(max_tokens=1), seed=0, client=client)


@given(st.lists(st.one_of(OWNERS, st.just("pop"), st.tuples(OWNERS, st.integers(0, 5)))))
def test_while_an_owner_waits_no_other_has_two_turns(steps: list[str | tuple[str, int]]) -> None:
    queue: RoundRobin[tuple[str, int]] = RoundRobin()
    waiting: dict[str, list[int]] = {owner: [] for owner in "abcd"}
    turns: dict[str, dict[str, int]] = {owner: {} for owner in "abcd"}  # of others, while an owner waits
    for number, step in enumerate(steps):
        if isinstance(step, tuple):
            owner, index = step
            item = waiting[owner].pop(index) if index < len(waiting[owner]) else -1
            assert queue.remove(owner, (owner, item)) is (item >= 0)
        elif step == "pop":
            if not len(queue):
                continue
            first = queue.first
            owner, item = queue.pop()
            assert first == (owner, item)
            assert waiting[owner].pop(0) == item  # first come, first served
            turns[owner] = {}
            for other in "abcd":
                if other != owner and waiting[other]:
                    turns[other][owner] = turns[other].get(owner, 0) + 1
                    assert turns[other][owner] <= 1
        else:
            queue.add(step, (step, number))
            waiting[step].append(number)
        for owner in "abcd":
            if not waiting[owner]:
                turns[owner] = {}
        assert len(queue) == sum(map(len, waiting.values())) == len(list(queue))


def test_who_comes_behind_a_hundred_of_another_client_has_the_next_turn_but_one() -> None:
    scheduler = make_scheduler(max_num_seqs=1, max_waiting=200)
    for index in range(100):
        scheduler.add(sequence("anna", f"a{index}"))
    scheduler.add(sequence("ben", "b"))
    assert scheduler.is_waiting("b")
    order: list[str] = []
    while len(order) < 3:
        batch = scheduler.schedule()
        assert batch is not None
        order += [item.sequence.request_id for item in batch.scheduled]
        scheduler.commit(batch, [5] * batch.num_samples)
    assert order == ["a0", "b", "a1"]
    assert not scheduler.is_waiting("b")


def test_who_has_lost_its_place_gets_one_before_all_of_its_client_that_had_none_and_of_equal_ones() -> None:
    queue = WaitingQueue()
    first, second, third = (sequence("a"), sequence("a"), sequence("b"))
    for one in (first, second, third):
        queue.add(one)
    for one in (first, third):
        assert next(queue.in_order({})) is one
        queue.take(one)
    queue.put_back(third)
    queue.put_back(first)
    assert set(queue) == {first, second, third}
    queue.remove(first)
    queue.remove(first)
    assert next(queue.in_order({})) is third
    queue.take(third)
    assert next(queue.in_order({})) is second
    queue.take(second)
    assert (first.place, third.place, second.place) == (0, 1, 2)
    assert not len(queue)


def test_the_client_who_holds_least_is_first_even_before_who_has_lost_a_place() -> None:
    queue = WaitingQueue()
    first, second = sequence("a"), sequence("b")
    queue.add(first)
    queue.take(first)
    queue.put_back(first)
    queue.add(second)
    assert next(queue.in_order({"a": 2, "b": 1})) is second
    assert next(queue.in_order({"a": 1, "b": 1})) is first
    assert next(queue.in_order({"b": 1})) is first


def test_who_has_lost_its_place_is_passed_over_by_other_clients_alone_and_new_ones_by_their_own_up_to_a_bound() -> None:
    queue = WaitingQueue()
    lost, other = sequence("a"), sequence("b")
    for one in (lost, sequence("a"), other):
        queue.add(one)
    queue.take(lost)
    queue.put_back(lost)
    assert list(queue.in_order({})) == [lost, other]
    new = [sequence("b") for _ in range(MOST_PASSED_OVER + 1)]
    for one in new:
        queue.add(one)
    assert list(queue.in_order({})) == [lost, other, *new[:-1]]
    queue.take(new[0])
    assert list(queue.in_order({})) == [lost, other, *new[1:]]
    assert (lost.place, new[0].place, other.place) == (0, 1, -1)


def test_a_waiting_sequence_that_is_cancelled_has_no_turn() -> None:
    scheduler = make_scheduler()
    sequences = [sequence(client) for client in "aab"]
    for one in sequences:
        scheduler.add(one)
    scheduler.finish(sequences[0], FinishReason.CANCELLED)
    batch = scheduler.schedule()
    assert batch is not None
    assert [item.sequence for item in batch.scheduled] == sequences[1:]


def test_who_fills_the_queue_gives_up_its_latest_to_others_up_to_fair_shares() -> None:
    scheduler = make_scheduler(max_num_seqs=1, max_waiting=7)
    annas = [sequence("anna", f"a{number}") for number in range(8)]
    for one in annas:
        assert scheduler.add(one) is None
    with pytest.raises(QueueFullError, match="8 requests wait"):
        scheduler.add(sequence("anna"))
    for number in range(1, 5):
        displaced = scheduler.add(sequence("ben", f"b{number}"))
        assert displaced is annas[-number]
        scheduler.finish(displaced, FinishReason.CANCELLED)
        assert scheduler.num_waiting == 8
    for client in ("anna", "ben"):
        with pytest.raises(QueueFullError):
            scheduler.add(sequence(client))
    assert scheduler.add(sequence("carl")) in (
        annas[3],
        *(one for one in scheduler._places.waiting if one.client == "ben"),
    )
