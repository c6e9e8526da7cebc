"""Blocks of the KV cache."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from unicorn_async.errors import RequestError
from unicorn_async.sampling_params import SamplingParams
from unicorn_async.scheduler.block_manager import BlockGroup, BlockManager, num_blocks_spanned
from unicorn_async.scheduler.block_pool import BlockPool, NeighbourPool
from unicorn_async.scheduler.sequence import Sequence


def make_sequence(num_prompt: int = 100) -> Sequence:
    return Sequence("r", tuple(range(num_prompt)), SamplingParams(), seed=0)


def schedule(blocks: BlockManager, sequence: Sequence, count: int) -> None:
    blocks.grow(sequence, sequence.num_scheduled + count)
    sequence.num_scheduled += count


def commit(blocks: BlockManager, sequence: Sequence, count: int) -> None:
    sequence.num_computed += count
    blocks.trim(sequence, sequence.num_computed)


def test_a_pool_gives_each_block_once() -> None:
    pool = BlockPool(range(3))
    assert sorted(pool.allocate() for _ in range(3)) == [0, 1, 2]
    assert pool.num_free == 0


def test_an_exhausted_pool_gives_nothing() -> None:
    pool = BlockPool(range(1))
    pool.allocate()
    with pytest.raises(AssertionError, match="all 1 blocks are in use"):
        pool.allocate()


def test_a_block_is_not_freed_twice() -> None:
    pool = BlockPool(range(2))
    block = pool.allocate()
    pool.free([block])
    with pytest.raises(AssertionError, match=f"block {block} is freed twice"):
        pool.free([block])


def test_of_two_blocks_that_hold_the_same_the_one_in_use_is_known() -> None:
    pool = BlockPool(range(3))
    idle, used = pool.allocate(), pool.allocate()
    pool.know(idle, b"key")
    pool.free([idle])
    pool.know(used, b"key")
    assert [pool.allocate(), pool.allocate()] == [idle, 2]
    assert pool.share(b"key") == used


def rows_of(blocks: list[int]) -> int:
    """Count the rows of neighbours."""
    return 1 + sum(after != before + 1 for before, after in pairwise(blocks))


def test_sequences_that_grow_in_turns_have_rows_of_neighbours() -> None:
    rows = {}
    for side_by_side in (False, True):
        blocks = BlockManager((BlockGroup(0, 1024),), block_size=1, side_by_side=side_by_side)
        sequences = [make_sequence() for _ in range(8)]
        for _ in range(64):
            for sequence in sequences:
                schedule(blocks, sequence, 1)
        rows[side_by_side] = [rows_of(sequence.block_tables[0]) for sequence in sequences]
    assert rows == {False: [64] * 8, True: [4] * 8}


def test_a_pool_of_neighbours_gives_everything_once_and_again() -> None:
    pool = NeighbourPool([*range(40), 50, 51])  # rows of 16 of which two are cut short
    rng, held = random.Random(0), list[int]()
    for _ in range(2000):
        if pool.num_free and (not held or rng.random() < 0.55):
            block = pool.allocate(rng.choice(held) if held and rng.random() < 0.8 else None)
            assert block not in held
            held.append(block)
        else:
            pool.free([held.pop(rng.randrange(len(held)))])
        assert (pool.num_blocks, pool.num_free) == (42, 42 - len(held))
    pool.free(held)
    pool.add([40, 41])
    assert sorted(pool.allocate() for _ in range(44)) == [*range(42), 50, 51]


def test_the_block_behind_the_last_one_is_taken_even_where_rows_are_free() -> None:
    pool = NeighbourPool(range(32))
    first = pool.allocate()
    assert [pool.allocate(first), pool.allocate(), pool.allocate(31)] == [1, 16, 2]


def test_a_sequence_grows_by_blocks_in_every_group() -> None:
    blocks = BlockManager((BlockGroup(0, 4), BlockGroup(8, 6)), block_size=4)
    sequence = make_sequence()
    assert blocks.room(sequence) == 16
    schedule(blocks, sequence, 5)
    assert [len(table) for table in sequence.block_tables] == [2, 2]
    assert blocks.room(sequence) == 11
    schedule(blocks, sequence, 3)
    assert [len(table) for table in sequence.block_tables] == [2, 2]
    assert [pool.num_free for pool in blocks.pools] == [2, 4]


def test_blocks_before_the_next_query_s_window_are_freed() -> None:
    blocks = BlockManager((BlockGroup(0, 9), BlockGroup(6, 9)), block_size=4)
    sequence = make_sequence()
    schedule(blocks, sequence, 9)
    commit(blocks, sequence, 9)  # the next query is at 9 and sees 4 to 9
    assert sequence.block_tables[0] == [0, 1, 2]
    assert sequence.block_tables[1] == [-1, 1, 2]
    assert [pool.num_free for pool in blocks.pools] == [6, 7]


def test_blocks_that_a_step_in_flight_sees_stay() -> None:
    blocks = BlockManager((BlockGroup(6, 9),), block_size=4)
    sequence = make_sequence()
    schedule(blocks, sequence, 8)
    schedule(blocks, sequence, 1)
    schedule(blocks, sequence, 1)
    commit(blocks, sequence, 8)  # the query at 8 is in flight and sees 3 to 8
    assert sequence.block_tables[0] == [0, 1, 2]
    commit(blocks, sequence, 1)
    assert sequence.block_tables[0] == [-1, 1, 2]


def test_release_gives_back_all_that_is_left() -> None:
    blocks = BlockManager((BlockGroup(0, 9), BlockGroup(6, 9)), block_size=4)
    sequence = make_sequence()
    schedule(blocks, sequence, 20)
    commit(blocks, sequence, 20)
    blocks.release(sequence)
    blocks.release(sequence)
    assert [pool.num_free for pool in blocks.pools] == [9, 9]
    assert sequence.block_tables == []


@pytest.mark.parametrize(("num_positions", "expected"), [(0, 0), (1, 1), (2, 2), (4, 2), (5, 2), (6, 3)])
def test_a_run_of_positions_spans_blocks_wherever_it_starts(num_positions: int, expected: int) -> None:
    assert num_blocks_spanned(num_positions, 4) == expected
    assert num_blocks_spanned(num_positions, 1) == num_positions


def test_what_never_fits_is_refused_with_both_numbers() -> None:
    blocks = BlockManager((BlockGroup(0, 3),), block_size=4)
    sequence = make_sequence(num_prompt=8)
    sequence.max_length = 13
    blocks.check_fits(sequence)
    sequence.max_length = 14
    with pytest.raises(RequestError, match="need 4 blocks of the KV cache, which has 3"):
        blocks.check_fits(sequence)


def test_a_window_group_needs_the_window_alone() -> None:
    assert BlockGroup(0, 0).blocks_needed(1000, 1, 16) == 63
    assert BlockGroup(32, 0).blocks_needed(1000, 1, 16) == 3
    assert BlockGroup(32, 0).blocks_needed(20, 1, 16) == 2
    assert BlockGroup(32, 0).blocks_needed(1000, 64, 16) == 7
