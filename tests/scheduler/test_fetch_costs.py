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


def test_one_measurement_that_is_off_changes_nothing() -> None:
    costs = FetchCosts()
    for seconds in (1.0, 1.0, 60.0):
        costs.computed.observe(1000, seconds)
    costs.computed.observe(0, 5.0)
    assert costs.compute_s(1000) == 1.0
