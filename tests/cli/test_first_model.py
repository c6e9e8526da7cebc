"""`unicorn serve MODEL` while its model is opened and loaded, on the device under test."""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import threading
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from tests.cli.command import SOFTWARE_DRIVERS, software_only, unicorn
from tests.conftest import choose
from tests.engine.checkpoint_files import write_model
from tests.engine.leftovers import no_leftovers
from tests.engine.loading_gate import HELD_FROM, LoadingGate
from unicorn_async.cli import serving
from unicorn_async.cli.server_options import add_server_options
from unicorn_async.config import EngineConfig
from unicorn_async.engine import runner
from unicorn_async.errors import UnicornError
from unicorn_async.gpu.instance import Instance
from unicorn_async.server.listener import address_of, bind

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

CHAT = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}


@pytest.fixture(autouse=True)
def nothing_left(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    with no_leftovers(monkeypatch):
        yield


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_model("gemma3", "bfloat16", tmp_path / "tiny")


@asynccontextmanager
async def command(model: Path, *arguments: str) -> AsyncIterator[tuple[asyncio.Task[int], httpx.AsyncClient]]:
    """Run the command in this loop; gives its task, and a client that may connect at once."""
    parser = argparse.ArgumentParser()
    add_server_options(parser)
    options = parser.parse_args([*arguments], argparse.Namespace(model=str(model), model_name=None))
    with Instance.create() as instance:
        device = choose(instance)
    config = EngineConfig(device=str(device.index), max_context=64, max_num_seqs=2)
    with bind("127.0.0.1", 0) as listener:
        task = asyncio.create_task(serving.serve_models(options, config, listener))
        try:
            async with httpx.AsyncClient(base_url=address_of(listener)) as client:
                yield task, client
        finally:
            task.cancel()
            await asyncio.wait([task])


async def status(client: httpx.AsyncClient, wanted: str) -> dict[str, Any]:
    """Ask for the health until it is this; return it."""
    while (health := (await client.get("/health")).json())["status"] != wanted:
        pass
    return dict(health)


async def test_a_file_that_is_truncated_while_it_loads_leaves_a_server_that_loads_it_once_it_is_mended(
    model: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sound = shutil.copyfile(model / "model.safetensors", tmp_path / "sound")
    with monkeypatch.context() as held:
        gate = LoadingGate(held, HELD_FROM)
        async with command(model) as (task, client):
            await status(client, "loading")
            early = asyncio.create_task(client.post("/v1/chat/completions", json=CHAT))
            os.truncate(model / "model.safetensors", HELD_FROM)
            gate.open()
            health = await status(client, "error")
            assert "model.safetensors: truncated" in health["error"]
            assert "device" not in health
            assert (await client.get("/health")).status_code == 503
            for refused in (await early, await client.post("/v1/chat/completions", json=CHAT)):
                assert (refused.status_code, refused.json()["error"]["code"]) == (503, "model_load_failed")
                assert "'tiny' could not be loaded" in refused.json()["error"]["message"]
                assert "model.safetensors: truncated" in refused.json()["error"]["message"]
            again = await client.post("/v1/models/load", json={"model": "tiny", "wait": True})
            assert (again.status_code, again.json()["error"]["code"]) == (400, "model_unusable")
            shutil.copyfile(sound, model / "model.safetensors")
            again = await client.post("/v1/models/load", json={"model": "tiny", "wait": True})
            assert (again.status_code, again.json()["status"]) == (200, "ready")
            assert (await client.post("/v1/chat/completions", json=CHAT)).status_code == 200
            assert not task.done()
    assert "failed   tiny: " in capsys.readouterr().err


async def test_a_server_that_keeps_a_model_that_can_not_be_loaded_ends_and_says_why(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as held:
        gate = LoadingGate(held, HELD_FROM)
        async with command(model, "--keep-model") as (task, client):
            await status(client, "loading")
            os.truncate(model / "model.safetensors", HELD_FROM)
            gate.open()
            with pytest.raises(UnicornError, match=r"tiny could not be loaded: .*truncated.*\n.*start it again"):
                await task


async def test_health_page_and_list_are_there_while_the_model_is_opened_and_requests_wait(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    go_on, name_memory = threading.Event(), runner._name_memory

    def held(*arguments: Any) -> Any:
        go_on.wait()
        return name_memory(*arguments)

    monkeypatch.setattr(runner, "_name_memory", held)
    try:
        async with command(model) as (task, client):
            response = await client.get("/health")
            health = response.json()
            assert (response.status_code, health["status"], health["model"]) == (200, "opening", "tiny")
            assert "load" not in health
            assert (await client.get("/")).status_code == 200
            assert (await client.get("/v1/models")).json()["data"][0]["status"] == "opening"
            assert "address  http" in capsys.readouterr().err
            waiting = asyncio.create_task(client.post("/v1/chat/completions", json=CHAT))
            assert (await client.get("/health")).json()["status"] == "opening"
            assert not waiting.done()
            go_on.set()
            assert (await waiting).status_code == 200
            assert not task.done()
    finally:
        go_on.set()


async def test_a_model_that_can_not_be_opened_ends_the_command_while_requests_wait(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()

    def failing(*arguments: Any) -> Any:
        go_on.wait()
        raise UnicornError("no room after all")

    monkeypatch.setattr(runner, "_name_memory", failing)
    try:
        async with command(model) as (task, client):
            waiting = asyncio.create_task(client.post("/v1/chat/completions", json=CHAT))
            assert (await client.get("/health")).json()["status"] == "opening"
            go_on.set()
            with pytest.raises(UnicornError, match="no room after all"):
                await task
            assert (await waiting).status_code == 503
    finally:
        go_on.set()


@pytest.mark.skipif(not SOFTWARE_DRIVERS, reason="Mesa's software Vulkan driver is not installed")
@pytest.mark.parametrize(
    ("arguments", "message"), [((), "model.safetensors"), (("--vram", "1M", "--max-context", "64"), "are missing")]
)
def test_what_can_be_known_before_the_load_ends_the_command_with_an_error(
    model: Path, arguments: tuple[str, ...], message: str
) -> None:
    if not arguments:
        os.truncate(model / "model.safetensors", 100)
    result = unicorn("serve", str(model), "--device", "llvmpipe", "--port", "0", *arguments, environ=software_only())
    assert result.status == 1
    assert message in result.stderr.splitlines()[-1]
    assert "Traceback" not in result.stderr
