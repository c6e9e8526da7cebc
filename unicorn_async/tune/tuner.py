"""Finds the fastest candidate for a product on a device, by measuring each in turns with the rules' own choice.

Of products that may read their input in several forms, the form comes first, and then candidates that read it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from unicorn_async.ops.linear_plans.candidates import candidates
from unicorn_async.tune.product_bench import ProductBench, product_kernel

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Self

    from unicorn_async.gpu.device import Device
    from unicorn_async.gpu.device_info import DeviceInfo
    from unicorn_async.ops.linear_plans.plan import LinearPlan
    from unicorn_async.ops.linear_plans.product import Product
    from unicorn_async.ops.rows import RowForm
    from unicorn_async.tune.contests import Contest
    from unicorn_async.tune.products import ModelProduct

_MAX_CANDIDATES = 64
_HOPELESS = 1.3  # times the fastest: slower ones are not measured again
_ROUNDS = 3  # of the rules' plan and each of the others in turns, that find the best of these
_DECIDING_ROUNDS = 9  # of the rules' plan and the best one
_MIN_WINS = 8  # of these rounds; of two that are alike one wins so many once in fifty times
_DECISIONS = 2  # that must agree: a table has dozens of products, and none of them may become slower by chance
_FAR = 3.0  # times what the rules' form takes by their plans: no other plan makes that up
_FIRST_CALLS = 3  # of a plan that is measured alone, to find the fastest of a form's
_MIN_GAIN = 0.03
_MIN_FORM_GAIN = 0.05  # of a form: what else a step does for it, such as a gate of its own, is not measured


@dataclass(frozen=True, slots=True)
class Measurement:
    """What was measured of a product: `best` is the rules' plan, `rule`, unless another is faster by more than noise.

    Times are medians in microseconds of a dispatch with the barrier after it, of rounds in which both took turns.
    """

    product: Product
    rule: LinearPlan
    best: LinearPlan
    rule_us: float
    best_us: float
    num_candidates: int

    @property
    def gain(self) -> float:
        """How much more of the product the best plan does in the same time, as a share."""
        return self.rule_us / self.best_us - 1.0


@dataclass(frozen=True, slots=True)
class FormMeasurement:
    """What was measured of a contest: `best` is the rules' form unless another is faster by more than noise.

    Times are medians in microseconds of all its products in a step, each by the fastest of its candidates.
    """

    contest: Contest
    best: RowForm
    rule_us: float
    best_us: float


@dataclass(frozen=True, slots=True)
class _Way:
    """A contest's products in one form, each with a plan and the nanoseconds that it took alone."""

    form: RowForm
    works: tuple[tuple[ModelProduct, LinearPlan, float], ...]

    @property
    def ns(self) -> float:
        """All of them, one after the other."""
        return sum(one.count * ns for one, _, ns in self.works)


