from __future__ import annotations

import json
import os
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import pytest

from tests.gpu.made_up import INTEGRATED, SOFTWARE
from tests.tune.tuning_tables import FORMS, PRODUCTS, table_of
from unicorn_async.errors import TuningError
from unicorn_async.tune.folder import MAX_TABLE_BYTES, TuningFolder, read_table
from unicorn_async.tune.table import MAX_CHOICES, TuningTable, parse_table

if TYPE_CHECKING:
    from pathlib import Path

TABLE = replace(table_of(SOFTWARE, *PRODUCTS), forms=FORMS)


@pytest.fixture
def folder(tmp_path: Path) -> TuningFolder:
    return TuningFolder(tmp_path / "tuning")


def changed(**values: object) -> bytes:
    return json.dumps(json.loads(TABLE.to_json()) | values).encode()


def with_choice(**values: object) -> bytes:
    record: dict[str, Any] = json.loads(TABLE.to_json())
    record["choices"][1] |= values
    return json.dumps(record).encode()


def with_form(**values: object) -> bytes:
    record: dict[str, Any] = json.loads(TABLE.to_json())
    record["forms"][1] |= values
    return json.dumps(record).encode()


def test_a_table_is_read_as_it_was_written() -> None:
    assert parse_table(TABLE.to_json(), "file") == TABLE


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not valid JSON"),
        (b"[]", "expected a JSON object"),
        (b"\xff{}", "not UTF-8"),
        (b"{}", "format: expected a whole number"),
        (changed(format=2), "format 2, this version reads 3"),
        (changed(device=None), "device: expected an object"),
        (changed(device={"name": 1}), "name: expected a string"),
        (changed(device=asdict(TABLE.device) | {"is_software": 1}), "is_software: expected true or false"),
        (changed(shaders="x" * 301), "shaders: expected a string"),
        (changed(choices={}), "choices: expected a list"),
        (changed(choices=[None]), "choices: expected an object"),
        (changed(choices=[{}] * (MAX_CHOICES + 1)), f"at most {MAX_CHOICES}"),
        (changed(forms=None), "forms: expected a list"),
        (changed(forms=[1]), "forms: expected an object"),
        (changed(forms=[{}] * (MAX_CHOICES + 1)), f"forms: expected a list of at most {MAX_CHOICES}"),
        (with_form(weights="q3"), "weights: expected one of"),
        (with_form(k=0), "k: expected a whole number, 1 to"),
        (with_form(tokens="16"), "tokens: expected a whole number"),
        (with_form(rule="rows"), "rule: expected one of floats, halves, fragments, blocks"),
        (with_form(choice=None), "choice: expected a string"),
        (with_form(choice_us=0), "choice_us: expected microseconds"),
        (with_choice(weights="q3"), "weights: expected one of"),
        (with_choice(tokens=0), "tokens: expected a whole number, 1 to"),
        (with_choice(n=True), "n: expected a whole number"),
        (with_choice(k=1 << 40), "k: expected a whole number"),
        (with_choice(gated=1), "gated: expected true or false"),
        (with_choice(rule=[]), "rule: expected an object"),
        (with_choice(choice={"kernel": "linear_vec_f16", "constants": {"ROWS": "8"}}), "ROWS: expected a whole number"),
        (with_choice(choice={"kernel": "x", "constants": {str(i): i for i in range(17)}}), "constants: expected at"),
        (with_choice(rule_us=float("nan")), "rule_us: expected microseconds"),
        (with_choice(choice_us=0), "choice_us: expected microseconds"),
    ],
)
def test_what_is_no_table_is_refused_with_the_value_that_is_wrong(data: bytes, message: str) -> None:
    with pytest.raises(TuningError, match=f"^file: .*{message}"):
        parse_table(data, "file")


def test_each_device_and_driver_has_a_table_of_its_own(folder: TuningFolder) -> None:
    assert folder.find(SOFTWARE) is None
    assert folder.paths() == ()
    path = folder.write(SOFTWARE, TABLE)
    assert folder.find(SOFTWARE) == TABLE
    assert folder.find(INTEGRATED) is None
    folder.write(SOFTWARE, TuningTable(TABLE.device, TABLE.shaders, ()))
    assert folder.paths() == (path,)
    assert folder.find(SOFTWARE) == TuningTable(TABLE.device, TABLE.shaders, ())


def test_clearing_removes_tables_and_what_writers_have_left(folder: TuningFolder) -> None:
    assert folder.clear() == 0
    folder.write(SOFTWARE, TABLE)
    (folder.path / "x.json1.part").write_bytes(b"{")
    (folder.path / "notes.txt").write_text("a user's own")
    assert folder.clear() == 1
    assert [path.name for path in folder.path.iterdir()] == ["notes.txt"]


def test_a_write_that_fails_leaves_the_old_table(folder: TuningFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.write(SOFTWARE, TABLE)

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(TuningError, match="not written: No space left on device"):
        folder.write(SOFTWARE, TuningTable(TABLE.device, TABLE.shaders, ()))
    assert folder.find(SOFTWARE) == TABLE
    assert len(list(folder.path.iterdir())) == 1


def test_more_choices_than_a_table_may_have_are_not_written(folder: TuningFolder) -> None:
    many = TuningTable(TABLE.device, TABLE.shaders, TABLE.choices[:1] * (MAX_CHOICES + 1))
    forms = replace(TABLE, forms=FORMS[:1] * (MAX_CHOICES + 1))
    for table in (many, forms):
        with pytest.raises(TuningError, match=f"{MAX_CHOICES + 1} choices are too many"):
            folder.write(SOFTWARE, table)


def test_the_largest_table_can_be_read(folder: TuningFolder) -> None:
    most = TuningTable(TABLE.device, TABLE.shaders, TABLE.choices[1:2] * MAX_CHOICES, FORMS[1:] * MAX_CHOICES)
    folder.write(SOFTWARE, most)
    assert folder.find(SOFTWARE) == most


def test_files_that_are_no_tables_are_refused_without_waiting(tmp_path: Path) -> None:
    pipe, large = tmp_path / "pipe.json", tmp_path / "large.json"
    os.mkfifo(pipe)
    with pytest.raises(TuningError, match="is no regular file"):
        read_table(pipe)
    large.write_bytes(b" " * (MAX_TABLE_BYTES + 1))
    with pytest.raises(TuningError, match="larger than any table"):
        read_table(large)
    with pytest.raises(TuningError, match="not read"):
        read_table(tmp_path / "absent.json")
