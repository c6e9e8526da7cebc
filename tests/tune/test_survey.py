"""In which order products and forms are measured, and what is left when the time is over."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import pytest

from tests.ops.test_linear_rules import MATRIX_RDNA
from tests.tune.test_contests import OPTIONS, contests
from unicorn_async.config import WeightScheme
from unicorn_async.engine.files import ModelFiles
from unicorn_async.ops.linear_plans.rules import plan_linear
from unicorn_async.tune.products import products_of
from unicorn_async.tune.survey import Findings, survey
from unicorn_async.tune.tuner import FormMeasurement, Measurement, Tuner

if TYPE_CHECKING:
    from unicorn_async.ops.linear_plans.product import Product
    from unicorn_async.tune.contests import Contest
    from unicorn_async.tune.products import ModelProduct


class Noted:
    """In place of a `Tuner`: what it was asked for; contests are won by either form, or take too long."""

    def __init__(self, *, other_wins: bool, has_time: bool = True) -> None:
        self.other_wins, self.has_time = other_wins, has_time
        self.asked: list[Product | Contest] = []

    def settle(self, contest: Contest, *, most_s: float) -> FormMeasurement | None:
        self.asked.append(contest)
        best = tuple(contest.ways)[self.other_wins]
        return FormMeasurement(contest, best, 2.0, 1.0) if self.has_time else None

    def measure(self, product: Product, *, most_s: float) -> Measurement | None:
        self.asked.append(product)
        plan = plan_linear(MATRIX_RDNA, product._replace(gated=False, blocked=False))
        return Measurement(product, plan, plan, 1.0, 1.0, 1)


@pytest.fixture(scope="module")
def products() -> tuple[ModelProduct, ...]:
    on_disk = ModelFiles.read("demo", WeightScheme.INT4)
    return products_of(MATRIX_RDNA, on_disk.config, on_disk.plan, OPTIONS)


def surveyed(tuner: Noted, products: tuple[ModelProduct, ...], seconds: float = 60.0) -> Findings:
    done: list[float] = []
    found = survey(
        cast("Tuner", tuner),
        products,
        contests(MATRIX_RDNA),
        seconds=seconds,
        progress=lambda share, one: done.append(share),
    )
    assert done == sorted(done) and all(0 <= share < 1 for share in done)
    return found


@pytest.mark.parametrize("other_wins", [False, True], ids=["rules", "other"])
def test_each_input_s_form_comes_first_and_then_its_products_in_that_form(
    products: tuple[ModelProduct, ...], *, other_wins: bool
) -> None:
    tuner, known = Noted(other_wins=other_wins), contests(MATRIX_RDNA)
    found = surveyed(tuner, products)
    assert found.num_left == 0
    assert {(one.contest.tokens, one.contest.k) for one in found.forms} == {(one.tokens, one.k) for one in known}
    for contest in known:
        way = tuple(one.product for one in contest.ways[tuple(contest.ways)[other_wins]])
        at = tuner.asked.index(contest)
        assert tuple(tuner.asked[at + 1 : at + 1 + len(way)]) == way
    own = {one.product for contest in known for one in contest.ways[contest.rule]}
    others = {one.product for contest in known for one in contest.ways[tuple(contest.ways)[other_wins]]}
    assert sorted(one.product for one, _ in found.products) == sorted({p.product for p in products} - own | others)
    assert tuner.asked[0] == products[0].product  # decoding one sequence, which has no contest


def test_products_whose_form_could_not_be_settled_are_left(products: tuple[ModelProduct, ...]) -> None:
    found = surveyed(Noted(other_wins=True, has_time=False), products)
    contested = {read for contest in contests(MATRIX_RDNA) for read in contest.inputs}
    assert not found.forms
    assert not contested & {one.product.input for one, _ in found.products}
    assert len(found.products) + found.num_left == len(products)


def test_without_time_all_is_left(products: tuple[ModelProduct, ...]) -> None:
    tuner = Noted(other_wins=True)
    found = surveyed(tuner, products, seconds=0.0)
    assert not tuner.asked and found.num_left == len(products)