class Tuner:
    """Measures candidates for some products on a device; it blocks. Close it before the device.

    A device's clocks may change meanwhile, so plans are compared within a round, where one follows the other.

    Raises:
        OutOfMemoryError: there is no room for the largest of the products.
    """

    def __init__(self, device: Device, products: Iterable[Product]) -> None:
        self._device = device
        self._bench = ProductBench(device, products)
        self.info = device.info  # with the forms that were found to be faster

    def measure(self, product: Product, *, most_s: float) -> Measurement | None:
        """Measure all candidates of a product; None where that would clearly take longer than `most_s`.

        Raises:
            UnsupportedModelError: no kernel takes the product.
            DeviceLostError: the device was lost meanwhile.
        """
        begun = time.monotonic()
        bench, plans = self._bench, candidates(self.info, product)[:_MAX_CANDIDATES]
        rule = plans[0]
        rule_ns = bench.first_ns(product, rule)
        calls = len(plans) + _ROUNDS * (len(plans) - 1) + _DECISIONS * _DECIDING_ROUNDS
        needed_ns = bench.warm_ns() + bench.cost_ns(rule_ns, calls=calls, plans=2)
        if needed_ns * 1e-9 > most_s - (time.monotonic() - begun):
            return None
        self._device.kernels.prepare(product_kernel(product, plan) for plan in plans)
        bench.keep_busy(product, rule, rule_ns)
        first = [(plan, bench.first_ns(product, plan)) for plan in plans]
        limit_ns = _HOPELESS * min(ns for _, ns in first)
        pairs = {plan: self._turns(product, first[0], (plan, ns), _ROUNDS) for plan, ns in first[1:] if ns < limit_ns}
        best = min(pairs, key=lambda plan: _share(pairs[plan]), default=rule)
        if best is rule or _share(pairs[best]) * (1.0 + _MIN_GAIN) > 1.0:
            rule_us = median([ours for found in pairs.values() for ours, _ in found] or [first[0][1]]) / 1e3
            return Measurement(product, rule, rule, rule_us, rule_us, len(plans))
        return self._decide(product, first[0], (best, dict(first)[best]), len(plans))

    def settle(self, contest: Contest, *, most_s: float) -> FormMeasurement | None:
        """Measure the forms of a contest, and keep the best in `info`; None where that would take longer than `most_s`.

        Raises:
            DeviceLostError: the device was lost meanwhile.
        """
        begun = time.monotonic()
        forms = {form: contest.info(self.info, form) for form in contest.ways}
        rules = [self._way(contest, form, info, most=1) for form, info in forms.items()]
        needed_ns = self._bench.warm_ns()
        for way in rules:
            for one, _, ns in way.works:
                calls = _FIRST_CALLS * len(_plans(forms[way.form], one)) + _DECISIONS * _DECIDING_ROUNDS
                needed_ns += self._bench.cost_ns(ns, calls=calls, plans=1)
        if needed_ns * 1e-9 > most_s - (time.monotonic() - begun):
            return None
        rule, other = rules
        if other.ns > _FAR * rule.ns:
            return FormMeasurement(contest, rule.form, rule.ns / 1e3, rule.ns / 1e3)
        product, plan, ns = rule.works[0]
        self._bench.keep_busy(product.product, plan, ns)
        rule, other = (self._way(contest, form, info, most=_MAX_CANDIDATES) for form, info in forms.items())
        is_faster, rule_ns, other_ns = False, rule.ns, other.ns
        if other.ns < _HOPELESS * rule.ns:
            is_faster, rule_ns, other_ns = self._is_faster(other, rule)
        best, best_ns = (other, other_ns) if is_faster else (rule, rule_ns)
        self.info = forms[best.form]
        return FormMeasurement(contest, best.form, rule_ns / 1e3, best_ns / 1e3)

    def _way(self, contest: Contest, form: RowForm, info: DeviceInfo, *, most: int) -> _Way:
        """Find the fastest of the first candidates of each product in a form."""
        works = []
        for one in contest.ways[form]:
            plans = _plans(info, one)[:most]
            self._device.kernels.prepare(product_kernel(one.product, plan) for plan in plans)
            times = {plan: self._bench.first_ns(one.product, plan) for plan in plans}
            plan = min(times, key=lambda plan: times[plan])
            works.append((one, plan, times[plan]))
        return _Way(form, tuple(works))

    def _is_faster(self, way: _Way, rule: _Way) -> tuple[bool, float, float]:
        """Whether a form's products are faster than the rules' form's; nanoseconds of both, the rules' first."""
        pairs: list[tuple[float, float]] = []
        won = True
        for _ in range(_DECISIONS):
            found = []
            for number in range(_DECIDING_ROUNDS):
                if number % 2 == 0:
                    ours, theirs = self._step_ns(rule), self._step_ns(way)
                else:
                    theirs, ours = self._step_ns(way), self._step_ns(rule)
                found.append((ours, theirs))
            pairs += found
            won = sum(theirs < ours for ours, theirs in found) >= _MIN_WINS
            if not won:
                break
        rule_ns, way_ns = (median(times) for times in zip(*pairs, strict=True))
        return won and rule_ns >= (1.0 + _MIN_FORM_GAIN) * way_ns, rule_ns, way_ns

    def _step_ns(self, way: _Way) -> float:
        """Measure all of a step's products in a form."""
        return sum(one.count * self._bench.times_ns(one.product, ((plan, ns),))[0] for one, plan, ns in way.works)

    def close(self) -> None:
        """Free everything; nothing is pending between two calls."""
        self._bench.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _decide(
        self, product: Product, rule: tuple[LinearPlan, float], best: tuple[LinearPlan, float], num_candidates: int
    ) -> Measurement:
        """Measure two plans anew, in turns: the best of many that are alike looks faster than it is."""
        pairs: list[tuple[float, float]] = []
        won = True
        for _ in range(_DECISIONS):
            found = self._turns(product, rule, best, _DECIDING_ROUNDS)
            pairs += found
            won = sum(theirs < ours for ours, theirs in found) >= _MIN_WINS
            if not won:
                break
        rule_us, best_us = (median(times) / 1e3 for times in zip(*pairs, strict=True))
        if not won or rule_us < (1.0 + _MIN_GAIN) * best_us:
            best, best_us = rule, rule_us
        return Measurement(product, rule[0], best[0], rule_us, best_us, num_candidates)

    def _turns(
        self, product: Product, rule: tuple[LinearPlan, float], plan: tuple[LinearPlan, float], rounds: int
    ) -> list[tuple[float, float]]:
        """Nanoseconds of a dispatch by two plans in each round, either one first in turn; with each plan its time."""
        pairs = []
        for number in range(rounds):
            if number % 2 == 0:
                ours, theirs = self._bench.times_ns(product, (rule, plan))
            else:
                theirs, ours = self._bench.times_ns(product, (plan, rule))
            pairs.append((ours, theirs))
        return pairs


def _plans(info: DeviceInfo, one: ModelProduct) -> tuple[LinearPlan, ...]:
    return candidates(info, one.product)[:_MAX_CANDIDATES]


def _share(pairs: list[tuple[float, float]]) -> float:
    """The second plan's time as a share of the first one's."""
    return median(theirs / ours for ours, theirs in pairs)
