"""Who waits for what a running sequence is to compute holds nobody up, and loses no turn."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unicorn_async.grammar import Grammar
from unicorn_async.sampling_params import SamplingParams
from unicorn_async.scheduler.block_keys import extend_keys
from unicorn_async.scheduler.block_manager import BlockGroup, BlockManager
from unicorn_async.scheduler.kept_blocks import KeptBlocks
from unicorn_async.scheduler.kept_prefixes import BlockCopy
from unicorn_async.scheduler.request import FinishReason
from unicorn_async.scheduler.sequence import Sequence
from unicorn_async.scheduler.waiting_queue import MOST_PASSED_OVER

from .made_scheduler import make_scheduler, schedule, sizes

if TYPE_CHECKING:
    import pytest

    from unicorn_async.scheduler.scheduler import Scheduler

TEXT = tuple(range(100, 160))  # 15 blocks of 4


def sharing(*, num_blocks: int = 400, kept: KeptBlocks | None = None, **options: int) -> Scheduler:
    groups = (BlockGroup(0, num_blocks),)
    defaults = {"max_context": 80, "max_num_seqs": 16, "max_waiting": 100, "max_num_batched_tokens": 8}
    return make_scheduler(groups=groups, in_order=True, shares_prefixes=True, kept=kept, **defaults | options)


def add(scheduler: Scheduler, prompt: tuple[int, ...], client: str = "", **options: object) -> Sequence:
    params = SamplingParams(**{"max_tokens": 8, "ignore_eos": True} | options)
    sequence = Sequence("r", prompt, params, seed=0, client=client)
    scheduler.add(sequence)
    return sequence


def step(scheduler: Scheduler) -> None:
    batch = schedule(scheduler)
    scheduler.commit(batch, [7] * batch.num_samples)


def steps_until(scheduler: Scheduler, sequence: Sequence) -> int:
    """Run until a sequence has a token; returns the number of steps."""
    count = 0
    while not sequence.output_ids:
        step(scheduler)
        count += 1
    return count


def test_another_client_s_prompt_does_not_wait_for_who_waits_for_a_prompt_under_way() -> None:
    scheduler = sharing()
    first, same = add(scheduler, TEXT, "anna"), add(scheduler, TEXT, "ben")
    step(scheduler)
    other = add(scheduler, (1, 2, 3), "carl")
    assert steps_until(scheduler, other) == 1
    assert same in scheduler._places.waiting and not first.output_ids
    steps_until(scheduler, same)
    assert same.num_prompt_found == 56


def test_nor_does_the_same_client_s_while_a_copy_of_a_state_is_made() -> None:
    scheduler = sharing(max_num_batched_tokens=64, num_state_copies=4)
    long, same, other = add(scheduler, TEXT), add(scheduler, TEXT), add(scheduler, (1, 2, 3))
    making = schedule(scheduler)
    assert sizes(making) == [(long, 0, 56), (other, 0, 3)]  # behind 56 a copy is made, which is there when committed
    scheduler.commit(making, [7])
    step(scheduler)
    assert same.num_prompt_found == 56


def test_nor_does_anybody_wait_for_who_waits_for_a_mask() -> None:
    scheduler = sharing()
    guided, other = add(scheduler, (1, 2, 3), grammar=Grammar.choice(["a"])), add(scheduler, (4, 5, 6))
    step(scheduler)
    assert other.output_ids == [7]
    guided.mask = b"first"
    step(scheduler)
    assert guided.output_ids == [7]


def test_who_was_passed_over_is_first_when_its_beginning_is_there() -> None:
    scheduler = sharing(max_num_seqs=3, max_num_batched_tokens=10)
    long = add(scheduler, TEXT, "anna", max_tokens=1)
    step(scheduler)
    same = add(scheduler, TEXT, "ben")
    others = [add(scheduler, (number,), "ben", max_tokens=4) for number in range(12)]
    while long.finish_reason is None:
        step(scheduler)
    num_begun = sum(other.num_prompt_found is not None for other in others)
    assert 2 <= num_begun < 12 and same.num_prompt_found is None
    steps_until(scheduler, same)
    assert same.place == 1 + num_begun


def test_who_was_passed_over_and_lacks_blocks_is_passed_over_no_more() -> None:
    scheduler = sharing(num_blocks=22, max_num_batched_tokens=20, max_num_seqs=4)
    long = add(scheduler, TEXT, "anna", max_tokens=16)
    step(scheduler)
    same = add(scheduler, (*TEXT[:52], *range(24)), "ben", max_tokens=4)
    before = add(scheduler, (1, 2, 3), "ben", max_tokens=5)
    step(scheduler)
    num_steps = 0
    while same.num_prompt_found is None:
        is_there = long.num_scheduled >= 52
        later = add(scheduler, (4,), "ben", max_tokens=1)
        step(scheduler)
        assert not is_there or later.num_prompt_found is None
        num_steps += is_there
    assert num_steps > 5
    assert before.place < same.place and same.num_prompt_found == 52


def test_to_pass_over_costs_no_search_and_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler = sharing(max_num_batched_tokens=8)
    long = add(scheduler, TEXT, "anna")
    step(scheduler)
    same = [add(scheduler, TEXT, "ben") for _ in range(MOST_PASSED_OVER + 1)]
    hidden, other = add(scheduler, (1, 2), "ben"), add(scheduler, (3, 4), "carl")
    searched: list[Sequence] = []
    find = BlockManager.find

    def counting(blocks: BlockManager, sequence: Sequence, most: int) -> int:
        searched.append(sequence)
        return find(blocks, sequence, most)

    monkeypatch.setattr(BlockManager, "find", counting)
    step(scheduler)
    assert other.output_ids and hidden in scheduler._places.waiting
    searched.clear()
    steps_until(scheduler, long)
    assert same[0].num_prompt_found == 56 and len(searched) <= 8
    scheduler.finish(same[0], FinishReason.CANCELLED)
    steps_until(scheduler, hidden)


def test_nobody_waits_for_a_prompt_that_gets_no_part_of_steps_behind_a_longer_one_of_its_client() -> None:
    kept = KeptBlocks([1])
    kept.slots[0].add(8)
    scheduler = sharing(num_blocks=600, max_context=1200, kept=kept)
    assert scheduler.kept_prefixes is not None
    scheduler.kept_prefixes.is_open = True
    longest, behind = Sequence("r", tuple(range(1000)), SamplingParams(), seed=0, client="mallory"), TEXT
    for key in extend_keys(longest, 2, 4):
        slot = kept.slots[0].take()
        assert slot is not None
        kept.slots[0].fill(slot, key)
        kept.slots[0].release(slot)
    scheduler.add(longest)
    owner = add(scheduler, behind, "mallory")
    step(scheduler)
    assert owner.num_scheduled and longest.is_restoring
    restore = scheduler.kept_prefixes.restores.popleft()
    scheduler.kept_prefixes.arrive([BlockCopy(name, block, 0) for name, block in restore.lacking])
    scheduler.kept_prefixes.end_restore(restore)
    victim, third = add(scheduler, (*TEXT, 1), "victor"), add(scheduler, (*TEXT, 2), "tom")
    assert steps_until(scheduler, victim) < 40  # alone it takes 16, or 8 and a few until it begins, in turns
    assert longest.num_remaining > 500
    steps_until(scheduler, third)
    assert third.num_prompt_found == 60  # who began anew is waited for
