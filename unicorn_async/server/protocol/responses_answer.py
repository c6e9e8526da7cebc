"""The event stream of the Responses API, for websocket frames and server-sent events alike."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unicorn_async.engine.types import FinishReason
from unicorn_async.server.protocol.encoding import encode_object, encode_text
from unicorn_async.server.protocol.logprobs import Logprobs
from unicorn_async.server.protocol.response_object import ResponseState, ResponseStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from unicorn_async.engine.types import Token
    from unicorn_async.server.protocol.errors import ErrorInfo

STATUS_OF = {
    FinishReason.STOP: ResponseStatus.COMPLETED,
    FinishReason.LENGTH: ResponseStatus.INCOMPLETE,
    FinishReason.CANCELLED: ResponseStatus.CANCELLED,
}
# No event of the API is named after a cancelled response; clients end their wait at an incomplete one.
FINAL_EVENT = {
    ResponseStatus.COMPLETED: "response.completed",
    ResponseStatus.INCOMPLETE: "response.incomplete",
    ResponseStatus.CANCELLED: "response.incomplete",
    ResponseStatus.FAILED: "response.failed",
}


class ResponsesAnswer:
    """Encodes one response. `stream_id` names the websocket channel and is put on every event.

    The event of a token is put together from a prefix and a suffix made once: it is the only one that is sent often.
    Its `type` comes first in every event, which the server-sent events' framing relies on.
    """

    def __init__(
        self, state: ResponseState, token_bytes: Callable[[int], bytes], *, stream_id: str | None = None
    ) -> None:
        self.state = state
        self._sequence_number = 0
        self._logprobs = Logprobs(token_bytes) if state.sampling.top_logprobs is not None else None
        self._channel: dict[str, object] = {} if stream_id is None else {"stream_id": stream_id}
        self._place: dict[str, object] = {"item_id": state.item_id, "output_index": 0, "content_index": 0}
        head = encode_object({"type": "response.output_text.delta", **self._place, **self._channel})
        self._delta_head = head[:-1] + ',"delta":'

    @property
    def error(self) -> ErrorInfo | None:
        """What made the response fail."""
        return self.state.error

    def begin(self) -> Sequence[str]:
        """Return `response.created` and `response.in_progress`."""
        return [self._with_response("response.created"), self._with_response("response.in_progress")]

    def heartbeat(self) -> str:
        """Return another `response.in_progress`."""
        return self._with_response("response.in_progress")

    def opened(self) -> Sequence[str]:
        """Return the events that open the message and its text part."""
        self.state.has_output = True
        part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        return [
            self._event("response.output_item.added", {"output_index": 0, "item": self.state.output_item()}),
            self._event("response.content_part.added", {**self._place, "part": part}),
        ]

    def token(self, token: Token) -> str | None:
        """Return the token's `response.output_text.delta`, None if it shows nothing yet."""
        state = self.state
        state.output_tokens += 1
        state.cached_tokens = token.num_prompt_found
        text = token.text
        logprobs = "[]"
        if self._logprobs is not None:
            logprobs = encode_object(self._logprobs.add(token))
        if not text:
            return None
        state.texts.append(text)
        number = self._sequence_number
        self._sequence_number = number + 1
        return f'{self._delta_head}{encode_text(text)},"logprobs":{logprobs},"sequence_number":{number}}}'

    def finished(self, reason: FinishReason) -> Sequence[str]:
        """Return the events that close the text, the message and the response."""
        return self._end(STATUS_OF[reason])

    def failed(self, error: ErrorInfo) -> Sequence[str]:
        """Return the events that close what is open, then `response.failed`."""
        return self._end(ResponseStatus.FAILED, error)

    def _end(self, status: ResponseStatus, error: ErrorInfo | None = None) -> Sequence[str]:
        state = self.state
        if self._logprobs is not None:
            self._logprobs.rest()
            state.logprobs = self._logprobs.sent
        state.finish(status, error)
        events: list[str] = []
        if state.has_output:
            done = {**self._place, "text": state.text, "logprobs": state.logprobs}
            events = [
                self._event("response.output_text.done", done),
                self._event("response.content_part.done", {**self._place, "part": state.content_part()}),
                self._event("response.output_item.done", {"output_index": 0, "item": state.output_item()}),
            ]
        return [*events, self.final()]

    def final(self) -> str:
        """Return the last event of a response whose status is set."""
        return self._with_response(FINAL_EVENT[self.state.status])

    def _with_response(self, kind: str) -> str:
        return self._event(kind, {"response": self.state.to_json()})

    def _event(self, kind: str, fields: dict[str, object]) -> str:
        number = self._sequence_number
        self._sequence_number = number + 1
        return encode_object({"type": kind, "sequence_number": number, **fields, **self._channel})
