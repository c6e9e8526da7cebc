"""What is learnt of a disk that was given up: its rate if something has come, and nothing of one that is silent."""

from __future__ import annotations

import pytest

from unicorn_async.kv_store.restore_pace import RestorePace
from unicorn_async.scheduler.fetch_costs import FetchCosts


@pytest.mark.parametrize(
    ("come", "took_s", "each_s"),
    [(100, 5.0, 0.05), (0, 5.0, 1e-6), (0, 10.0, 1e-6)],
    ids=["slow", "asleep", "silent"],
)
def test_one_wait_in_which_nothing_came_does_not_count_against_what_was_measured(
    come: int, took_s: float, each_s: float
) -> None:
    costs = FetchCosts()
    for _ in range(2):
        costs.read.observe(1000, 1e-3)
    pace = RestorePace(costs, 100, 10.0)
    if come:
        pace.note(1, 1.0)  # the first answer
    pace.note(come, took_s)
    pace.give_up(50)
    assert costs.read.each_s == pytest.approx(each_s)


def test_what_a_disk_took_for_its_first_answer_is_not_taken_for_its_rate() -> None:
    costs = FetchCosts()
    costs.computed.observe(4000, 16.0)
    for read_s in (*[1.0] * 9, 40.0):  # it was asleep, as whoever reads has noted
        costs.read.observe(150, read_s)
    pace = RestorePace(costs, 4000, 10.0)
    pace.note(150, 40.0)
    assert pace.pays_to_go_on(3000, 900, 900)
    pace.give_up(10)
    assert costs.pays(4000, 1000, 1000) and costs.disk_pays(16, 4)
    pace.note(150, 40.0)
    assert not pace.pays_to_go_on(3000, 900, 900), "it is slow"
    pace.give_up(10)
    assert not costs.pays(4000, 1000, 1000) and not costs.disk_pays(16, 4)


@pytest.mark.parametrize(("took_s", "each_s"), [(5.0, 0.1), (10.0, 0.0)], ids=["slow", "silent"])
def test_of_a_disk_that_was_never_measured_a_wait_for_nothing_counts_unless_it_is_silent(
    took_s: float, each_s: float
) -> None:
    costs = FetchCosts()
    pace = RestorePace(costs, 100, 10.0)
    pace.note(0, took_s)
    pace.give_up(50)
    assert costs.read.each_s == each_s


def test_what_the_host_has_is_worth_waiting_for_when_the_patience_with_the_disk_is_over() -> None:
    costs = FetchCosts()
    costs.computed.observe(1000, 1.0)
    pace = RestorePace(costs, 100, 10.0)
    pace.until_s = 0.0
    assert pace.is_over and pace.pays_to_go_on(100, 1000, 0)
    assert not pace.pays_to_go_on(100, 1000, 1)
