from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from unicorn_async.errors import OutOfMemoryError, UnsupportedModelError
from unicorn_async.ops.linear_plans.candidates import candidates
from unicorn_async.ops.linear_plans.product import Product
from unicorn_async.tensor import QuantFormat, QuantTensor
from unicorn_async.tune.product_bench import ProductBench
from unicorn_async.tune.tuner import Tuner

if TYPE_CHECKING:
    from collections.abc import Sequence

    from unicorn_async.gpu.device import Device
    from unicorn_async.ops.linear_plans.plan import LinearPlan

PRODUCTS = (
    Product("bf16", 1, 128, 256),
    Product("bf16", 1, 128, 256, gated=True),
    Product("q4", 1, 128, 256, gated=True, blocked=True),
    Product("q6_k", 3, 96, 512),
    Product("f32", 33, 64, 64),
)


def test_what_is_measured_is_one_of_the_candidates_and_no_slower_than_the_rules(device: Device) -> None:
    before = device.live_objects(), device.memory.num_buffers
    with Tuner(device, PRODUCTS) as tuner:
        for product in PRODUCTS:
            found = tuner.measure(product, most_s=600.0)
            assert found is not None
            assert found.product == product
            plans = candidates(device.info, product)
            assert found.rule == plans[0]
            assert found.best in plans
            assert found.num_candidates == len(plans)
            assert found.best_us > 0
            if found.best is found.rule:
                assert found.gain == 0
            else:
                assert found.gain >= 0.03
    device.memory.collect()
    assert (device.live_objects(), device.memory.num_buffers) == before


class FallingClocks:
    """Made-up times of plans on a device whose clocks fall to a third after some calls, and rise again after others."""

    def __init__(self, fast: LinearPlan | None) -> None:
        self.fast = fast
        self.calls = 0

    def times_ns(self, product: Product, plans: Sequence[tuple[LinearPlan, float]]) -> tuple[float, ...]:
        self.calls += 1
        clock = 3.0 if self.calls % 7 >= 3 else 1.0
        return tuple(clock * (8e3 if plan == self.fast else 1e4) for plan, _ in plans)


@pytest.mark.parametrize("place", [None, 1, 2])
def test_clocks_that_fall_while_candidates_are_measured_make_none_look_faster_or_slower(
    device: Device, monkeypatch: pytest.MonkeyPatch, place: int | None
) -> None:
    product = PRODUCTS[0]
    plans = candidates(device.info, product)
    fast = None if place is None else plans[place]
    clocks = FallingClocks(fast)
    monkeypatch.setattr(ProductBench, "first_ns", lambda self, product, plan: 8e3 if plan == fast else 1e4)
    monkeypatch.setattr(ProductBench, "times_ns", lambda self, product, plans: clocks.times_ns(product, plans))
    with Tuner(device, PRODUCTS) as tuner:
        found = tuner.measure(product, most_s=600.0)
    assert found is not None and clocks.calls > 7
    assert found.best == (fast or plans[0])
    assert found.gain == pytest.approx(0.25 if fast else 0.0)


class NoisyTimes:
    """Made-up times of plans, `shares` of the rules' one, on a machine that others use: now and then they double."""

    def __init__(self, plans: Sequence[LinearPlan], shares: Sequence[float]) -> None:
        self.shares = dict(zip(plans, shares, strict=False))
        self.deviation = 0.0
        self.rng = random.Random(7)

    def ns(self, plan: LinearPlan) -> float:
        disturbed = 2.0 if self.rng.random() < self.deviation else 1.0
        return 1e4 * self.shares.get(plan, 1.02) * self.rng.lognormvariate(0.0, self.deviation) * disturbed


@pytest.mark.parametrize("others", [(1.02, 1.02), (1.05, 0.9), (0.7, 1.1)], ids=["slower", "a tenth", "a third"])
def test_noise_never_makes_a_slower_plan_the_choice(
    device: Device, monkeypatch: pytest.MonkeyPatch, others: tuple[float, ...]
) -> None:
    product, num_products = PRODUCTS[0], 250
    times = NoisyTimes(candidates(device.info, product), (1.0, *others))
    monkeypatch.setattr(ProductBench, "first_ns", lambda self, product, plan: min(times.ns(plan) for _ in range(3)))
    monkeypatch.setattr(ProductBench, "times_ns", lambda self, product, plans: tuple(times.ns(one) for one, _ in plans))
    with Tuner(device, PRODUCTS[:1]) as tuner:
        for times.deviation in (0.03, 0.1, 0.3):
            found = [tuner.measure(product, most_s=600.0) for _ in range(num_products)]
            shares = [times.shares.get(one.best, 1.02) for one in found if one is not None]
            assert len(shares) == num_products
            assert max(shares) <= 1.0
            if times.deviation < 0.1 and min(others) < 1.0:
                assert shares.count(min(others)) > 0.8 * num_products  # the more plans a device has, the fewer


