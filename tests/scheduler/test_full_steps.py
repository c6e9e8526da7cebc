"""Who gets a token in a step that has no room for all that decode and a block's tokens of prompts."""

from __future__ import annotations

from unicorn_async.scheduler.block_manager import BlockGroup
from unicorn_async.scheduler.request import FinishReason

from .made_scheduler import add, make_scheduler, schedule


def test_a_prompt_goes_on_while_others_decode() -> None:
    scheduler = make_scheduler(max_num_batched_tokens=4)
    decoding = [add(scheduler, 1, max_tokens=50) for _ in range(3)]
    prompt = add(scheduler, 10)
    scheduler.commit(schedule(scheduler), [1, 1, 1])
    batches = [schedule(scheduler) for _ in range(6)]  # a token of the prompt is computed already
    assert [batch.num_decodes for batch in batches] == [2, 2, 2, 2, 3, 4]
    for batch in batches:
        assert batch.num_tokens == 4
        scheduler.commit(batch, [1] * batch.num_samples)
    assert len(prompt.output_ids) == 2
    assert [len(sequence.output_ids) for sequence in decoding] == [6, 6, 5]


def test_a_prompt_takes_no_more_of_a_full_step_than_it_has_tokens() -> None:
    scheduler = make_scheduler(max_num_seqs=10, max_num_batched_tokens=9)
    for _ in range(9):
        add(scheduler, 1, max_tokens=20)
    scheduler.commit(schedule(scheduler), [1] * 9)
    add(scheduler, 1, max_tokens=20)
    batch = schedule(scheduler)
    assert (batch.num_decodes, batch.num_tokens) == (8, 9)


def test_decodes_leave_no_more_than_a_block_to_prompts() -> None:
    scheduler = make_scheduler(max_num_seqs=16, max_num_batched_tokens=16)
    for _ in range(15):
        add(scheduler, 1, max_tokens=20)
    scheduler.commit(schedule(scheduler), [1] * 15)
    add(scheduler, 40, max_tokens=20)
    batch = schedule(scheduler)
    assert (batch.num_decodes, batch.num_tokens) == (12, 16)


def test_those_that_decode_take_turns_where_a_step_has_no_room_for_all() -> None:
    scheduler = make_scheduler(max_num_seqs=6, max_num_batched_tokens=4)
    sequences = [add(scheduler, 1, max_tokens=50) for _ in range(6)]
    scheduler.commit(schedule(scheduler), [1] * 4)
    turns = []
    for _ in range(5):
        batch = schedule(scheduler)
        turns.append([sequences.index(item.sequence) for item in batch.scheduled])
        scheduler.commit(batch, [1] * batch.num_samples)
    assert turns == [[0, 1, 2, 4], [3, 0, 1, 5], [2, 4, 3, 0], [1, 5, 2, 4], [3, 0, 1, 5]]


def test_with_room_for_all_decodes_come_in_order_of_arrival() -> None:
    scheduler = make_scheduler(max_num_seqs=6, max_num_batched_tokens=4)
    sequences = [add(scheduler, 1, max_tokens=50) for _ in range(6)]
    for _ in range(4):
        scheduler.commit(batch := schedule(scheduler), [1] * batch.num_samples)
    for sequence in sequences[1:3]:
        scheduler.finish(sequence, FinishReason.CANCELLED)
    for _ in range(3):
        batch = schedule(scheduler)
        assert [item.sequence for item in batch.scheduled] == [sequences[0], *sequences[3:]]
        scheduler.commit(batch, [1] * batch.num_samples)


def test_more_sequences_than_a_step_has_tokens_all_begin_before_the_first_has_ended() -> None:
    scheduler = make_scheduler(max_num_seqs=12, max_num_batched_tokens=8)
    sequences = [add(scheduler, 3, max_tokens=50) for _ in range(12)]
    for _ in range(9):  # 36 tokens of prompts, half a step's at least
        batch = schedule(scheduler)
        scheduler.commit(batch, [1] * batch.num_samples)
    assert all(sequence.output_ids for sequence in sequences)


def test_a_step_of_one_token_is_a_prompt_s_every_other_time() -> None:
    scheduler = make_scheduler(max_num_batched_tokens=1)
    decoding, prompt = add(scheduler, 1, max_tokens=50), add(scheduler, 3, max_tokens=50)
    order = []
    for _ in range(9):
        batch = schedule(scheduler)
        order.append(batch.scheduled[0].sequence)
        scheduler.commit(batch, [1] * batch.num_samples)
    assert order == [decoding, prompt] * 3 + [decoding, prompt, decoding]


def test_a_step_of_one_token_is_left_to_decodes_where_the_prompt_has_no_blocks() -> None:
    scheduler = make_scheduler(groups=(BlockGroup(0, 6),), max_num_batched_tokens=1)
    old, late = add(scheduler, 4, max_tokens=20), add(scheduler, 12, max_tokens=4)
    while scheduler.has_work:
        scheduler.commit(batch := schedule(scheduler), [1] * batch.num_samples)
    assert (len(old.output_ids), len(late.output_ids)) == (20, 4)
