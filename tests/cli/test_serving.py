from __future__ import annotations

import argparse
import asyncio
import io
import os
import signal
from typing import TYPE_CHECKING

import httpx
import pytest

from tests.cli.command import RUN, SOFTWARE_DRIVERS, software_only
from tests.cli.conftest import Demo
from tests.engine.checkpoint_files import write_model
from tests.server.fake_library import FakeLibrary, prepared
from unicorn_async.cli import progress as cli_progress
from unicorn_async.cli import serving as cli_serving
from unicorn_async.cli.progress import ProgressLine
from unicorn_async.cli.server_options import add_server_options
from unicorn_async.cli.serving import model_catalog, warn_of_visible_key, while_showing_loads
from unicorn_async.errors import CheckpointError, ConfigError, EngineClosedError, OutOfMemoryError, UnicornError
from unicorn_async.server import ModelHost
from unicorn_async.server.model_state import ModelStatus

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


class Server:
    """Serves until it is told to end."""

    def __init__(self) -> None:
        self.end = asyncio.Event()
        self.ended_in_order = False

    async def serve(self) -> None:
        try:
            await self.end.wait()
        finally:
            self.ended_in_order = True


@pytest.fixture
def library() -> FakeLibrary:
    made = FakeLibrary()
    made.hold_load.add("a")
    return made


@pytest.fixture
async def models(library: FakeLibrary) -> AsyncIterator[ModelHost]:
    async with ModelHost(library) as host:
        yield host


async def until(models: ModelHost, status: ModelStatus) -> None:
    async for state in models.watch():
        if state.status is status:
            return


async def test_a_first_load_that_fails_is_told_and_the_server_goes_on(models: ModelHost, library: FakeLibrary) -> None:
    server, printed, first = Server(), io.StringIO(), models.begin(prepared("a"))
    serving = asyncio.create_task(while_showing_loads(models, first, ProgressLine(printed), server.serve()))
    await first.opened()
    await library.engines[0].fail_load(CheckpointError("a: /srv/a/model.safetensors: ends too early"))
    await until(models, ModelStatus.FAILED)
    await asyncio.sleep(0)
    await models.begin(prepared("b")).done()
    assert not serving.done()
    assert "failed   a: /srv/a/model.safetensors: ends too early" in printed.getvalue()  # its name once
    server.end.set()
    await serving


