"""The websocket at /v1/responses: OpenAI's Responses WebSocket mode."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import parse_qs

from starlette.datastructures import Headers

from unicorn_async.errors import UnicornError
from unicorn_async.server.connection import UNFINISHED, Outlet, host_of
from unicorn_async.server.generation import ClientGoneError
from unicorn_async.server.lane import Input, error_event
from unicorn_async.server.ledger import Ledger
from unicorn_async.server.model_state import ModelStatus
from unicorn_async.server.protocol.client_event import (
    AuthEvent,
    CancelEvent,
    CreateEvent,
    ResumeEvent,
    WatchEvent,
    channel_of,
    parse_client_event,
)
from unicorn_async.server.protocol.encoding import encode_object
from unicorn_async.server.protocol.errors import ApiError, describe_error, unknown_response
from unicorn_async.server.protocol.fields import parse_object
from unicorn_async.server.protocol.model_event import failure_event, model_event, progress_event
from unicorn_async.server.request_context import asking, let_pass
from unicorn_async.server.step_watch import StepWatch
from unicorn_async.server.strangers import Strangers

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from starlette.types import Receive, Scope, Send

    from unicorn_async.engine.types import EngineAPI
    from unicorn_async.server.client import Client
    from unicorn_async.server.fronted import Answering, Began, Lanes
    from unicorn_async.server.lane import Lane
    from unicorn_async.server.ledger import Lease
    from unicorn_async.server.protocol.client_event import ClientEvent
    from unicorn_async.server.protocol.fields import Fields
    from unicorn_async.server.protocol.responses_request import ResponsesRequest

logger = logging.getLogger(__name__)

POLICY_VIOLATION = 1008  # RFC 6455, section 7.4.1
TOO_BIG = 1009  # as above
TRY_LATER = 1013  # of IANA's registry of close codes
MAX_KEY_BYTES = 16 << 10  # of a client's first message, before anybody knows whose it is
RECENT_RESPONSES = 64  # that a client is told of as its own where it watches the steps
PROGRESS_INTERVAL_S = 0.1


class WebSocketEndpoint:
    """The ASGI application for websocket connections."""

    def __init__(self, service: Answering, lanes: Callable[[Began], Lanes]) -> None:
        """`lanes` is called once a connection, with what is to get the names of its responses."""
        self._service = service
        self._lanes = lanes
        self._strangers = Strangers(service.options.max_connections)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection from its handshake to its end."""
        try:
            client = self._service.access.check_upgrade(Headers(scope=scope), host_of(scope))
        except ApiError as exc:
            await reject(exc, scope, send)
            return
        connection = Connection(self._service, self._lanes, self._strangers, client, scope, receive, send)
        try:
            await connection.serve()
        except* ClientGoneError:
            logger.debug("client %s went away", scope.get("client"))


