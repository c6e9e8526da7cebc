"""The device of a benchmark: never a software device unasked, and the one whose limits were measured."""

from __future__ import annotations

import contextlib
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.gpu.made_up import SOFTWARE
from unicorn_async.cli.bench_limits import Limits, measure_limits
from unicorn_async.config import EngineConfig
from unicorn_async.errors import VulkanUnavailableError
from unicorn_async.gpu.device_info import DeviceInfo, DeviceType
from unicorn_async.gpu.instance import Instance
from unicorn_async.resources import demo_model_dir

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent / "benchmarks"))

import bench_device
import kernels

if TYPE_CHECKING:
    from collections.abc import Iterator

LIMITS = Limits(3e12, 1e12, 4e12, 1e13, 0.0, 0.0)


class Machine:
    """What stands for an instance with these devices."""

    def __init__(self, *devices: DeviceInfo) -> None:
        self._devices = devices

    def devices(self) -> tuple[DeviceInfo, ...]:
        return self._devices


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A machine with a GPU that is too small for any model, a larger one, and a software device."""
    heap = replace(SOFTWARE.heaps[0], nbytes=1 << 33, budget=1 << 33, used=0)
    large = replace(SOFTWARE, index=1, name="large", type=DeviceType.INTEGRATED, heaps=(heap,))
    small = replace(heap, nbytes=1 << 20, budget=1 << 20)
    found = Machine(
        replace(SOFTWARE, index=0, name="small", type=DeviceType.DISCRETE, heaps=(small,)),
        large,
        replace(SOFTWARE, index=2),
    )
    stand_in(monkeypatch, found)
    return found


def stand_in(monkeypatch: pytest.MonkeyPatch, found: Machine) -> None:
    @contextlib.contextmanager
    def create(**_: object) -> Iterator[Machine]:
        yield found

    monkeypatch.setattr(Instance, "create", create)


@pytest.mark.parametrize("part", ["linear", "attention", "floor", "ceilings"])
def test_a_software_device_is_not_taken_unasked(
    part: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stand_in(monkeypatch, Machine(SOFTWARE))
    monkeypatch.setattr(sys, "argv", ["kernels.py", part])
    with pytest.raises(VulkanUnavailableError, match="no GPU found, only a software device"):
        kernels.main()
    assert capsys.readouterr().out == ""


def test_no_limits_are_measured_of_a_software_device_unasked(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, Machine(SOFTWARE))
    with pytest.raises(VulkanUnavailableError):
        measure_limits(None)
    with pytest.raises(VulkanUnavailableError):
        bench_device.check_device(EngineConfig())
    bench_device.check_device(EngineConfig(allow_software=True))


def test_a_software_device_says_so_wherever_it_is_named() -> None:
    assert bench_device.device_text(SOFTWARE).endswith(", SOFTWARE device")
    assert bench_device.device_text(replace(SOFTWARE, type=DeviceType.DISCRETE)).endswith(", GPU")
    facts = bench_device.device_facts(SOFTWARE)
    driver = f"{SOFTWARE.driver_name} {SOFTWARE.driver_info}"
    assert facts == {"device": SOFTWARE.name, "driver": driver, "software": True}


@pytest.mark.usefixtures("machine")
def test_limits_are_those_of_the_device_that_the_model_runs_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    measured: list[str] = []
    monkeypatch.setattr(bench_device, "measure_limits", lambda index: measured.append(index) or LIMITS)
    known = bench_device.DeviceLimits()
    limits, config = known.of(str(demo_model_dir()), EngineConfig(max_context=64, max_num_seqs=1))
    assert (limits, config.device, measured) == (LIMITS, "1", ["1"])
    name, line = capsys.readouterr().out.splitlines()
    assert name.startswith("large, ") and line.startswith("measured limits: copy 3,000.0 GB/s")
    known.of(str(demo_model_dir()), EngineConfig(max_context=64, max_num_seqs=1))
    assert measured == ["1"]
