"""`unicorn serve --pull`: a model that is loaded, and answers, while it comes from a local server like the hub."""

from __future__ import annotations

import argparse
import asyncio
import threading
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import httpx
import huggingface_hub.constants
import pytest

from tests.conftest import choose
from tests.engine.checkpoint_files import write_model
from tests.engine.leftovers import no_leftovers
from tests.hub.hub_server import HubServer
from unicorn_async.checkpoint.location import find_model
from unicorn_async.cli import serving
from unicorn_async.cli.pull import Teller, hub_name
from unicorn_async.cli.server_options import add_server_options
from unicorn_async.config import EngineConfig
from unicorn_async.errors import DownloadError
from unicorn_async.gpu.instance import Instance
from unicorn_async.hub import large_file, pending, received, repository, stream
from unicorn_async.hub.cached import is_cached
from unicorn_async.hub.download import pull
from unicorn_async.server.listener import address_of, bind
from unicorn_async.tokenizer.kept_folder import KeptFolder

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from unicorn_async.hub.needed import RepoFile

CHAT = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}
FILE = "model.safetensors"
HELD_FROM = 100_000  # bytes


class Held:
    """Holds what comes of a file behind its first bytes, until it is let `go_on`."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.go_on, self.is_held = threading.Event(), threading.Event()
        write = received.Received.write

        def held(one: received.Received, data: bytes) -> None:
            if one.tell() >= HELD_FROM:
                self.is_held.set()
                self.go_on.wait(600)
            write(one, data)

        patch.setattr(received.Received, "write", held)


@pytest.fixture(autouse=True)
def nothing_left(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setattr(huggingface_hub.constants, "HF_TOKEN_PATH", str(tmp_path / "no token"))
    monkeypatch.setattr(large_file, "SMALLEST", 100_000)
    monkeypatch.setattr(stream, "_END_S", 0.01)
    monkeypatch.setattr(pending, "_END_S", 0.01)
    with no_leftovers(monkeypatch):
        yield


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[Held]:
    found = Held(monkeypatch)
    yield found
    found.go_on.set()


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    model = write_model("gemma3", "bfloat16", tmp_path / "made")
    with HubServer({"org/tiny": {path.name: path.read_bytes() for path in model.iterdir()}}) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.endpoint)
        yield server


@asynccontextmanager
async def command(*arguments: str) -> AsyncIterator[tuple[asyncio.Task[int], httpx.AsyncClient]]:
    """Run the command in this loop."""
    parser = argparse.ArgumentParser()
    add_server_options(parser)
    options = parser.parse_args(arguments, argparse.Namespace(model="org/tiny", model_name=None))
    with Instance.create() as instance:
        device = choose(instance)
    config = EngineConfig(device=str(device.index), max_context=64, max_num_seqs=2)
    with bind("127.0.0.1", 0) as listener:
        task = asyncio.create_task(serving.serve_models(options, config, listener, None, hub_name("org/tiny")))
        try:
            async with httpx.AsyncClient(base_url=address_of(listener)) as client:
                yield task, client
        finally:
            task.cancel()
            await asyncio.wait([task])


def parts_in(folder: Path) -> list[Path]:
    return list(folder.glob("hub/models--org--tiny/blobs/*incomplete"))


async def no_download() -> None:
    """Wait until nothing is brought any more."""
    for thread in threading.enumerate():
        if thread.name == "unicorn-download":
            await asyncio.to_thread(thread.join, 120)


async def status(client: httpx.AsyncClient, wanted: str) -> dict[str, Any]:
    """Ask for the health until it is this; return it."""
    async with asyncio.timeout(120):
        while (health := (await client.get("/health")).json())["status"] != wanted:
            pass
    return dict(health)


async def test_a_question_is_answered_when_the_model_has_come_which_is_then_in_the_cache(
    hub: HubServer, held: Held, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "hub" / "models--org--tiny"
    looked_for: list[Path] = []
    (folder / "snapshots" / "older").mkdir(parents=True)  # whose weights are gone
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("older")
    monkeypatch.setattr(KeptFolder, "file_for", lambda _, model: looked_for.append(model))
    async with command() as (task, client):
        assert await asyncio.to_thread(held.is_held.wait, 120)
        load = (await status(client, "loading"))["load"]
        nbytes = len(hub.repos["org/tiny"][FILE])
        assert load["bytes_to_download"] == nbytes and HELD_FROM <= load["bytes_downloaded"] < nbytes
        waiting = asyncio.create_task(client.post("/v1/chat/completions", json=CHAT))
        assert not is_cached(hub_name("org/tiny"))
        await status(client, "loading")
        assert not waiting.done()
        held.go_on.set()
        answer = await waiting
        assert answer.status_code == 200, answer.text
        assert answer.json()["usage"]["completion_tokens"] > 0
        assert (find_model("org/tiny") / FILE).read_bytes() == hub.repos["org/tiny"][FILE]
        load = (await status(client, "ready"))["load"]
        assert load["bytes_downloaded"] == load["bytes_to_download"] == nbytes
        assert not task.done()
        assert looked_for == [find_model("org/tiny")], "an older revision's tokenizer is another one"


async def test_the_server_is_there_before_the_hub_has_answered(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    answers, fetch = threading.Event(), repository.Repository._fetch

    def held_fetch(one: repository.Repository, revision: str, file: RepoFile) -> None:
        assert file.name != "tokenizer.json" or answers.wait(120)
        fetch(one, revision, file)

    monkeypatch.setattr(repository.Repository, "_fetch", held_fetch)
    async with command() as (task, client):
        health = await status(client, "opening")
        while health["waits_for"] != "download" or not health["load"]["bytes_downloaded"]:
            health = await status(client, "opening")
        assert health["load"]["bytes_downloaded"] < health["load"]["bytes_to_download"]
        assert (await client.get("/ready")).status_code == 503
        assert (await client.get("/v1/models")).json()["data"][0]["id"] == "org/tiny"
        assert (await client.post("/v1/models/unload", json={"wait": True})).status_code == 200
        again = await client.post("/v1/models/load", json={"model": "org/tiny"})
        assert (again.status_code, again.json()["status"]) == (202, "opening"), again.text
        waiting = asyncio.create_task(client.post("/v1/chat/completions", json=CHAT))
        await status(client, "opening")
        assert not waiting.done()
        answers.set()
        assert (await waiting).status_code == 200
        assert not task.done()


async def test_a_server_that_ends_waits_for_no_answer_of_the_hub(
    hub: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, answers = threading.Event(), threading.Event()

    def held_files(one: repository.Repository) -> None:
        asked.set()
        answers.wait(120)
        raise DownloadError("too late")

    monkeypatch.setattr(repository.Repository, "files", held_files)
    async with command() as (task, client):
        assert await asyncio.to_thread(asked.wait, 120)
        waiting = asyncio.create_task(client.post("/v1/chat/completions", json=CHAT))
        await status(client, "opening")
        task.cancel()
        await asyncio.wait([task])
        assert not answers.is_set()
        await asyncio.wait([waiting])
    answers.set()


async def test_what_the_hub_refuses_ends_the_command(hub: HubServer) -> None:
    hub.gated = True
    with pytest.raises(DownloadError, match="org/tiny"):
        async with command() as (task, _):
            await task


async def test_bytes_that_are_not_as_listed_are_no_model_and_no_file_and_a_later_load_brings_others(
    hub: HubServer, held: Held, tmp_path: Path
) -> None:
    content = hub.repos["org/tiny"][FILE]
    hub.sent[FILE] = content[:-2] + bytes(2)
    async with command() as (_, client):
        await status(client, "loading")
        early = asyncio.create_task(client.post("/v1/chat/completions", json=CHAT))
        held.go_on.set()
        assert (await early).status_code == 503
        refused = await client.post("/v1/chat/completions", json=CHAT)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "model_load_failed")
        assert "model.safetensors: expected sha256" in refused.json()["error"]["message"]
        await no_download()
        assert not parts_in(tmp_path) and not is_cached(hub_name("org/tiny"))
        del hub.sent[FILE]
        while (again := await client.post("/v1/models/load", json={"model": "org/tiny"})).is_error:
            assert (again.status_code, again.json()["error"]["code"]) == (400, "model_unusable")
            assert "its download has only begun" in again.json()["error"]["message"]
        assert (await client.post("/v1/chat/completions", json=CHAT)).status_code == 200


async def test_a_server_that_ends_leaves_a_part_from_which_the_next_one_goes_on(
    hub: HubServer, held: Held, tmp_path: Path
) -> None:
    async with command() as (task, client):
        await status(client, "loading")
        assert await asyncio.to_thread(held.is_held.wait, 120)
        task.cancel()
        await asyncio.wait([task])
    held.go_on.set()
    await no_download()
    (part,) = parts_in(tmp_path)
    part_bytes = part.stat().st_size
    assert part_bytes >= HELD_FROM
    hub.asked.clear()
    await asyncio.to_thread(pull, hub_name("org/tiny"), Teller())
    spans = [span for method, path, span in hub.asked if method == "GET" and path.endswith(FILE)]
    assert spans == [f"bytes={part_bytes}-"] and is_cached(hub_name("org/tiny"))
