"""A websocket client that speaks JSON."""

from __future__ import annotations

import contextlib
import json
from functools import cache
from typing import TYPE_CHECKING, Any

from jsonschema import Draft202012Validator
from websockets.asyncio.client import connect

from tests.patience import PATIENCE_S
from unicorn_async.server.asyncapi import description

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from websockets.asyncio.client import ClientConnection

FINAL = {"response.completed", "response.incomplete", "response.failed", "error"}
Event = dict[str, Any]


@cache
def validators() -> dict[str, Draft202012Validator]:
    """What checks events, by their types."""
    found: Any = description("1")
    messages = found["channels"]["responses"]["messages"]
    return {name: Draft202012Validator(message["payload"]) for name, message in messages.items()}


def check_described(event: Event) -> None:
    """Compare an event with the description of the websocket, which names each of its fields."""
    validator = validators()[event["type"]]
    validator.validate(event)
    schema: Any = validator.schema
    assert event.keys() <= schema["properties"].keys(), event


class JsonSocket:
    """A connected client."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket

    async def send(self, event: Event) -> None:
        await self.socket.send(json.dumps(event))

    async def create(self, text: str = "Hi", **fields: object) -> None:
        await self.send({"type": "response.create", "input": text, **fields})

    async def receive(self) -> Event:
        """Return the next event, which has to be as it is described."""
        event: Event = json.loads(await self.socket.recv())
        check_described(event)
        return event

    async def until(self, *kinds: str) -> list[Event]:
        """Receive up to and with the first event of one of these types."""
        events = [await self.receive()]
        while events[-1]["type"] not in kinds:
            events.append(await self.receive())
        return events

    async def answer(self) -> list[Event]:
        """Receive to the end of an answer."""
        return await self.until(*FINAL)


@contextlib.asynccontextmanager
async def connected(url: str, **options: Any) -> AsyncIterator[JsonSocket]:
    """Connect; options are the websockets package's."""
    patience: dict[str, Any] = dict.fromkeys(("open_timeout", "ping_timeout"), PATIENCE_S)
    async with connect(url, compression=None, **patience | options) as socket:
        yield JsonSocket(socket)


def text_of(events: list[Event]) -> str:
    """Return what the deltas spell."""
    return "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")
