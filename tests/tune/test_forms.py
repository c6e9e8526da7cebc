"""Which of two forms tuning chooses for an input, by made-up times on a made-up device."""

from __future__ import annotations

import random
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from tests.ops.test_linear_rules import MATRIX_RDNA
from tests.tune.test_contests import contests
from unicorn_async.ops.linear_plans.candidates import candidates
from unicorn_async.ops.linear_plans.product import Product
from unicorn_async.ops.rows import RowForm
from unicorn_async.tune import tuner as tuner_module
from unicorn_async.tune.contests import Contest
from unicorn_async.tune.products import ModelProduct
from unicorn_async.tune.tuner import Tuner

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from unicorn_async.gpu.device import Device
    from unicorn_async.gpu.kernel import KernelRequest
    from unicorn_async.ops.linear_plans.plan import LinearPlan

OTHER_FORM = RowForm.BLOCKS  # of 16 tokens, for which the rules choose matrices


class Times:
    """In place of a `ProductBench`: nanoseconds of plans, by their form, and how many runs there were."""

    def __init__(self, shares: dict[LinearPlan, float], other: float) -> None:
        self.shares, self.other = shares, other
        self.deviation = 0.0
        self.call_ns = 1.0
        self.alone: list[LinearPlan] = []
        self.turns: list[RowForm] = []
        self.rng = random.Random(7)

    def ns(self, product: Product, plan: LinearPlan) -> float:
        share = self.shares.get(plan, self.other if plan.form is OTHER_FORM else 1.0)
        return product.weight_bytes * share * self.rng.lognormvariate(0.0, self.deviation)

    def first_ns(self, product: Product, plan: LinearPlan) -> float:
        self.alone.append(plan)
        return self.ns(product, plan)

    def times_ns(self, product: Product, plans: Sequence[tuple[LinearPlan, float]]) -> tuple[float, ...]:
        self.turns += [plan.form for plan, _ in plans]
        return tuple(self.ns(product, plan) for plan, _ in plans)

    def keep_busy(self, product: Product, plan: LinearPlan, ns: float) -> None:
        """Clocks are steady."""

    def cost_ns(self, ns: float, *, calls: int, plans: int) -> float:
        return calls * plans * self.call_ns

    def warm_ns(self) -> float:
        return 0.0


