"""Whether blocks are brought back goes by what was measured, and is tried again where it did not pay."""

from __future__ import annotations

from unicorn_async.scheduler.fetch_costs import FetchCosts


def test_what_was_never_measured_is_tried() -> None:
    costs = FetchCosts()
    assert costs.pays(100, 1 << 30, 1 << 30) and costs.disk_pays(16, 1 << 20)
    costs.computed.observe(1000, 1.0)
    assert costs.pays(100, 1 << 30, 1 << 30) and costs.disk_pays(16, 1 << 20)


def test_the_faster_way_is_taken_and_the_other_tried_now_and_then() -> None:
    costs = FetchCosts()
    costs.computed.observe(1000, 1.0)  # 1 ms a token
    costs.copied.observe(1_000_000, 0.1)  # 0.1 ms a kilobyte
    costs.read.observe(1_000_000, 1.0)  # 1 ms a kilobyte more
    assert costs.compute_s(100) == 0.1
    assert costs.pays(100, 900_000, 0) and costs.pays(100, 80_000, 80_000)
    assert costs.disk_pays(100, 99_000) and not costs.disk_pays(100, 101_000)
    tried = [costs.pays(100, 100_000, 100_000) for _ in range(64)]
    assert [number for number, one in enumerate(tried, 1) if one] == [32, 64]


def test_a_disk_of_which_nothing_is_left_to_read_is_written_to_now_and_then() -> None:
    costs = FetchCosts()
    costs.computed.observe(1000, 1.0)
    costs.read.observe(1000, 100.0)
    tried = [costs.disk_pays(16, 1000) for _ in range(2048)]
    assert [number for number, one in enumerate(tried, 1) if one] == [*range(992, 1024), *range(2016, 2048)]


def test_one_measurement_that_is_off_changes_nothing() -> None:
    costs = FetchCosts()
    for seconds in (1.0, 1.0, 60.0):
        costs.computed.observe(1000, seconds)
    costs.computed.observe(0, 5.0)
    assert costs.compute_s(1000) == 1.0


def test_there_is_patience_for_what_computing_would_take_and_for_a_second_at_least() -> None:
    costs = FetchCosts()
    assert costs.patience_s(1000) is None and costs.pays_to_go_on(1000, 1, 1e9)
    costs.computed.observe(1000, 10.0)
    costs.copied.observe(1000, 1.0)
    assert (costs.patience_s(1000), costs.patience_s(10)) == (15.0, 1.0)
    assert costs.pays_to_go_on(1000, 5000, 5.0) and not costs.pays_to_go_on(1000, 5000, 5.1)
    assert costs.pays_to_go_on(10, 500, 0.5)


def test_by_what_was_given_up_the_next_one_goes_whatever_was_before() -> None:
    costs = FetchCosts()
    costs.computed.observe(1000, 1.0)
    for _ in range(9):
        costs.read.observe(1000, 1e-6)
    assert costs.pays(1000, 1000, 1000)
    costs.read.begin_anew(100, 5.0)
    assert not costs.pays(1000, 1000, 1000)
    costs.read.observe(1000, 1e-6)  # when it was tried again
    assert costs.pays(1000, 1000, 1000)
