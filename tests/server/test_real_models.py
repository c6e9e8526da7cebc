"""Switching between models on the device under test: right answers, and nothing left behind."""

from __future__ import annotations

import asyncio
import errno
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import httpx
import pytest

from tests.conftest import VALIDATION, choose
from tests.engine.checkpoint_files import write_model
from tests.engine.leftovers import no_leftovers
from tests.server.conftest import serving
from unicorn_async.checkpoint.catalog import ModelCatalog, given_entry
from unicorn_async.config import EngineConfig
from unicorn_async.engine.leftovers import Leftovers
from unicorn_async.engine.model_library import ModelLibrary
from unicorn_async.errors import EngineClosedError
from unicorn_async.gpu.device import Device
from unicorn_async.gpu.instance import Instance
from unicorn_async.server import ModelHost
from unicorn_async.server.model_state import ModelStatus
from unicorn_async.step.runner import Runner

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from unicorn_async.engine.engine import Engine
    from unicorn_async.scheduler.batch import Batch

CHAT = {"messages": [{"role": "user", "content": "What is 17 + 25?"}], "max_tokens": 8}


@dataclass(frozen=True, slots=True)
class Opened:
    """A host, every engine that it opened, and what was left on each device when that was closed: buffers and bytes."""

    host: ModelHost
    engines: list[Engine] = field(default_factory=list)
    left: list[tuple[int, int]] = field(default_factory=list)


@pytest.fixture
def messages() -> Iterator[list[str]]:
    """Gathers what the validation layers say."""
    found: list[str] = []
    yield found
    assert not found, "\n\n".join(found)


@pytest.fixture
async def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, messages: list[str]) -> AsyncIterator[Opened]:
    """A host that begins with the demo model, and may load a tiny one with random weights; with all engines opened."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    write_model("llama", "bfloat16", tmp_path / "models" / "tiny")
    with Instance.create() as instance:
        device = choose(instance)
    config = EngineConfig(device=str(device.index), max_context=256, max_num_seqs=4, validation=VALIDATION)
    engines: list[Engine] = []
    leftovers = Leftovers()
    library = ModelLibrary(
        ModelCatalog(given_entry("demo"), [tmp_path / "models"]), config, on_open=engines.append, leftovers=leftovers
    )
    with no_leftovers(monkeypatch):
        opened = Opened(ModelHost(library), engines)
        close = Device.close

        def counting_close(device: Device) -> None:
            device.memory.collect()
            opened.left.append((device.memory.num_buffers, sum(device.memory.used_bytes)))
            close(device)

        monkeypatch.setattr(Device, "close", counting_close)
        async with leftovers, opened.host:
            given = library.given()
            assert given is not None
            await opened.host.begin(given).opened()
            yield opened
    for engine in engines:
        messages += engine.validation_messages


async def ask(client: httpx.AsyncClient, model: str) -> str:
    response = await client.post("/v1/chat/completions", json={**CHAT, "model": model})
    assert response.status_code == 200, response.text
    body = response.json()
    assert body["model"] == model
    return str(body["choices"][0]["message"]["content"])


async def test_the_demo_and_a_random_model_in_turns(models: Opened) -> None:
    async with serving(models.host) as served, httpx.AsyncClient(base_url=served.url) as client:
        assert "42" in await ask(client, "unicorn-demo")
        first = None
        for name in ("tiny", "unicorn-demo", "tiny"):
            loaded = await client.post("/v1/models/load", json={"model": name, "wait": True})
            assert (loaded.status_code, loaded.json()["status"]) == (200, "ready"), loaded.text
            answer = await ask(client, name)
            if name == "unicorn-demo":
                assert "42" in answer
            else:
                assert answer == (first := first or answer)
            listed = (await client.get("/v1/models")).json()["data"]
            assert {model["id"]: model["loaded"] for model in listed} == {
                "unicorn-demo": name == "unicorn-demo",
                "tiny": name == "tiny",
            }
        quantised = {"model": "tiny", "weights": "int8", "max_context": 128, "wait": True}
        assert (await client.post("/v1/models/load", json=quantised)).json()["status"] == "ready"
        assert (await client.get("/health")).json()["max_context"] == 128
        too_long = await client.post("/v1/models/load", json={"model": "tiny", "max_context": 1 << 30})
        assert too_long.status_code == 400
        assert len(await ask(client, "tiny")) > 0
    assert [engine.model_name for engine in models.engines] == ["unicorn-demo", "tiny", "unicorn-demo", "tiny", "tiny"]


async def test_an_unload_frees_every_buffer(models: Opened) -> None:
    async with serving(models.host) as served, httpx.AsyncClient(base_url=served.url) as client:
        streaming = asyncio.create_task(
            client.post("/v1/chat/completions", json={**CHAT, "max_tokens": 200, "stream": True})
        )
        await ask(client, "unicorn-demo")
        done = await client.post("/v1/models/unload", json={"wait": True})
        assert done.json()["status"] == "empty"
        await streaming
        assert models.left == [(0, 0)]
        empty = (await client.get("/health")).json()
        assert empty["status"] == "empty"
        assert "device" not in empty
        await client.post("/v1/models/load", json={"model": "demo", "wait": True})
        assert "42" in await ask(client, "unicorn-demo")
    assert models.engines[0].memory.heaps  # of when it was closed
    with pytest.raises(EngineClosedError):
        await models.engines[0].logits([1])


async def test_loads_and_unloads_in_a_hurry_leave_the_last_one(models: Opened) -> None:
    async with serving(models.host) as served, httpx.AsyncClient(base_url=served.url) as client:
        for turn in range(12):
            path, body = ("load", {"model": ("tiny", "demo")[turn % 2]}) if turn % 3 else ("unload", {})
            assert (await client.post(f"/v1/models/{path}", json=body)).status_code in (200, 202)
            for _ in range(turn * 20):
                await asyncio.sleep(0)
        assert (await client.post("/v1/models/load", json={"model": "tiny", "wait": True})).status_code == 200
        assert len(await ask(client, "tiny")) > 0


async def test_an_engine_that_fails_while_it_serves_is_opened_again_and_answers(
    models: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit, steps_left = Runner.submit, 4

    async def failing_submit(runner: Runner, batch: Batch) -> object:
        nonlocal steps_left
        steps_left -= 1
        if steps_left == 0:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return await submit(runner, batch)

    async with serving(models.host) as served, httpx.AsyncClient(base_url=served.url) as client:
        assert "42" in await ask(client, "unicorn-demo")
        monkeypatch.setattr(Runner, "submit", failing_submit)
        broken = await client.post("/v1/chat/completions", json=CHAT)
        assert broken.status_code == 503, broken.text
        assert broken.json()["error"]["code"] == "engine_failed"
        async for state in models.host.watch():
            if state.status is ModelStatus.READY:
                break
        assert "42" in await ask(client, "unicorn-demo")
    assert len(models.engines) == 2
