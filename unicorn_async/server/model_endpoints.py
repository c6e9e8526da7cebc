"""The HTTP endpoints under /v1/models: which models there are, and which of them is served."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from starlette.routing import Route

from unicorn_async.engine.model_library import ListedModel
from unicorn_async.errors import CheckpointError, ConfigError, DeviceError, DownloadError, RequestError
from unicorn_async.server.body import read_object
from unicorn_async.server.generation import ClientGoneError
from unicorn_async.server.guard import guarded, json_response
from unicorn_async.server.keys import Right
from unicorn_async.server.model_state import ModelStatus
from unicorn_async.server.presence import while_present
from unicorn_async.server.protocol.encoding import encode_object
from unicorn_async.server.protocol.errors import ApiError, describe_error
from unicorn_async.server.protocol.load_request import (
    parse_load_request,
    parse_placement_request,
    parse_unload_request,
)
from unicorn_async.server.protocol.model_object import details, placement_object

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from unicorn_async.server.model_change import Change
    from unicorn_async.server.service import Service

READING_TIME_S = 0.25  # in which a listing reads files that nobody has read yet


class ModelEndpoints:
    """The routes of one service."""

    def __init__(self, service: Service) -> None:
        self._options = service.options
        self._access = service.access
        self._models = service.models
        self._check_open = service.check_open
        self._started_at = int(time.time())
        self._reading = asyncio.Lock()  # one at a time: each takes a thread

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            Route("/v1/models", guarded(self._access, self._list), methods=["GET"]),
            Route("/v1/models/load", guarded(self._access, self._load, Right.MANAGE), methods=["POST"]),
            Route("/v1/models/unload", guarded(self._access, self._unload, Right.MANAGE), methods=["POST"]),
            Route("/v1/models/placement", guarded(self._access, self._placement, Right.MANAGE), methods=["POST"]),
            Route("/v1/models/{model:path}", guarded(self._access, self._get), methods=["GET"]),
        ]

    async def _list(self, request: Request) -> Response:
        async with self._reading:
            adapters = await asyncio.to_thread(self._models.library.adapters)
        return json_response(encode_object({"object": "list", "data": await self._all(), "adapters": adapters}))

    async def _get(self, request: Request) -> Response:
        name = request.path_params["model"]
        for model in await self._all():
            if model["id"] == name:
                return json_response(encode_object(model))
        raise ApiError(f"model {name[:200]!r} is not served here", status=404, code="model_not_found", param="model")

    async def _placement(self, request: Request) -> Response:
        choice = parse_placement_request(await read_object(request, self._options))
        library = self._models.library
        async with self._reading:
            try:
                planned = await asyncio.to_thread(library.placement, choice)
            except (ConfigError, CheckpointError, DeviceError, DownloadError) as exc:
                raise self._models.refusal(exc) from exc
        return json_response(encode_object(placement_object(planned, library.public_text)))

    async def _load(self, request: Request) -> Response:
        wanted = parse_load_request(await read_object(request, self._options))
        self._check_open()
        change = await self._models.load(wanted.choice, when_idle=wanted.when_idle)
        return await self._report(change, wait=wanted.wait)

    async def _unload(self, request: Request) -> Response:
        wanted = parse_unload_request(await read_object(request, self._options, may_be_empty=True))
        self._check_open()
        name = self._models.state.name
        if wanted.model is not None and wanted.model != name:
            message = f"model: {wanted.model!r} is not served here; this server has {name!r}"
            raise ApiError(message, status=404, code="model_not_found", param="model")
        return await self._report(self._models.unload(when_idle=wanted.when_idle), wait=wanted.wait)

    async def _report(self, change: Change, *, wait: bool) -> Response:
        """Answer with the state now, or with that at the end of the change."""
        if wait:
            try:
                await while_present(change.done())
            except (RequestError, ClientGoneError):
                raise
            except Exception as exc:
                error = describe_error(exc)
                message = self._models.library.public_text(error.message)
                if not message.startswith((f"{change.name}: ", f"{change.name}/")):  # a file is named by its model
                    message = f"{change.name}: {message}"
                status = error.status if error.status == 503 else 500
                raise ApiError(message, status=status, code="model_load_failed") from exc
        state = self._models.state
        body = {
            "object": "model.state",
            "model": state.name,
            "weights": change.model.config.weights.value if change.model is not None else None,
            "status": state.status.value,
            "error": state.error,
        }
        return json_response(encode_object(body), status=200 if change.is_done else 202)

    async def _all(self) -> list[dict[str, object]]:
        """All models, the one that is served, or will be, first."""
        async with self._reading:
            listed = await asyncio.to_thread(self._models.library.models, READING_TIME_S)
        state = self._models.state
        known = {model.name: model for model in listed}
        served = [] if state.name is None else [known.pop(state.name, ListedModel(state.name))]
        return [self._model(model, state.status) for model in served] + [self._model(m) for m in known.values()]

    def _model(self, model: ListedModel, status: ModelStatus | None = None) -> dict[str, object]:
        return {
            "id": model.name,
            "object": "model",
            "created": self._started_at,
            "owned_by": "unicorn_async",
            "loaded": status in (ModelStatus.LOADING, ModelStatus.READY),
            "status": status.value if status is not None else "available",
            **details(model, self._models.library.public_text),
        }
