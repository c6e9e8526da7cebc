"""Events of answers in the background: how many are kept, how long, and for whom."""

from __future__ import annotations

import asyncio
import gc
from typing import TYPE_CHECKING

import httpx
import pytest

from tests.server.background import ASK, events_of, finished
from tests.server.fake_engine import words
from tests.server.ws_client import connected
from unicorn_async.engine.types import Token
from unicorn_async.server import ServerOptions
from unicorn_async.server.active_response import ActiveResponse
from unicorn_async.server.background_answers import EventLog, EventsGoneError
from unicorn_async.server.protocol.errors import ApiError
from unicorn_async.server.protocol.retrieval import Retrieval

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.server.conftest import ServeWith
    from tests.server.fake_engine import FakeEngine


async def test_ended_answers_are_kept_for_a_while_and_as_far_as_there_is_room(
    serve_with: ServeWith, engine: FakeEngine
) -> None:
    async def ask(client: httpx.AsyncClient) -> str:
        name: str = (await client.post("/v1/responses", json=ASK)).json()["id"]
        await finished(client, name)
        return name

    async def code(client: httpx.AsyncClient, name: str) -> str | None:
        query = {"stream": "true", "starting_after": "0"}
        response = await client.get(f"/v1/responses/{name}", params=query)
        return None if response.is_success else str(response.json()["error"]["code"])

    engine.script = words("word " * 40)
    async with (
        serve_with(ServerOptions(max_kept_event_chars=30_000)) as served,
        httpx.AsyncClient(base_url=served.url) as client,
    ):
        names = [await ask(client) for _ in range(4)]
        assert await code(client, names[0]) == "events_not_kept"
        assert await code(client, names[-1]) is None
        assert (await client.get(f"/v1/responses/{names[0]}")).json()["status"] == "completed"
    async with (
        serve_with(ServerOptions(keep_events_s=0.01)) as served,
        httpx.AsyncClient(base_url=served.url) as client,
    ):
        name = await ask(client)
        async with asyncio.timeout(120):
            while await code(client, name) is None:
                pass


async def test_a_listener_who_is_slower_than_events_are_kept_is_told(serve_with: ServeWith, engine: FakeEngine) -> None:
    engine.script = [Token(index, "x" * 400) for index in range(2000)]
    options = ServerOptions(max_event_chars=20_000)
    async with serve_with(options) as served, httpx.AsyncClient(base_url=served.url) as client:
        name = (await client.post("/v1/responses", json=ASK)).json()["id"]
        await engine.calls[0].closed.wait()
        response = await client.get(f"/v1/responses/{name}", params={"stream": "true", "starting_after": "5"})
        assert (response.status_code, response.json()["error"]["code"]) == (400, "events_not_kept")
        assert "events up to" in response.json()["error"]["message"]


async def test_a_log_keeps_the_newest_events_and_numbers_them_on() -> None:
    room = 1000
    log = EventLog(lambda: room)
    for index in range(100):
        await log.append(f"event {index}".ljust(36))
    log.end()
    assert log.chars <= 1000
    seen: list[str] = []

    async def emit(event: str) -> None:
        seen.append(event.strip())

    await log.follow(89, emit)
    assert seen == [f"event {index}" for index in range(90, 100)]
    log.check(Retrieval(99))
    for after, words_of_it in ((88, "no longer kept"), (100, "at most 99")):
        with pytest.raises(ApiError, match=words_of_it):
            log.check(Retrieval(after))
    with pytest.raises(ApiError, match="no longer kept"):
        await log.follow(5, emit)
    seen.clear()
    log.check(Retrieval(5, skip_missing=True))
    await log.follow(5, emit, skip_missing=True)
    assert seen == [f"event {index}" for index in range(90, 100)]
    room = 300
    await log.append("the last one")
    assert log.chars <= 300


async def test_who_keeps_up_gets_every_event_however_little_is_kept() -> None:
    log = EventLog(lambda: 100)
    seen: list[str] = []

    async def emit(event: str) -> None:
        seen.append(event[0])

    following = asyncio.create_task(log.follow(-1, emit))
    await asyncio.sleep(0)
    for index in range(5):
        await log.append(f"{index}".ljust(90))
    log.end()
    await following
    assert seen == list("01234")


