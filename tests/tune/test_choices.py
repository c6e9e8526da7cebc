"""What an engine makes of the tables that `unicorn tune` writes."""

from __future__ import annotations

import logging
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pytest

from tests.ops.test_linear_rules import FRAGMENT_GPU, GPU, MATRIX_RDNA, SOFTWARE
from tests.tune.tuning_tables import FORMS, PRODUCTS, table_of, tuned_product
from unicorn_async.config import WeightScheme
from unicorn_async.engine.files import ModelFiles
from unicorn_async.engine.user_folders import tuning_folder
from unicorn_async.ops.linear_plans.candidates import candidates, choice
from unicorn_async.ops.linear_plans.product import Product
from unicorn_async.ops.linear_plans.rules import plan_linear, tuned_plan
from unicorn_async.ops.rows import RowForm
from unicorn_async.sampling_params import SamplingParams
from unicorn_async.tune.choices import fitting, use_tuning, with_forms
from unicorn_async.tune.folder import TuningFolder
from unicorn_async.tune.products import products_of
from unicorn_async.tune.table import PlanKey

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.engine.conftest import OpenEngine, WriteModel
    from unicorn_async.engine.engine import Engine
    from unicorn_async.gpu.device import Device
    from unicorn_async.gpu.tuned import Launch, Work
    from unicorn_async.tune.table import TuningTable

QUANTISED = pytest.mark.whole("the choices for quantised weights in a whole engine")


@pytest.fixture
def folder(tmp_path: Path) -> TuningFolder:
    return TuningFolder(tmp_path / "tuning")


@pytest.fixture
def opened(device: Device) -> Iterator[Device]:
    """The device that tests share; it forgets what it was tuned to."""
    info = device.info
    yield device
    device.info = info


def test_a_device_takes_the_choices_that_were_measured_on_it(
    opened: Device, folder: TuningFolder, caplog: pytest.LogCaptureFixture
) -> None:
    use_tuning(opened, folder)
    assert not opened.info.tuned
    folder.write(opened.info, table_of(opened.info, *PRODUCTS))
    use_tuning(opened, folder)
    expected = [choice(opened.info, product, candidates(opened.info, product)[-1]) for product in PRODUCTS]
    assert opened.info.tuned == dict(expected)
    assert not caplog.records


def stale(table: TuningTable) -> TuningTable:
    return replace(table, shaders="0" * 64)


def foreign(table: TuningTable) -> TuningTable:
    return replace(table, device=replace(table.device, driver_info="Mesa 1.0"))


@pytest.mark.parametrize(
    ("change", "message"), [(stale, "the kernels of another version"), (foreign, "measured on .*Mesa 1.0, this is")]
)
def test_a_table_for_something_else_is_ignored_with_a_line(
    opened: Device,
    folder: TuningFolder,
    caplog: pytest.LogCaptureFixture,
    change: Callable[[TuningTable], TuningTable],
    message: str,
) -> None:
    folder.write(opened.info, change(table_of(opened.info, *PRODUCTS)))
    use_tuning(opened, folder)
    assert not opened.info.tuned
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert re.search(message, record.getMessage())


def test_names_in_a_table_come_into_the_log_without_what_moves_a_cursor(
    opened: Device, folder: TuningFolder, caplog: pytest.LogCaptureFixture
) -> None:
    table = table_of(opened.info, *PRODUCTS)
    folder.write(opened.info, replace(table, device=replace(table.device, name="a\x1b[2Jb")))
    use_tuning(opened, folder)
    assert "measured on a?[2Jb, " in caplog.records[0].getMessage()


def test_a_damaged_table_is_ignored_with_a_line(
    opened: Device, folder: TuningFolder, caplog: pytest.LogCaptureFixture
) -> None:
    path = folder.write(opened.info, table_of(opened.info, *PRODUCTS))
    path.write_bytes(path.read_bytes()[:-100])
    use_tuning(opened, folder)
    assert not opened.info.tuned
    (record,) = caplog.records
    assert f"{path}: not valid JSON" in record.getMessage()
    assert "ignored" in record.getMessage()


def test_choices_that_are_no_candidates_are_ignored_and_the_others_used(
    opened: Device, folder: TuningFolder, caplog: pytest.LogCaptureFixture
) -> None:
    info = opened.info
    good, one, two, three = (tuned_product(info, product) for product in PRODUCTS)
    kernel, constants = one.choice.kernel, dict(one.choice.constants)
    wrong = (
        replace(one, choice=PlanKey(kernel, tuple((constants | {"ROWS": 4096}).items()))),
        replace(two, choice=PlanKey("linear_vec_bf16", two.choice.constants)),
        replace(three, choice=three.rule),
        replace(good, product=good.product._replace(k=12)),
    )
    folder.write(info, replace(table_of(info), choices=(good, *wrong)))
    use_tuning(opened, folder)
    assert list(opened.info.tuned) == [choice(info, good.product, candidates(info, good.product)[-1])[0]]
    (record,) = caplog.records
    assert "4 of 5 choices are not among the candidates" in record.getMessage()


def test_a_choice_counts_against_the_rule_that_it_was_measured_against_alone(device: Device) -> None:
    one = tuned_product(device.info, PRODUCTS[0])
    assert fitting(device.info, one) is not None
    others = candidates(device.info, PRODUCTS[0])[1:-1]
    assert others
    for other in others:  # today's rules choose none of these
        assert fitting(device.info, replace(one, rule=PlanKey.of(other))) is None
    assert fitting(device.info, replace(one, rule=replace(one.rule, kernel="linear_of_old"))) is None


