"""The far end of the page's websocket, whose events a test makes up."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from playwright.async_api import Page, WebSocketRoute

RESPONSE: dict[str, Any] = {"id": "resp_1", "model": "made-up", "status": "completed", "usage": None}


class MadeUpServer:
    """Answers what the page asks for with the events that it is given."""

    def __init__(self) -> None:
        self.asked: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._socket: WebSocketRoute | None = None
        self._number = 0
        self._stream = ""

    @classmethod
    async def of(cls, page: Page) -> MadeUpServer:
        """Take the place of a page's server, before that is opened."""
        made = cls()
        await page.route_web_socket("**/v1/responses**", made._connected)
        return made

    async def begin(self, **response: object) -> dict[str, Any]:
        """Wait for a question, and begin to answer it; return what was asked."""
        asked = await self.asked.get()
        self._stream, self._number = asked["stream_id"], 0
        self.send("response.created", response=RESPONSE | {"status": "in_progress"} | response)
        return asked

    def send(self, kind: str, **fields: object) -> None:
        """Send the answer's next event."""
        event = {"type": kind, "sequence_number": self._number, "stream_id": self._stream, **fields}
        self._number += 1
        self._send(event)

    def say(self, text: str) -> None:
        """Send a part of the answer's text."""
        self.send("response.output_text.delta", delta=text)

    def end(self, **response: object) -> None:
        """End the answer."""
        self.send("response.completed", response=RESPONSE | response)

    def _connected(self, socket: WebSocketRoute) -> None:
        self._socket = socket
        socket.on_message(self._received)
        self._send({"type": "unicorn.model", "model": "made-up", "status": "ready", "error": None})

    def _received(self, message: str | bytes) -> None:
        event = json.loads(message)
        if event["type"] == "response.create":
            self.asked.put_nowait(event)

    def _send(self, event: dict[str, Any]) -> None:
        assert self._socket is not None
        self._socket.send(json.dumps(event))