async def test_an_answer_that_has_ended_holds_its_request_no_longer(serve_with: ServeWith, engine: FakeEngine) -> None:
    engine.script = words("word " * 10)
    options = ServerOptions(max_kept_event_chars=1 << 20)
    async with serve_with(options) as served, httpx.AsyncClient(base_url=served.url) as client:
        name = (await client.post("/v1/responses", json={**ASK, "input": "Hello"})).json()["id"]
        assert (await finished(client, name))["status"] == "completed"
        gc.collect()
        assert not [found for found in gc.get_objects() if isinstance(found, ActiveResponse)]


async def test_who_falls_behind_is_told_by_an_error_event(
    client: httpx.AsyncClient, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def behind(log: EventLog, after: int, emit: Callable[[str], Awaitable[None]], *, skip_missing: bool) -> None:
        raise EventsGoneError(4, 8)

    monkeypatch.setattr(EventLog, "follow", behind)
    response = await client.post("/v1/responses", json={**ASK, "stream": True})
    assert response.text.startswith("event: error\n")
    (event,) = events_of(response.text)
    assert event.pop("message").startswith("starting_after: events up to 7 are no longer kept, got 3")
    expected = {"type": "error", "sequence_number": 4, "code": "events_not_kept", "param": "starting_after"}
    assert event == expected


async def test_the_closing_events_can_be_had_when_earlier_ones_are_gone(
    serve_with: ServeWith, engine: FakeEngine
) -> None:
    engine.script = words(" ".join(["word"] * 200))
    options = ServerOptions(max_event_chars=4096)
    async with serve_with(options) as served, httpx.AsyncClient(base_url=served.url) as client:
        name = (await client.post("/v1/responses", json=ASK)).json()["id"]
        await engine.calls[0].closed.wait()
        place = {"stream": "true", "starting_after": "5", "skip_missing": "true"}
        events = events_of((await client.get(f"/v1/responses/{name}", params=place)).text)
        assert events[-1]["type"] == "response.completed"
        numbers = [event["sequence_number"] for event in events]
        assert numbers == list(range(numbers[0], numbers[-1] + 1))
        assert numbers[0] > 6
        async with connected(served.ws_url) as socket:
            await socket.send({"type": "unicorn.resume", "response_id": name, "skip_missing": True})
            assert (await socket.answer())[-1]["type"] == "response.completed"


async def test_a_log_that_is_forgotten_is_held_by_no_follower() -> None:
    log, may_go_on = EventLog(lambda: 1_000_000), asyncio.Event()
    for index in range(10):
        await log.append(f"event {index}")
    log.end()

    async def emit(event: str) -> None:
        await may_go_on.wait()

    following = asyncio.create_task(log.follow(-1, emit))
    await asyncio.sleep(0)
    log.forget()
    assert log.chars == 0
    may_go_on.set()
    with pytest.raises(EventsGoneError, match="up to 9"):
        await following


async def test_who_gets_much_at_once_leaves_others_their_turn() -> None:
    log = EventLog(lambda: 1_000_000)
    for index in range(1000):
        await log.append(str(index))
    log.end()
    sent: list[str] = []

    async def emit(event: str) -> None:
        sent.append(event)

    following = asyncio.create_task(log.follow(-1, emit))
    await asyncio.sleep(0)
    assert 0 < len(sent) < 100
    await following
    assert len(sent) == 1000


async def test_answers_under_way_share_the_room_for_events(serve_with: ServeWith, engine: FakeEngine) -> None:
    engine.script = [Token(index, "x" * 1000) for index in range(100)]
    engine.hold[50] = asyncio.Event()
    options = ServerOptions(max_kept_event_chars=80_000)
    async with serve_with(options) as served, httpx.AsyncClient(base_url=served.url) as client:
        names = [(await client.post("/v1/responses", json=ASK)).json()["id"] for _ in range(4)]
        while sum(call.given for call in engine.calls) < 200:
            await client.get("/health")
        for name in names[1:]:
            response = await client.get(f"/v1/responses/{name}", params={"stream": "true", "starting_after": "20"})
            assert response.json()["error"]["code"] == "events_not_kept"
