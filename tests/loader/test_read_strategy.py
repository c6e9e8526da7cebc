"""The rule that chooses how files are read, and what it says about it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from unicorn_async.loader.read_strategy import READ_AHEAD_BYTES, ReadFacts, ReadMode, choose_read_strategy

GB = 10**9
FACTS = ReadFacts(
    file_bytes=26 * GB, resident_share=0.0, free_bytes=64 * GB, host_bytes=0, has_direct=True, num_cores=16
)


def test_files_in_memory_are_read_there_even_where_little_is_free() -> None:
    strategy = choose_read_strategy(replace(FACTS, resident_share=0.97, free_bytes=GB))
    assert strategy.mode is ReadMode.WARM
    assert strategy.read_ahead_bytes == 0
    assert strategy.text() == "page cache, 8 threads: 97% of the files are in memory already"


def test_files_that_fit_stay_in_the_page_cache() -> None:
    strategy = choose_read_strategy(FACTS)
    assert strategy.mode is ReadMode.CACHED
    assert strategy.read_ahead_bytes == READ_AHEAD_BYTES
    assert "26.0 GB to read, 64.0 GB of host memory free" in strategy.reason
    assert "for the next load" in strategy.reason


@pytest.mark.parametrize("free_gb", [28, 20, 0])
def test_files_that_do_not_fit_with_some_room_left_are_read_past_the_page_cache(free_gb: int) -> None:
    strategy = choose_read_strategy(replace(FACTS, free_bytes=free_gb * GB))
    assert strategy.mode is ReadMode.DIRECT
    assert "nothing else is pushed out" in strategy.reason


def test_a_model_in_host_memory_takes_its_part_of_what_is_free() -> None:
    facts = replace(FACTS, free_bytes=40 * GB)
    assert choose_read_strategy(facts).mode is ReadMode.CACHED
    shared = choose_read_strategy(replace(facts, host_bytes=26 * GB))
    assert shared.mode is ReadMode.DIRECT
    assert "26.0 GB to read and 26.0 GB for the model, 40.0 GB" in shared.reason


def test_without_direct_reads_what_was_read_is_dropped() -> None:
    strategy = choose_read_strategy(replace(FACTS, free_bytes=GB, has_direct=False))
    assert strategy.mode is ReadMode.DROPPED
    assert "no O_DIRECT" in strategy.reason


def test_unknown_free_memory_counts_as_enough() -> None:
    strategy = choose_read_strategy(replace(FACTS, free_bytes=None))
    assert strategy.mode is ReadMode.CACHED
    assert "unknown" in strategy.reason


@pytest.mark.parametrize(("cores", "threads"), [(1, 4), (2, 4), (6, 6), (128, 8)])
def test_threads_that_only_copy_follow_the_cores_within_limits(cores: int, threads: int) -> None:
    assert choose_read_strategy(replace(FACTS, num_cores=cores, resident_share=1.0)).num_threads == threads


@pytest.mark.parametrize("free_gb", [1, 64])
def test_reads_from_the_disk_use_many_threads_on_few_cores(free_gb: int) -> None:
    assert choose_read_strategy(replace(FACTS, num_cores=2, free_bytes=free_gb * GB)).num_threads == 8


@pytest.mark.parametrize("change", [{}, {"resident_share": 1.0}, {"free_bytes": GB}])
def test_a_given_number_of_threads_is_taken(change: dict[str, int]) -> None:
    strategy = choose_read_strategy(replace(FACTS, **change), num_threads=1)
    assert strategy.num_threads == 1
    assert ", 1 thread: " in strategy.text()
