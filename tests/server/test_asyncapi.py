"""The description of the websocket is of what it takes and sends."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from jsonschema import Draft202012Validator

import unicorn_async.server
from tests.server.ws_client import connected
from unicorn_async.sampling_params import SamplingParams
from unicorn_async.server.asyncapi import ANSWER_EVENTS, CLIENT_EVENTS, SERVER_EVENTS, description
from unicorn_async.server.protocol.client_event import parse_client_event
from unicorn_async.server.protocol.errors import ApiError
from unicorn_async.server.protocol.fields import parse_object

if TYPE_CHECKING:
    from tests.server.conftest import Served
    from tests.server.fake_engine import FakeEngine

SERVER = Path(unicorn_async.server.__file__).parent


def messages() -> dict[str, Any]:
    found: Any = description("1")
    return dict(found["channels"]["responses"]["messages"])


def named_in(*files: str) -> set[str]:
    """Every event that these sources name."""
    texts = [(SERVER / file).read_text() for file in files]
    return {name for text in texts for name in re.findall(r'"((?:response|unicorn)\.[a-z_.]+[a-z])"', text)}


def test_each_event_that_the_server_takes_or_sends_is_described() -> None:
    assert named_in("protocol/client_event.py") == {"response.create", *CLIENT_EVENTS}
    events = ("protocol/model_event.py", "protocol/steps_event.py", "websocket.py")
    sources = ("protocol/responses_answer.py", "protocol/responses_calls.py", *events)
    texts = {"response.output_text", "response.reasoning_text"}  # what the names of two events each begin with
    sent = named_in(*sources) | {f"{name}.{end}" for name in texts for end in ("delta", "done")}
    assert sent - texts - {"response.create", *CLIENT_EVENTS} == {*ANSWER_EVENTS, *SERVER_EVENTS} - {"error"}


def test_each_reference_leads_to_a_message() -> None:
    found: Any = description("1")
    operations = found["operations"].values()
    names = [reference["$ref"].rpartition("/")[2] for operation in operations for reference in operation["messages"]]
    assert sorted(names) == sorted(messages())


@pytest.mark.parametrize("thinks", [False, True])
async def test_what_is_sent_is_as_described(served: Served, engine: FakeEngine, thinks: bool) -> None:
    engine.fake_tokenizer.thinks = thinks
    engine.fake_tokenizer.pieces = {1: b"<think>"}
    engine.script[1] = engine.script[1]._replace(text="</think>")
    known = messages()
    async with connected(served.ws_url + "?events=unicorn") as socket:
        await socket.create(stream_id="a")
        events = await socket.answer()
        await socket.send({"type": "unicorn.watch", "interval_ms": 100})
        await socket.send({"type": "nothing"})
        while events[-1]["type"] != "error":
            events.append(await socket.receive())
    assert {"response.completed", "unicorn.model", "error"} <= {event["type"] for event in events}
    for event in events:
        Draft202012Validator(known[event["type"]]["payload"]).validate(event)


@pytest.mark.parametrize("name", CLIENT_EVENTS)
def test_what_a_client_has_to_say_is_what_is_required(name: str) -> None:
    payload = messages()[name]["payload"]
    for field in CLIENT_EVENTS[name].required:
        with pytest.raises(ApiError, match=f"{field}: expected"):
            parse_client_event(parse_object(json.dumps({"type": name})), defaults=SamplingParams())
    values: dict[str, object] = {"response_id": "resp_1", "stream_id": "a", "starting_after": 3, "skip_missing": True}
    values |= {"interval_ms": 100, "key": "k"}
    event = {"type": name, **{field: values[field] for field in CLIENT_EVENTS[name].fields}}
    Draft202012Validator(payload).validate(event)
    parse_client_event(parse_object(json.dumps(event)), defaults=SamplingParams())


async def test_it_is_served(served: Served) -> None:
    async with httpx.AsyncClient(base_url=served.url) as client:
        assert (await client.get("/asyncapi.json")).json()["asyncapi"] == "3.0.0"
