"""What one client may hold, so that others get their share."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import httpx
import pytest

from tests.server.fake_engine import words
from tests.server.ws_client import connected, text_of
from unicorn_async.server import ServerOptions
from unicorn_async.server.keys import ApiKey
from unicorn_async.server.ledger import Ledger
from unicorn_async.server.protocol.errors import ApiError
from unicorn_async.server.store import ResponseStore, StoredResponse
from unicorn_async.tokenizer import ChatMessage

if TYPE_CHECKING:
    from tests.server.conftest import ServeWith
    from tests.server.fake_engine import FakeEngine

KEYS = (ApiKey("anna", "a"), ApiKey("ben", "b"), ApiKey("tiny", "t", max_requests=1))
CHAT = {"messages": [{"role": "user", "content": "Hi"}]}


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


async def under_way(engine: FakeEngine, number: int) -> None:
    """Wait until the engine has so many requests."""
    while len(engine.calls) < number:
        engine.called.clear()
        await engine.called.wait()


def test_a_ledger_counts_and_refuses_with_the_figures() -> None:
    ledger = Ledger(10, what="things", code="too_many_things")
    first = ledger.claim("anna", 8)
    with pytest.raises(ApiError, match="things: anna has 8 of at most 10, and asks for 3 more") as caught:
        ledger.claim("anna", 3)
    assert (caught.value.status, caught.value.code) == (429, "too_many_things")
    ledger.claim("ben", 10)
    with pytest.raises(ApiError):
        first.add(3)
    first.release()
    first.release()
    assert ledger.held == {"ben": 10}
    with pytest.raises(ApiError):
        ledger.claim("anna", 3, limit=2)
    each = ledger.claim_each("anna", 6)
    with pytest.raises(ApiError, match="anna has 6 of at most 10, and asks for 5 more"):
        ledger.claim_each("anna", 5)
    assert ledger.held == {"anna": 6, "ben": 10}
    for lease in each:
        lease.release()
    assert ledger.held == {"ben": 10}


def test_all_clients_together_hold_so_much() -> None:
    ledger = Ledger(10, what="things", code="too_many_things", total=12)
    first = ledger.claim("anna", 10)
    second = ledger.claim("ben", 2)
    with pytest.raises(ApiError, match="things: there are 12 of at most 12, and 1 more are asked for") as caught:
        second.add(1)
    assert (caught.value.status, caught.value.code) == (503, "too_many_things")
    first.release()
    second.add(8)
    assert ledger.held == {"ben": 10}


async def test_one_client_has_so_many_requests_and_others_go_on(serve_with: ServeWith, engine: FakeEngine) -> None:
    engine.hold[0] = asyncio.Event()
    options = ServerOptions(api_keys=KEYS, max_client_requests=2)
    async with serve_with(options) as served, httpx.AsyncClient(base_url=served.url) as client:

        async def ask(key: str) -> tuple[int, str]:
            response = await client.post("/v1/chat/completions", json=CHAT, headers=bearer(key))
            return response.status_code, (response.json().get("error") or {}).get("code", "")

        held = [asyncio.create_task(ask("a")) for _ in range(2)]
        await under_way(engine, 2)
        assert await ask("a") == (429, "too_many_requests")
        async with connected(served.ws_url, additional_headers=bearer("a")) as socket:
            await socket.create()
            error = (await socket.answer())[-1]
            assert (error["status"], error["error"]["code"]) == (429, "too_many_requests")
        for number, key in ((3, "b"), (4, "t")):
            held.append(asyncio.create_task(ask(key)))
            await under_way(engine, number)
        assert await ask("t") == (429, "too_many_requests")  # its own limit
        assert [call.client for call in engine.calls] == ["anna", "anna", "ben", "tiny"]
        engine.hold[0].set()
        assert await asyncio.gather(*held) == [(200, "")] * 4
        assert await ask("a") == (200, "")


@pytest.mark.parametrize("max_tokens", [0, 3])
async def test_of_two_requests_for_many_answers_one_gets_its_places(
    serve_with: ServeWith, engine: FakeEngine, max_tokens: int
) -> None:
    options = ServerOptions(max_client_requests=5)
    async with serve_with(options) as served, httpx.AsyncClient(base_url=served.url) as client:
        body = {"prompt": "Hi", "n": 3, "max_tokens": max_tokens, "echo": True}
        refused = await client.post("/v1/completions", json=body | {"n": 6})
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "too_many_requests")
        assert "has 0 of at most 5, and asks for 6 more" in refused.json()["error"]["message"]
        assert engine.calls == []
        if max_tokens:
            engine.hold[0] = asyncio.Event()
            held = asyncio.create_task(client.post("/v1/completions", json=body))
            await under_way(engine, 3)
            assert (await client.post("/v1/completions", json=body)).status_code == 429
            assert len(engine.calls) == 3
            engine.hold[0].set()
            assert (await held).status_code == 200
        for _ in range(3):
            assert (await client.post("/v1/completions", json=body)).status_code == 200


async def test_a_request_that_gets_no_place_in_time_is_told_so(
    serve_with: ServeWith, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.hold[0] = asyncio.Event()
    options = ServerOptions(queue_timeout_s=0.05)
    monkeypatch.setattr(engine, "is_waiting", lambda _: True)
    async with serve_with(options) as served, connected(served.ws_url) as socket:
        await socket.create()
        async with asyncio.timeout(120):
            failed = (await socket.answer())[-1]
        assert failed["type"] == "response.failed"
        assert "0.05 s" in failed["response"]["error"]["message"]
        await engine.calls[0].closed.wait()


async def test_a_request_that_has_a_place_waits_on(serve_with: ServeWith, engine: FakeEngine) -> None:
    engine.hold[0] = asyncio.Event()
    async with serve_with(ServerOptions(queue_timeout_s=0.02)) as served, connected(served.ws_url) as socket:
        await socket.create()
        await asyncio.sleep(0.06)
        engine.hold[0].set()
        assert text_of(await socket.answer()) == "Hello there, friend"


async def test_what_waits_in_a_websocket_is_bounded_in_bytes(serve_with: ServeWith, engine: FakeEngine) -> None:
    engine.hold[0] = asyncio.Event()
    async with serve_with(ServerOptions(max_input_bytes=5000)) as served, connected(served.ws_url) as socket:
        for number in range(3):
            await socket.create("x" * 2000, stream_id=str(number))
        error = (await socket.until("error"))[-1]
        assert (error["stream_id"], error["status"], error["error"]["code"]) == ("2", 429, "too_much_input")
        assert "of at most 5000" in error["error"]["message"]
        engine.hold[0].set()
        done = 0
        while done < 2:
            done += (await socket.receive())["type"] == "response.completed"
        await socket.create("x" * 4000)
        assert (await socket.answer())[-1]["type"] == "response.completed"


async def test_what_a_client_has_under_way_is_bounded_in_bytes(serve_with: ServeWith, engine: FakeEngine) -> None:
    engine.hold[0] = asyncio.Event()
    options = ServerOptions(api_keys=KEYS, max_client_input_bytes=5000)
    async with serve_with(options) as served, httpx.AsyncClient(base_url=served.url) as client:

        async def ask(key: str, size: int, **fields: object) -> tuple[int, str]:
            body = {"input": "x" * size, **fields}
            response = await client.post("/v1/responses", json=body, headers=bearer(key))
            return response.status_code, (response.json().get("error") or {}).get("code", "")

        assert await ask("a", 3000, background=True) == (200, "")  # its request is kept until it ends
        assert await ask("a", 3000) == (429, "too_much_input")
        assert await ask("b", 3000, background=True) == (200, "")
        async with connected(served.ws_url, additional_headers=bearer("a")) as socket:
            await socket.create("x" * 3000)
            assert (await socket.answer())[-1]["error"]["code"] == "too_much_input"
        engine.hold[0].set()
        for call in engine.calls:
            await call.closed.wait()
        assert await ask("a", 3000) == (200, "")


async def test_a_client_has_its_share_of_background_answers(serve_with: ServeWith, engine: FakeEngine) -> None:
    engine.hold[0] = asyncio.Event()
    options = ServerOptions(api_keys=KEYS, max_client_background=2, max_background=3)
    async with serve_with(options) as served, httpx.AsyncClient(base_url=served.url) as client:
        codes = []
        for key in "aaabb":
            body = {"input": "Hi", "background": True}
            response = await client.post("/v1/responses", json=body, headers=bearer(key))
            codes.append(response.status_code)
        assert codes == [200, 200, 429, 200, 429]
        engine.hold[0].set()


def test_who_fills_the_store_loses_its_own() -> None:
    store = ResponseStore(10, 1000)

    def put(name: str, owner: str, chars: int = 1) -> None:
        store.put(StoredResponse(name, "", (ChatMessage("user", "x" * chars),), 1, owner))

    put("b0", "ben")
    put("b1", "ben")
    for number in range(1100):
        put(f"a{number}", "anna")
    assert len(store) == 10
    assert store.get("b0") is not None
    assert store.get("b1") is not None
    put("large", "anna", 990)
    put("huge", "anna", 999)
    assert store.get("b0") is not None
    assert store.get("large") is None


async def test_the_events_of_one_client_do_not_take_anothers(serve_with: ServeWith, engine: FakeEngine) -> None:
    options = ServerOptions(api_keys=KEYS, max_kept_event_chars=40_000)
    async with serve_with(options) as served, httpx.AsyncClient(base_url=served.url) as client:

        async def answer(key: str) -> str:
            body = json.dumps({"input": "Hi", "background": True, "stream": True})
            events = (await client.post("/v1/responses", content=body, headers=bearer(key))).text
            return str(json.loads(events.split("data: ", 1)[1].split("\n", 1)[0])["response"]["id"])

        kept = await answer("b")
        engine.script = words(" ".join(["word"] * 20))
        for _ in range(12):
            await answer("a")
        response = await client.get(f"/v1/responses/{kept}", params={"stream": "true"}, headers=bearer("b"))
        assert "response.completed" in response.text
