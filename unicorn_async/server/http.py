"""The HTTP endpoints under /v1, and /health."""

from __future__ import annotations

import logging
import time
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from starlette.responses import Response
from starlette.routing import Route

from unicorn_async.server.body import read_object
from unicorn_async.server.generation import ClientGoneError
from unicorn_async.server.protocol.chat_request import parse_chat_request
from unicorn_async.server.protocol.encoding import encode_object
from unicorn_async.server.protocol.errors import ApiError, describe_error
from unicorn_async.server.protocol.responses_request import parse_responses_request
from unicorn_async.server.reply import EventStreamReply, Reply, WholeReply, frame_chunk, frame_response_event

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.requests import Request

    from unicorn_async.server.service import Service

    Handler = Callable[[Request], Awaitable[Response | Reply]]

logger = logging.getLogger(__name__)


class HttpEndpoints:
    """The routes of one service."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._started_at = int(time.time())

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            Route("/v1/responses", self._guarded(self._create_response), methods=["POST"]),
            Route("/v1/responses/{response_id}", self._guarded(self._get_response), methods=["GET"]),
            Route("/v1/responses/{response_id}", self._guarded(self._delete_response), methods=["DELETE"]),
            Route("/v1/responses/{response_id}/cancel", self._guarded(self._cancel_response), methods=["POST"]),
            Route("/v1/chat/completions", self._guarded(self._create_chat), methods=["POST"]),
            Route("/v1/models", self._guarded(self._list_models), methods=["GET"]),
            Route("/v1/models/{model:path}", self._guarded(self._get_model), methods=["GET"]),
            Route("/health", self._told(self._health), methods=["GET"]),
        ]

    def _guarded(self, handler: Handler) -> Handler:
        """Return the handler behind the access check, with errors as JSON."""

        async def guarded(request: Request) -> Response | Reply:
            self._service.access.check(request.headers)
            return await handler(request)

        return self._told(guarded)

    @staticmethod
    def _told(handler: Handler) -> Handler:
        """Return the handler with errors as JSON."""

        async def told(request: Request) -> Response | Reply:
            try:
                return await handler(request)
            except ClientGoneError:
                return Response(status_code=400)
            except Exception as exc:
                return error_response(exc)

        return told

    async def _create_response(self, request: Request) -> Reply:
        service = self._service
        options = service.options
        fields = await read_object(request, options)
        wanted = parse_responses_request(
            fields, model_name=service.engine.model_name, defaults=options.default_sampling
        )
        active = await service.open_response(wanted)

        async def run(emit: Callable[[str], Awaitable[None]]) -> None:
            await service.run_response(active, emit)

        async def close() -> None:
            await service.close_response(active)

        timeout_s = options.send_timeout_s
        if wanted.stream:
            return EventStreamReply(run, close, send_timeout_s=timeout_s, frame=frame_response_event)
        answer = active.answer
        return WholeReply(run, close, send_timeout_s=timeout_s, answer=answer, to_json=answer.state.to_json)

    async def _create_chat(self, request: Request) -> Reply:
        service = self._service
        options = service.options
        fields = await read_object(request, options)
        wanted = parse_chat_request(fields, model_name=service.engine.model_name, defaults=options.default_sampling)
        generation, answer = await service.open_chat(wanted)

        async def run(emit: Callable[[str], Awaitable[None]]) -> None:
            await generation.run(answer, emit)

        timeout_s = options.send_timeout_s
        if wanted.stream:
            tail = b"data: [DONE]\n\n"
            return EventStreamReply(run, generation.close, send_timeout_s=timeout_s, frame=frame_chunk, tail=tail)
        return WholeReply(run, generation.close, send_timeout_s=timeout_s, answer=answer, to_json=answer.to_json)

    async def _get_response(self, request: Request) -> Response:
        return json_response(self._service.find(request.path_params["response_id"]))

    async def _delete_response(self, request: Request) -> Response:
        response_id = request.path_params["response_id"]
        self._service.find(response_id)
        self._service.store.remove(response_id)
        return json_response(encode_object({"id": response_id, "object": "response", "deleted": True}))

    async def _cancel_response(self, request: Request) -> Response:
        return json_response(await self._service.cancel(request.path_params["response_id"]))

    async def _list_models(self, request: Request) -> Response:
        return json_response(encode_object({"object": "list", "data": [self._model()]}))

    async def _get_model(self, request: Request) -> Response:
        name = request.path_params["model"]
        if name != self._service.engine.model_name:
            raise ApiError(
                f"model {name[:200]!r} is not served here", status=404, code="model_not_found", param="model"
            )
        return json_response(encode_object(self._model()))

    def _model(self) -> dict[str, object]:
        name = self._service.engine.model_name
        return {"id": name, "object": "model", "created": self._started_at, "owned_by": "unicorn_async"}

    async def _health(self, request: Request) -> Response:
        """Say how the server is; 503 only when it will not get well by waiting. It needs no key."""
        self._service.access.check_host(request.headers)
        engine = self._service.engine
        progress = engine.progress
        error = self._service.load_error
        stats = engine.stats()
        device = engine.device
        status = "error" if error else "ready" if progress.done else "loading"
        body: dict[str, object] = {
            "status": status,
            "model": engine.model_name,
            "version": package_version(),
            "max_context": engine.max_context,
            "device": {
                "name": device.name,
                "type": device.type.value,
                "driver": device.driver_name,
                "driver_info": device.driver_info,
                "software": device.is_software,
            },
            "kernels": list(engine.kernels),
            "loaded": round(progress.share, 4),
            "load": {
                "bytes_total": progress.bytes_total,
                "bytes_loaded": progress.bytes_loaded,
                "layers_total": progress.layers_total,
                "layers_active": progress.layers_active,
                "seconds": round(progress.seconds, 3),
            },
            "stats": {name: getattr(stats, name) for name in type(stats).__dataclass_fields__},
            "error": error,
        }
        return json_response(encode_object(body), status=503 if error else 200)


def json_response(text: str, *, status: int = 200) -> Response:
    """Return a response from JSON that is encoded already."""
    return Response(text, status_code=status, media_type="application/json", headers={"cache-control": "no-store"})


def error_response(exc: Exception) -> Response:
    """Return an error as OpenAI's API does; what is our own fault goes to the log."""
    error = describe_error(exc)
    if error.status == 500:
        logger.error("request failed", exc_info=exc)
    response = json_response(encode_object({"error": error.to_json()}), status=error.status)
    if error.status == 401:
        response.headers["www-authenticate"] = "Bearer"
    if error.status in (429, 503):
        response.headers["retry-after"] = "1"
    return response


def package_version() -> str:
    """Return the installed package's version, or "unknown" in a checkout that is not installed."""
    try:
        return version("unicorn-async")
    except PackageNotFoundError:
        return "unknown"
