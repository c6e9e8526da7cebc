"""What a validation refuses, and what becomes of a report that can not be written."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.npu.builds import write_build
from unicorn_async.cli import npu as command
from unicorn_async.cli.npu_facts import NpuFacts
from unicorn_async.npu.geometry import NPU1

if TYPE_CHECKING:
    from pathlib import Path

    from tests.npu.fake_xrt import Npu
    from tests.npu.machine import Machine


@pytest.mark.parametrize("device", ["no such device", "99"])
def test_a_gpu_that_is_not_there_is_refused_before_anything_is_measured(
    validate: Any, npu: Npu, tmp_path: Path, capsys: pytest.CaptureFixture[str], device: str
) -> None:
    write_build(tmp_path / "builds", NPU1, 64)
    status, report = validate("--device", device)
    assert status == 1 and report is None and npu.runs == 0
    assert device in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "value"),
    [
        *(("--repeats", value) for value in ("0", "-5", "1e3", "2000000")),
        *(("--contexts", value) for value in ("-3", "0", "100000000", "x")),
        *(("--soak-seconds", value) for value in ("nan", "-1", "inf", "x")),
    ],
)
def test_an_option_without_sense_is_refused_before_anything_is_opened(
    validate: Any, machine: Machine, capsys: pytest.CaptureFixture[str], option: str, value: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        validate(f"{option}={value}")
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert f"argument {option}: " in error and f"'{value}'" in error


@pytest.mark.parametrize(("name", "wanted"), [(".", "is a folder"), ("none/report.json", "there is no folder")])
def test_a_report_that_can_not_be_written_is_refused_before_anything_is_measured(
    validate: Any, npu: Npu, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, wanted: str
) -> None:
    write_build(tmp_path / "builds", NPU1, 64)
    with pytest.raises(SystemExit):
        validate("--no-gpu", "--out", str(tmp_path / name))
    assert wanted in capsys.readouterr().err and npu.runs == 0


def test_a_report_whose_file_may_not_be_written_is_refused(
    validate: Any, npu: Npu, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("os.access", lambda *_: False)  # root may write everywhere
    with pytest.raises(SystemExit):
        validate("--no-gpu")
    assert "report.json: can't be written" in capsys.readouterr().err


def test_a_report_that_can_not_be_written_any_more_is_printed(
    validate: Any, npu: Npu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_build(tmp_path / "builds", NPU1, 64)
    (tmp_path / "full").symlink_to("/dev/full")
    status, _ = validate("--no-gpu", "--out", str(tmp_path / "full"))
    printed = capsys.readouterr()
    text = printed.out
    report = json.loads(text[text.index("{\n") : text.rindex("\n}\n") + 2])
    assert status == 1 and report["passed"] and report["chip"] == "npu1"
    assert "No space left on device" in printed.err and "the report is what is printed above" in text


def test_without_a_build_nothing_is_validated(validate: Any, npu: Npu, capsys: pytest.CaptureFixture[str]) -> None:
    status, report = validate("--no-gpu")
    assert status == 1 and report is None
    assert "no kernels for npu1" in capsys.readouterr().err


@pytest.mark.parametrize("harm", ["xclbin", "json"])
@pytest.mark.parametrize("others", [True, False], ids=["beside a sound one", "alone"])
def test_a_damaged_build_is_never_skipped(
    validate: Any, npu: Npu, tmp_path: Path, capsys: pytest.CaptureFixture[str], harm: str, others: bool
) -> None:
    damaged = write_build(tmp_path / "builds", NPU1, 64).xclbin.with_suffix(f".{harm}")
    damaged.write_bytes(b"garbage")
    if others:
        write_build(tmp_path / "builds", NPU1, 128)
    status, report = validate("--no-gpu")
    assert status == 1 and report is None and npu.runs == 0
    assert f"unicorn npu validate: {damaged}: " in capsys.readouterr().err


@pytest.mark.usefixtures("npu")
def test_a_folder_of_builds_that_can_not_be_looked_into_is_no_traceback(
    validate: Any, machine: Machine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    builds = tmp_path / ("a" * 300)
    findings = command.diagnose(machine.host(), builds)[-3:]
    assert [(finding.ok, "File name too long" in finding.summary) for finding in findings] == [(False, True)] * 3
    facts = NpuFacts.of(machine.host(), builds)
    assert facts is not None and facts.kernels == ()
    assert validate("--no-gpu", "--builds", str(builds)) == (1, None)
    assert "File name too long" in capsys.readouterr().err
