"""Closing an engine while it works leaves the event loop to others: what waits for the device does so in threads."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pytest

from unicorn_async.config import AttentionKind, AttentionTarget, WeightScheme
from unicorn_async.errors import EngineClosedError
from unicorn_async.gpu.arena import Arena
from unicorn_async.gpu.device import Device
from unicorn_async.gpu.instance import Instance
from unicorn_async.gpu.kernel import KernelLibrary
from unicorn_async.gpu.timeline import Timeline
from unicorn_async.hybrid.runner import HybridRunner
from unicorn_async.loader.checksums import LayerChecksums
from unicorn_async.step.runner import Runner

from .answers import answer
from .loading_gate import HELD_FROM, LoadingGate, some_layers

if TYPE_CHECKING:
    from pathlib import Path

    from unicorn_async.gpu.device_info import DeviceInfo

    from .conftest import OpenEngine

BLOCKING = (
    (Timeline, "wait"),
    (Device, "wait_idle"),
    (Device, "close"),
    (KernelLibrary, "close"),
    (Instance, "close"),
    (Runner, "close"),
    (HybridRunner, "close"),
    (Arena, "close"),
)
HEARTBEAT_S = 60.0


@pytest.fixture(autouse=True)
async def waits_in_threads(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Whatever may wait goes on only when the event loop has had a turn meanwhile, and fails the test in its thread."""
    loop, thread = asyncio.get_running_loop(), threading.get_ident()
    blocked: list[str] = []
    called: set[str] = set()

    def watched(owner: type, name: str) -> Any:
        work = getattr(owner, name)

        def wait(*args: Any, **kwargs: Any) -> Any:
            called.add(name)
            if threading.get_ident() == thread:
                blocked.append(f"{owner.__name__}.{name}")
            else:
                turn = threading.Event()
                loop.call_soon_threadsafe(turn.set)
                if not turn.wait(HEARTBEAT_S):
                    blocked.append(f"{owner.__name__}.{name}, beside it")
            return work(*args, **kwargs)

        return wait

    for owner, name in BLOCKING:
        monkeypatch.setattr(owner, name, watched(owner, name))
    yield
    assert {"wait", "wait_idle", "close"} <= called
    assert blocked == []


async def test_in_the_middle_of_the_load(open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    LoadingGate(monkeypatch, HELD_FROM)
    async with open_engine(weights=WeightScheme.INT8) as engine:
        waiting = asyncio.create_task(answer(engine))
        await some_layers(engine)
    with pytest.raises(EngineClosedError):
        await waiting


async def test_in_the_middle_of_an_answer(open_engine: OpenEngine) -> None:
    async with open_engine() as engine:
        await answer(engine, max_tokens=1)
        waiting = asyncio.create_task(answer(engine, max_tokens=10_000))
        await asyncio.sleep(0)
    with pytest.raises(EngineClosedError):
        await waiting


async def test_where_another_device_attends(
    open_engine: OpenEngine, device_info: DeviceInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    LoadingGate(monkeypatch, HELD_FROM)
    there = AttentionTarget(AttentionKind.VULKAN, str(device_info.index))
    async with open_engine(attention=there) as engine:
        waiting = asyncio.create_task(answer(engine))
        await some_layers(engine)
    with pytest.raises(EngineClosedError):
        await waiting


async def test_while_the_cache_is_written_and_while_it_is_read(
    open_engine: OpenEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    options = {"weights": WeightScheme.INT8, "weight_cache": True}
    begun = asyncio.Event()
    checksums = LayerChecksums.checksums

    async def noted(check: LayerChecksums, *args: Any) -> dict[str, str]:
        begun.set()
        return await checksums(check, *args)

    monkeypatch.setattr(LayerChecksums, "checksums", noted)
    async with open_engine(**options):
        await begun.wait()
    async with open_engine(**options) as engine:
        await engine.cache_settled()
    begun.clear()
    async with open_engine(**options) as engine:
        await begun.wait()
        assert engine.progress.from_cache


async def test_where_opening_fails(open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: object) -> None:
        raise EngineClosedError("made up")

    monkeypatch.setattr(Runner, "__init__", failing)
    with pytest.raises(EngineClosedError, match="made up"):
        async with open_engine():
            pass
