"""The plan, what was allocated, and the driver's figures."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from unicorn_async.config import WeightScheme
from unicorn_async.gpu.budget import HeapKind
from unicorn_async.gpu.device import Device
from unicorn_async.memory.report import HeapReport, MemoryReport, driver_usage

if TYPE_CHECKING:
    from tests.engine.conftest import OpenEngine
    from unicorn_async.gpu.device_info import MemoryHeap

GIB = 1 << 30
BESIDE_THE_MODEL = 64 << 20  # frames, tables and results, at most


@pytest.mark.parametrize(
    ("allocated", "driver", "agrees"),
    [
        (10 * GIB, None, None),
        (10 * GIB, 10 * GIB, True),
        (10 * GIB, 10 * GIB + GIB // 2, True),
        (10 * GIB, 11 * GIB, False),
        (10 * GIB, 9 * GIB, False),
        (1000, 100 << 20, True),
        (1000, 200 << 20, False),
        (0, 0, True),
    ],
)
def test_a_drivers_figure_agrees_within_what_drivers_add(
    allocated: int, driver: int | None, agrees: bool | None
) -> None:
    report = MemoryReport((HeapReport(HeapKind.VRAM, allocated, allocated, driver),))
    assert report.agrees is agrees
    figures = {"heap": "VRAM", "planned": allocated, "to_come": 0, "allocated": allocated, "driver": driver}
    assert report.to_json() == {
        "heaps": [{**figures, "plan_agrees": True, "driver_agrees": agrees}],
        "agrees": agrees,
    }


@pytest.mark.parametrize(
    ("allocated", "beside", "agrees"),
    [
        (10 * GIB, 0, True),
        (10 * GIB + (10 << 20), 0, True),
        (10 * GIB + (260 << 20), 0, False),
        (10 * GIB + (260 << 20), 256 << 20, True),
        (10 * GIB - 1, 256 << 20, False),
    ],
)
def test_what_is_allocated_agrees_with_the_plan_within_what_is_beside_the_model(
    allocated: int, beside: int, agrees: bool
) -> None:
    told = HeapReport(HeapKind.VRAM, 10 * GIB, allocated, allocated, beside)
    silent = HeapReport(HeapKind.VRAM, 10 * GIB, allocated, None, beside)
    assert told.plan_agrees is silent.plan_agrees is agrees
    assert MemoryReport((told,)).agrees is agrees
    assert MemoryReport((silent,)).agrees is (None if agrees else False)
    assert MemoryReport((told, HeapReport(HeapKind.GTT, 0, GIB, GIB))).agrees is False


def test_without_a_figure_nothing_is_said_to_agree() -> None:
    assert MemoryReport(()).agrees is None


async def test_what_is_allocated_is_what_was_planned_and_what_the_driver_says(open_engine: OpenEngine) -> None:
    async with open_engine() as engine:
        await engine.loaded()
        await engine.cache_settled()
        report = engine.memory
        says = engine.device.memory_budget
    planned = sum(heap.planned for heap in report.heaps)
    vram = next(heap for heap in report.heaps if heap.heap is HeapKind.VRAM)
    assert 0 < planned == vram.planned
    assert 0 <= vram.allocated - vram.planned < BESIDE_THE_MODEL + engine.config.staging_bytes
    assert (vram.driver is not None) == says
    assert all(heap.plan_agrees for heap in report.heaps)
    assert report.agrees is (True if says else None)


async def test_what_a_load_has_beside_the_model_is_no_difference_and_nothing_is_left_of_it(
    open_engine: OpenEngine,
) -> None:
    async with open_engine(weights=WeightScheme.INT8) as engine:
        while not engine.progress.done:
            assert engine.memory.agrees is not False
            assert engine.memory.heaps[0].beside >= engine.config.staging_bytes
            await asyncio.sleep(0)
        await engine.cache_settled()
        await asyncio.wait([engine._model.load])
        report = engine.memory
    assert report.heaps[0].beside < engine.config.staging_bytes
    assert all(heap.plan_agrees for heap in report.heaps)


async def test_a_driver_that_says_otherwise_is_noticed(
    open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver with the extension, made up: first it says what is true, then a gigabyte more."""
    heaps, extra = Device.heaps, 0

    def made_up(device: Device) -> tuple[MemoryHeap, ...]:
        used = device.memory.used_bytes
        return tuple(replace(heap, used=7 + u + extra) for heap, u in zip(heaps(device), used, strict=True))

    async with open_engine() as engine:
        await engine.loaded()
        await engine._model.load  # what only the load needed is freed behind it
        await engine.cache_settled()
        device = engine._model.device
        monkeypatch.setattr(Device, "heaps", made_up)
        monkeypatch.setattr(device, "info", replace(device.info, memory_budget=True))
        before = tuple(7 for _ in device.info.heaps)
        monkeypatch.setattr(engine, "_model", replace(engine._model, usage_before=before))
        assert driver_usage(device) is not None
        assert engine.memory.agrees
        heap = engine.memory.heaps[0]
        assert heap.driver == heap.allocated
        extra = GIB
        assert not engine.memory.agrees
        monkeypatch.undo()
