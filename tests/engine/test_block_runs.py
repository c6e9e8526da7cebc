"""Runs of blocks are kept up with a table."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.scheduler.made_scheduler import add, make_scheduler, schedule
from unicorn_async.engine.block_runs import BlockRuns
from unicorn_async.engine.step_feed import StepFeed
from unicorn_async.scheduler.block_manager import BlockGroup


def runs_of(blocks: list[int]) -> list[tuple[int, int]]:
    runs: list[tuple[int, int]] = []
    for block in blocks:
        if runs and block == sum(runs[-1]):
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((block, 1))
    return runs


STEPS = st.lists(
    st.tuples(st.lists(st.integers(0, 6), max_size=5), st.integers(0, 4), st.booleans()),
    max_size=12,
)


@given(STEPS)
def test_runs_are_those_of_the_table_whatever_came_between(steps: list[tuple[list[int], int, bool]]) -> None:
    table: list[int] = []
    freed = 0
    runs = BlockRuns(table)
    for new, passed, looks in steps:
        table += new
        passed = min(passed, len(table) - freed)
        table[freed : freed + passed] = [-1] * passed
        freed += passed
        if looks:
            assert list(runs.update(freed)) == runs_of(table[freed:])
    assert list(runs.update(freed)) == runs_of(table[freed:])
    assert runs.update(freed) is runs.update(freed)


def test_all_who_watch_get_the_same_map_and_a_new_table_is_a_new_one() -> None:
    scheduler = make_scheduler(groups=(BlockGroup(0, 100),))
    sequence = add(scheduler, 9)
    schedule(scheduler)
    feed = StepFeed(scheduler)
    maps = feed.block_maps()
    assert feed.block_maps() is maps
    assert maps[0].owners[0].runs == ((0, 3),)
    sequence.block_tables = [[7, 8, 5]]
    feed._maps_until_s = 0.0
    assert feed.block_maps()[0].owners[0].runs == ((7, 2), (5, 1))
