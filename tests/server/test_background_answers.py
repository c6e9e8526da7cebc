"""Answers that go on without a listener, and are taken up again."""

from __future__ import annotations

import asyncio
import gc
import json
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from tests.server.conftest import serving
from tests.server.fake_engine import words
from tests.server.ws_client import connected, text_of
from unicorn_async.engine.types import Token
from unicorn_async.errors import ConfigError, DeviceLostError
from unicorn_async.sampling_params import SamplingParams
from unicorn_async.server import ModelHost, ServerOptions
from unicorn_async.server.active_response import ActiveResponse
from unicorn_async.server.background_answers import EventLog, EventsGoneError
from unicorn_async.server.protocol.errors import ApiError
from unicorn_async.server.protocol.fields import parse_object
from unicorn_async.server.protocol.responses_request import parse_responses_request
from unicorn_async.server.protocol.retrieval import Retrieval
from unicorn_async.server.service import Service

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from contextlib import AbstractAsyncContextManager

    from tests.server.conftest import Served
    from tests.server.fake_engine import FakeEngine

    ServeWith = Callable[[ServerOptions], AbstractAsyncContextManager[Served]]

ASK = {"input": "Hi", "background": True}
NAME = f"resp_{'0f' * 16}"
CHOSEN = {**ASK, "response_id": NAME}
TEXT = "Hello there, friend"


@pytest.fixture
async def client(served: Served) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=served.url) as made:
        yield made


def events_of(text: str) -> list[dict[str, Any]]:
    """Return what server-sent events say."""
    return [json.loads(line.removeprefix("data: ")) for line in text.splitlines() if line.startswith("data: ")]


async def finished(client: httpx.AsyncClient, response_id: str) -> dict[str, Any]:
    """Wait for the end of a background answer, and return its object."""
    response = await client.get(f"/v1/responses/{response_id}", params={"stream": "true"})
    events_of(response.text)
    found: dict[str, Any] = (await client.get(f"/v1/responses/{response_id}")).json()
    return found


async def test_without_a_stream_the_object_comes_at_once_and_the_answer_goes_on(
    client: httpx.AsyncClient, engine: FakeEngine
) -> None:
    engine.hold[1] = asyncio.Event()
    begun = (await client.post("/v1/responses", json=ASK)).json()
    assert (begun["status"], begun["background"], begun["output"]) == ("in_progress", True, [])
    assert (await client.get(f"/v1/responses/{begun['id']}")).json()["status"] == "in_progress"
    engine.hold[1].set()
    ended = await finished(client, begun["id"])
    assert (ended["status"], ended["output"][0]["content"][0]["text"]) == ("completed", TEXT)


async def test_an_answer_goes_on_when_its_listener_goes_and_is_taken_up_where_that_was(
    served: Served, client: httpx.AsyncClient, engine: FakeEngine
) -> None:
    engine.hold[2] = asyncio.Event()
    async with client.stream("POST", "/v1/responses", json={**ASK, "stream": True}) as response:
        seen = []
        async for line in response.aiter_lines():
            if line.startswith("data: "):
                seen.append(json.loads(line.removeprefix("data: ")))
            if text_of(seen) == "Hello there,":
                break
    engine.hold[2].set()
    name, last = seen[0]["response"]["id"], seen[-1]["sequence_number"]
    rest = events_of(
        (await client.get(f"/v1/responses/{name}", params={"stream": "true", "starting_after": last})).text
    )
    assert [event["sequence_number"] for event in seen + rest] == list(range(len(seen) + len(rest)))
    assert text_of(seen + rest) == TEXT
    assert rest[-1]["type"] == "response.completed"
    assert not engine.calls[1:]


