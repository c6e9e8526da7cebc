"""What goes wrong with the attention on a second logical device, and what it is refused."""

from __future__ import annotations

import asyncio
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from tests.engine.answers import PROMPT, answer, prompt_of
from tests.engine.load_faults import FailingDisk
from tests.engine.test_demo_model import MODEL
from unicorn_async.config import AttentionKind, AttentionTarget, SplitMode
from unicorn_async.errors import CheckpointError, ConfigError, DeviceLostError, UnicornError
from unicorn_async.gpu.queue import Queue
from unicorn_async.hybrid.vulkan_attention import VulkanFarAttention

if TYPE_CHECKING:
    from pathlib import Path

    from tests.engine.conftest import OpenEngine

pytestmark = pytest.mark.usefixtures("nothing_left")
BETWEEN = pytest.mark.whole("a failure amid a step, and early and late in a request")


async def test_a_trace_that_can_t_be_written_any_more_is_a_warning(
    open_engine: OpenEngine, there: AttentionTarget, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "gone" / "steps.json"
    path.parent.mkdir()
    async with open_engine(attention=there, step_trace=path) as engine:
        await answer(engine, PROMPT, max_tokens=2)
        shutil.rmtree(path.parent)
    assert f"step trace {path}: No such file or directory" in caplog.text


@pytest.mark.parametrize("number", [1, 17, *(pytest.param(n, marks=BETWEEN) for n in (2, 5, 40))])
async def test_a_far_device_that_fails_ends_every_request_with_its_error(
    number: int, open_engine: OpenEngine, there: AttentionTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, submit = 0, Queue.submit
    far_queue: list[Queue] = []
    init = VulkanFarAttention.__init__

    def noted(attention: VulkanFarAttention, *args: Any) -> None:
        init(attention, *args)
        far_queue.append(attention.far.compute)

    def failing(queue: Queue, *args: Any, **kwargs: Any) -> int:
        nonlocal calls
        if far_queue and queue is far_queue[-1]:
            calls += 1
            if calls >= number:
                raise DeviceLostError("the far device fell off the bus")
        return submit(queue, *args, **kwargs)

    with monkeypatch.context() as broken:
        broken.setattr(VulkanFarAttention, "__init__", noted)
        broken.setattr(Queue, "submit", failing)
        async with open_engine(attention=there, attention_split=SplitMode.ALWAYS) as engine:
            asking = [asyncio.create_task(answer(engine, prompt_of(40, seed), max_tokens=40)) for seed in range(3)]
            for task in asking:
                with pytest.raises(DeviceLostError, match="fell off the bus"):
                    await asyncio.wait_for(task, 60)
            with pytest.raises(DeviceLostError, match="fell off the bus"):
                await answer(engine)
    async with open_engine(attention=there) as engine:
        assert len((await answer(engine, max_tokens=4)).ids) == 4


async def test_a_disk_that_fails_ends_steps_that_wait_for_layers(
    open_engine: OpenEngine, there: AttentionTarget, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    model = shutil.copytree(MODEL, tmp_path / "model")
    FailingDisk(monkeypatch, model, after_bytes=200_000)
    async with open_engine(model, attention=there) as engine:
        waiting = asyncio.create_task(answer(engine))
        with pytest.raises(CheckpointError, match="Input/output error"):
            await engine.loaded()
        with pytest.raises(CheckpointError, match="Input/output error"):
            await waiting


async def test_a_device_that_is_not_there_is_an_error(open_engine: OpenEngine) -> None:
    with pytest.raises(ConfigError, match="device 99: there is no device of this index; there are:"):
        async with open_engine(attention=AttentionTarget(AttentionKind.VULKAN, "99")):
            pass


async def test_a_cache_that_does_not_fit_is_an_error(open_engine: OpenEngine, there: AttentionTarget) -> None:
    with pytest.raises(UnicornError, match="KV cache: a context of 512 tokens needs"):
        async with open_engine(attention=there, kv_cache_bytes=1000):
            pass
