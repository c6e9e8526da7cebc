"""The HTTP endpoint of embeddings; what reads its bodies is imported then."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.routing import Route

from unicorn_async.server.body import hold_body, read_object
from unicorn_async.server.guard import guarded
from unicorn_async.server.reply import WholeReply

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.requests import Request

    from unicorn_async.server.reply import Reply
    from unicorn_async.server.service import Service


class EmbeddingEndpoints:
    """The routes of one service."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [Route("/v1/embeddings", guarded(self._service.access, self._create), methods=["POST"])]

    async def _create(self, request: Request) -> Reply:
        from unicorn_async.server.embeddings import open_embeddings
        from unicorn_async.server.protocol.embedding_request import parse_embedding_request

        service = self._service
        fields = await read_object(request, service.options, lease=hold_body(request, service.input_bytes))
        answer, generation = await open_embeddings(service, parse_embedding_request(fields))

        async def run(emit: Callable[[str], Awaitable[None]]) -> None:
            await generation.run(answer, emit)

        timeout_s = service.options.send_timeout_s
        return WholeReply(run, generation.close, send_timeout_s=timeout_s, answer=answer, text=answer.text)
