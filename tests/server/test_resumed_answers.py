"""Answers in the background that are taken up again, by their name and from any place."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.server.background import ASK, CHOSEN, NAME, TEXT, events_of, finished
from tests.server.ws_client import connected, text_of
from unicorn_async.sampling_params import SamplingParams
from unicorn_async.server import ModelHost, ServerOptions
from unicorn_async.server.protocol.errors import ApiError
from unicorn_async.server.protocol.fields import parse_object
from unicorn_async.server.protocol.responses_request import parse_responses_request
from unicorn_async.server.service import Service

if TYPE_CHECKING:
    import httpx

    from tests.server.conftest import Served
    from tests.server.fake_engine import FakeEngine


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


async def test_retrieval_takes_what_openais_client_sends(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    name = (await client.post("/v1/responses", json=ASK)).json()["id"]
    query = [("stream", "true"), ("include_obfuscation", "false"), ("include[]", "message.output_text.logprobs")]
    events = events_of((await client.get(f"/v1/responses/{name}", params=query)).text)
    assert events[-1]["type"] == "response.completed"
    assert (await client.get(f"/v1/responses/{name}", params=query[2:])).json()["id"] == name