async def test_python_is_settled_once_a_model_is_loaded_and_looks_at_all_again_once_that_is_gone(
    models: ModelHost, library: FakeLibrary, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: asyncio.Queue[str] = asyncio.Queue()
    for module in (cli_progress, cli_serving):
        monkeypatch.setattr(module, "settle_interpreter", lambda: calls.put_nowait("settle"))
    monkeypatch.setattr(cli_serving, "release_start", lambda: calls.put_nowait("release"))
    server, printed, first = Server(), io.StringIO(), models.begin(prepared("b"))
    serving = asyncio.create_task(while_showing_loads(models, first, ProgressLine(printed), server.serve()))
    async with asyncio.timeout(120):
        assert await calls.get() == "settle"
        await first.done()
        await models.begin(None).done()
        assert {await calls.get(), await calls.get()} == {"release", "settle"}
    assert calls.empty()
    server.end.set()
    await serving


async def test_a_first_load_that_fails_as_soon_as_the_model_is_open_does_not_end_the_server(
    models: ModelHost, library: FakeLibrary
) -> None:
    server, first = Server(), models.begin(prepared("a"))
    await first.opened()
    await library.engines[0].fail_load(CheckpointError("model.safetensors: ends too early"))
    await until(models, ModelStatus.FAILED)
    serving = asyncio.create_task(while_showing_loads(models, first, ProgressLine(io.StringIO()), server.serve()))
    await asyncio.sleep(0)
    server.end.set()
    await serving


async def test_a_server_that_keeps_its_model_ends_when_that_can_not_be_loaded(library: FakeLibrary) -> None:
    async with ModelHost(library, can_switch=False) as models:
        server, first = Server(), models.begin(prepared("a"))
        serving = asyncio.create_task(while_showing_loads(models, first, ProgressLine(io.StringIO()), server.serve()))
        await first.opened()
        await library.engines[0].fail_load(CheckpointError("ends too early"))
        with pytest.raises(
            UnicornError, match=r"a could not be loaded: ends too early\n.*--keep-model.*start it again"
        ):
            await serving
        assert server.ended_in_order


async def test_a_first_model_that_can_not_be_opened_ends_the_server_with_its_error(
    models: ModelHost, library: FakeLibrary
) -> None:
    library.hold_open["a"] = asyncio.Event()
    library.fail_open["a"] = OutOfMemoryError("2 GiB needed")
    server, printed = Server(), io.StringIO()
    first = models.begin(prepared("a"))
    serving = asyncio.create_task(while_showing_loads(models, first, ProgressLine(printed), server.serve()))
    await library.opening.wait()
    library.hold_open["a"].set()
    with pytest.raises(OutOfMemoryError, match="2 GiB needed"):
        await serving
    assert server.ended_in_order
    assert "failed" not in printed.getvalue()  # the command says it


async def test_a_server_that_ends_while_the_model_is_opened_ends_the_command(
    models: ModelHost, library: FakeLibrary
) -> None:
    library.hold_open["a"] = asyncio.Event()
    server = Server()
    first = models.begin(prepared("a"))
    serving = asyncio.create_task(while_showing_loads(models, first, ProgressLine(io.StringIO()), server.serve()))
    await library.opening.wait()
    await models.stop(EngineClosedError("the server is shutting down"))
    server.end.set()
    await serving
    assert server.ended_in_order


async def test_another_model_that_is_asked_for_while_the_first_is_opened_takes_its_place(
    models: ModelHost, library: FakeLibrary
) -> None:
    library.hold_open["a"] = asyncio.Event()
    server, line, left = Server(), ProgressLine(io.StringIO()), list[str]()
    first = models.begin(prepared("a"))
    serving = asyncio.create_task(
        while_showing_loads(models, first, line, server.serve(), lambda: left.append("whoever waited for it"))
    )
    await library.opening.wait()
    assert not left
    await models.begin(prepared("b")).done()
    assert not serving.done() and left == ["whoever waited for it"]
    server.end.set()
    await serving


async def test_a_later_load_that_fails_is_told_and_the_server_goes_on(models: ModelHost, library: FakeLibrary) -> None:
    library.fail_open["c"] = OutOfMemoryError("2 GiB needed")
    server, printed, first = Server(), io.StringIO(), models.begin(prepared("a"))
    await first.opened()
    serving = asyncio.create_task(while_showing_loads(models, first, ProgressLine(printed), server.serve()))
    await asyncio.sleep(0)
    await models.begin(prepared("b")).done()  # in the place of the first load
    models.begin(prepared("c"))
    await until(models, ModelStatus.FAILED)
    await asyncio.sleep(0)
    await models.unload().done()
    await asyncio.sleep(0)
    assert not serving.done()
    assert "failed   c: 2 GiB needed" in printed.getvalue()
    assert "unloaded" in printed.getvalue()
    server.end.set()
    await serving


async def test_a_server_that_ends_while_the_model_loads_ends_the_command(models: ModelHost) -> None:
    server, first = Server(), models.begin(prepared("a"))
    await first.opened()
    serving = asyncio.create_task(while_showing_loads(models, first, ProgressLine(io.StringIO()), server.serve()))
    await asyncio.sleep(0)
    await models.stop(EngineClosedError("the server is shutting down"))
    server.end.set()
    await serving
    assert server.ended_in_order


async def test_a_server_that_cannot_start_ends_the_command_with_its_error(models: ModelHost) -> None:
    async def refuse() -> None:
        raise ConfigError("can't listen on port 80")

    with pytest.raises(ConfigError, match="port 80"):
        await while_showing_loads(models, None, ProgressLine(io.StringIO()), refuse())


def parsed(*arguments: str, model: str | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_server_options(parser)
    return parser.parse_args(arguments, argparse.Namespace(model=model, model_name=None))


@pytest.mark.parametrize(
    ("arguments", "is_told"),
    [(["--api-key", "sesame"], True), (["--api-key=sesame"], True), (["--api-key-file", "sesame.txt"], False)],
)
def test_a_key_that_the_list_of_processes_shows_is_told_of(
    arguments: list[str], is_told: bool, caplog: pytest.LogCaptureFixture
) -> None:
    warn_of_visible_key("sesame", arguments)
    assert ("UNICORN_API_KEY or --api-key-file" in caplog.text) is is_told
    assert "sesame" not in caplog.text


def test_a_server_without_a_model_has_to_have_folders_of_models(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--models-dir"):
        model_catalog(parsed())
    with pytest.raises(ConfigError, match="--keep-model"):
        model_catalog(parsed("--keep-model", "--models-dir", str(tmp_path)))
    with pytest.raises(ConfigError, match="nowhere: no such directory"):
        model_catalog(parsed("--models-dir", str(tmp_path / "nowhere")))
    assert model_catalog(parsed("--models-dir", str(tmp_path))).given is None
    given = model_catalog(parsed(model="demo")).given
    assert given is not None
    assert given.name == "unicorn-demo"


@pytest.mark.usefixtures("ctrl_c")
@pytest.mark.skipif(not SOFTWARE_DRIVERS, reason="Mesa's software Vulkan driver is not installed")
async def test_a_server_that_begins_empty_loads_what_a_client_names_and_ends_in_order(tmp_path: Path) -> None:
    write_model("llama", "bfloat16", tmp_path / "models" / "tiny")
    process = await asyncio.create_subprocess_exec(
        *RUN,
        *("serve", "--models-dir", str(tmp_path / "models"), "--device", "llvmpipe", "--port", "0"),
        env={**os.environ, **software_only(), "XDG_CACHE_HOME": str(tmp_path), "HF_HOME": str(tmp_path)},
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        server = Demo(process)
        async with httpx.AsyncClient(base_url=await server.address()) as client:
            assert (await client.post("/v1/responses", json={"input": "Hi"})).json()["error"]["code"] == "no_model"
            listed = (await client.get("/v1/models")).json()["data"]
            assert [model["id"] for model in listed] == ["unicorn-demo", "tiny"]
            for name in ("tiny", "unicorn-demo"):
                loaded = await client.post("/v1/models/load", json={"model": name, "wait": True})
                state = {"model": name, "weights": "auto", "status": "ready", "error": None}
                assert loaded.json() == {"object": "model.state", **state}
                answer = await client.post("/v1/responses", json={"input": "Hi", "max_output_tokens": 3})
                assert answer.json()["model"] == name
            assert (await client.post("/v1/models/load", json={"model": str(tmp_path)})).status_code == 404
        process.send_signal(signal.SIGINT)
        _, rest = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()
    printed = server.printed + rest.decode()
    assert process.returncode == 0
    assert "model    none yet" in printed
    assert "model    tiny: LlamaForCausalLM" in printed
    assert "model    unicorn-demo: Gemma3ForCausalLM" in printed
    assert "Traceback" not in printed
