"""The body of POST /v1/responses/compact, and what answers it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from unicorn_async.server.protocol.compaction import MAX_SUMMARY_BYTES, compaction_item
from unicorn_async.server.protocol.encoding import encode_object
from unicorn_async.server.protocol.errors import ApiError, describe_error
from unicorn_async.server.protocol.hints import parse_hints
from unicorn_async.server.protocol.input_items import message_item
from unicorn_async.server.protocol.messages import parse_input
from unicorn_async.server.protocol.response_object import usage
from unicorn_async.server.protocol.responses_request import MAX_PREVIOUS, parse_model

if TYPE_CHECKING:
    from collections.abc import Sequence

    from unicorn_async.engine.types import FinishReason, Token
    from unicorn_async.server.protocol.errors import ErrorInfo
    from unicorn_async.server.protocol.fields import Fields
    from unicorn_async.server.protocol.thoughts import Splitter
    from unicorn_async.tokenizer import ChatMessage

COMPACT_FIELDS = frozenset(
    {
        "image",
        "input",
        "instructions",
        "model",
        "previous_response_id",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "service_tier",
    }
)
KEPT_ROLES = ("system", "user")


@dataclass(frozen=True, slots=True)
class CompactRequest:
    """A checked request; `messages` are its own input alone."""

    messages: tuple[ChatMessage, ...]
    instructions: str | None
    previous_response_id: str | None
    model: str | None


def parse_compact_request(fields: Fields) -> CompactRequest:
    """Check a request's body.

    Raises:
        ApiError: with the name of the field that is wrong, unknown, or asks for what is not supported.
    """
    fields.refuse_unknown(COMPACT_FIELDS)
    if fields.value("image") not in (None, [], {}):
        raise fields.unsupported("image", "this server takes text alone")
    parse_hints(fields)
    request = CompactRequest(
        messages=parse_input(fields),
        instructions=fields.string("instructions"),
        previous_response_id=fields.string("previous_response_id", max_length=MAX_PREVIOUS),
        model=parse_model(fields),
    )
    if not request.messages and request.previous_response_id is None:
        raise ApiError("input: expected a string or an array of messages", code="missing_parameter", param="input")
    return request


@dataclass(slots=True)
class CompactionAnswer:
    """Gathers the summary that a model writes of a conversation; thoughts are left out where there is a splitter."""

    id: str  # of the whole answer
    conversation: Sequence[ChatMessage]
    num_prompt: int  # tokens
    splitter: Splitter | None = None
    error: ErrorInfo | None = None
    created_at: int = field(default_factory=lambda: int(time.time()))
    _texts: list[str] = field(default_factory=list)
    _num_tokens: int = 0
    _num_cached: int = 0
    _num_thought: int = 0

    def begin(self) -> Sequence[str]:
        """Return nothing: there are no events."""
        return ()

    def heartbeat(self) -> None:
        """Return nothing, likewise."""

    def opened(self) -> Sequence[str]:
        """Return nothing, likewise."""
        return ()

    def token(self, token: Token) -> Sequence[str]:
        """Take a token."""
        self._num_tokens += 1
        self._num_cached = token.num_prompt_found
        splitter = self.splitter
        if splitter is None:
            self._texts.append(token.text)
            return ()
        was_thinking = splitter.is_thinking
        self._take(splitter.feed(token.text + splitter.markers.get(token.id, "")))
        self._num_thought += was_thinking or splitter.is_thinking
        return ()

    def finished(self, reason: FinishReason) -> Sequence[str]:
        """Take the end; without a summary the answer has failed."""
        if self.splitter is not None:
            self._take(self.splitter.finish())
        if not self.summary:
            message = f"the model wrote no summary in {self._num_tokens} tokens, and ended by {reason.value}"
            self.failed(describe_error(ApiError(message, status=500, code="no_summary")))
        return ()

    def failed(self, error: ErrorInfo) -> Sequence[str]:
        """Take an error that ends the answer."""
        self.error = error
        return ()

    @property
    def summary(self) -> str:
        """The summary so far, as much of it as an item takes."""
        text = "".join(self._texts).strip()
        return text.encode()[:MAX_SUMMARY_BYTES].decode(errors="ignore")

    def text(self) -> str:
        """Return the answer as JSON: what the user and the system say as it was, and a summary of all."""
        name = self.id.removeprefix("resp_")
        kept = [message for message in self.conversation if message.role in KEPT_ROLES]
        items = [message_item(f"msg_{name}_{number}", message) for number, message in enumerate(kept)]
        counts = usage(self.num_prompt, self._num_cached, self._num_tokens, self._num_thought)
        return encode_object(
            {
                "id": self.id,
                "object": "response.compaction",
                "created_at": self.created_at,
                "output": [*items, compaction_item(f"cmp_{name}", self.summary)],
                "usage": counts,
            }
        )

    def _take(self, pieces: Sequence[tuple[bool, str]]) -> None:
        self._texts += [text for is_thought, text in pieces if not is_thought]
