"""A websocket client that speaks JSON."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Any

from websockets.asyncio.client import connect

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from websockets.asyncio.client import ClientConnection

FINAL = {"response.completed", "response.incomplete", "response.failed", "error"}
Event = dict[str, Any]


class JsonSocket:
    """A connected client."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket

    async def send(self, event: Event) -> None:
        await self.socket.send(json.dumps(event))

    async def create(self, text: str = "Hi", **fields: object) -> None:
        await self.send({"type": "response.create", "input": text, **fields})

    async def receive(self) -> Event:
        event: Event = json.loads(await self.socket.recv())
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
    async with connect(url, compression=None, **options) as socket:
        yield JsonSocket(socket)


def text_of(events: list[Event]) -> str:
    """Return what the deltas spell."""
    return "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")
