"""The HTTP endpoints of answers under /v1, and /health."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.routing import Route

from unicorn_async.server.background_answers import EventsGoneError
from unicorn_async.server.body import hold_body, leases_of, read_object
from unicorn_async.server.guard import guarded, json_response, told
from unicorn_async.server.health import health, is_ready, is_well
from unicorn_async.server.presence import present
from unicorn_async.server.protocol.encoding import encode_object
from unicorn_async.server.protocol.errors import error_event
from unicorn_async.server.protocol.responses_request import parse_responses_request
from unicorn_async.server.protocol.retrieval import Retrieval, parse_retrieval
from unicorn_async.server.reply import EventStreamReply, WholeReply, encode_response_event

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.requests import Request
    from starlette.responses import Response

    from unicorn_async.server.background_answers import BackgroundAnswer
    from unicorn_async.server.ledger import Lease
    from unicorn_async.server.protocol.responses_request import ResponsesRequest
    from unicorn_async.server.reply import Reply
    from unicorn_async.server.service import Service


class HttpEndpoints:
    """The routes of one service."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def routes(self) -> list[Route]:
        """Return the routes."""
        access = self._service.access
        return [
            Route("/v1/responses", guarded(access, self._create_response), methods=["POST"]),
            Route("/v1/responses/input_tokens", guarded(access, self._count_tokens), methods=["POST"]),
            Route("/v1/responses/compact", guarded(access, self._compact), methods=["POST"]),
            Route("/v1/responses/{response_id}", guarded(access, self._one_response), methods=["GET", "DELETE"]),
            Route("/v1/responses/{response_id}/cancel", guarded(access, self._cancel_response), methods=["POST"]),
            Route("/v1/responses/{response_id}/input_items", guarded(access, self._list_inputs), methods=["GET"]),
            Route("/health", told(self._health), methods=["GET"]),
            Route("/ready", told(self._ready), methods=["GET"]),
        ]

    async def _one_response(self, request: Request) -> Response | Reply:
        return await (self._delete_response if request.method == "DELETE" else self._get_response)(request)

    async def _create_response(self, request: Request) -> Response | Reply:
        service = self._service
        options = service.options
        lease = hold_body(request, service.input_bytes)
        fields = await read_object(request, options, lease=lease)
        wanted = parse_responses_request(fields, defaults=options.default_sampling)
        if wanted.background:
            leases_of(request).remove(lease)
            return await self._create_background(wanted, lease)
        active = await service.open_response(wanted)

        async def run(emit: Callable[[str], Awaitable[None]]) -> None:
            await service.run_response(active, emit)

        async def close() -> None:
            await service.close_response(active)

        if wanted.stream:
            return EventStreamReply.of(options, run, close, encode=encode_response_event)
        answer, timeout_s = active.answer, options.send_timeout_s

        def text() -> str:
            return encode_object(answer.state.to_json())

        return WholeReply(run, close, send_timeout_s=timeout_s, answer=answer, text=text)

    async def _create_background(self, wanted: ResponsesRequest, lease: Lease) -> Response | Reply:
        present.set(None)  # it goes on when its client goes
        answer = await self._service.open_background(wanted, lease)
        if wanted.stream:
            return self._followed(answer, Retrieval())
        await self._service.responses.archive.written()  # all that its client has is the name
        return json_response(answer.body)

    def _followed(self, answer: BackgroundAnswer, place: Retrieval) -> Reply:
        """Return the events of an answer after the one of this number; the answer goes on when the client goes."""

        async def run(emit: Callable[[str], Awaitable[None]]) -> None:
            try:
                await answer.log.follow(place.after, emit, skip_missing=place.skip_missing)
            except EventsGoneError as exc:
                await emit(error_event(exc, exc.number))

        return EventStreamReply.of(self._service.options, run, _nothing, encode=encode_response_event)

    def _replayed(self, events: list[str]) -> Reply:
        async def run(emit: Callable[[str], Awaitable[None]]) -> None:
            for event in events:
                await emit(event)

        return EventStreamReply.of(self._service.options, run, _nothing, encode=encode_response_event)

    async def _get_response(self, request: Request) -> Response | Reply:
        response_id = request.path_params["response_id"]
        await self._service.responses.recall(response_id)
        place = parse_retrieval(request.query_params.multi_items())
        if place is None:
            return json_response(self._service.responses.find(response_id))
        found = await self._service.responses.resume(response_id, place)
        return self._replayed(found) if isinstance(found, list) else self._followed(found, place)

    async def _delete_response(self, request: Request) -> Response:
        response_id = request.path_params["response_id"]
        await self._service.responses.delete(response_id)
        return json_response(encode_object({"id": response_id, "object": "response", "deleted": True}))

    async def _cancel_response(self, request: Request) -> Response:
        response_id = request.path_params["response_id"]
        await self._service.responses.recall(response_id)
        return json_response(await self._service.responses.cancel(response_id))

    async def _list_inputs(self, request: Request) -> Response:
        from unicorn_async.server.protocol.input_items import item_list, parse_item_query

        response_id = request.path_params["response_id"]
        query = parse_item_query(request.query_params.multi_items())
        await self._service.responses.recall(response_id)
        return json_response(encode_object(item_list(response_id, self._service.responses.inputs(response_id), query)))

    async def _count_tokens(self, request: Request) -> Response:
        from unicorn_async.server.protocol.input_items import INPUT_TOKENS_FIELDS

        options = self._service.options
        fields = await read_object(request, options, lease=hold_body(request, self._service.input_bytes))
        fields.refuse_unknown(INPUT_TOKENS_FIELDS)
        wanted = parse_responses_request(fields, defaults=options.default_sampling)
        count = await self._service.input_tokens(wanted)
        return json_response(encode_object({"object": "response.input_tokens", "input_tokens": count}))

    async def _compact(self, request: Request) -> Reply:
        from unicorn_async.server.compaction import open_compaction
        from unicorn_async.server.protocol.compact_request import parse_compact_request

        service = self._service
        fields = await read_object(request, service.options, lease=hold_body(request, service.input_bytes))
        answer, generation = await open_compaction(service, parse_compact_request(fields))

        async def run(emit: Callable[[str], Awaitable[None]]) -> None:
            await generation.run(answer, emit)

        timeout_s = service.options.send_timeout_s
        return WholeReply(run, generation.close, send_timeout_s=timeout_s, answer=answer, text=answer.text)

    async def _health(self, request: Request) -> Response:
        """Say how the server is; 503 if there is no model, or its engine has failed. It needs no key."""
        self._service.access.check_host(request.headers)
        models = self._service.models
        state = models.state
        store, keys = self._service.responses.archive.state, self._service.keys.to_json()
        body = health(state, store, can_switch=models.can_switch, keys=keys)
        return json_response(encode_object(body), status=200 if is_well(state) else 503)

    async def _ready(self, request: Request) -> Response:
        """Say with 200 or 503 whether requests are taken now. It needs no key."""
        self._service.access.check_host(request.headers)
        state, is_draining = self._service.models.state, self._service.is_draining
        ready = is_ready(state) and not is_draining
        body = encode_object({"ready": ready, "status": "draining" if is_draining else state.status.value})
        return json_response(body, status=200 if ready else 503)


async def _nothing() -> None:
    """What is followed closes itself, and what is made again is closed."""
