"""Who goes leaves nothing behind that only the garbage collector would find: a quiet server runs it once in hours."""

from __future__ import annotations

import asyncio
import gc
import json
from typing import TYPE_CHECKING

import pytest

from tests.server.conftest import serving
from tests.server.fake_engine import FakeEngine
from tests.server.ws_client import connected
from unicorn_async.server import ModelHost, ServerOptions

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("kind", ["websocket", "stream", "whole", "chat"])
@pytest.mark.parametrize("ends", ["in order", "amid the answer"])
async def test_an_answer_is_gone_with_its_client(kind: str, ends: str) -> None:
    engine = FakeEngine()
    if ends == "amid the answer":
        engine.hold[2] = asyncio.Event()
    async with ModelHost.around(engine) as host, serving(host, ServerOptions()) as served:
        if kind == "websocket":
            async with connected(served.ws_url) as socket:
                await socket.create()
                await (socket.answer() if ends == "in order" else socket.until("response.output_text.delta"))
        else:
            path = "/v1/chat/completions" if kind == "chat" else "/v1/responses"
            fields: dict[str, object] = {"messages": [{"role": "user", "content": "Hi"}]} if kind == "chat" else {}
            body = json.dumps(fields or {"input": "Hi", "stream": kind == "stream"}).encode()
            address, port = served.url.removeprefix("http://").split(":")
            reader, writer = await asyncio.open_connection(address, int(port))
            head = f"POST {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {len(body)}\r\n\r\n"
            writer.write(head.encode() + body)
            if ends == "in order":
                await reader.read()
            else:
                await engine.called.wait()
            writer.transport.abort()
        await engine.calls[0].closed.wait()
        model = host.state.model
        assert model is not None
        for _ in range(4_000):
            if not len(model._generations):
                break
            await asyncio.sleep(0.005)
        assert len(model._generations) == 0
