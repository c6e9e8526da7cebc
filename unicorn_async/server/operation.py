"""The HTTP endpoints for who operates the server."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.responses import Response
from starlette.routing import Route

from unicorn_async.server.guard import guarded, json_response, told
from unicorn_async.server.health import package_version
from unicorn_async.server.keys import Right
from unicorn_async.server.protocol.encoding import encode_object

if TYPE_CHECKING:
    from starlette.requests import Request

    from unicorn_async.server.access import Access
    from unicorn_async.server.service import Service


class DescriptionEndpoints:
    """What the API is, for who may ask."""

    def __init__(self, access: Access) -> None:
        self._access = access

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            Route("/openapi.json", told(self._describe), methods=["GET"]),
            Route("/asyncapi.json", told(self._describe_websocket), methods=["GET"]),
        ]

    async def _describe(self, request: Request) -> Response:
        from unicorn_async.server.openapi import description

        self._access.check_host(request.headers)
        return json_response(encode_object(description(package_version(), needs_key=self._access.needs_key)))

    async def _describe_websocket(self, request: Request) -> Response:
        from unicorn_async.server.asyncapi import description

        self._access.check_host(request.headers)
        return json_response(encode_object(description(package_version())))


class OperationEndpoints:
    """The routes of one service."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def routes(self) -> list[Route]:
        """Return the routes."""
        access = self._service.access
        return [
            Route("/metrics", guarded(access, self._metrics, Right.METRICS), methods=["GET"]),
            *DescriptionEndpoints(access).routes(),
        ]

    async def _metrics(self, request: Request) -> Response:
        from unicorn_async.server.metrics_text import CONTENT_TYPE, metrics_text

        text = metrics_text(self._service.metrics, self._service.models.state, self._service.responses.archive.state)
        return Response(text, headers={"content-type": CONTENT_TYPE, "cache-control": "no-store"})
