"""What an engine leaves behind, which the next one does not wait for."""

from __future__ import annotations

import asyncio
import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from unicorn_async.engine.leftovers import Leftovers
from unicorn_async.errors import CheckpointError, ConfigError
from unicorn_async.gpu.device import Device
from unicorn_async.memory.kv_pool import KVPool

from .answers import answer
from .leftovers import no_leftovers

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from .conftest import OpenEngine

PATIENCE_S = 30.0


@pytest.fixture(autouse=True)
def nothing_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with no_leftovers(monkeypatch):
        yield


class Closings:
    """Counts the caches and devices that are closed; caches wait for `gate` before that."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.gate = threading.Event()
        self.num_caches = self.num_devices = 0
        close_cache, close_device = KVPool.close, Device.close

        def held_close(pool: KVPool) -> None:
            assert self.gate.wait(PATIENCE_S)
            self.num_caches += 1
            close_cache(pool)

        def counted_close(device: Device) -> None:
            self.num_devices += 1
            close_device(device)

        patch.setattr(KVPool, "close", held_close)
        patch.setattr(Device, "close", counted_close)


async def test_the_next_models_answer_while_the_last_ones_caches_are_there(
    open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    closings = Closings(monkeypatch)
    found = []
    async with asyncio.timeout(PATIENCE_S), Leftovers() as leftovers:
        for _ in range(3):
            async with open_engine("llama", leftovers=leftovers) as engine:
                found.append((await answer(engine)).ids)
                await engine.cache_grown()
                assert engine.memory.agrees in (True, None)
        assert (closings.num_caches, closings.num_devices) == (0, 0)
        closings.gate.set()
    assert (closings.num_caches, closings.num_devices) == (3, 3)
    assert found[0] == found[1] == found[2]


async def test_an_engine_that_could_not_be_opened_leaves_its_device(
    open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    closings = Closings(monkeypatch)
    closings.gate.set()
    async with Leftovers() as leftovers:
        for _ in range(2):
            with pytest.raises((CheckpointError, ConfigError)):
                async with open_engine(tmp_path / "nowhere", leftovers=leftovers):
                    pass
        async with open_engine("llama", leftovers=leftovers) as engine:
            await answer(engine)
    assert closings.num_devices >= 1


async def test_what_was_taken_is_closed_in_turn_and_an_error_is_told_and_no_more(
    caplog: pytest.LogCaptureFixture,
) -> None:
    closed: list[int] = []

    def fail() -> None:
        raise RuntimeError("the driver is gone")

    async with Leftovers() as leftovers:
        for number in range(3):
            stack = ExitStack()
            stack.callback(closed.append, number)
            if number == 1:
                stack.callback(fail)
            leftovers.take(stack)
    assert closed == [0, 1, 2]
    assert "the driver is gone" in caplog.text


async def test_a_cancelled_end_still_waits_for_everything() -> None:
    gate, closed = threading.Event(), threading.Event()

    async def leave() -> None:
        async with Leftovers() as leftovers:
            stack = ExitStack()
            stack.callback(closed.set)
            stack.callback(gate.wait, PATIENCE_S)
            leftovers.take(stack)

    leaving = asyncio.create_task(leave())
    for _ in range(3):
        await asyncio.sleep(0)
        leaving.cancel()
    assert not closed.is_set()
    gate.set()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    assert closed.is_set()
