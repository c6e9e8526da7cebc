"""The device and its contexts: what can't be opened is told with its reason, and buffers end with the device."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.npu.builds import write_build
from tests.npu.machine import ADDRESS
from unicorn_async.errors import ConfigError, NpuBuildError, NpuBusyError, NpuError, NpuUnavailableError
from unicorn_async.npu.context import Context
from unicorn_async.npu.device import Device
from unicorn_async.npu.geometry import NPU1, NPU2

if TYPE_CHECKING:
    from pathlib import Path

    from tests.npu.fake_xrt import Npu
    from tests.npu.machine import Machine
    from unicorn_async.npu.manifest import Build


@pytest.mark.parametrize(
    ("refused", "error", "wanted"),
    [
        ("", NpuBusyError, r"contexts or columns are used up.*this chip"),  # by AMD's driver
        ("(err=-22): Invalid argument", NpuUnavailableError, "others use up.*contexts or columns"),  # by Linux's own
        ("(err=-19): No such device", NpuUnavailableError, "others use up.*contexts or columns"),
    ],
)
def test_contexts_that_are_used_up_are_named(
    device: Device, build: Build, npu: Npu, refused: str, error: type[NpuError], wanted: str
) -> None:
    npu.max_contexts = 1
    first = Context(device, build)
    npu.refused_contexts = refused
    with pytest.raises(error, match=wanted):
        Context(device, build)
    npu.refused_contexts = ""
    first.close()
    Context(device, build).close()


def test_a_machine_whose_xrt_finds_nothing_lacks_the_plugin(machine: Machine, npu: Npu) -> None:
    npu.devices = ()
    with pytest.raises(NpuUnavailableError, match="plugin"):
        Device.open(machine.host())


def test_the_npu_is_opened_where_the_kernel_sees_it_and_no_other_card_of_xrt(machine: Machine, npu: Npu) -> None:
    npu.devices = ("0000:04:00.1", ADDRESS)
    Device.open(machine.host()).close()
    npu.devices = ("0000:04:00.1",)
    with pytest.raises(NpuUnavailableError, match=f"opening the NPU at {ADDRESS}, with 1 devices"):
        Device.open(machine.host())


def test_a_machine_without_an_npu_is_refused_before_pyxrt_is_looked_for(machine: Machine) -> None:
    machine.remove("sys/module/amdxdna")
    with pytest.raises(NpuUnavailableError, match="amdxdna"):
        Device.open(machine.host())


def test_a_pyxrt_that_can_not_be_imported_is_told_with_its_reason(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyxrt", None)
    with pytest.raises(NpuUnavailableError, match=r"pyxrt can't be imported.*unicorn npu doctor"):
        Device.open(machine.host())


def test_an_xclbin_without_the_kernel_is_refused(device: Device, tmp_path: Path) -> None:
    folder = tmp_path / "other"
    for kernels in ([("MLIR_AIE", 5)], [("other", 8)], []):
        with pytest.raises(NpuBuildError, match="expected a kernel MLIR_AIE with 6 arguments"):
            Context(device, write_build(folder, NPU1, 64, kernels=kernels))
    with pytest.raises(NpuBuildError, match="built for npu2, this is npu1"):
        Context(device, write_build(folder, NPU2, 64))


def test_an_xclbin_that_is_no_longer_the_one_that_was_found_is_refused(device: Device, build: Build) -> None:
    build.xclbin.write_bytes(build.xclbin.read_bytes() + b" ")
    with pytest.raises(NpuBuildError, match=f"expected SHA-256 {build.sha256}, got"):
        Context(device, build)


def test_a_buffer_that_is_not_closed_warns(device: Device, npu: Npu) -> None:
    buffer = device.allocate(100, group=65536, name="forgotten")
    device.forget(buffer)
    with pytest.warns(ResourceWarning, match="forgotten"):
        del buffer
        gc.collect()


def test_closing_the_device_closes_its_buffers(machine: Machine, npu: Npu) -> None:
    device = Device.open(machine.host())
    buffer = device.allocate(100, group=65536, name="buffer")
    assert (device.num_buffers, npu.buffers) == (1, 1)
    assert not buffer.mapped.any()
    device.close()
    device.close()
    buffer.close()
    assert (device.num_buffers, npu.buffers) == (0, 0)


def test_a_sync_outside_of_the_buffer_is_refused(device: Device) -> None:
    buffer = device.allocate(100, group=65536, name="buffer")
    for offset, nbytes in ((0, 101), (-1, 5), (99, 2), (5, 0)):
        with pytest.raises(ConfigError, match="outside of 100 bytes"):
            buffer.to_device(offset, nbytes)
    buffer.mapped[3:5] = np.uint8(7)
    buffer.from_device(0, 100)
    assert not buffer.mapped.any()  # it was not synced, so the NPU had the old bytes
