"""What an engine leaves behind: nothing, whenever it is closed."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.golden.adapters import BLENDS, write_adapter
from unicorn_async.background import run_to_end
from unicorn_async.config import AttentionKind, AttentionTarget, WeightScheme
from unicorn_async.engine.files import ModelFiles
from unicorn_async.engine.opening import open_model
from unicorn_async.errors import (
    CheckpointError,
    ConfigError,
    DeviceLostError,
    EngineClosedError,
    EngineFailedError,
    OutOfMemoryError,
)
from unicorn_async.gpu.device import Device
from unicorn_async.gpu.host_pages import PAGE_BYTES, return_freed_memory
from unicorn_async.gpu.instance import Instance
from unicorn_async.gpu.memory import Memory
from unicorn_async.lora_spec import LoraSpec
from unicorn_async.sampling_params import SamplingParams
from unicorn_async.step.runner import Runner

from .answers import PROMPT, answer, prompt_of
from .layer_log import LayerLog
from .leftovers import no_leftovers
from .loading_gate import HELD_FROM, LoadingGate, some_layers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from unicorn_async.engine.opened_model import OpenedModel
    from unicorn_async.gpu.device_info import DeviceInfo
    from unicorn_async.scheduler.batch import Batch

    from .conftest import OpenEngine


PROCESS = Path("/proc/self/statm")


def resident_bytes() -> int:
    """Return how much of this process is in memory."""
    return int(PROCESS.read_text().split()[1]) * PAGE_BYTES


@pytest.fixture(autouse=True)
def nothing_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with no_leftovers(monkeypatch):
        yield


async def test_after_generating(open_engine: OpenEngine) -> None:
    async with open_engine() as engine:
        await answer(engine)
        await engine.logits(PROMPT)
    with pytest.raises(EngineClosedError):
        await answer(engine)
    with pytest.raises(EngineClosedError):
        await engine.logits(PROMPT)


async def test_at_once(open_engine: OpenEngine) -> None:
    async with open_engine() as engine:
        pass
    with pytest.raises(EngineClosedError):
        await engine.loaded()


@pytest.mark.parametrize("elsewhere", [False, True])
async def test_at_once_where_the_model_is_loaded_by_then(
    elsewhere: bool, open_engine: OpenEngine, device_info: DeviceInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def open_and_load(*args: Any) -> OpenedModel:
        opened = await open_model(*args)
        await opened.load
        return opened

    monkeypatch.setattr("unicorn_async.engine.opening.open_model", open_and_load)
    target = AttentionTarget(AttentionKind.VULKAN, str(device_info.index)) if elsewhere else AttentionTarget()
    async with open_engine(attention=target) as engine:
        pass
    with pytest.raises(EngineClosedError):
        await asyncio.wait_for(engine.loaded(), 120)


async def test_in_the_middle_of_the_load(open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    LoadingGate(monkeypatch, HELD_FROM)
    async with open_engine() as engine:
        waiting = [asyncio.create_task(answer(engine)), asyncio.create_task(engine.logits(PROMPT))]
        await some_layers(engine)
    for task in waiting:
        with pytest.raises(EngineClosedError):
            await task
    with pytest.raises(EngineClosedError):
        await engine.loaded()


async def test_while_several_steps_follow_the_load(open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    LoadingGate(monkeypatch, HELD_FROM)
    log = LayerLog(monkeypatch)
    async with open_engine() as engine:
        waiting = [asyncio.create_task(answer(engine, prompt_of(length))) for length in (300, 100)]
        await log.has(layer=0, count=4)
    for task in waiting:
        with pytest.raises(EngineClosedError):
            await task


@pytest.mark.parametrize("num_tokens", [1, 2, 30])
async def test_in_the_middle_of_an_answer(num_tokens: int, open_engine: OpenEngine) -> None:
    """Early on, the commands of a shape of step are being recorded in a thread."""
    async with open_engine() as engine:
        waiting = [
            asyncio.create_task(answer(engine, prompt_of(length), max_tokens=10_000)) for length in (100, 200, 300)
        ]
        stream = engine.stream(PROMPT, SamplingParams(max_tokens=10_000, ignore_eos=True))
        for _ in range(num_tokens):
            await anext(stream)
    with pytest.raises(EngineClosedError):
        async for _ in stream:
            pass
    for task in waiting:
        with pytest.raises(EngineClosedError):
            await task


async def test_by_an_error_in_its_block(open_engine: OpenEngine) -> None:
    with pytest.raises(KeyError):
        async with open_engine() as engine:
            await answer(engine, max_tokens=2)
            raise KeyError("the caller's own")


async def test_by_a_cancellation_of_its_task(open_engine: OpenEngine) -> None:
    begun = asyncio.Event()

    async def use() -> None:
        async with open_engine() as engine:
            async for _ in engine.stream(PROMPT, SamplingParams(max_tokens=10_000, ignore_eos=True)):
                begun.set()

    task = asyncio.create_task(use())
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("count", [0, 1, 2, 5, 20])
async def test_by_cancellations_one_after_the_other(open_engine: OpenEngine, count: int) -> None:
    begun = asyncio.Event()

    async def use() -> None:
        async with open_engine() as engine:
            async for _ in engine.stream(PROMPT, SamplingParams(max_tokens=10_000, ignore_eos=True)):
                begun.set()

    task = asyncio.create_task(use())
    await begun.wait()
    for _ in range(3):
        task.cancel()
        for _ in range(count):
            await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_by_a_second_cancellation_while_a_thread_still_records_a_step(
    open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    recording, going_on = threading.Event(), threading.Event()
    submit = Runner.submit

    async def slow_submit(runner: Runner, batch: Batch) -> object:
        def wait() -> None:
            recording.set()
            going_on.wait()

        await run_to_end(wait)
        return await submit(runner, batch)

    monkeypatch.setattr(Runner, "submit", slow_submit)
    closed = threading.Event()
    close = Device.close
    monkeypatch.setattr(Device, "close", lambda device: (closed.set(), close(device)))

    answers: list[asyncio.Task[object]] = []

    async def use() -> None:
        async with open_engine() as engine:
            answers.append(asyncio.create_task(answer(engine)))
            await asyncio.Event().wait()

    task = asyncio.create_task(use())
    await asyncio.to_thread(recording.wait)
    for _ in range(3):
        task.cancel()
        for _ in range(5):
            await asyncio.sleep(0)
    assert not closed.is_set()
    going_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert closed.is_set()
    with pytest.raises(EngineClosedError):
        await asyncio.wait_for(answers[0], 120)


async def test_by_a_cancellation_while_the_device_is_opened(
    open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    opening, going_on = threading.Event(), threading.Event()
    create = Instance.create

    def slow_create(*, validation: bool = False) -> Instance:
        opening.set()
        going_on.wait()
        return create(validation=validation)

    monkeypatch.setattr(Instance, "create", slow_create)

    async def use() -> None:
        async with open_engine():
            pytest.fail("opened after it was cancelled")

    task = asyncio.create_task(use())
    await asyncio.to_thread(opening.wait)
    task.cancel()
    going_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("name", ["values out of range", "results 1", "checksums", "adapters[0]"])
async def test_by_a_cancellation_while_a_thread_allocates(
    name: str, open_engine: OpenEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    options: dict[str, Any] = {"model": "llama"}
    if name == "checksums":
        options |= {"weights": WeightScheme.INT8, "weight_cache": True}
        async with open_engine(**options) as engine:
            await engine.cache_settled()
    elif name.startswith("adapters"):
        case = BLENDS["llama"][0]
        options["loras"] = (LoraSpec(write_adapter("llama", case, tmp_path / case.name), case.weight),)
    allocating, going_on = threading.Event(), threading.Event()
    allocate = Memory.allocate

    def slow_allocate(memory: Memory, *args: Any, **kwargs: Any) -> Any:
        if kwargs["name"] == name:
            allocating.set()
            assert going_on.wait(120)
        return allocate(memory, *args, **kwargs)

    monkeypatch.setattr(Memory, "allocate", slow_allocate)

    async def use() -> None:
        async with open_engine(**options) as engine:
            await engine.loaded()

    task = asyncio.create_task(use())
    assert await asyncio.to_thread(allocating.wait, 120)
    task.cancel()
    await asyncio.sleep(0)
    going_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_the_last_thing_is_to_return_freed_memory_to_the_system_in_a_thread(
    open_engine: OpenEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[str, bool]] = []

    def note(name: str) -> None:
        calls.append((name, threading.current_thread() is threading.main_thread()))

    close = Instance.close
    monkeypatch.setattr(Instance, "close", lambda instance: (close(instance), note("close")))
    monkeypatch.setattr("unicorn_async.engine.engine.return_freed_memory", lambda: note("return"))
    async with open_engine() as engine:
        await engine.loaded()
        assert calls == []
    assert calls == [("close", False), ("return", False)]
    calls.clear()
    with pytest.raises(ConfigError):
        async with open_engine(tmp_path / "nowhere"):
            pass
    assert calls == [("close", False), ("return", False)]


@pytest.mark.skipif(not PROCESS.exists(), reason="only Linux tells how much memory a process has")
async def test_host_memory_does_not_grow_from_model_to_model(open_engine: OpenEngine) -> None:
    """What could be returned was: a second call finds next to nothing, where without the first it finds 100 MB."""
    after: list[int] = []
    for name, scheme in [("gemma3", WeightScheme.INT8), ("llama", WeightScheme.AUTO)] * 2:
        async with open_engine(name, weights=scheme) as engine:
            await answer(engine)
        after.append(resident_bytes())
    return_freed_memory()
    assert after[-1] - resident_bytes() < 25 << 20
    assert after[-1] - after[1] < 300 << 20  # drivers keep something, and pages are returned whole or not at all


async def test_when_it_can_not_be_opened(open_engine: OpenEngine, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nowhere: no such directory"):
        async with open_engine(tmp_path / "nowhere"):
            pass
    with pytest.raises(OutOfMemoryError, match="context of 512 tokens needs"):
        async with open_engine(kv_cache_bytes=10_000):
            pass


async def test_when_the_models_files_are_wrong_and_the_only_device_was_opened_beside_reading_them(
    open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_open, open_device = threading.Event(), Device.open

    def noted_open(*arguments: Any, **options: Any) -> Device:
        device = open_device(*arguments, **options)
        is_open.set()
        return device

    def wrong(*_: object, **__: object) -> None:
        assert is_open.wait(120)
        raise CheckpointError("wrong in the end")

    monkeypatch.setattr(Device, "open", noted_open)
    monkeypatch.setattr(ModelFiles, "read", wrong)
    with pytest.raises(CheckpointError, match="wrong in the end"):
        async with open_engine():
            pytest.fail("opened without a model")


async def test_when_the_device_is_lost(open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    submit = Runner.submit

    async def failing_submit(runner: Runner, batch: Batch) -> object:
        if batch.step == 5:
            raise DeviceLostError("step 5: the device is lost")
        return await submit(runner, batch)

    monkeypatch.setattr(Runner, "submit", failing_submit)
    async with open_engine() as engine:
        stream = engine.stream(PROMPT, SamplingParams(max_tokens=50, ignore_eos=True))
        with pytest.raises(DeviceLostError, match="step 5"):
            async for _ in stream:
                pass
        with pytest.raises(DeviceLostError, match="step 5"):
            await answer(engine)


async def test_when_a_step_fails_by_a_fault_that_is_not_named(
    open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault = OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    async def failing_submit(runner: Runner, batch: Batch) -> object:
        raise fault

    async with open_engine() as engine:
        await engine.loaded()
        assert not engine.has_failed
        monkeypatch.setattr(Runner, "submit", failing_submit)
        with pytest.raises(EngineFailedError, match=r"OSError: .*Too many open files") as caught:
            await answer(engine)
        assert engine.has_failed
        assert await engine.failure() is caught.value
        assert caught.value.__cause__ is fault
