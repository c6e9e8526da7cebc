"""The HTTP endpoints of Chat Completions and Completions.

What few requests need is imported by the first of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.routing import Route

from unicorn_async.server.body import hold_body, read_object
from unicorn_async.server.completions import open_chat
from unicorn_async.server.guard import guarded
from unicorn_async.server.protocol.chat_request import parse_chat_request
from unicorn_async.server.protocol.encoding import encode_object
from unicorn_async.server.reply import EventStreamReply, WholeReply, encode_chunk

if TYPE_CHECKING:
    from typing import Any

    from starlette.requests import Request

    from unicorn_async.server.choices import Choices
    from unicorn_async.server.protocol.fields import Fields
    from unicorn_async.server.reply import Reply
    from unicorn_async.server.service import Service

DONE = b"data: [DONE]\n\n"


class CompletionEndpoints:
    """The routes of one service."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def routes(self) -> list[Route]:
        """Return the routes."""
        access = self._service.access
        return [
            Route("/v1/chat/completions", guarded(access, self._create_chat), methods=["POST"]),
            Route("/v1/completions", guarded(access, self._create_completion), methods=["POST"]),
        ]

    async def _create_chat(self, request: Request) -> Reply:
        options = self._service.options
        wanted = parse_chat_request(await self._read(request), defaults=options.default_sampling)
        return self._reply(await open_chat(self._service, wanted), stream=wanted.stream)

    async def _create_completion(self, request: Request) -> Reply:
        from unicorn_async.server.protocol.completion_request import parse_completion_request
        from unicorn_async.server.text_completions import open_completion

        options = self._service.options
        wanted = parse_completion_request(await self._read(request), defaults=options.default_sampling)
        return self._reply(await open_completion(self._service, wanted), stream=wanted.stream)

    async def _read(self, request: Request) -> Fields:
        service = self._service
        return await read_object(request, service.options, lease=hold_body(request, service.input_bytes))

    def _reply(self, choices: Choices[Any], *, stream: bool) -> Reply:
        options, answer = self._service.options, choices.answer
        if stream:
            return EventStreamReply.of(options, choices.run, choices.close, encode=encode_chunk, tail=DONE)
        timeout_s = options.send_timeout_s

        def text() -> str:
            return encode_object(answer.to_json())

        return WholeReply(choices.run, choices.close, send_timeout_s=timeout_s, answer=answer, text=text)
