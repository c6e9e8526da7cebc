from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from unicorn_async.gpu.command import CommandRecorder, TimestampPool
from unicorn_async.ops.linear_plans.candidates import candidates
from unicorn_async.ops.linear_plans.product import Product
from unicorn_async.tune.product_bench import ProductBench

if TYPE_CHECKING:
    from collections.abc import Iterator

    from unicorn_async.gpu.device import Device
    from unicorn_async.gpu.kernel import Kernel

PRODUCTS = (Product("bf16", 1, 128, 256), Product("q4", 2, 96, 256))
BUSY_NS = 200_000


def submissions_of_a_call(bench: ProductBench, device: Device, product: Product) -> int:
    before = device.compute.timeline.last_submitted
    rule = candidates(device.info, product)[0]
    assert all(ns > 0 for ns in bench.times_ns(product, ((rule, 1e5), (rule, 1e5))))
    assert device.compute.timeline.completed() == device.compute.timeline.last_submitted
    return device.compute.timeline.last_submitted - before


def test_what_is_timed_follows_work_that_keeps_the_device_busy(device: Device) -> None:
    before = device.live_objects(), device.memory.num_buffers
    with ProductBench(device, PRODUCTS, busy_ns=BUSY_NS) as bench:
        assert submissions_of_a_call(bench, device, PRODUCTS[0]) == 1
        for product in PRODUCTS:
            rule = candidates(device.info, product)[0]
            bench.keep_busy(product, rule, bench.first_ns(product, rule))
            for other in PRODUCTS:
                assert submissions_of_a_call(bench, device, other) == 2
    device.memory.collect()
    assert (device.live_objects(), device.memory.num_buffers) == before


def test_a_software_device_has_no_clocks_to_keep_up(device: Device) -> None:
    if not device.info.is_software:
        pytest.skip(f"{device.info.name} is a GPU")
    with ProductBench(device, PRODUCTS) as bench:
        before = device.compute.timeline.last_submitted
        bench.keep_busy(PRODUCTS[0], candidates(device.info, PRODUCTS[0])[0], 1e5)
        assert device.compute.timeline.last_submitted == before
        assert submissions_of_a_call(bench, device, PRODUCTS[0]) == 1
        assert bench.warm_ns() == 0


@pytest.mark.parametrize(
    ("times", "runs"),
    [
        ((300, 300, 300, 300, 300), 4),  # steady at once, but not for long enough before the fourth
        ((900, 600, 300, 200, 200, 200, 200), 6),
        ((200, 400) * 30, 34),  # never steady: given up after 50 times the busy time
    ],
    ids=["steady", "clocks rise", "restless"],
)
def test_the_device_is_kept_busy_until_its_times_agree(
    device: Device, monkeypatch: pytest.MonkeyPatch, times: tuple[int, ...], runs: int
) -> None:
    left: Iterator[int] = iter(times)
    monkeypatch.setattr(TimestampPool, "read", lambda self, first, count: [0, 1000 * next(left)])
    with ProductBench(device, PRODUCTS, busy_ns=BUSY_NS) as bench:
        before = device.compute.timeline.last_submitted
        bench.keep_busy(PRODUCTS[0], candidates(device.info, PRODUCTS[0])[0], 1e5)
        assert device.compute.timeline.last_submitted - before == runs


def test_what_keeps_the_device_busy_is_longer_at_higher_clocks(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    dispatched: list[object] = []
    dispatch = CommandRecorder.dispatch

    def counted(self: CommandRecorder, kernel: Kernel, push: bytes, x: int, y: int = 1, z: int = 1) -> None:
        dispatched.append(kernel)
        dispatch(self, kernel, push, x, y, z)

    monkeypatch.setattr(CommandRecorder, "dispatch", counted)
    monkeypatch.setattr(TimestampPool, "read", lambda self, first, count: [0, 50_000])
    with ProductBench(device, PRODUCTS, busy_ns=BUSY_NS) as bench:
        bench.keep_busy(PRODUCTS[0], candidates(device.info, PRODUCTS[0])[0], 1e5)
    assert len(dispatched) == 2 + 8  # of 100 µs when they were first measured, and of 25 µs later


def test_the_cost_of_calls_contains_what_keeps_the_device_busy(device: Device) -> None:
    with ProductBench(device, PRODUCTS, busy_ns=10**9) as bench:
        assert bench.warm_ns() >= 5e9
        assert bench.cost_ns(1e3, calls=3, plans=2) > 3e9
        assert bench.cost_ns(2e9, calls=3, plans=2) == pytest.approx(3 * 3 * 2e9)
    with ProductBench(device, PRODUCTS, busy_ns=0) as bench:
        assert bench.cost_ns(1e9, calls=3, plans=2) == pytest.approx(6e9)
