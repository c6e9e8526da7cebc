"""`unicorn tune` on the bundled model and the device under test."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests.conftest import VALIDATION
from unicorn_async.cli.banner import tuning_lines
from unicorn_async.cli.main import main
from unicorn_async.engine.user_folders import tuning_folder
from unicorn_async.gpu.tuned import Input
from unicorn_async.ops.linear_plans.candidates import candidates, choice
from unicorn_async.ops.linear_plans.product import Product
from unicorn_async.ops.rows import RowForm
from unicorn_async.tune.choices import shaders_digest
from unicorn_async.tune.contests import Contest
from unicorn_async.tune.products import ModelProduct
from unicorn_async.tune.survey import Findings
from unicorn_async.tune.table import MAX_CHOICES, DeviceKey, PlanKey, TunedForm, TunedProduct, TuningTable
from unicorn_async.tune.tuner import FormMeasurement

if TYPE_CHECKING:
    from pathlib import Path

    from unicorn_async.gpu.device import Device


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of the test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def tune(device: Device, *options: str) -> int:
    validation = ["--validation"] if VALIDATION else []
    sizes = ["--max-num-seqs", "1", "--max-num-batched-tokens", "1"]
    return main(["tune", "demo", "--device", str(device.info.index), *sizes, *validation, *options])


def test_tune_says_what_it_measured_on_what_and_keeps_it(device: Device, capsys: pytest.CaptureFixture[str]) -> None:
    assert tune(device, "--seconds", "300", "--weights", "int4") == 0
    title, heads, *rows, summary, kept = capsys.readouterr().out.splitlines()
    assert device.info.name in title and device.info.driver_info in title
    assert ("SOFTWARE" in title) == device.info.is_software
    assert heads.split() == ["matrix", "weights", "tokens", "rule", "µs", "best", "µs", "gain"]
    assert sorted(row.split()[0] for row in rows) == ["down", "gate_up", "head", "o", "qkv"]
    assert summary.startswith("5 products measured, ")
    assert kept == f"kept in {tuning_folder().path_of(device.info)}"
    table = tuning_folder().find(device.info)
    assert table is not None
    assert f", {len(table.choices)} of them with a faster kernel" in summary


def test_what_was_measured_before_is_kept_beside_what_is_measured_now(
    device: Device, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tune(device, "--seconds", "300") == 0
    folder = tuning_folder()
    table = folder.find(device.info)
    assert table is not None
    path = folder.path_of(device.info)
    record = json.loads(path.read_text())
    plan = {"kernel": "linear_vec_f16", "constants": {"ROWS": 1}}
    other = {"weights": "f16", "tokens": 1, "n": 1000, "k": 8, "gated": False, "blocked": False}
    record["choices"].append(other | {"rule": plan, "choice": plan, "rule_us": 2.0, "choice_us": 1.0})
    path.write_text(json.dumps(record))
    assert tune(device, "--seconds", "0.001") == 0
    assert "no time for " in capsys.readouterr().out
    again = folder.find(device.info)
    assert again is not None
    assert len(again.choices) == len(table.choices) + 1
    path.write_text(json.dumps(record | {"shaders": "older"}))
    assert tune(device, "--seconds", "0.001") == 0
    again = folder.find(device.info)
    assert again is not None and again.choices == ()


def test_show_and_clear(device: Device, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", "--show"]) == 0
    assert "nothing was measured yet" in capsys.readouterr().out
    assert tune(device, "--seconds", "0.001") == 0
    folder = tuning_folder()
    path = folder.path_of(device.info)
    record = json.loads(path.read_text())
    (folder.path / "other.json").write_text(json.dumps(record | {"shaders": "older"}))
    (folder.path / "wrong.json").write_text(json.dumps(record | {"choices": [{}] * (MAX_CHOICES + 1)}))
    record["device"] |= {"name": "a\x1b[2Jb", "is_software": True}
    path.write_text(json.dumps(record))
    capsys.readouterr()
    assert main(["tune", "--show"]) == 0
    text = capsys.readouterr().out
    assert f"a?[2Jb, {device.info.driver_name} {device.info.driver_info}, SOFTWARE\n" in text
    assert text.count("SOFTWARE") == 1 + device.info.is_software
    assert "not used: measured with the kernels of another version" in text
    assert f"not used: {folder.path}/wrong.json: choices: expected a list" in text
    assert main(["tune", "--clear"]) == 0
    assert "removed 3 tables" in capsys.readouterr().out
    assert folder.paths() == ()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "give a MODEL"),
        (("absent-model", "--device", "0"), "absent-model"),
    ],
)
def test_tune_wants_a_model(arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", *arguments]) == 1
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "x", "1e9"])
def test_tune_wants_a_time_that_ends(seconds: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["tune", "demo", "--seconds", seconds])
    assert "expected seconds" in capsys.readouterr().err


def test_the_banner_tells_of_choices_that_are_used(device: Device) -> None:
    assert tuning_lines(device.info) == []
    product = Product("bf16", 1, 96, 64)
    tuned = dict([choice(device.info, product, candidates(device.info, product)[-1])])
    (line,) = tuning_lines(replace(device.info, tuned=tuned))
    assert line.startswith("tuning   1 product by kernels that were measured")
    forms = dict.fromkeys([Input("q4", 16, 64), Input("q8", 16, 64)], "blocks")
    (line,) = tuning_lines(replace(device.info, forms=forms))
    assert line.startswith("tuning   2 inputs in forms that were measured")
    (line,) = tuning_lines(replace(device.info, tuned=tuned, forms=forms))
    assert line.startswith("tuning   1 product by kernels, 2 inputs in forms that were measured")


def settled(device: Device, monkeypatch: pytest.MonkeyPatch, best: RowForm) -> None:
    """Have `unicorn tune` find that an input of 16 tokens had better have a form."""
    key = Product("q4", 16, 256, 4096)
    ways = {RowForm.HALVES: (ModelProduct(key, "o", 3),), RowForm.BLOCKS: (ModelProduct(key, "o", 3),)}
    found = Findings(forms=[FormMeasurement(Contest(16, 4096, ways), best, 900.0, 600.0)])
    monkeypatch.setattr("unicorn_async.cli.tune.survey", lambda *_, **__: found)
    assert tune(device) == 0


def test_forms_are_told_kept_and_forgotten_where_the_rules_win_again(
    device: Device, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    settled(device, monkeypatch, RowForm.BLOCKS)
    text = capsys.readouterr().out
    assert "input of 4096 columns, 16 tokens: halves 900.0 µs, blocks 600.0 µs: 50%" in text
    assert "inputs measured in two forms: 1, faster not in the rules' one: 1" in text
    table = tuning_folder().find(device.info)
    assert table is not None
    assert table.forms == (TunedForm(Input("q4", 16, 4096), RowForm.HALVES, RowForm.BLOCKS, 900.0, 600.0),)
    assert main(["tune", "--show"]) == 0
    assert "input of 4096 columns of q4, 16 tokens: halves 900.0 µs, blocks 600.0 µs: 50%" in capsys.readouterr().out
    monkeypatch.setattr("unicorn_async.cli.tune.survey", lambda *_, **__: Findings())
    assert tune(device) == 0
    again = tuning_folder().find(device.info)
    assert again is not None and again.forms == table.forms
    settled(device, monkeypatch, RowForm.HALVES)
    again = tuning_folder().find(device.info)
    assert again is not None and again.forms == ()


def test_choices_of_products_that_read_another_form_now_are_forgotten(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = PlanKey("linear_quant_vec_q4", (("ROWS", 1),))
    reads, other = Product("q4", 16, 256, 4096), Product("q4", 8, 256, 4096)
    choices = tuple(TunedProduct(product, plan, plan, 2.0, 1.0) for product in (reads, other))
    table = TuningTable(DeviceKey.of(device.info), shaders_digest(), choices)
    tuning_folder().write(device.info, table)
    for best, left in ((RowForm.HALVES, [reads, other]), (RowForm.BLOCKS, [other])):
        settled(device, monkeypatch, best)
        again = tuning_folder().find(device.info)
        assert again is not None and [one.product for one in again.choices] == left
