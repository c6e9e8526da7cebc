"""Answers that go on without a listener: how they begin, end and are refused."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import httpx
import pytest

from tests.server.background import ASK, CHOSEN, NAME, TEXT, events_of, finished
from tests.server.conftest import serving
from tests.server.ws_client import text_of
from unicorn_async.errors import ConfigError, DeviceLostError
from unicorn_async.sampling_params import SamplingParams
from unicorn_async.server import ModelHost, ServerOptions
from unicorn_async.server.protocol.fields import parse_object
from unicorn_async.server.protocol.responses_request import parse_responses_request
from unicorn_async.server.service import Service

if TYPE_CHECKING:
    from tests.server.conftest import ServeWith
    from tests.server.fake_engine import FakeEngine


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


@pytest.mark.parametrize("name", ["max_background", "max_event_chars", "max_kept_event_chars", "keep_events_s"])
def test_limits_are_more_than_nothing(name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        ServerOptions(**{name: 0})  # type: ignore[arg-type]
