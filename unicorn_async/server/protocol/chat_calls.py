"""A chat completion that may call tools."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from unicorn_async.calls.events import Arguments, CallBegun, CallEnded, Said
from unicorn_async.engine.types import FinishReason
from unicorn_async.server.protocol.chat_answer import ChatAnswer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from unicorn_async.calls.calls_alone import AnswerReader
    from unicorn_async.calls.events import CallEvent
    from unicorn_async.engine.types import Token
    from unicorn_async.server.protocol.completion_object import CompletionHead
    from unicorn_async.server.protocol.thoughts import Splitter


class CallingChatAnswer(ChatAnswer):
    """Encodes one choice whose text is read for calls; `markers` and `parallel` as in a response."""

    def __init__(
        self,
        head: CompletionHead,
        index: int,
        token_bytes: Callable[[int], bytes],
        reader: AnswerReader,
        markers: dict[int, str],
        *,
        parallel: bool,
        wants_logprobs: bool = False,
        splitter: Splitter | None = None,
    ) -> None:
        super().__init__(head, index, token_bytes, wants_logprobs=wants_logprobs, splitter=splitter)
        self._reader = reader
        self._markers = markers
        self._parallel = parallel
        self._calls: list[tuple[str, str]] = []  # id and name
        self._arguments: list[list[str]] = []
        self._is_open = False  # the last of the calls

    def token(self, token: Token) -> Sequence[str]:
        """Return the chunks of what the token brought."""
        self.num_tokens += 1
        self.num_cached = token.num_prompt_found
        self.predicted = (token.num_predicted_right, token.num_predicted_wrong)
        if self._logprobs is not None:
            self._ready += self._logprobs.add(token)
        text, splitter = token.text + self._markers.get(token.id, ""), self._splitter
        if splitter is None:
            return self._chunks(self._reader.feed(text)) if text else ()
        was_thinking = splitter.is_thinking
        pieces = splitter.feed(text)
        if was_thinking or splitter.is_thinking:
            self.num_thought += 1
            if self._logprobs is not None:
                self._logprobs.forget()
                self._ready.clear()
        return self._split(pieces)

    def finished(self, reason: FinishReason) -> Sequence[str]:
        """Return what was held back, and the chunk with the finish reason."""
        held = self._split(self._splitter.finish()) if self._splitter is not None else []
        held += self._chunks(self._reader.finish())
        return [*held, *super().finished(reason)]

    def _reason(self, reason: FinishReason) -> str:
        return "tool_calls" if self._calls and reason is FinishReason.STOP else super()._reason(reason)

    def _message(self) -> dict[str, object]:
        message = super()._message()
        if not self._calls:
            return message
        calls = [
            {"id": call_id, "type": "function", "function": {"name": name, "arguments": "".join(parts)}}
            for (call_id, name), parts in zip(self._calls, self._arguments, strict=True)
        ]
        return {**message, "content": message["content"] or None, "tool_calls": calls}

    def _split(self, pieces: Sequence[tuple[bool, str]]) -> list[str]:
        chunks: list[str] = []
        for is_thought, text in pieces:
            chunks += [self._piece(True, text)] if is_thought else self._chunks(self._reader.feed(text))
        return chunks

    def _chunks(self, found: Sequence[CallEvent]) -> list[str]:
        chunks: list[str] = []
        for one in found:
            match one:
                case Said(text):
                    text = text.lstrip() if self._calls else text  # between calls it is no text of the answer
                    chunks += [self._delta(text)] if text else []
                case CallBegun(name) if self._parallel or not self._calls:
                    chunks.append(self._begun(name))
                case Arguments(delta) if self._is_open:
                    self._arguments[-1].append(delta)
                    chunks.append(self._call_chunk({"function": {"arguments": delta}}))
                case CallEnded():
                    self._is_open = False
        return chunks

    def _begun(self, name: str) -> str:
        call_id = f"call_{secrets.token_hex(12)}"
        self._calls.append((call_id, name))
        self._arguments.append([])
        self._is_open = True
        return self._call_chunk({"id": call_id, "type": "function", "function": {"name": name, "arguments": ""}})

    def _call_chunk(self, call: dict[str, object]) -> str:
        return self._chunk({"tool_calls": [{"index": len(self._calls) - 1, **call}]}, None)
