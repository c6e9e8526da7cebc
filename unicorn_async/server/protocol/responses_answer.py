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
    from unicorn_async.server.protocol.output_items import TextItem
    from unicorn_async.server.protocol.thoughts import Splitter

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
        self,
        state: ResponseState,
        token_bytes: Callable[[int], bytes],
        *,
        stream_id: str | None = None,
        splitter: Splitter | None = None,
    ) -> None:
        """`splitter` tells thoughts and answer apart, where the model may think."""
        self.state = state
        self._sequence_number = 0
        self._splitter = splitter
        self._logprobs = Logprobs(token_bytes) if state.sampling.top_logprobs is not None else None
        self._ready: list[dict[str, object]] = []  # log-probabilities whose text comes with the next delta
        self._channel: dict[str, object] = {} if stream_id is None else {"stream_id": stream_id}
        self._item: TextItem | None = None  # that grows
        self._place: dict[str, object] = {}
        self._delta_head = ""

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
        """Return the events that open the message and its text part; thoughts have to show first whether they are."""
        return self._open(is_thought=False) if self._splitter is None else ()

    def token(self, token: Token) -> Sequence[str]:
        """Return what the token adds: its text's delta, if it shows something, and ends and beginnings of items."""
        self.state.output_tokens += 1
        self.state.cached_tokens = token.num_prompt_found
        if self._logprobs is not None:
            self._ready += self._logprobs.add(token)
        splitter = self._splitter
        if splitter is None:
            return (self._delta(token.text),) if token.text else ()
        was_thinking = splitter.is_thinking
        pieces = splitter.feed(token.text + splitter.markers.get(token.id, ""))
        if was_thinking or splitter.is_thinking:
            self.state.num_thought += 1
            self._forget_logprobs()
        return self._grow(pieces)

    def finished(self, reason: FinishReason) -> Sequence[str]:
        """Return the events that close what is open, and the response."""
        return self._end(STATUS_OF[reason])

    def failed(self, error: ErrorInfo) -> Sequence[str]:
        """Return the events that close what is open, then `response.failed`."""
        return self._end(ResponseStatus.FAILED, error)

    def _grow(self, pieces: Sequence[tuple[bool, str]]) -> list[str]:
        events: list[str] = []
        for is_thought, text in pieces:
            if self._item is None or self._item.is_thought is not is_thought:
                events += self._close("completed")
                events += self._open(is_thought=is_thought)
            events.append(self._delta(text))
        return events

    def _open(self, *, is_thought: bool) -> list[str]:
        item = self._item = self.state.add_item(is_thought=is_thought)
        index = len(self.state.items) - 1
        self._place = {"item_id": item.id, "output_index": index, "content_index": 0}
        head = encode_object({"type": f"{item.event}.delta", **self._place, **self._channel})
        self._delta_head = head[:-1] + ',"delta":'
        return [
            self._event("response.output_item.added", {"output_index": index, "item": item.to_json()}),
            self._event("response.content_part.added", {**self._place, "part": item.part()}),
        ]

    def _delta(self, text: str) -> str:
        item = self._item
        assert item is not None, "an item is open where text comes"
        item.texts.append(text)
        number = self._sequence_number
        self._sequence_number = number + 1
        if item.is_thought:
            return f'{self._delta_head}{encode_text(text)},"sequence_number":{number}}}'
        logprobs = "[]"
        if self._ready:
            logprobs = encode_object(self._ready)
            item.logprobs += self._ready
            self._ready = []
        return f'{self._delta_head}{encode_text(text)},"logprobs":{logprobs},"sequence_number":{number}}}'

    def _close(self, status: str) -> list[str]:
        """Return the events that close the open item, if there is one."""
        item, self._item = self._item, None
        if item is None:
            return []
        item.status = status
        logprobs = {} if item.is_thought else {"logprobs": item.logprobs}
        index = self._place["output_index"]
        return [
            self._event(f"{item.event}.done", {**self._place, "text": item.text, **logprobs}),
            self._event("response.content_part.done", {**self._place, "part": item.part()}),
            self._event("response.output_item.done", {"output_index": index, "item": item.to_json()}),
        ]

    def _end(self, status: ResponseStatus, error: ErrorInfo | None = None) -> Sequence[str]:
        state, events = self.state, []
        if self._splitter is not None:
            events += self._grow(self._splitter.finish())
            if not state.items and status is ResponseStatus.COMPLETED:
                events += self._open(is_thought=False)
        events += self._close("completed" if status is ResponseStatus.COMPLETED else "incomplete")
        state.finish(status, error)
        return [*events, self.final()]

    def _forget_logprobs(self) -> None:
        """Thoughts have none."""
        if self._logprobs is not None:
            self._logprobs.forget()
            self._ready.clear()

    def final(self) -> str:
        """Return the last event of a response whose status is set."""
        return self._with_response(FINAL_EVENT[self.state.status])

    def _with_response(self, kind: str) -> str:
        return self._event(kind, {"response": self.state.to_json()})

    def _event(self, kind: str, fields: dict[str, object]) -> str:
        number = self._sequence_number
        self._sequence_number = number + 1
        return encode_object({"type": kind, "sequence_number": number, **fields, **self._channel})