class TurnsNoted:
    """Made-up times of plans without noise, as shares of the rules' one, and which plans took turns in which order.

    `first` are those of the plans alone. In a turn, what comes second takes `second` times as long. After `until` turns
    the shares are those of `later`.
    """

    def __init__(self, plans: Sequence[LinearPlan], shares: dict[int, float]) -> None:
        self.plans = plans
        self.first = self.later = self.shares = shares
        self.until = 1 << 30
        self.second = 1.0
        self.turns: list[tuple[int, int]] = []

    def first_ns(self, product: Product, plan: LinearPlan) -> float:
        return 1e4 * self.first.get(self.plans.index(plan), 1.0)

    def times_ns(self, product: Product, plans: Sequence[tuple[LinearPlan, float]]) -> tuple[float, ...]:
        one, other = (self.plans.index(plan) for plan, _ in plans)
        self.turns.append((one, other))
        shares = self.shares if len(self.turns) <= self.until else self.later
        return 1e4 * shares.get(one, 1.0), 1e4 * shares.get(other, 1.0) * self.second

    def measure(self, device: Device, monkeypatch: pytest.MonkeyPatch) -> int:
        """Tune the product by these times, and return the number of the plan that is chosen."""
        monkeypatch.setattr(ProductBench, "first_ns", lambda _, product, plan: self.first_ns(product, plan))
        monkeypatch.setattr(ProductBench, "times_ns", lambda _, product, plans: self.times_ns(product, plans))
        with Tuner(device, PRODUCTS[:1]) as tuner:
            found = tuner.measure(PRODUCTS[0], most_s=600.0)
        assert found is not None
        return self.plans.index(found.best)


@pytest.fixture
def turns(device: Device) -> TurnsNoted:
    """All plans alike."""
    plans = candidates(device.info, PRODUCTS[0])
    assert len(plans) > 3
    return TurnsNoted(plans, {})


@pytest.mark.parametrize(("share", "best"), [(0.98, 0), (0.96, 2)])
def test_a_plan_is_chosen_that_is_faster_by_three_percent_at_least(
    device: Device, monkeypatch: pytest.MonkeyPatch, turns: TurnsNoted, share: float, best: int
) -> None:
    turns.shares = turns.later = {2: share}
    assert turns.measure(device, monkeypatch) == best
    assert len(turns.turns) == 3 * (len(turns.plans) - 1) + (18 if best else 0)  # the decisions are for what may gain


@pytest.mark.parametrize(("share", "best"), [(0.98, 0), (0.96, 2)])
def test_what_counts_is_the_gain_of_the_rounds_that_decide(
    device: Device, monkeypatch: pytest.MonkeyPatch, turns: TurnsNoted, share: float, best: int
) -> None:
    turns.shares, turns.later, turns.until = {2: 0.8}, {2: share}, 3 * (len(turns.plans) - 1)
    assert turns.measure(device, monkeypatch) == best
    assert len(turns.turns) == turns.until + 18


@pytest.mark.parametrize(("alone", "best"), [(1.25, 2), (1.35, 0)])
def test_plans_take_turns_unless_they_are_slower_by_a_third_alone(
    device: Device, monkeypatch: pytest.MonkeyPatch, turns: TurnsNoted, alone: float, best: int
) -> None:
    turns.first, turns.shares, turns.later = {2: alone}, {2: 0.8}, {2: 0.8}
    assert turns.measure(device, monkeypatch) == best
    assert any(2 in pair for pair in turns.turns) == (best == 2)
    assert {1, 3} <= {plan for pair in turns.turns for plan in pair}


@pytest.mark.parametrize("second", [0.8, 1.25])
def test_what_comes_second_gains_nothing_by_it(
    device: Device, monkeypatch: pytest.MonkeyPatch, turns: TurnsNoted, second: float
) -> None:
    turns.second = second
    assert turns.measure(device, monkeypatch) == 0
    assert {(0, 1), (1, 0)} <= set(turns.turns)


def test_a_product_that_would_take_too_long_is_left_alone(device: Device) -> None:
    with Tuner(device, PRODUCTS[:1]) as tuner:
        assert tuner.measure(PRODUCTS[0], most_s=0.0) is None


def test_products_that_no_kernel_takes_or_that_have_no_room_are_refused(device: Device) -> None:
    before = device.live_objects(), device.memory.num_buffers
    with Tuner(device, PRODUCTS[:1]) as tuner, pytest.raises(UnsupportedModelError, match="12 elements"):
        tuner.measure(Product("bf16", 1, 8, 12), most_s=600.0)
    with pytest.raises(OutOfMemoryError):
        Tuner(device, (Product("f32", 1, 1 << 24, 1 << 24),))
    device.memory.collect()
    assert (device.live_objects(), device.memory.num_buffers) == before


def test_the_weights_bytes_are_those_that_lie_on_the_device() -> None:
    assert Product("bf16", 8, 6, 16).weight_bytes == 6 * 16 * 2
    assert Product("q6_k", 8, 6, 512).weight_bytes == QuantTensor.size((6, 512), QuantFormat.Q6_K)
