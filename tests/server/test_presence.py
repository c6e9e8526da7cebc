"""Who waits over HTTP for a model that is not open yet: the wait ends with its client, and in time."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import httpx
import pytest

from tests.patience import PATIENCE_S
from tests.server.background import CHOSEN, NAME
from tests.server.conftest import Served, serving
from tests.server.fake_library import prepared
from tests.server.raw_connection import post, raw
from unicorn_async.server import ModelHost, ServerOptions

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.server.fake_library import FakeLibrary

CHAT: dict[str, object] = {"messages": [{"role": "user", "content": "Hi"}]}
WAITING: list[tuple[str, dict[str, object]]] = [
    ("/v1/chat/completions", CHAT),
    ("/v1/chat/completions", {**CHAT, "stream": True}),
    ("/v1/completions", {"prompt": "Hi"}),
    ("/v1/responses", {"input": "Hi"}),
    ("/v1/responses", {"input": "Hi", "stream": True}),
    ("/v1/responses/input_tokens", {"input": "Hi"}),
    ("/v1/responses/compact", {"input": "Hi"}),
    ("/v1/embeddings", {"input": "Hi"}),
    ("/tokenize", {"prompt": "Hi"}),
    ("/detokenize", {"tokens": [1]}),
    ("/apply-template", CHAT),
    ("/v1/models/load", {"model": "a", "wait": True}),
]


@pytest.fixture
async def opening(library: FakeLibrary) -> AsyncIterator[ModelHost]:
    """A host whose model is being opened until the test lets it go on."""
    library.hold_open["a"] = asyncio.Event()
    async with ModelHost(library) as host:
        host.begin(prepared("a"))
        yield host
        library.hold_open["a"].set()


async def refused(served: Served, *, wanted: bool) -> None:
    """Ask until a further request is refused, since another one is under way, or no longer."""
    async with httpx.AsyncClient(base_url=served.url) as client, asyncio.timeout(PATIENCE_S):
        while ((await client.get("/v1/models")).status_code == 429) is not wanted:
            pass


@pytest.mark.parametrize("half", [True, False])
async def test_a_request_that_waits_for_a_model_ends_with_its_client(opening: ModelHost, half: bool) -> None:
    async with serving(opening, ServerOptions(max_client_connections=1)) as served:
        for path, body in WAITING:
            async with raw(served) as (reader, writer):
                writer.write(post(path, body))
                await refused(served, wanted=True)
                if half:
                    writer.write_eof()
                    assert b'"half_closed"' in await reader.read(), path
                else:
                    writer.transport.abort()
                await refused(served, wanted=False)


async def test_an_answer_in_the_background_waits_for_its_model_without_its_client(
    opening: ModelHost, library: FakeLibrary
) -> None:
    options = ServerOptions(max_client_connections=1)
    async with serving(opening, options) as served, httpx.AsyncClient(base_url=served.url) as client:
        async with raw(served) as (_, writer):
            writer.write(post("/v1/responses", CHOSEN))
            await refused(served, wanted=True)
        await asyncio.sleep(0.05)
        await refused(served, wanted=True)
        library.hold_open["a"].set()
        await refused(served, wanted=False)
        answer = await client.get(f"/v1/responses/{NAME}")
        assert (answer.status_code, answer.json()["id"]) == (200, NAME)


async def test_a_request_waits_for_a_model_no_longer_than_for_a_place(opening: ModelHost) -> None:
    options = ServerOptions(queue_timeout_s=0.05)
    async with serving(opening, options) as served, httpx.AsyncClient(base_url=served.url) as client:
        answer = await client.post("/v1/chat/completions", json=CHAT)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "queue_timeout")
        assert "0.05 s" in answer.json()["error"]["message"]
        assert int(answer.headers["retry-after"]) >= 1