class Connection:
    """One client: reads its events, runs its channels, and ends both when either side goes."""

    def __init__(
        self,
        service: Answering,
        lanes: Callable[[Began], Lanes],
        strangers: Strangers,
        client: Client | None,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        """`client` is None where the first frame still has to bring the key."""
        self._service = service
        self._strangers = strangers
        self._client = client
        self._address = host_of(scope)
        self._stranger = service.access.caller(Headers(scope=scope), self._address).name
        self._count_in: Callable[[Lease], None] = scope.get("state", {}).get(UNFINISHED, _count_nowhere)
        self._receive = receive
        self._outlet = Outlet(scope, send, timeout_s=service.options.send_timeout_s)
        self._inputs = Ledger(
            service.options.max_input_bytes, what="bytes of requests in this connection", code="too_much_input"
        )
        self._lanes = lanes(self._note)
        self._channels: dict[str | None, Lane] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._watching: asyncio.Task[None] | None = None
        self._responses: deque[tuple[str, str | None]] = deque(maxlen=RECENT_RESPONSES)
        self._watch_of_steps = StepWatch(service.models, partial(dict, self._responses), service.watchers.cache)
        query = parse_qs(scope.get("query_string", b"").decode("latin-1"))
        self._wants_progress = "unicorn" in query.get("events", [])

    async def serve(self) -> None:
        """Accept, and serve until the client goes or is sent away."""
        await self._receive()  # websocket.connect
        if self._client is None:
            first = Ledger(MAX_KEY_BYTES, what="bytes of an API key", code="too_much_input", status=413)
            self._count_in(first.claim(self._stranger, 0))
        else:
            self._count_messages(self._client.name)
        await self._outlet.send({"type": "websocket.accept"})
        if self._client is None:
            self._client = await self._authenticate()
            if self._client is None:
                return
            self._count_messages(self._client.name)
        let_pass(self._client)
        async with asyncio.TaskGroup() as group:
            try:
                if self._wants_progress:
                    self._start(group, self._report_models())
                while (text := await self._next_message()) is not None:
                    await self._handle(text, self._client, group)
            finally:
                for task in self._tasks:
                    task.cancel()

    async def send(self, text: str) -> None:
        """Send one event."""
        await self._outlet.send({"type": "websocket.send", "text": text})

    def _count_messages(self, name: str) -> None:
        """Have what comes of messages that are not whole count as the client's of this name, from now on."""
        self._count_in(self._service.input_bytes.claim(name, 0))

    async def _next_message(self) -> str | bytes | None:
        message = await self._receive()
        if message["type"] == "websocket.disconnect":
            return None
        text: str | bytes | None = message.get("text")
        if text is None:
            text = bytes(message.get("bytes") or b"")
        if _is_larger(text, self._service.options.max_message_bytes):  # no web server but our own sees to it
            await self._outlet.send({"type": "websocket.close", "code": TOO_BIG, "reason": "message too large"})
            return None
        return text

    async def _authenticate(self) -> Client | None:
        """Take the key from the first frame; return whose it is, None if it is nobody's."""
        try:
            async with self._strangers.waiting(self._stranger, self._service.options.receive_timeout_s):
                text = await self._next_message()
            if text is None:
                return None
            if len(text) > MAX_KEY_BYTES:
                raise ApiError(f"the first message is an API key, of at most {MAX_KEY_BYTES} bytes", status=413)
            event = self._parse(parse_object(text))
            client = self._service.access.check_key(event.key if isinstance(event, AuthEvent) else None)
        except ApiError as exc:
            had_to_go = exc.status == 503  # of many that had to, one line tells
            level = logging.DEBUG if had_to_go else logging.WARNING
            logger.log(level, "refused the websocket of client %s: %s", self._address, exc)
            await self.send(error_event(exc, None))
            code = {413: TOO_BIG, 503: TRY_LATER}.get(exc.status, POLICY_VIOLATION)
            await self._outlet.send({"type": "websocket.close", "code": code, "reason": "API key"})
            return None
        await self.send(encode_object({"type": "unicorn.authenticated"}))
        return client

    def _note(self, response_id: str, stream_id: str | None) -> None:
        self._responses.append((response_id, stream_id))

    def _parse(self, fields: Fields) -> ClientEvent:
        return parse_client_event(fields, defaults=self._service.options.default_sampling)

    async def _handle(self, text: str | bytes, client: Client, group: asyncio.TaskGroup) -> None:
        """Act on one message; whatever is wrong with it is told, and the connection goes on."""
        stream_id: str | None = None
        try:
            fields = parse_object(text)
            stream_id = channel_of(fields)
            event = self._parse(fields)
            if not isinstance(event, CancelEvent):  # what is under way may be ended, whatever became of the key
                let_pass(self._service.access.still(client))
            if isinstance(event, CreateEvent):
                self._put(event.request, event.stream_id, text, group)
            elif isinstance(event, ResumeEvent):
                self._put(event, event.stream_id, text, group)
            elif isinstance(event, CancelEvent):
                await self._cancel(event)
            elif isinstance(event, WatchEvent):
                self._watch(event, group)
            else:  # a key, of a client whom nobody asked for one, or who has shown one
                if self._service.access.needs_key:
                    self._service.access.check_key(event.key)
                await self.send(encode_object({"type": "unicorn.authenticated"}))
        except Exception as exc:
            if describe_error(exc).status == 500:
                logger.exception("event failed")
            await self.send(error_event(exc, stream_id))

    def _put(
        self,
        request: ResponsesRequest | ResumeEvent,
        stream_id: str | None,
        text: str | bytes,
        group: asyncio.TaskGroup,
    ) -> None:
        size = len(text)
        held = Input(self._inputs.claim("it", size), self._service.input_bytes.claim(asking.get().name, 0))
        channel = self._channels.get(stream_id)
        try:
            held.client.add(size)
            if channel is not None:
                channel.put(request, text, held)
                return
            limit = self._service.options.max_channels
            if len(self._channels) >= limit:
                raise ApiError(f"{limit} streams are busy already", status=429, code="too_many_streams")
            channel = self._lanes.lane(self.send, stream_id)
            channel.put(request, text, held)
        except ApiError:
            held.release()
            raise
        self._channels[stream_id] = channel
        self._start(group, self._run_channel(channel))

    async def _run_channel(self, channel: Lane) -> None:
        try:
            await channel.run()
        finally:
            del self._channels[channel.stream_id]

    async def _cancel(self, event: CancelEvent) -> None:
        for channel in self._channels.values():
            if event.response_id is None:
                is_meant = channel.stream_id == event.stream_id
            else:
                is_meant = channel.current_id == event.response_id
            if is_meant and channel.cancel():
                return
        if event.response_id is not None and await self._service.cancel_background(event.response_id):
            return
        if event.response_id is None:
            raise ApiError(
                "nothing is answered in this stream", status=404, code="response_not_found", param="response_id"
            )
        raise unknown_response(event.response_id, "response_not_found", "response_id")

    def _watch(self, event: WatchEvent, group: asyncio.TaskGroup) -> None:
        if event.interval_ms == 0:
            if self._watching is not None:
                self._watching.cancel()
                self._watching = None
            return
        if self._service.options.behind_proxy:
            message = "steps can't be watched through a proxy, which would keep all that is not read"
            raise ApiError(message, status=403, code="not_through_proxy")
        if self._watching is None:
            watchers = self._service.watchers
            watchers.claim()
            self._watching = self._start(group, self._report_steps())
            self._watching.add_done_callback(lambda _: watchers.release())
        self._watch_of_steps.set_interval(event.interval_ms / 1000)

    async def _tell(self, text: str) -> None:
        """Send what nobody asked for just now, as long as its key is good."""
        try:
            self._service.access.still(asking.get())
        except ApiError as exc:
            raise ClientGoneError from exc
        await self.send(text)

    async def _report_steps(self) -> None:
        with contextlib.suppress(ClientGoneError):
            await self._watch_of_steps.run(self._tell)

    async def _report_models(self) -> None:
        """Tell which model is served and how its load goes, from one model to the next."""
        told = ""
        try:
            async for state in self._service.models.watch():
                event = model_event(state)
                if state.download is None or event != told:
                    await self._tell(event)
                told = event
                if state.download is not None:
                    await self._tell(progress_event(state.name or "", state.download, {}))
                if state.status is ModelStatus.FAILED:
                    await self._tell(failure_event(state))
                if state.model is not None and state.status in (ModelStatus.LOADING, ModelStatus.READY):
                    await self._report_progress(state.model.engine)
        except ClientGoneError:
            return

    async def _report_progress(self, engine: EngineAPI) -> None:
        """Tell how one load goes, to its end, not more often than one can see."""
        try:
            async for progress in engine.load_progress():
                await self._tell(progress_event(engine.model_name, progress, self._prompts(engine)))
                if not progress.done:
                    await asyncio.sleep(PROGRESS_INTERVAL_S)
        except UnicornError:
            return  # what becomes of the model is told by its next state

    def _prompts(self, engine: EngineAPI) -> dict[str, int]:
        """How many layers the prompts of this connection's responses went through, of those that follow a load."""
        ids = [channel.current_id for channel in self._channels.values() if channel.current_id is not None]
        found = ((response_id, engine.prompt_layers(response_id)) for response_id in ids)
        return {response_id: layers for response_id, layers in found if layers is not None}

    def _start(self, group: asyncio.TaskGroup, work: Coroutine[object, object, None]) -> asyncio.Task[None]:
        task = group.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _count_nowhere(lease: Lease) -> None:
    """Stand in for a web server that does not tell what has come of a message."""


def _is_larger(text: str | bytes, limit: int) -> bool:
    size = len(text)
    return size > limit or (4 * size > limit and isinstance(text, str) and len(text.encode("utf-8", "replace")) > limit)


async def reject(exc: ApiError, scope: Scope, send: Send) -> None:
    """Refuse a handshake with an HTTP status and the error as its body, where the web server can do that."""
    logger.warning("refused the websocket of client %s: %s", scope.get("client"), exc)
    if "websocket.http.response" not in scope.get("extensions", {}):
        await send({"type": "websocket.close", "code": POLICY_VIOLATION, "reason": str(exc)[:100]})
        return
    body = encode_object({"error": describe_error(exc).to_json()}).encode()
    headers = [(b"content-type", b"application/json")]
    await send({"type": "websocket.http.response.start", "status": exc.status, "headers": headers})
    await send({"type": "websocket.http.response.body", "body": body})
