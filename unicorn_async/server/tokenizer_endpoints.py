"""The HTTP endpoints of the model's tokenizer and its chat template; what reads their bodies is imported then."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.routing import Route

from unicorn_async.server.body import hold_body, read_object
from unicorn_async.server.guard import guarded, json_response
from unicorn_async.server.protocol.encoding import encode_object
from unicorn_async.server.protocol.errors import ApiError, naming
from unicorn_async.server.protocol.messages import merge_system

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from unicorn_async.server.protocol.fields import Fields
    from unicorn_async.server.service import Service
    from unicorn_async.tokenizer import Tokenizer


class TokenizerEndpoints:
    """The routes of one service."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def routes(self) -> list[Route]:
        """Return the routes."""
        access = self._service.access
        return [
            Route("/tokenize", guarded(access, self._tokenize), methods=["POST"]),
            Route("/detokenize", guarded(access, self._detokenize), methods=["POST"]),
            Route("/apply-template", guarded(access, self._apply_template), methods=["POST"]),
        ]

    async def _tokenize(self, request: Request) -> Response:
        from unicorn_async.server.protocol.tokenize_request import parse_tokenize_request

        wanted = parse_tokenize_request(await self._read(request))
        engine = (await self._service.model(wanted.model)).engine
        tokenizer, service = engine.tokenizer, self._service
        if wanted.text is None:
            ids = await service.prompts.encode_chat(tokenizer, merge_system(None, wanted.messages), wanted.template)
        else:
            text, add_bos, with_control = wanted.text, wanted.add_bos, wanted.with_control
            ids = await service.prompts.encoded(
                tokenizer, len(text), lambda its: its.encode(text, add_bos=add_bos, with_control=with_control)
            )

        def told() -> str:
            tokens = [_piece(tokenizer, token_id) for token_id in ids] if wanted.with_pieces else ids
            strings = [tokenizer.token_text(token_id) for token_id in ids] if wanted.with_strings else None
            body = {"count": len(ids), "max_model_len": engine.max_context, "tokens": tokens, "token_strs": strings}
            return encode_object(body)

        return json_response(await service.prompts.encoded(tokenizer, len(ids), lambda _: told()))

    async def _read(self, request: Request) -> Fields:
        service = self._service
        return await read_object(request, service.options, lease=hold_body(request, service.input_bytes))

    async def _detokenize(self, request: Request) -> Response:
        from unicorn_async.server.protocol.tokenize_request import parse_detokenize_request

        ids, name = parse_detokenize_request(await self._read(request))
        tokenizer = (await self._service.model(name)).engine.tokenizer
        beyond = next((number for number in ids if number >= tokenizer.vocab_size), None)
        if beyond is not None:
            message = f"tokens: expected 0 to {tokenizer.vocab_size - 1}, got {beyond}"
            raise ApiError(message, code="invalid_value", param="tokens")
        text = await self._service.prompts.encoded(tokenizer, len(ids), lambda its: its.decode(ids, skip_special=False))
        return json_response(encode_object({"content": text, "prompt": text}))

    async def _apply_template(self, request: Request) -> Response:
        from unicorn_async.server.protocol.tokenize_request import parse_template_request

        messages, options, name = parse_template_request(await self._read(request))
        tokenizer = (await self._service.model(name)).engine.tokenizer
        with naming("messages"):
            text = await self._service.prompts.chat_text(tokenizer, merge_system(None, messages), options)
        return json_response(encode_object({"prompt": text}))


def _piece(tokenizer: Tokenizer, token_id: int) -> dict[str, object]:
    """A token and its text, or its bytes where these are no text."""
    piece = tokenizer.token_bytes(token_id)
    try:
        return {"id": token_id, "piece": piece.decode()}
    except UnicodeDecodeError:
        return {"id": token_id, "piece": list(piece)}
