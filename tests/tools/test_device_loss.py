"""The command whose device is lost at a signal: what its driver says then, and that the server serves again."""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from websockets.asyncio.client import connect

from tests.conftest import choose
from unicorn_async.errors import DeviceLostError
from unicorn_async.gpu import instance as instance_module
from unicorn_async.gpu.binding import Api
from unicorn_async.gpu.device import Device
from unicorn_async.gpu.instance import Instance
from unicorn_async.gpu.timeline import Timeline
from unicorn_async.resources import resource_dir

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent / "benchmarks"))

from device_loss import LosingLibrary
from soak_process import LOSING, ServerProcess

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

PATIENT: dict[str, Any] = {"open_timeout": 120, "ping_timeout": 120}
FINAL = ("response.completed", "response.incomplete", "response.failed", "error")
REQUEST = {"type": "response.create", "input": "Tell me a story.", "temperature": 0, "max_output_tokens": 8}


@pytest.fixture
def losing() -> LosingLibrary:
    package = importlib.import_module("vulkan._vulkan")
    return LosingLibrary(package.lib, package.ffi)


@pytest.fixture
def opened(losing: LosingLibrary, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], Device]]:
    package = importlib.import_module("vulkan._vulkan")
    api = Api(SimpleNamespace(**vars(package) | {"lib": losing}))
    monkeypatch.setattr(instance_module, "load_api", lambda: api)
    with Instance.create() as instance:
        yield lambda: Device.open(instance, choose(instance), cache_dir=None, shader_dir=resource_dir("shaders"))


async def test_a_lost_device_fails_every_call_until_another_is_opened(
    losing: LosingLibrary, opened: Callable[[], Device], capsys: pytest.CaptureFixture[str]
) -> None:
    with opened() as device:
        device.compute.timeline.wait(device.compute.submit([]))
        timeline = Timeline(device, name="waiting")
        waiting = asyncio.create_task(timeline.reached(1))
        await asyncio.sleep(0)
        losing.lose()
        with pytest.raises(DeviceLostError, match="VK_ERROR_DEVICE_LOST"):
            device.compute.submit([])
        with pytest.raises(DeviceLostError, match="waiting: vk"):
            await waiting
        for call in (device.wait_idle, device.compute.timeline.completed, lambda: device.transfer.timeline.wait(0)):
            with pytest.raises(DeviceLostError):
                call()
    assert capsys.readouterr().out == "VkDevice destroyed, objects left: none\n"
    with opened() as device:
        device.compute.timeline.wait(device.compute.submit([]))
        device.wait_idle()


def test_what_is_left_of_a_device_is_told(opened: Callable[[], Device], capsys: pytest.CaptureFixture[str]) -> None:
    device = opened()
    api = device.api
    api.create("vkCreateSemaphore", "", "VkSemaphore", device.handle, api.struct("VkSemaphoreCreateInfo"), api.null)
    device.close()
    assert capsys.readouterr().out == "VkDevice destroyed, objects left: 1 Semaphore\n"


@asynccontextmanager
async def watched(server: ServerProcess) -> AsyncIterator[Callable[[str], Any]]:
    """Give a function that waits for a model's status, and returns all that came with an error before it."""
    async with connect(server.url.replace("http", "ws", 1) + "/v1/responses?events=unicorn", **PATIENT) as socket:

        async def until(status: str) -> list[str]:
            errors = []
            while (event := json.loads(await socket.recv())).get("status") != status:
                errors += [event["error"]] if isinstance(event.get("error"), str) else []
            return errors

        yield until


async def answered(server: ServerProcess) -> str:
    """Ask, and return the answer's text, or why there is none."""
    async with connect(server.url.replace("http", "ws", 1) + "/v1/responses", **PATIENT) as socket:
        await socket.send(json.dumps(REQUEST))
        while (event := json.loads(await socket.recv()))["type"] not in FINAL:
            pass
    ended = event.get("response", event)
    text: str = ended["error"]["message"] if ended.get("error") else ended["output"][0]["content"][0]["text"]
    return text


async def test_a_server_whose_device_is_lost_opens_it_again(device: Device) -> None:
    flags = ["--log-format=json", f"--device={device.info.index}"]
    async with ServerProcess.started(flags, LOSING) as server, watched(server) as until:
        await until("ready")
        before = await answered(server)
        server.lose_device()
        meanwhile = await answered(server)  # one that comes when the device is being opened again waits for that
        assert meanwhile == before or "the engine of 'unicorn-demo' has failed" in meanwhile
        causes = await until("ready")
        assert causes
        assert all("VK_ERROR_DEVICE_LOST" in cause and "vkDeviceWaitIdle" not in cause for cause in causes)
        assert await answered(server) == before
        assert await server.stop() == 0
    assert (server.num_lost, server.errors) == (1, [])
