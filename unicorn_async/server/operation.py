"""The HTTP endpoints for who operates the server."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.responses import Response
from starlette.routing import Route

from unicorn_async.server.guard import guarded

if TYPE_CHECKING:
    from starlette.requests import Request

    from unicorn_async.server.service import Service


class OperationEndpoints:
    """The routes of one service."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def routes(self) -> list[Route]:
        """Return the routes."""
        access = self._service.access
        return [Route("/metrics", guarded(access, self._metrics), methods=["GET"])]

    async def _metrics(self, request: Request) -> Response:
        from unicorn_async.server.metrics_text import CONTENT_TYPE, metrics_text

        text = metrics_text(self._service.metrics, self._service.models.state)
        return Response(text, headers={"content-type": CONTENT_TYPE, "cache-control": "no-store"})
