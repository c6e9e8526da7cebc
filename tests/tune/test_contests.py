"""Which inputs may have two forms, and what steps consist of with either, on made-up devices."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests.ops.test_linear_rules import FRAGMENT_GPU, GPU, MATRIX_RDNA, SOFTWARE
from unicorn_async.config import EngineConfig, WeightScheme
from unicorn_async.engine.files import ModelFiles
from unicorn_async.ops.linear_plans.rules import forms_of, plan_linear
from unicorn_async.ops.rows import RowForm
from unicorn_async.tune.contests import contests_of
from unicorn_async.tune.products import products_of

if TYPE_CHECKING:
    from unicorn_async.gpu.device_info import DeviceInfo
    from unicorn_async.tune.contests import Contest

OPTIONS = EngineConfig(max_num_seqs=16, max_num_batched_tokens=96)


def contests(info: DeviceInfo, scheme: WeightScheme = WeightScheme.INT4) -> tuple[Contest, ...]:
    """The demo model's."""
    on_disk = ModelFiles.read("demo", scheme)
    return contests_of(info, on_disk.config, on_disk.plan, OPTIONS)


def test_dot_products_and_matrices_stand_against_each_other_for_2_to_64_tokens() -> None:
    found = contests(MATRIX_RDNA)
    assert {one.tokens for one in found} == {2, 4, 8, 12, 16, 24, 32, 48, 64}
    for one in found:
        few, many = (RowForm.BLOCKS, RowForm.HALVES), (RowForm.HALVES, RowForm.BLOCKS)
        assert tuple(one.ways) == (few if one.tokens <= 8 else many)
    assert len({(one.tokens, one.k) for one in found}) == len(found)


@pytest.mark.parametrize("info", [SOFTWARE, GPU, FRAGMENT_GPU], ids=["software", "no matrices", "known lanes"])
def test_there_is_nothing_to_choose_without_matrices_or_where_the_rules_were_measured(info: DeviceInfo) -> None:
    assert contests(info) == ()


def test_weights_that_are_no_codes_have_one_form() -> None:
    assert contests(MATRIX_RDNA, WeightScheme.F16) == ()


def test_each_form_has_the_products_that_steps_consist_of_with_it() -> None:
    on_disk = ModelFiles.read("demo", WeightScheme.INT4)
    for one in (one for one in contests(MATRIX_RDNA) if one.tokens in (8, 16, 48)):
        for form, way in one.ways.items():
            info = one.info(MATRIX_RDNA, form)
            steps = products_of(info, on_disk.config, on_disk.plan, OPTIONS)
            assert set(way) == {p for p in steps if p.product.input in one.inputs}
            assert {plan_linear(info, p.product).form for p in way} == {form}
            gates = {p.product.gated for p in way if p.matrix == "gate_up"}
            assert gates <= {form is RowForm.BLOCKS and one.tokens <= 32}  # matrices leave the gate to another kernel
        ours, theirs = one.ways.values()
        assert [(p.product.n, p.count) for p in ours] == [(p.product.n, p.count) for p in theirs]


def test_a_form_that_is_chosen_changes_what_reads_that_input_alone() -> None:
    one, *others = contests(MATRIX_RDNA)
    other_form = tuple(one.ways)[1]
    info = one.info(MATRIX_RDNA, other_form)
    assert set(info.forms) == one.inputs and set(info.forms.values()) == {other_form.value}
    for other in others:
        for way in other.ways[other.rule]:
            assert plan_linear(info, way.product) == plan_linear(MATRIX_RDNA, way.product)
    assert one.info(info, one.rule).forms == {}
    assert forms_of(info, one.ways[one.rule][0].product)[0] is one.rule  # whatever is chosen


def test_what_was_chosen_of_other_inputs_stays() -> None:
    one, other, *_ = contests(MATRIX_RDNA)
    info = other.info(one.info(MATRIX_RDNA, tuple(one.ways)[1]), tuple(other.ways)[1])
    assert set(info.forms) == one.inputs | other.inputs
    assert set(one.info(info, one.rule).forms) == other.inputs
    assert replace(info, forms={}) == MATRIX_RDNA
