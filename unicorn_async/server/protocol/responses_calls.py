"""The event stream of a response that may call tools: messages and calls, each an item of the output."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unicorn_async.calls.events import Arguments, CallBegun, CallEnded, Said
from unicorn_async.server.protocol.response_object import ResponseStatus
from unicorn_async.server.protocol.responses_answer import ResponsesAnswer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from unicorn_async.calls.calls_alone import AnswerReader
    from unicorn_async.calls.events import CallEvent
    from unicorn_async.engine.types import Token
    from unicorn_async.server.protocol.errors import ErrorInfo
    from unicorn_async.server.protocol.output_items import CallItem
    from unicorn_async.server.protocol.response_object import ResponseState
    from unicorn_async.server.protocol.thoughts import Splitter


class CallingResponsesAnswer(ResponsesAnswer):
    """Encodes one response whose text is read for calls; `markers` have the text of control tokens that mark them.

    Where calls are not `parallel`, those after the first are left out. Log-probabilities are of the text before calls.
    """

    def __init__(
        self,
        state: ResponseState,
        token_bytes: Callable[[int], bytes],
        reader: AnswerReader,
        markers: dict[int, str],
        *,
        parallel: bool,
        stream_id: str | None = None,
        splitter: Splitter | None = None,
    ) -> None:
        super().__init__(state, token_bytes, stream_id=stream_id, splitter=splitter)
        self._reader = reader
        self._markers = markers
        self._parallel = parallel
        self._call: CallItem | None = None  # that grows
        self._call_place: dict[str, object] = {}
        self._has_called = False

    def opened(self) -> Sequence[str]:
        """Return nothing: what the first item is shows later."""
        return ()

    def token(self, token: Token) -> Sequence[str]:
        """Return the events of what the token brought."""
        self.state.output_tokens += 1
        self.state.cached_tokens = token.num_prompt_found
        if self._logprobs is not None:
            self._ready += self._logprobs.add(token)
        text, splitter = token.text + self._markers.get(token.id, ""), self._splitter
        if splitter is None:
            return self._events(self._reader.feed(text)) if text else ()
        was_thinking = splitter.is_thinking
        pieces = splitter.feed(text)
        if was_thinking or splitter.is_thinking:
            self.state.num_thought += 1
            self._forget_logprobs()
        return self._split(pieces)

    def _split(self, pieces: Sequence[tuple[bool, str]]) -> list[str]:
        events: list[str] = []
        for is_thought, text in pieces:
            events += self._grow([(True, text)]) if is_thought else self._events(self._reader.feed(text))
        return events

    def _events(self, found: Sequence[CallEvent]) -> list[str]:
        events: list[str] = []
        for one in found:
            match one:
                case Said(text):
                    text = text.lstrip() if self._has_called and self._item is None else text
                    events += self._grow([(False, text)]) if text else []
                case CallBegun(name) if self._parallel or not self._has_called:
                    events += self._begin_call(name)
                case Arguments(delta) if self._call is not None:
                    self._call.parts.append(delta)
                    fields = {**self._call_place, "delta": delta}
                    events.append(self._event("response.function_call_arguments.delta", fields))
                case CallEnded():
                    events += self._end_call("completed")
        return events

    def _begin_call(self, name: str) -> list[str]:
        events = self._close_message("completed")
        self._has_called = True
        call = self._call = self.state.add_call(name)
        index = len(self.state.items) - 1
        self._call_place = {"item_id": call.id, "output_index": index}
        return [*events, self._event("response.output_item.added", {"output_index": index, "item": call.to_json()})]

    def _close_message(self, status: str) -> list[str]:
        if self._item is not None and not self._item.is_thought:
            self._logprobs = None
            self._ready = []
        return self._close(status)

    def _end_call(self, status: str) -> list[str]:
        call, self._call = self._call, None
        if call is None:
            return []
        call.status = status
        done = {**self._call_place, "name": call.name, "arguments": call.arguments}
        index = self._call_place["output_index"]
        return [
            self._event("response.function_call_arguments.done", done),
            self._event("response.output_item.done", {"output_index": index, "item": call.to_json()}),
        ]

    def _end(self, status: ResponseStatus, error: ErrorInfo | None = None) -> Sequence[str]:
        is_whole = status is ResponseStatus.COMPLETED
        events = self._split(self._splitter.finish()) if self._splitter is not None else []
        rest = self._reader.finish()
        if not is_whole and rest and isinstance(rest[-1], CallEnded):
            rest = rest[:-1]  # it was cut off
        events += self._events(rest)
        own = "completed" if is_whole else "incomplete"
        events += [*self._end_call(own), *self._close_message(own)]
        self.state.finish(status, error)
        return [*events, self.final()]
