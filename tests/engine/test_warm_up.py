"""Kernels whose compilation a driver leaves to their first use are used before a request waits for them."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from unicorn_async.gpu.command import CommandPool, CommandRecorder
from unicorn_async.gpu.device_info import DeviceType
from unicorn_async.gpu.kernel import KernelRequest
from unicorn_async.gpu.timeline import Timeline
from unicorn_async.gpu.warm_up import WarmUp

if TYPE_CHECKING:
    from unicorn_async.gpu.device import Device
    from unicorn_async.gpu.kernel import Kernel

    from .conftest import OpenEngine


@pytest.fixture
def software(device: Device, monkeypatch: pytest.MonkeyPatch) -> Device:
    """The device under test, taken for a CPU."""
    monkeypatch.setattr(device, "info", replace(device.info, type=DeviceType.SOFTWARE))
    return device


@pytest.fixture
def kernels(device: Device) -> list[Kernel]:
    """Some kernels of the device, which dispatches of no workgroups leave alone."""
    return device.kernels.prepare(KernelRequest("quantize_activations", {"WORKGROUP": size}) for size in (32, 64, 128))


@pytest.fixture
def uses(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The kernels that were dispatched with no workgroups."""
    found: list[str] = []
    dispatch = CommandRecorder.dispatch

    def watched(recorder: CommandRecorder, kernel: Kernel, push: bytes, x: int, y: int = 1, z: int = 1) -> None:
        if not x * y * z:
            found.append(f"{kernel.name} {kernel.variant}")
        dispatch(recorder, kernel, push, x, y, z)

    monkeypatch.setattr(CommandRecorder, "dispatch", watched)
    return found


async def test_each_kernel_is_used_once_in_order_and_nothing_is_left(
    software: Device, kernels: list[Kernel], uses: list[str]
) -> None:
    before = software.live_objects()
    first = WarmUp(software)
    first.add(kernels)
    await first.run()
    await first.run()
    assert uses == [f"quantize_activations WORKGROUP={size}" for size in (32, 64, 128)]
    assert not first._left
    assert software.live_objects() == before


async def test_a_gpu_s_kernels_are_compiled_without(
    device: Device, kernels: list[Kernel], uses: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device, "info", replace(device.info, type=DeviceType.DISCRETE))
    first = WarmUp(device)
    first.add(kernels)
    await first.run()
    assert uses == []


async def test_what_is_not_wanted_any_more_is_left_for_later(
    software: Device, kernels: list[Kernel], uses: list[str]
) -> None:
    first = WarmUp(software)
    first.add(kernels)
    await first.run(lambda: len(uses) < 2)
    assert (len(uses), len(first._left)) == (2, 1)
    await first.run()
    assert (len(uses), len(first._left)) == (3, 0)


async def test_work_on_the_queue_goes_first_and_a_cancelled_wait_leaves_nothing(
    software: Device, kernels: list[Kernel], uses: list[str]
) -> None:
    before = software.live_objects()
    gate, pool = Timeline(software, name="gate"), CommandPool(software, software.compute)
    step = software.compute.submit([pool.recorder().end()], waits=[(gate, 1)])
    first = WarmUp(software)
    first.add(kernels)
    waiting = [asyncio.create_task(first.run()) for _ in range(2)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    await asyncio.wait(waiting[:1])
    assert (waiting[0].cancelled(), uses) == (True, [])
    gate.signal(1)
    await waiting[1]
    assert len(uses) == 3
    assert software.compute.timeline.completed() >= step
    gate.close()
    pool.close()
    assert software.live_objects() == before


async def test_a_loaded_model_s_kernels_are_all_used_before_anybody_asks(
    open_engine: OpenEngine, uses: list[str]
) -> None:
    async with open_engine() as engine:
        await engine._model.load
        expected = len(engine._model.kernels.requests) if engine.device.is_software else 0
        assert len(uses) == expected
