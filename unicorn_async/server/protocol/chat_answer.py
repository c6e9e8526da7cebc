"""The chunks and the whole object of the Chat Completions API."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from unicorn_async.engine.types import FinishReason
from unicorn_async.server.protocol.encoding import encode_object, encode_text
from unicorn_async.server.protocol.logprobs import Logprobs

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from unicorn_async.engine.types import Token
    from unicorn_async.server.protocol.errors import ErrorInfo

FINISH_REASON = {FinishReason.STOP: "stop", FinishReason.LENGTH: "length", FinishReason.CANCELLED: "stop"}


class ChatAnswer:
    """Encodes one chat completion, as chunks while it comes and as one object at its end."""

    def __init__(
        self,
        completion_id: str,
        model: str,
        input_tokens: int,
        token_bytes: Callable[[int], bytes],
        *,
        wants_logprobs: bool = False,
        include_usage: bool = False,
    ) -> None:
        self.error: ErrorInfo | None = None
        self._head: dict[str, object] = {"id": completion_id, "created": int(time.time()), "model": model}
        self._input_tokens = input_tokens
        self._output_tokens = 0
        self._cached_tokens = 0  # of the input, that were computed before
        self._logprobs = Logprobs(token_bytes) if wants_logprobs else None
        self._include_usage = include_usage
        self._texts: list[str] = []
        self._finish_reason = "stop"
        head = encode_object({"object": "chat.completion.chunk", **self._head})
        self._delta_head = head[:-1] + ',"choices":[{"index":0,"delta":{"content":'
        self._delta_tail = ',"finish_reason":null}]' + (',"usage":null}' if include_usage else "}")

    def begin(self) -> Sequence[str]:
        """Return the chunk that names the role."""
        return [self._chunk({"role": "assistant", "content": ""}, None)]

    def heartbeat(self) -> None:
        """Return nothing: a chunk without content means nothing to this API's clients."""

    def opened(self) -> Sequence[str]:
        """Return nothing: the role's chunk has opened the message."""
        return ()

    def token(self, token: Token) -> str | None:
        """Return the token's chunk, None if it shows nothing yet."""
        self._output_tokens += 1
        self._cached_tokens = token.num_prompt_found
        text = token.text
        logprobs = "null"
        if self._logprobs is not None:
            logprobs = encode_object({"content": self._logprobs.add(token), "refusal": None})
        if not text:
            return None
        self._texts.append(text)
        return f'{self._delta_head}{encode_text(text)}}},"logprobs":{logprobs}{self._delta_tail}'

    def finished(self, reason: FinishReason) -> Sequence[str]:
        """Return the chunk with the finish reason and, if it was asked for, the one with the usage."""
        self._finish_reason = FINISH_REASON[reason]
        rest = self._logprobs.rest() if self._logprobs is not None else None
        chunks = [self._chunk({}, self._finish_reason, rest)]
        if self._include_usage:
            usage = {"choices": [], "usage": self._usage()}
            chunks.append(encode_object({"object": "chat.completion.chunk", **self._head, **usage}))
        return chunks

    def failed(self, error: ErrorInfo) -> Sequence[str]:
        """Return the error in the place of a chunk."""
        self.error = error
        return [encode_object({"error": error.to_json()})]

    def to_json(self) -> dict[str, object]:
        """Return the whole completion."""
        message = {"role": "assistant", "content": "".join(self._texts), "refusal": None}
        choice: dict[str, object] = {"index": 0, "message": message, "finish_reason": self._finish_reason}
        choice["logprobs"] = None if self._logprobs is None else {"content": self._logprobs.sent, "refusal": None}
        return {"object": "chat.completion", **self._head, "choices": [choice], "usage": self._usage()}

    def _chunk(
        self, delta: dict[str, object], finish_reason: str | None, logprobs: list[dict[str, object]] | None = None
    ) -> str:
        choice: dict[str, object] = {"index": 0, "delta": delta, "finish_reason": finish_reason}
        choice["logprobs"] = {"content": logprobs, "refusal": None} if logprobs else None
        usage: dict[str, object] = {"usage": None} if self._include_usage else {}
        return encode_object({"object": "chat.completion.chunk", **self._head, "choices": [choice], **usage})

    def _usage(self) -> dict[str, object]:
        return {
            "prompt_tokens": self._input_tokens,
            "completion_tokens": self._output_tokens,
            "total_tokens": self._input_tokens + self._output_tokens,
            "prompt_tokens_details": {"cached_tokens": self._cached_tokens},
        }