async def test_several_listeners_see_the_same(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.hold[1] = asyncio.Event()
    name = (await client.post("/v1/responses", json=ASK)).json()["id"]
    listeners = [client.get(f"/v1/responses/{name}", params={"stream": "true"}) for _ in range(3)]
    tasks = [asyncio.create_task(listener) for listener in listeners]
    await engine.called.wait()
    engine.hold[1].set()
    texts = {(await task).text for task in tasks}
    assert len(texts) == 1
    assert text_of(events_of(texts.pop())) == TEXT


async def test_a_lost_websocket_ends_no_background_answer_and_another_one_resumes_it(
    served: Served, engine: FakeEngine
) -> None:
    engine.hold[2] = asyncio.Event()
    async with connected(served.ws_url) as first:
        await first.create(background=True, stream_id="a")
        seen = await first.until("response.output_text.delta")
        seen += await first.until("response.output_text.delta")
        first.socket.transport.abort()
    assert {event["stream_id"] for event in seen} == {"a"}
    engine.hold[2].set()
    async with connected(served.ws_url) as second:
        where = {"response_id": seen[0]["response"]["id"], "starting_after": seen[-1]["sequence_number"]}
        await second.send({"type": "unicorn.resume", "stream_id": "b", **where})
        rest = await second.answer()
    assert {event["stream_id"] for event in rest} == {"b"}
    assert text_of(seen + rest) == TEXT
    assert [event["sequence_number"] for event in seen + rest] == list(range(len(seen) + len(rest)))


async def test_without_a_name_of_a_stream_events_have_none(served: Served) -> None:
    async with connected(served.ws_url) as client:
        await client.create(background=True)
        assert all("stream_id" not in event for event in await client.answer())


async def test_a_resumed_answer_is_cancelled_by_its_stream_or_by_its_id(served: Served, engine: FakeEngine) -> None:
    engine.hold[1] = asyncio.Event()
    async with connected(served.ws_url) as client:
        for cancel in ({"stream_id": "again"}, {"response_id": None}):
            async with connected(served.ws_url) as first:
                await first.create(background=True)
                name = (await first.receive())["response"]["id"]
            if "stream_id" in cancel:
                await client.send({"type": "unicorn.resume", "response_id": name, "stream_id": "again"})
                await client.until("response.output_text.delta")
                await client.send({"type": "response.cancel", **cancel})
            else:
                await client.send({"type": "response.cancel", "response_id": name})
                await client.send({"type": "unicorn.resume", "response_id": name, "stream_id": "again"})
            end = (await client.answer())[-1]
            assert (end["type"], end["response"]["status"]) == ("response.incomplete", "cancelled")


async def test_a_client_that_is_gone_before_the_first_event_finds_its_answer_by_the_name_that_it_chose(
    served: Served, engine: FakeEngine
) -> None:
    engine.hold[0] = asyncio.Event()
    async with connected(served.ws_url) as first:
        await first.create(background=True, response_id=NAME)
        await engine.called.wait()
        first.socket.transport.abort()
    engine.hold[0].set()
    async with connected(served.ws_url) as second:
        await second.send({"type": "unicorn.resume", "response_id": NAME})
        events = await second.answer()
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert {event["response"]["id"] for event in events if "response" in event} == {NAME}
    assert text_of(events) == TEXT


async def test_who_asks_for_an_answer_that_is_about_to_begin_waits_for_it(engine: FakeEngine) -> None:
    opening = asyncio.Event()
    began = asyncio.Event()

    async def model(name: str | None) -> Any:
        began.set()
        await opening.wait()
        return await find(name)

    service = Service(ModelHost.around(engine), ServerOptions())
    find, service.models.model = service.models.model, model  # type: ignore[method-assign]
    request = parse_responses_request(parse_object(json.dumps(CHOSEN)), defaults=SamplingParams())
    async with service.models, service.running():
        creating = asyncio.create_task(service.open_background(request))
        await began.wait()
        with pytest.raises(ApiError, match="already"):
            await service.open_background(request)
        resuming = asyncio.create_task(service.responses.resume(NAME, -1))
        await asyncio.sleep(0)
        assert not resuming.done()
        creating.cancel()  # its client goes, and with it what had not begun
        with pytest.raises(ApiError, match="not known"):
            await resuming
        creating = asyncio.create_task(service.open_background(request))
        await asyncio.sleep(0)
        deleting = asyncio.create_task(service.responses.delete(NAME))
        opening.set()
        assert (await creating).id == NAME
        await deleting
        assert engine.calls[0].closed.is_set()


async def test_a_name_that_is_taken_or_none_is_refused(client: httpx.AsyncClient) -> None:
    assert (await client.post("/v1/responses", json=CHOSEN)).json()["id"] == NAME
    cases = [
        (CHOSEN, 409, "response_exists"),
        ({**CHOSEN, "response_id": "resp_short"}, 400, "invalid_value"),
        ({**CHOSEN, "response_id": f"{NAME}/../x"}, 400, "invalid_value"),
        ({**CHOSEN, "response_id": 7}, 400, "invalid_type"),
        ({"input": "Hi", "response_id": NAME}, 400, "unsupported_value"),
    ]
    for body, status, code in cases:
        response = await client.post("/v1/responses", json=body)
        assert (response.status_code, response.json()["error"]["code"]) == (status, code), body


async def test_cancelling_twice_is_cancelling_once(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.hold[1] = asyncio.Event()
    name = (await client.post("/v1/responses", json=ASK)).json()["id"]
    for _ in range(2):
        response = await client.post(f"/v1/responses/{name}/cancel")
        assert (response.status_code, response.json()["status"]) == (200, "cancelled")
    assert engine.calls[0].closed.is_set()


async def test_deleting_ends_and_forgets(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.hold[1] = asyncio.Event()
    name = (await client.post("/v1/responses", json=ASK)).json()["id"]
    assert (await client.delete(f"/v1/responses/{name}")).json()["deleted"] is True
    assert engine.calls[0].closed.is_set()
    for query in ({}, {"stream": "true"}):
        response = await client.get(f"/v1/responses/{name}", params=query)
        assert (response.status_code, response.json()["error"]["code"]) == (404, "response_not_found")


async def test_a_failure_is_kept_like_every_end(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.fail[1] = DeviceLostError("the device is gone")
    name = (await client.post("/v1/responses", json=ASK)).json()["id"]
    ended = await finished(client, name)
    assert (ended["status"], ended["error"]["message"]) == ("failed", "the device is gone")
    again = events_of((await client.get(f"/v1/responses/{name}", params={"stream": "true"})).text)
    assert again[-1]["type"] == "response.failed"


async def test_the_end_of_the_server_ends_its_background_answers(engine: FakeEngine) -> None:
    engine.hold[1] = asyncio.Event()
    async with serving(engine) as served, httpx.AsyncClient(base_url=served.url) as client:
        await client.post("/v1/responses", json=ASK)
        await engine.called.wait()
    assert engine.calls[0].closed.is_set()


async def test_an_answer_that_had_not_begun_at_the_end_of_the_server_is_closed(engine: FakeEngine) -> None:
    service = Service(ModelHost.around(engine), ServerOptions())
    async with service.models, service.running():
        request = parse_responses_request(parse_object(json.dumps(ASK)), defaults=SamplingParams())
        await service.open_background(request)
    assert engine.calls[0].closed.is_set()


async def test_what_each_event_would_repeat_is_bounded(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    response = await client.post("/v1/responses", json={**ASK, "instructions": "x" * 70_000})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "instructions")
    assert "65536 characters, got 70" in response.json()["error"]["message"]
    assert not engine.calls


async def test_an_answer_in_the_background_can_be_gone_on_from(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    name = (await client.post("/v1/responses", json=ASK)).json()["id"]
    await finished(client, name)
    await client.post("/v1/responses", json={"input": "And?", "previous_response_id": name})
    assert [message.content for message in engine.fake_tokenizer.conversations[-1]] == ["Hi", TEXT, "And?"]


async def test_only_so_many_run_at_once_and_a_refused_request_takes_no_place(
    serve_with: ServeWith, engine: FakeEngine
) -> None:
    engine.hold[1] = asyncio.Event()
    async with serve_with(ServerOptions(max_background=1)) as served, httpx.AsyncClient(base_url=served.url) as client:
        for _ in range(3):
            refused = await client.post("/v1/responses", json={**ASK, "model": "another"})
            assert refused.status_code == 404
        name = (await client.post("/v1/responses", json=ASK)).json()["id"]
        full = await client.post("/v1/responses", json=ASK)
        assert (full.status_code, full.json()["error"]["code"]) == (429, "background_full")
        await client.post(f"/v1/responses/{name}/cancel")
        await finished(client, name)
        assert (await client.post("/v1/responses", json=ASK)).status_code == 200


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


async def test_what_can_not_be_resumed_is_refused_with_the_reason(
    client: httpx.AsyncClient, engine: FakeEngine
) -> None:
    name = (await client.post("/v1/responses", json=ASK)).json()["id"]
    await finished(client, name)
    plain = (await client.post("/v1/responses", json={"input": "Hi"})).json()["id"]
    cases: list[tuple[str, dict[str, str | list[str]], int, str]] = [
        ("resp_nothing", {"stream": "true"}, 404, "response_not_found"),
        (plain, {"stream": "true", "starting_after": "0"}, 400, "events_not_kept"),
        (name, {"stream": "true", "starting_after": "1000"}, 400, "invalid_value"),
        (name, {"stream": "true", "starting_after": "-1"}, 400, "invalid_value"),
        (name, {"stream": "true", "starting_after": "1e3"}, 400, "invalid_value"),
        (name, {"stream": "true", "starting_after": "٣"}, 400, "invalid_value"),
        (name, {"stream": "true", "starting_after": "9" * 5000}, 400, "invalid_value"),
        (name, {"starting_after": "1"}, 400, "invalid_value"),
        (name, {"stream": "yes"}, 400, "invalid_value"),
        (name, {"include": "usage"}, 400, "invalid_value"),
        (name, {"include_obfuscation": "no"}, 400, "invalid_value"),
        (name, {"include_obfuscation": "true", "stream": "true"}, 400, "unsupported_value"),
        (name, {"skip_missing": "true"}, 400, "invalid_value"),
        (name, {"excluded": "usage"}, 400, "unknown_parameter"),
        (name, {"stream": ["true", "false"]}, 400, "duplicate_parameter"),
    ]
    for response_id, query, status, expected in cases:
        response = await client.get(f"/v1/responses/{response_id}", params=query)
        assert (response.status_code, response.json()["error"]["code"]) == (status, expected), query
        assert len(response.text) < 1000


async def test_what_follows_an_event_that_is_not_kept_is_the_whole_text_where_that_is_wanted(
    client: httpx.AsyncClient,
) -> None:
    plain = (await client.post("/v1/responses", json={"input": "Hi"})).json()
    query = {"stream": "true", "starting_after": "4"}
    refused = await client.get(f"/v1/responses/{plain['id']}", params=query)
    assert "skip_missing" in refused.json()["error"]["message"]
    events = events_of(
        (await client.get(f"/v1/responses/{plain['id']}", params={**query, "skip_missing": "true"})).text
    )
    assert [(event["sequence_number"], event["type"]) for event in events] == [
        (5, "response.output_text.done"),
        (6, "response.content_part.done"),
        (7, "response.output_item.done"),
        (8, "response.completed"),
    ]
    assert events[0]["text"] == TEXT
    assert events[-1]["response"] == plain


async def test_a_websocket_gets_the_events_of_any_response_that_has_ended(
    served: Served, client: httpx.AsyncClient
) -> None:
    plain = (await client.post("/v1/responses", json={"input": "Hi"})).json()
    async with connected(served.ws_url) as socket:
        for stream in ({"stream_id": "a"}, {}):
            resume = {"type": "unicorn.resume", "response_id": plain["id"], **stream}
            await socket.send(resume)
            events = await socket.answer()
            assert [event["sequence_number"] for event in events] == list(range(len(events)))
            assert {event.get("stream_id") for event in events} == {stream.get("stream_id")}
            assert (text_of(events), events[-1]["response"]) == (TEXT, plain)
            await socket.send({**resume, "starting_after": 5})
            assert (await socket.answer())[-1]["error"]["code"] == "events_not_kept"
            await socket.send({**resume, "starting_after": 5, "skip_missing": True})
            assert (await socket.answer())[0]["text"] == TEXT


async def test_what_is_under_way_or_has_failed_can_not_be_gone_on_from(
    client: httpx.AsyncClient, engine: FakeEngine
) -> None:
    engine.hold[1] = asyncio.Event()
    engine.fail[2] = DeviceLostError("the device is gone")
    name = (await client.post("/v1/responses", json=ASK)).json()["id"]
    for state in ("in_progress", "failed"):
        refused = await client.post("/v1/responses", json={"input": "Go on", "previous_response_id": name})
        error = refused.json()["error"]
        assert (refused.status_code, error["param"]) == (400, "previous_response_id")
        assert error["code"] == f"previous_response_{state}"
        assert name in error["message"]
        engine.hold[1].set()
        await finished(client, name)


@pytest.mark.parametrize(
    ("event", "status", "code"),
    [
        ({"response_id": "resp_nothing"}, 404, "response_not_found"),
        ({}, 400, "invalid_type"),
        ({"response_id": "x" * 1000}, 400, "invalid_value"),
        ({"response_id": "x", "starting_after": -1}, 400, "invalid_value"),
    ],
)
async def test_a_resume_that_is_wrong_is_told_and_the_connection_goes_on(
    served: Served, event: dict[str, object], status: int, code: str
) -> None:
    async with connected(served.ws_url) as client:
        await client.send({"type": "unicorn.resume", "stream_id": "a", **event})
        refused = await client.receive()
        assert (refused["type"], refused["status"], refused["stream_id"]) == ("error", status, "a")
        assert refused["error"]["code"] == code
        await client.create()
        assert text_of(await client.answer()) == TEXT


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


async def test_retrieval_takes_what_openais_client_sends(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    name = (await client.post("/v1/responses", json=ASK)).json()["id"]
    query = [("stream", "true"), ("include_obfuscation", "false"), ("include[]", "message.output_text.logprobs")]
    events = events_of((await client.get(f"/v1/responses/{name}", params=query)).text)
    assert events[-1]["type"] == "response.completed"
    assert (await client.get(f"/v1/responses/{name}", params=query[2:])).json()["id"] == name


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


@pytest.mark.parametrize("name", ["max_background", "max_event_chars", "max_kept_event_chars", "keep_events_s"])
def test_limits_are_more_than_nothing(name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        ServerOptions(**{name: 0})  # type: ignore[arg-type]
