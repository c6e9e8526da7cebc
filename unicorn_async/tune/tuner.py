"""Finds the fastest candidate for a product on a device, by measuring each in turns with the rules' own choice."""

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
    from unicorn_async.ops.linear_plans.plan import LinearPlan
    from unicorn_async.ops.linear_plans.product import Product

_MAX_CANDIDATES = 64
_HOPELESS = 1.3  # times the fastest: slower ones are not measured again
_ROUNDS = 3  # of the rules' plan and each of the others in turns, that find the best of these
_DECIDING_ROUNDS = 9  # of the rules' plan and the best one
_MIN_WINS = 8  # of these rounds; of two that are alike one wins so many once in fifty times
_DECISIONS = 2  # that must agree: a table has dozens of products, and none of them may become slower by chance
_MIN_GAIN = 0.03


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


class Tuner:
    """Measures candidates for some products on a device; it blocks. Close it before the device.

    A device's clocks may change meanwhile, so plans are compared within a round, where one follows the other.

    Raises:
        OutOfMemoryError: there is no room for the largest of the products.
    """

    def __init__(self, device: Device, products: Iterable[Product]) -> None:
        self._device = device
        self._bench = ProductBench(device, products)

    def measure(self, product: Product, *, most_s: float) -> Measurement | None:
        """Measure all candidates of a product; None where that would clearly take longer than `most_s`.

        Raises:
            UnsupportedModelError: no kernel takes the product.
            DeviceLostError: the device was lost meanwhile.
        """
        begun = time.monotonic()
        bench, plans = self._bench, candidates(self._device.info, product)[:_MAX_CANDIDATES]
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


def _share(pairs: list[tuple[float, float]]) -> float:
    """The second plan's time as a share of the first one's."""
    return median(theirs / ours for ours, theirs in pairs)