def test_a_choice_that_is_the_rule_s_own_is_none(device: Device) -> None:
    one = tuned_product(device.info, PRODUCTS[0])
    assert fitting(device.info, replace(one, choice=one.rule)) is None


def test_forms_count_against_the_rules_of_today_and_on_devices_that_may_have_either_alone() -> None:
    halves, blocks = RowForm.HALVES, RowForm.BLOCKS
    good, other = FORMS
    info = with_forms(MATRIX_RDNA, FORMS)
    assert info.forms == {good.input: "blocks", other.input: "halves"}
    assert with_forms(info, ()).forms == {}
    wrong = (
        replace(good, rule=blocks, choice=halves),  # the rules of another version
        replace(good, choice=halves),  # the rules' own
        replace(good, choice=RowForm.FRAGMENTS),
        replace(good, input=good.input._replace(tokens=512)),
        replace(good, input=good.input._replace(weights="f16")),
    )
    assert with_forms(MATRIX_RDNA, wrong).forms == {}
    for without in (SOFTWARE, GPU, FRAGMENT_GPU):
        assert with_forms(without, FORMS).forms == {}


def test_choices_of_products_are_those_of_the_form_that_was_chosen(
    folder: TuningFolder, caplog: pytest.LogCaptureFixture
) -> None:
    device = cast("Device", SimpleNamespace(info=MATRIX_RDNA))
    product = Product(*FORMS[0].input[:2], n=1024, k=4096)
    of_rule, of_form = (tuned_product(info, product) for info in (MATRIX_RDNA, with_forms(MATRIX_RDNA, FORMS)))
    table = replace(table_of(MATRIX_RDNA), forms=FORMS, choices=(of_form,))
    folder.write(MATRIX_RDNA, table)
    use_tuning(device, folder)
    assert tuned_plan(device.info, product).entry == of_form.choice.kernel != plan_linear(MATRIX_RDNA, product).entry
    assert not caplog.records
    folder.write(
        MATRIX_RDNA, replace(table, forms=(*FORMS[:1], replace(FORMS[1], rule=RowForm.HALVES)), choices=(of_rule,))
    )
    use_tuning(device, folder)
    assert set(device.info.forms) == {FORMS[0].input} and not device.info.tuned
    assert "2 of 3 choices are not among the candidates" in caplog.records[0].getMessage()


class Asked(dict["Work", "Launch"]):
    """No choices, but they keep what they were asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.keys_asked: set[Work] = set()

    def __bool__(self) -> bool:
        return True

    def get(self, key: Any, default: Any = None) -> Any:
        self.keys_asked.add(key)
        return default


@pytest.mark.parametrize("weights", [WeightScheme.AUTO, WeightScheme.INT4], ids=lambda w: w.value)
async def test_the_products_that_are_measured_are_those_of_the_steps(
    open_engine: OpenEngine, model_directory: WriteModel, monkeypatch: pytest.MonkeyPatch, weights: WeightScheme
) -> None:
    asked = Asked()

    def watch(device: Device, folder: TuningFolder) -> None:
        device.info = replace(device.info, tuned=asked)

    folder = SimpleNamespace(path_of=lambda info: Path(__file__))  # as if there were a table
    monkeypatch.setattr("unicorn_async.engine.devices.tuning_folder", lambda: folder)
    monkeypatch.setattr("unicorn_async.tune.choices.use_tuning", watch)
    async with open_engine("llama", weights=weights) as engine:
        assert len(await answer(engine, list(range(1, 40)))) == 4
        info, model, options = engine.device, engine.model_spec, engine.config
    on_disk = ModelFiles.read(model_directory("llama"), weights)
    products = [one.product for one in products_of(replace(info, tuned={}), model, on_disk.plan, options)]
    named = {choice(replace(info, tuned={}), product, plan_linear(info, product))[0] for product in products}
    # Evaluations alone have more rows of logits than there are sequences; tuning leaves them to the rules.
    evaluations = {(rows, model.vocab_size) for rows in range(options.max_seqs + 1, 49)}
    steps = {key for key in asked.keys_asked if key.sizes[0] in (1, 48) and key.sizes[:2] not in evaluations}
    assert steps and steps <= named
    assert len(products) == len(set(products))


async def answer(engine: Engine, prompt: list[int]) -> list[int]:
    return [token.id async for token in engine.stream(prompt, SamplingParams(max_tokens=4, ignore_eos=True))]


@pytest.mark.parametrize(
    "weights", [WeightScheme.AUTO, pytest.param(WeightScheme.INT4, marks=QUANTISED)], ids=lambda w: w.value
)
async def test_an_engine_computes_with_the_choices_unless_it_is_told_not_to(
    open_engine: OpenEngine,
    model_directory: WriteModel,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    weights: WeightScheme,
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    on_disk = ModelFiles.read(model_directory("llama"), weights)
    async with open_engine("llama", weights=weights, tuning=False) as engine:
        await engine.loaded()
        expected, info = await engine.logits(range(1, 40)), engine.device
        products = [one.product for one in products_of(info, engine.model_spec, on_disk.plan, engine.config)]
    table = table_of(info, *products)
    tuning_folder().write(info, table)
    async with open_engine("llama", weights=weights) as engine:
        await engine.loaded()
        assert len(engine.device.tuned) == sum(one.choice != one.rule for one in table.choices) > 0
        found = await engine.logits(range(1, 40))
        assert np.abs(found - expected).max() <= 0.01 * np.abs(expected).max()
        assert len(await answer(engine, [1, 2, 3])) == 4
    async with open_engine("llama", weights=weights, tuning=False) as engine:
        assert not engine.device.tuned