class Prepared:
    """In place of a device's kernels: what was to be compiled."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def prepare(self, requests: Iterable[KernelRequest]) -> None:
        self.names += [request.name for request in requests]


@pytest.fixture
def contest() -> Contest:
    return next(one for one in contests(MATRIX_RDNA) if one.tokens == 16 and len(one.ways[OTHER_FORM]) > 1)


def tuner(monkeypatch: pytest.MonkeyPatch, times: Times) -> Tuner:
    monkeypatch.setattr(tuner_module, "ProductBench", lambda device, products: times)
    return Tuner(cast("Any", SimpleNamespace(info=MATRIX_RDNA, kernels=Prepared())), ())


@pytest.mark.parametrize(("share", "best"), [(1.2, RowForm.HALVES), (0.97, RowForm.HALVES), (0.9, OTHER_FORM)])
def test_a_form_is_chosen_whose_products_are_faster_by_five_percent_at_least(
    monkeypatch: pytest.MonkeyPatch, contest: Contest, share: float, best: RowForm
) -> None:
    times = Times({}, other=share)
    one = tuner(monkeypatch, times)
    found = one.settle(contest, most_s=60.0)
    assert found is not None and found.best is best
    rule_us = sum(p.count * p.product.weight_bytes for p in contest.ways[contest.rule]) / 1e3
    assert found.rule_us == pytest.approx(rule_us)
    assert found.best_us == pytest.approx(rule_us * (share if best is OTHER_FORM else 1.0))
    assert one.info == contest.info(MATRIX_RDNA, best) and one.info.forms == contest.info(MATRIX_RDNA, best).forms
    assert {times.turns[0], times.turns[-1]} == {RowForm.HALVES, OTHER_FORM}


def test_each_form_is_measured_by_the_fastest_of_its_candidates(
    monkeypatch: pytest.MonkeyPatch, contest: Contest
) -> None:
    info = contest.info(MATRIX_RDNA, OTHER_FORM)
    fast = {candidates(info, one.product)[-1]: 0.7 for one in contest.ways[OTHER_FORM]}
    times = Times(fast, other=1.6)
    found = tuner(monkeypatch, times).settle(contest, most_s=60.0)
    assert found is not None and found.best is OTHER_FORM
    assert found.best_us == pytest.approx(0.7 * found.rule_us)
    assert set(fast) < set(times.alone)


def test_a_product_of_many_layers_counts_for_each_of_them(monkeypatch: pytest.MonkeyPatch, contest: Contest) -> None:
    info = contest.info(MATRIX_RDNA, OTHER_FORM)
    slow = dict.fromkeys(candidates(info, contest.ways[OTHER_FORM][0].product), 1.25)
    for count, best in ((1, RowForm.HALVES), (50, OTHER_FORM)):
        ways = {
            form: (first, *(replace(one, count=count * one.count) for one in rest))
            for form, (first, *rest) in contest.ways.items()
        }
        found = tuner(monkeypatch, Times(slow, other=0.8)).settle(replace(contest, ways=ways), most_s=60.0)
        assert found is not None and found.best is best


def test_a_form_that_is_far_slower_by_the_rules_plans_is_given_up_at_once(
    monkeypatch: pytest.MonkeyPatch, contest: Contest
) -> None:
    times = Times({}, other=3.5)
    found = tuner(monkeypatch, times).settle(contest, most_s=60.0)
    assert found is not None and found.best is RowForm.HALVES
    assert len(times.alone) == sum(len(way) for way in contest.ways.values())
    assert not times.turns


def test_noise_never_makes_a_slower_form_the_choice(monkeypatch: pytest.MonkeyPatch, contest: Contest) -> None:
    times = Times({}, other=1.03)
    one = tuner(monkeypatch, times)
    for times.deviation in (0.03, 0.1):
        for _ in range(20):
            found = one.settle(contest, most_s=60.0)
            assert found is not None and found.best is RowForm.HALVES


def test_a_contest_that_would_take_too_long_is_left_alone(monkeypatch: pytest.MonkeyPatch, contest: Contest) -> None:
    times = Times({}, other=0.5)
    times.call_ns = 1e9
    one = tuner(monkeypatch, times)
    assert one.settle(contest, most_s=60.0) is None
    assert not times.turns and one.info is MATRIX_RDNA


def test_candidates_that_are_measured_after_it_read_the_form_that_was_chosen(
    monkeypatch: pytest.MonkeyPatch, contest: Contest
) -> None:
    one = tuner(monkeypatch, Times({}, other=0.5))
    assert one.settle(contest, most_s=60.0) is not None
    product = contest.ways[OTHER_FORM][0].product
    found = one.measure(product, most_s=60.0)
    assert found is not None and found.rule.form is found.best.form is OTHER_FORM


def test_forms_are_timed_on_the_device_and_leave_nothing_there(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a dense product, whose kernel reads floats in whichever form: this needs no matrix units."""
    monkeypatch.setattr(tuner_module, "_MAX_CANDIDATES", 2)
    before = device.live_objects(), device.memory.num_buffers
    one = ModelProduct(Product("bf16", 2, 128, 256), "o", 3)
    contest = Contest(2, 256, {RowForm.FLOATS: (one,), RowForm.BLOCKS: (one,)})
    with Tuner(device, [one.product]) as opened:
        found = opened.settle(contest, most_s=600.0)
        assert found is not None and found.best in contest.ways
        assert found.rule_us > 0 < found.best_us
        assert opened.info.forms == ({} if found.best is contest.rule else {one.product.input: "blocks"})
    device.memory.collect()
    assert (device.live_objects(), device.memory.num_buffers) == before
