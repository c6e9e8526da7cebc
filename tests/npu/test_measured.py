"""Rates of an NPU that a validation leaves beside a build."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.npu.builds import write_build
from unicorn_async.npu.geometry import NPU1
from unicorn_async.npu.measured import MeasuredRates, find_rates, rates_path, remove_rates, write_rates
from unicorn_async.npu.pace import FEW_TASKS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.npu.machine import Machine
    from unicorn_async.npu.manifest import Build


SOFTWARE = "firmware 1.5.5.391, Linux's own driver"


@pytest.fixture
def build(tmp_path: Path) -> Build:
    return write_build(tmp_path, NPU1, 128)


def rates_of(build: Build) -> MeasuredRates:
    return MeasuredRates(build.sha256, SOFTWARE, "2026-11-25", 40e9, 200e9, 127e-6, 1000)


def test_rates_are_found_for_the_build_that_they_were_measured_with(tmp_path: Path, build: Build) -> None:
    assert find_rates(tmp_path, build, SOFTWARE) is None
    assert write_rates(tmp_path, build, rates_of(build)) == rates_path(tmp_path, build)
    assert find_rates(tmp_path, build, SOFTWARE) == rates_of(build)


def test_rates_of_another_build_are_not_this_one_s(
    tmp_path: Path, build: Build, caplog: pytest.LogCaptureFixture
) -> None:
    rates_path(tmp_path, build).write_text(json.dumps({"format": 2, **_fields(build), "sha256": "0" * 64}))
    assert find_rates(tmp_path, build, SOFTWARE) is None
    assert "measured with another build" in caplog.text


def test_rates_with_another_firmware_or_driver_are_not_this_ones(
    tmp_path: Path, build: Build, caplog: pytest.LogCaptureFixture
) -> None:
    write_rates(tmp_path, build, rates_of(build))
    assert find_rates(tmp_path, build, "firmware 1.5.6.0") is None
    assert f"measured with {SOFTWARE}, this is firmware 1.5.6.0" in caplog.text


@pytest.mark.parametrize(
    ("change", "is_other"),
    [
        (lambda machine: machine.write("proc/sys/kernel/osrelease", "7.0.0-15-generic"), False),
        (lambda machine: machine.write("proc/sys/kernel/osrelease", "7.1.0-1-generic"), True),
        (lambda machine: machine.write("sys/class/accel/accel0/device/fw_version", "1.5.6.0"), True),
        (lambda machine: machine.write("sys/module/amdxdna/taint", "OE"), True),
        (lambda machine: machine.write("sys/module/amdxdna/version", "2.22"), True),
    ],
)
def test_software_is_another_with_another_firmware_or_driver(
    machine: Machine, change: Callable[[Machine], None], is_other: bool
) -> None:
    before = machine.host().npu_software()
    change(machine)
    assert (machine.host().npu_software() != before) == is_other


def test_rates_are_removed_once(tmp_path: Path, build: Build) -> None:
    write_rates(tmp_path, build, rates_of(build))
    assert remove_rates(tmp_path, build) and not remove_rates(tmp_path, build)
    assert find_rates(tmp_path, build, SOFTWARE) is None


@pytest.mark.parametrize(
    "change",
    [
        {"format": 1},
        {"sha256": 1},
        {"software": None},
        {"time": None},
        {"bytes_per_s": 0},
        {"bytes_per_s": True},
        {"dispatch_s": "1"},
        {"multiply_adds_per_s": float("nan")},
        {"multiply_adds_per_s": float("inf")},
        {"time": "x" * 5000},
        {"tasks_per_run": FEW_TASKS - 1},
        {"tasks_per_run": 1 << 30},
        {"tasks_per_run": 300.0},
    ],
)
def test_a_file_that_holds_no_rates_is_told_and_not_used(
    tmp_path: Path, build: Build, change: dict[str, object], caplog: pytest.LogCaptureFixture
) -> None:
    rates_path(tmp_path, build).write_text(json.dumps({"format": 2, **_fields(build), **change}))
    assert find_rates(tmp_path, build, SOFTWARE) is None
    assert f"{rates_path(tmp_path, build)}: no rates of an NPU" in caplog.text


@pytest.mark.parametrize("text", ["", "[]", "[" * 4000, "no JSON", "null"])
def test_neither_is_one_that_is_no_object(tmp_path: Path, build: Build, text: str) -> None:
    rates_path(tmp_path, build).write_text(text)
    assert find_rates(tmp_path, build, SOFTWARE) is None


def _fields(build: Build) -> dict[str, object]:
    rates = rates_of(build)
    return {name: getattr(rates, name) for name in MeasuredRates.__slots__}
