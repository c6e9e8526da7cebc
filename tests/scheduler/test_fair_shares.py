"""Who holds more than its share of places or blocks gives up for another client, and nobody else does."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.scheduler.made_scheduler import make_scheduler
from tests.scheduler.world import MAX_CONTEXT, World, random_world
from unicorn_async.sampling_params import SamplingParams
from unicorn_async.scheduler.block_manager import BlockGroup, num_blocks_spanned
from unicorn_async.scheduler.block_pool import WHOLE
from unicorn_async.scheduler.fair_shares import FairShares
from unicorn_async.scheduler.sequence import Sequence

if TYPE_CHECKING:
    from unicorn_async.scheduler.scheduler import Scheduler

LONG, SHORT = 40, 2


def sequence(client: str, num_tokens: int = LONG, num_prompt: int = 4) -> Sequence:
    sampling = SamplingParams(max_tokens=num_tokens, ignore_eos=True)
    return Sequence("r", tuple(range(10, 10 + num_prompt)), sampling, seed=0, client=client)


def add(
    scheduler: Scheduler, client: str, count: int = 1, *, num_tokens: int = LONG, num_prompt: int = 4
) -> list[Sequence]:
    added = [sequence(client, num_tokens, num_prompt) for _ in range(count)]
    for one in added:
        scheduler.add(one)
    return added


def run(scheduler: Scheduler, num_steps: int) -> None:
    for _ in range(num_steps):
        batch = scheduler.schedule()
        if batch is None:
            return
        scheduler.commit(batch, [5] * batch.num_samples)


def held(scheduler: Scheduler) -> Counter[str]:
    return Counter(one.client for one in scheduler._places.running)


def test_who_has_all_places_gives_its_youngest_to_another_client_at_once() -> None:
    scheduler = make_scheduler(max_num_seqs=4, max_waiting=100)
    annas = add(scheduler, "anna", 50)
    run(scheduler, 5)
    assert held(scheduler) == {"anna": 4}
    (ben,) = add(scheduler, "ben", num_tokens=SHORT)
    run(scheduler, 2)
    assert len(ben.output_ids) == SHORT and ben.finish_reason is not None
    run(scheduler, 1)
    assert scheduler._places.running == annas[:4]  # whom it was taken from has it again before those that had none
    assert scheduler.num_fair_preemptions == scheduler.num_preemptions == 1


@pytest.mark.parametrize("num_places", [1, 3, 8, 12])
def test_places_come_to_equal_shares_and_then_nobody_is_preempted(num_places: int) -> None:
    groups = (BlockGroup(0, 1000),)
    scheduler = make_scheduler(groups=groups, max_num_seqs=num_places, max_waiting=100, max_num_batched_tokens=64)
    add(scheduler, "anna", 30)
    run(scheduler, 3)
    add(scheduler, "ben", 30)
    add(scheduler, "carl", 1)
    run(scheduler, num_places + 3)
    carls = min(num_places // 3, 1)
    rest = num_places - carls
    assert held(scheduler) == Counter(anna=rest - rest // 2, ben=rest // 2, carl=carls)
    assert scheduler.num_fair_preemptions == carls + rest // 2
    run(scheduler, 10)
    assert scheduler.num_fair_preemptions == carls + rest // 2


def test_a_client_alone_keeps_all_and_one_that_has_gone_leaves_it_all_to_others() -> None:
    scheduler = make_scheduler(max_num_seqs=4, max_waiting=100)
    add(scheduler, "anna", 20)
    run(scheduler, 100)
    assert scheduler.num_preemptions == 0
    scheduler = make_scheduler(max_num_seqs=4, max_waiting=100)
    add(scheduler, "anna", 20)
    add(scheduler, "ben", 2, num_tokens=SHORT)
    run(scheduler, 8)
    assert held(scheduler) == {"anna": 4}


def test_a_client_with_one_place_keeps_it() -> None:
    scheduler = make_scheduler(max_num_seqs=2)
    add(scheduler, "anna")
    add(scheduler, "ben")
    (carl,) = add(scheduler, "carl")
    run(scheduler, 20)
    assert held(scheduler) == {"anna": 1, "ben": 1} and not carl.output_ids
    run(scheduler, 60)
    assert len(carl.output_ids) == LONG
    assert scheduler.num_preemptions == 0


def test_who_has_all_blocks_gives_those_of_its_youngest_to_another_client() -> None:
    scheduler = make_scheduler(groups=(BlockGroup(0, 15),), max_num_seqs=8)
    oldest, youngest = add(scheduler, "anna", 2, num_prompt=20)
    run(scheduler, 4)
    assert scheduler.blocks_used == (12,)
    (ben,) = add(scheduler, "ben", num_tokens=SHORT, num_prompt=12)
    run(scheduler, 1)
    assert scheduler._places.running == [oldest, ben] and youngest.preempted
    run(scheduler, 3)
    assert ben.finish_reason is not None
    assert scheduler.num_fair_preemptions == 1


def test_nobody_gives_up_blocks_for_who_would_then_have_more_or_would_not_have_enough() -> None:
    scheduler = make_scheduler(groups=(BlockGroup(0, 15),), max_num_seqs=8)
    add(scheduler, "anna", 2, num_prompt=20)
    run(scheduler, 4)
    add(scheduler, "ben", num_tokens=4, num_prompt=40)
    run(scheduler, 2)
    assert held(scheduler) == {"anna": 2}
    assert scheduler.num_fair_preemptions == 0


def test_where_blocks_run_out_the_client_with_most_of_them_loses_some_though_others_came_later() -> None:
    scheduler = make_scheduler(groups=(BlockGroup(0, 15),), max_num_seqs=3)
    oldest, youngest = add(scheduler, "anna", 2, num_prompt=16)
    run(scheduler, 2)
    (ben,) = add(scheduler, "ben", num_prompt=3)
    run(scheduler, 16)
    assert scheduler.num_preemptions > 0 and youngest.preempted
    assert scheduler._places.running == [oldest, ben]
    assert scheduler.num_fair_preemptions == 0


def test_blocks_that_several_share_count_once() -> None:
    scheduler = make_scheduler(groups=(BlockGroup(0, 20),), max_num_seqs=8, in_order=True, shares_prefixes=True)
    add(scheduler, "anna", 4, num_prompt=32)
    run(scheduler, 6)
    assert held(scheduler) == {"anna": 4}
    (used,) = scheduler.blocks_used
    assert used < 20 < sum(len(one.block_tables[0]) for one in scheduler._places.running)
    weights = FairShares(scheduler._blocks, 8).held(scheduler._places.running)
    assert weights["anna"] == pytest.approx(used * WHOLE / 20)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    num_places=st.integers(2, 9),
    num_frames=st.integers(1, 3),
    counts=st.lists(st.integers(1, 12), min_size=2, max_size=4),
    shares=st.booleans(),
)
def test_whoever_holds_nothing_has_a_place_in_a_few_steps_if_anybody_holds_two(
    seed: int, num_places: int, num_frames: int, counts: list[int], shares: bool
) -> None:
    groups = (BlockGroup(0, (num_places + sum(counts)) * num_blocks_spanned(MAX_CONTEXT, 4)),)
    world = World(Random(seed), groups, 4, num_frames, num_places, 64, in_order=shares, shares=shares)
    names = "abcd"[: len(counts)]
    to_come = [name for name, count in zip(names, counts, strict=True) for _ in range(count)]
    scheduler, waited = world.scheduler, Counter[str]()
    while to_come or scheduler.has_work:
        if to_come and world.random.random() < 0.4:
            world.clients = (to_come.pop(0),)
            world.arrive()
        while len(world.gpu.submitted) < num_frames and world.submit():
            holding, waiting = held(scheduler), {one.client for one in scheduler._places.waiting}
            someone_has_two = max(holding.values(), default=0) > 1
            for name in names:
                is_owed = name in waiting and not holding[name] and someone_has_two
                waited[name] = waited[name] + 1 if is_owed else 0
                # its turn may be behind the others' that hold nothing, and each may have to wait for steps in flight
                assert waited[name] <= len(names) * (num_frames + 1)
        if world.gpu.submitted:
            world.commit()
    assert scheduler.num_preemptions == scheduler.num_fair_preemptions <= len(world.requests) + num_places
    world.check_outcome()


@pytest.mark.parametrize("seed", range(0, 60, 3))
def test_a_lone_client_never_gives_up_for_a_share(seed: int) -> None:
    world = random_world(seed)
    world.clients = ("anna",)
    world.run(num_requests=20)
    assert world.scheduler.num_fair_preemptions == 0


def test_whoever_gives_up_gets_what_it_gets_alone() -> None:
    """In worlds in which that happens often enough to mean something."""
    num_fair_preemptions = 0
    for seed in range(40):
        world = replace(
            random_world(seed),
            clients=("anna",) * 9 + ("ben", "carl"),
            max_num_seqs=3,
            in_order=seed % 4 > 0,
            shares=seed % 4 > 1,
            right_share=0.5 if seed % 3 == 0 else None,
        )
        world.run(num_requests=30)
        world.check_outcome()
        num_fair_preemptions += world.scheduler.num_fair_preemptions
    assert num_fair_preemptions > 20
