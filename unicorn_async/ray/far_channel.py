"""The lanes of websockets that end at gateways: each event that has an answer is a call, and finds a channel here."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from unicorn_async.ray.calls import Began
from unicorn_async.server.channel import Channel
from unicorn_async.server.lane import Input, error_event
from unicorn_async.server.ledger import Ledger
from unicorn_async.server.protocol.client_event import CreateEvent, ResumeEvent, channel_of, parse_client_event
from unicorn_async.server.protocol.errors import ApiError
from unicorn_async.server.protocol.fields import parse_object
from unicorn_async.server.request_context import asking
from unicorn_async.server.store import ResponseStore

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from unicorn_async.ray.calls import LaneCall, LanePiece
    from unicorn_async.server.protocol.fields import Fields
    from unicorn_async.server.protocol.responses_request import ResponsesRequest
    from unicorn_async.server.service import Service
    from unicorn_async.server.store import StoredResponse

logger = logging.getLogger(__name__)

_EVENTS = 16  # that an answer is ahead of who takes them


class FarChannels:
    """Those of one service that are busy, and what their connections did with `store` false."""

    def __init__(self, service: Service) -> None:
        options = service.options
        self._service = service
        self._local = ResponseStore(options.max_stored, options.max_stored_chars)
        self._inputs = Ledger(
            options.max_input_bytes, what="bytes of requests in this connection", code="too_much_input"
        )
        self._busy: dict[str, Channel] = {}

    async def answer(self, call: LaneCall) -> AsyncGenerator[LanePiece, None]:
        """Yield the events of an event's answer, or the error; closing this ends the answer."""
        pieces: asyncio.Queue[LanePiece | None] = asyncio.Queue(_EVENTS)
        task = asyncio.create_task(self._run(call, parse_object(call.text), pieces))
        try:
            while (piece := await pieces.get()) is not None:
                yield piece
        finally:
            task.cancel()
            await asyncio.wait((task,))

    def cancel(self, lane: str) -> bool:
        """End what is answered in a lane; return whether it is one of these."""
        channel = self._busy.get(lane)
        return channel is not None and channel.cancel()

    async def _run(self, call: LaneCall, fields: Fields, pieces: asyncio.Queue[LanePiece | None]) -> None:
        try:
            await self._answer(call, fields, pieces)
        except Exception as exc:  # whoever takes the events would wait for ever
            logger.exception("request failed")
            await pieces.put(error_event(exc, None))
        await pieces.put(None)

    async def _answer(self, call: LaneCall, fields: Fields, pieces: asyncio.Queue[LanePiece | None]) -> None:
        asking.set(call.client)

        def began(response_id: str, _: str | None) -> None:
            pieces.put_nowait(Began(response_id))  # it comes before all events, and so finds room

        local = _Local(self._local, call.connection)
        channel = Channel(self._service, local, pieces.put, channel_of(fields), began)
        try:
            channel.put(self._request(fields), b"", self._held(call))
        except ApiError as exc:
            await pieces.put(error_event(exc, channel.stream_id))
        else:
            self._busy[call.lane] = channel
            try:
                await channel.run()
            finally:
                del self._busy[call.lane]

    def _request(self, fields: Fields) -> ResponsesRequest | ResumeEvent:
        event = parse_client_event(fields, defaults=self._service.options.default_sampling)
        if isinstance(event, CreateEvent):
            return event.request
        if isinstance(event, ResumeEvent):
            return event
        raise ApiError("type: this event has no answer", code="unknown_event", param="type")

    def _held(self, call: LaneCall) -> Input:
        size = len(call.text)
        connection = self._inputs.claim(call.connection, size)
        try:
            return Input(connection, self._service.input_bytes.claim(call.client.name, size))
        except ApiError:
            connection.release()
            raise


class _Local:
    """One connection's share of what all of them did with `store` false."""

    def __init__(self, store: ResponseStore, connection: str) -> None:
        self._store = store
        self._connection = connection

    def get(self, response_id: str) -> StoredResponse | None:
        """Return a response of this connection."""
        return self._store.get(self._name(response_id))

    def put(self, entry: StoredResponse) -> None:
        """Keep a response."""
        self._store.put(replace(entry, id=self._name(entry.id)))

    def _name(self, response_id: str) -> str:
        return f"{self._connection} {response_id}"
