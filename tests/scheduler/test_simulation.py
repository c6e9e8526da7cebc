"""Random traffic on a toy GPU: every request gets what it gets alone, and nothing is left behind."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from unicorn_async.sampling_params import SamplingParams
from unicorn_async.scheduler.block_manager import BlockGroup, num_blocks_spanned
from unicorn_async.scheduler.sequence import Sequence

from .world import MAX_CONTEXT, World, random_world

SEEDS = [*range(80), *(pytest.param(seed, marks=pytest.mark.whole("more random worlds")) for seed in range(80, 140))]


@pytest.mark.parametrize("seed", SEEDS)
def test_each_request_gets_what_it_gets_alone(seed: int) -> None:
    world = random_world(seed)
    world.run(num_requests=30)
    world.check_outcome()


@pytest.mark.parametrize("seed", SEEDS)
def test_each_request_gets_what_it_gets_alone_whatever_is_proposed(seed: int) -> None:
    in_order = seed % 4 != 0
    world = replace(
        random_world(seed), in_order=in_order, shares=in_order and seed % 3 > 0, right_share=0.5 + seed / 400
    )
    world.run(num_requests=30)
    world.check_outcome()
    speculation = world.scheduler.speculation
    assert speculation is not None and speculation.num_proposed >= speculation.num_right
    for pool in world.scheduler._blocks.pools:
        assert not pool._users
        assert sorted(pool._keys) == sorted(pool._idle) == sorted(pool._known.values())


def test_the_simulation_proposes_often_enough_to_mean_something() -> None:
    worlds = [replace(random_world(seed), right_share=0.8) for seed in range(1, 80, 2)]
    for world in worlds:
        world.run(num_requests=30)
    found = [world.scheduler.speculation for world in worlds if world.scheduler.speculation is not None]
    assert sum(one.num_right for one in found) > 500
    assert sum(one.num_proposed - one.num_right for one in found) > 500


@pytest.mark.parametrize("seed", range(100))
def test_each_request_gets_what_it_gets_alone_while_the_cache_grows(seed: int) -> None:
    world = replace(random_world(seed), grows=True)
    assert world.scheduler.blocks_total == (0,) * len(world.groups)
    world.run(num_requests=30)
    world.check_outcome()


def test_the_simulation_preempts_often_enough_to_mean_something() -> None:
    worlds = [random_world(seed) for seed in range(0, 80, 2)]
    for world in worlds:
        world.run(num_requests=30)
    assert sum(world.scheduler.num_preemptions for world in worlds) > 50


@pytest.mark.parametrize("seed", range(40))
def test_with_blocks_for_all_everybody_gets_its_turn_within_a_number_of_steps(seed: int) -> None:
    random = Random(seed)
    num_tokens, max_num_seqs, block_size = random.randint(1, 9), random.randint(1, 12), random.choice((1, 4, 8))
    num_frames = random.choice((1, 2, 3))
    groups = (BlockGroup(0, max_num_seqs * num_blocks_spanned(MAX_CONTEXT, block_size)),)
    world = World(random, groups, block_size, num_frames, max_num_seqs, num_tokens, clients=("anna",))
    longest = max(world.prompt_lengths)
    # A step leaves as many tokens to prompts at most, and as many at least; a step of one token, every other one.
    most, least = (1, 1) if num_tokens == 1 else (min(block_size, (num_tokens + 1) // 2), num_tokens // 2)
    least, every = min(block_size, least), 2 if num_tokens == 1 else 1
    decode_turn = every * -(-max_num_seqs // max(num_tokens - most, 1)) + 1
    prompts_turn = every * max_num_seqs * -(-longest // least) + 1
    waiting: dict[Sequence, int] = {}  # -> steps without a part of it
    ages: dict[Sequence, int] = {}  # prompts -> steps since they were admitted
    for _ in range(40):
        world.arrive()
    while world.scheduler.has_work:
        while len(world.gpu.submitted) < num_frames and world.submit():
            done = {item.sequence for item in world.gpu.submitted[-1][0].scheduled}
            for sequence in world.scheduler._places.running:
                is_ready = sequence.is_decoding and sequence.num_remaining > 0
                waiting[sequence] = waiting.get(sequence, 0) + 1 if is_ready and sequence not in done else 0
                assert waiting[sequence] <= decode_turn
                if not sequence.is_decoding:
                    ages[sequence] = ages.get(sequence, 0) + 1
                    assert ages[sequence] <= prompts_turn
        world.commit()
    assert world.scheduler.num_preemptions == 0
    world.check_outcome()


@pytest.mark.parametrize("windows", [(0,), (0, 9), (24, 2, 0)])
@pytest.mark.parametrize("num_frames", [1, 2, 3])
def test_with_blocks_for_every_window_and_the_steps_in_flight_nobody_waits(
    windows: tuple[int, ...], num_frames: int
) -> None:
    block_size, max_num_seqs, max_num_batched_tokens = 4, 6, 16
    in_steps = num_blocks_spanned(num_frames * max_num_batched_tokens, block_size)
    groups = tuple(
        BlockGroup(window, max_num_seqs * num_blocks_spanned(window or MAX_CONTEXT, block_size) + in_steps)
        for window in windows
    )
    world = World(Random(1), groups, block_size, num_frames, max_num_seqs, max_num_batched_tokens)
    for _ in range(max_num_seqs):
        world.scheduler.add(Sequence("r", (1,) * 20, SamplingParams(max_tokens=60, ignore_eos=True), seed=0))
    num_steps = 0
    while world.scheduler.has_work:
        while len(world.gpu.submitted) < num_frames and world.submit():
            num_steps += 1
        world.commit()
    assert world.scheduler.num_preemptions == 0
    assert world.num_computed == max_num_seqs * (MAX_CONTEXT - 1)
    # 120 tokens of prompts beside decodes fill 10 steps; the last to be admitted decodes 49 tokens more
    assert num_steps <= 10 + 49


@pytest.mark.parametrize("seed", SEEDS)
def test_requests_that_begin_alike_get_what_they_get_alone(seed: int) -> None:
    world = replace(random_world(seed), in_order=True, shares=True, grows=seed % 3 == 0)
    world.run(num_requests=30)
    world.check_outcome()
    for pool in world.scheduler._blocks.pools:
        assert not pool._users
        assert sorted(pool._keys) == sorted(pool._idle) == sorted(pool._known.values())
    assert not world.scheduler.prefixes._to_come


@pytest.mark.parametrize("seed", [*range(16), 126])  # in the last one a younger one goes on while blocks are lost
def test_requests_get_what_they_get_alone_from_blocks_that_come_back(seed: int) -> None:
    world = replace(random_world(seed), in_order=True, shares=True, keeps=True, grows=seed % 3 == 0)
    world.run(num_requests=30)
    world.check_outcome()
    assert world.keeper is not None and world.scheduler.kept_prefixes is not None
    while world.keeper.pending or world.keeper.restoring or world.scheduler.kept_prefixes.restores:
        world.keeper.restore()
        world.keeper.settle()
    for pool in world.scheduler._blocks.pools:
        assert not pool._users
        assert sorted(pool._keys) == sorted(pool._idle) == sorted(pool._known.values())
        assert pool._released.keys() <= pool._keys.keys()
    for slots in world.keeper.kept.slots:
        assert not slots._pins
        assert sorted([*slots._free, *slots._known.values()]) == list(range(slots.count))
    assert not world.scheduler.prefixes._to_come


def test_the_simulation_brings_back_and_loses_often_enough_to_mean_something() -> None:
    keepers = []
    for seed in range(20, 36):
        world = replace(random_world(seed), in_order=True, shares=True, keeps=True)
        world.run(num_requests=30)
        keepers.append(world.keeper)
    assert sum(keeper.num_restored for keeper in keepers if keeper is not None) > 100
    assert sum(keeper.num_failed for keeper in keepers if keeper is not None) > 2
