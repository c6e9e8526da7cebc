"""Blocks that come while sequences run, and those that never do."""

from __future__ import annotations

import pytest

from unicorn_async.errors import PromptTooLongError
from unicorn_async.scheduler.block_manager import BlockGroup
from unicorn_async.scheduler.request import FinishReason

from .made_scheduler import add, make_scheduler, schedule, sizes

FAR = 1 << 27  # a number that a block may have


def test_before_the_first_blocks_requests_wait_and_nothing_is_refused() -> None:
    scheduler = make_scheduler(grows=True)
    sequence = add(scheduler, 6)
    assert scheduler.schedule() is None
    assert scheduler.wants_blocks and scheduler.has_work
    assert (scheduler.blocks_total, scheduler.groups[0].num_blocks) == ((0,), 100)
    scheduler.add_blocks(0, range(FAR, FAR + 2))
    assert sizes(schedule(scheduler)) == [(sequence, 0, 6)]
    assert sequence.block_tables == [[FAR, FAR + 1]]


def test_new_blocks_are_used_after_those_that_are_free_in_their_order() -> None:
    scheduler = make_scheduler(grows=True, max_num_batched_tokens=64)
    scheduler.add_blocks(0, [7, 3])
    scheduler.add_blocks(0, range(20, 24))
    sequence = add(scheduler, 16)
    schedule(scheduler)
    assert sequence.block_tables == [[7, 3, 20, 21]]


def test_who_lacks_blocks_waits_for_growth_and_takes_none_from_others() -> None:
    scheduler = make_scheduler(grows=True)
    scheduler.add_blocks(0, range(3))
    first, second = add(scheduler, 3, max_tokens=9), add(scheduler, 3, max_tokens=9)
    for _ in range(2):  # after which both have a full block
        scheduler.commit(schedule(scheduler), [1, 2])
        assert not scheduler.wants_blocks
    assert sizes(schedule(scheduler)) == [(first, 4, 1)]
    assert scheduler.wants_blocks and scheduler.num_preemptions == 0
    scheduler.add_blocks(0, [3])
    assert sizes(schedule(scheduler)) == [(first, 5, 1), (second, 4, 1)]
    assert not scheduler.wants_blocks


def test_after_growth_blocks_are_taken_from_the_latest_again() -> None:
    scheduler = make_scheduler(grows=True, groups=(BlockGroup(0, 3),))
    scheduler.add_blocks(0, range(3))
    first, second = add(scheduler, 3, max_tokens=9), add(scheduler, 3, max_tokens=5)
    for _ in range(2):
        scheduler.commit(schedule(scheduler), [1, 2])
    scheduler.commit(schedule(scheduler), [1])
    assert scheduler.end_growth() == []
    for _ in range(3):
        scheduler.commit(schedule(scheduler), [1])
    assert scheduler.num_preemptions == 0
    assert sizes(schedule(scheduler)) == [(first, 8, 1)]
    assert scheduler.num_preemptions == 1 and second.preempted


def test_growth_that_ends_early_shortens_the_context_and_gives_back_what_can_never_end() -> None:
    scheduler = make_scheduler(grows=True, groups=(BlockGroup(0, 100), BlockGroup(6, 100)))
    for group in (0, 1):
        scheduler.add_blocks(group, range(4))
    short, long, evaluation = add(scheduler, 3), add(scheduler, 17), add(scheduler, 16, want_logits=True)
    schedule(scheduler)
    assert scheduler.end_growth() == [long]
    assert scheduler.max_context == 16 == short.max_length == evaluation.max_length
    assert [group.num_blocks for group in scheduler.groups] == [4, 4]
    with pytest.raises(PromptTooLongError, match="16 tokens leave no room in a context of 16"):
        add(scheduler, 16)
    scheduler.finish(long, FinishReason.CANCELLED)


@pytest.mark.parametrize("num_prompt", [14, 15, 16])
def test_an_answer_that_fills_what_there_is_ends_as_one_of_full_length(num_prompt: int) -> None:
    """A last token's own position is never computed: 16 positions are enough for 17 tokens."""
    scheduler = make_scheduler(grows=True)
    scheduler.add_blocks(0, range(4))
    sequence = add(scheduler, num_prompt, max_tokens=9)
    steps = [schedule(scheduler) for _ in range(17 - num_prompt)]
    assert scheduler.schedule() is None and not scheduler.lacks_blocks(sequence)  # a token is to come
    assert scheduler.end_growth() == []
    for step in steps:
        scheduler.commit(step, [1])
    assert (sequence.length, sequence.finish_reason) == (17, FinishReason.LENGTH)


def test_an_answer_gets_a_last_token_where_there_is_a_position_for_the_one_before() -> None:
    scheduler = make_scheduler(grows=True)
    scheduler.add_blocks(0, range(4))
    sequence = add(scheduler, 15, max_tokens=9)
    scheduler.commit(schedule(scheduler), [1])
    assert sequence.length == 16 and not scheduler.lacks_blocks(sequence)
    assert scheduler.end_growth() == []
    scheduler.commit(schedule(scheduler), [1])
    assert sequence.finish_reason is FinishReason.LENGTH


def test_an_answer_that_has_filled_what_there_is_lacks_blocks_and_gets_no_further() -> None:
    scheduler = make_scheduler(grows=True)
    scheduler.add_blocks(0, range(4))
    sequence = add(scheduler, 16, max_tokens=9)
    assert scheduler.lacks_blocks(sequence) is False
    scheduler.commit(schedule(scheduler), [1])
    assert scheduler.lacks_blocks(sequence)
    scheduler.add_blocks(0, [9])
    assert not scheduler.lacks_blocks(sequence)
    for _ in range(4):
        scheduler.commit(schedule(scheduler), [1])
    assert scheduler.schedule() is None and scheduler.lacks_blocks(sequence)
    assert scheduler.end_growth() == [sequence]


def test_a_window_that_is_whole_does_not_shorten_the_context() -> None:
    scheduler = make_scheduler(grows=True, groups=(BlockGroup(6, 100),))
    scheduler.add_blocks(0, range(3))  # of 4 tokens: a window of 6 touches no more
    assert scheduler.end_growth() == []
    assert scheduler.max_context == 64
    scheduler = make_scheduler(grows=True, groups=(BlockGroup(6, 100),))
    scheduler.add_blocks(0, range(2))
    assert scheduler.end_growth() == []
    assert scheduler.max_context == 8
