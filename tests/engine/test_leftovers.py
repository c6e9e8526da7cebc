"""What an engine leaves behind, which the next one does not wait for."""

from __future__ import annotations

import asyncio
import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from tests.patience import PATIENCE_S
from unicorn_async.engine.devices import Ending
from unicorn_async.engine.leftovers import Leftovers
from unicorn_async.errors import CheckpointError, ConfigError
from unicorn_async.gpu.budget import HeapKind, host_room
from unicorn_async.gpu.device import Device
from unicorn_async.gpu.left_memory import LeftMemory
from unicorn_async.gpu.memory import Memory
from unicorn_async.memory import plan
from unicorn_async.memory.kv_pool import KVPool

from .answers import answer
from .leftovers import no_leftovers

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from unicorn_async.engine.engine import Engine
    from unicorn_async.gpu.device_info import DeviceInfo
    from unicorn_async.memory.kv_pool import NewBlocks

    from .conftest import OpenEngine


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


@pytest.fixture
def own_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights lie in a GPU's own memory: they are left behind, too."""
    monkeypatch.setattr(Ending, "left_heaps", lambda ending, info: (HeapKind.VRAM,))


def allocated(engine: Engine) -> int:
    return sum(engine._model.device.memory.used_bytes)


async def test_weights_are_left_behind_in_a_gpus_own_memory_and_nothing_of_them_stays(
    own_memory: None, open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    closings = Closings(monkeypatch)
    async with asyncio.timeout(PATIENCE_S), Leftovers() as leftovers:
        async with open_engine("llama", leftovers=leftovers) as old:
            expected = (await answer(old)).ids
            await old.cache_grown()
            left = old._model.memory_plan.placement.total_bytes
            assert allocated(old) > left > old.kv_cache_bytes
        assert allocated(old) == left  # all but what lies beside the plan
        async with open_engine("llama", leftovers=leftovers) as new:
            assert (await answer(new)).ids == expected
            await new.cache_grown()
            assert allocated(old) == left
        closings.gate.set()
        await leftovers.closed()
        assert allocated(old) == allocated(new) == 0


async def test_weights_in_the_hosts_memory_are_freed_with_their_engine(
    open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Ending, "left_heaps", lambda ending, info: ())
    closings = Closings(monkeypatch)
    async with asyncio.timeout(PATIENCE_S), Leftovers() as leftovers:
        async with open_engine("llama", leftovers=leftovers) as engine:
            await engine.cache_grown()
        assert allocated(engine) == engine.kv_cache_bytes
        closings.gate.set()


class Room:
    """Lets all devices together have so many bytes."""

    def __init__(self, patch: pytest.MonkeyPatch, nbytes: int = 1 << 30) -> None:
        self.nbytes = nbytes
        self.memories: list[Memory] = []
        self.asked = threading.Semaphore(0)
        init, wait = Memory.__init__, LeftMemory.wait

        def noted_init(memory: Memory, *args: object) -> None:
            init(memory, *args)  # type: ignore[arg-type]
            self.memories.append(memory)

        def available(memory: Memory, wanted: int) -> list[int]:
            used = sum(sum(each.used_bytes) for each in self.memories)
            return [self.nbytes - used] * len(memory.used_bytes)

        def noted_wait(left: LeftMemory, *args: object, **keys: object) -> bool:
            self.asked.release()
            return wait(left, *args, **keys)  # type: ignore[arg-type]

        patch.setattr("unicorn_async.gpu.left_memory._PATIENCE_S", PATIENCE_S)
        patch.setattr(Memory, "__init__", noted_init)
        patch.setattr(Memory, "_lately_available", available)
        patch.setattr(LeftMemory, "wait", noted_wait)

    async def is_waited_for(self) -> None:
        """Wait until somebody finds no room."""
        assert await asyncio.to_thread(self.asked.acquire, timeout=PATIENCE_S)


async def test_where_there_is_no_room_for_both_the_next_model_waits_for_what_the_last_one_left(
    own_memory: None, open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_engine("llama") as engine:
        expected = (await answer(engine)).ids
        await engine.cache_grown()
        room = Room(monkeypatch, 3 * allocated(engine) // 2)
    closings = Closings(monkeypatch)
    async with asyncio.timeout(PATIENCE_S), Leftovers() as leftovers:
        async with open_engine("llama", leftovers=leftovers) as engine:
            await engine.cache_grown()

        async def ask_the_next() -> list[int]:
            async with open_engine("llama", leftovers=leftovers) as engine:
                found = (await answer(engine)).ids
                await engine.cache_grown()
                return found

        asking = asyncio.create_task(ask_the_next())
        await room.is_waited_for()
        assert not asking.done()
        closings.gate.set()
        assert await asking == expected


@pytest.mark.parametrize("opens", [False, True])
async def test_who_waits_for_what_was_left_can_be_cancelled(
    opens: bool, own_memory: None, open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    room, closings, is_open = Room(monkeypatch), Closings(monkeypatch), asyncio.Event()
    async with asyncio.timeout(PATIENCE_S), Leftovers() as leftovers:
        async with open_engine("llama", leftovers=leftovers) as engine:
            await engine.cache_grown()
        may_grow, grow = threading.Event(), KVPool.grow

        def held_grow(pool: KVPool) -> NewBlocks:
            assert may_grow.wait(PATIENCE_S)
            return grow(pool)

        monkeypatch.setattr(KVPool, "grow", held_grow)
        room.nbytes = room.nbytes if opens else 0

        async def open_the_next() -> None:
            async with open_engine("llama", leftovers=leftovers) as engine:
                async for _ in engine.load_progress():
                    pass
                is_open.set()
                await engine.cache_grown()

        opening = asyncio.create_task(open_the_next())
        if opens:
            await is_open.wait()
            room.nbytes = 0
            may_grow.set()
        await room.is_waited_for()
        opening.cancel()
        await asyncio.wait([opening])
        assert opening.cancelled()
        assert is_open.is_set() == opens
        closings.gate.set()


async def test_a_plan_counts_what_is_left_while_nothing_of_it_is_freed(
    open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    freed = threading.Event()

    class Left:
        device_uuid, used_bytes = "another", (1,)

    def free(left: LeftMemory, memory: Left) -> None:
        with left.freeing(memory):
            freed.set()

    async with Leftovers() as leftovers:
        memory = Left()
        leftovers.memory.add(memory)
        thread = threading.Thread(target=free, args=(leftovers.memory, memory))

        def free_meanwhile(info: DeviceInfo) -> int | None:
            thread.start()
            assert not freed.wait(0.05)
            return host_room(info)

        monkeypatch.setattr(plan, "host_room", free_meanwhile)
        async with open_engine("llama", leftovers=leftovers) as engine:
            await engine.loaded()
        thread.join(PATIENCE_S)
        assert freed.is_set()
        leftovers.memory.remove(memory)


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
