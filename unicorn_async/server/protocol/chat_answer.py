"""The chunks and the whole choice of the Chat Completions API."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unicorn_async.server.protocol.completion_object import FINISH_REASON
from unicorn_async.server.protocol.encoding import encode_object, encode_text
from unicorn_async.server.protocol.logprobs import Logprobs

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from unicorn_async.engine.types import FinishReason, Token
    from unicorn_async.server.protocol.completion_object import CompletionHead
    from unicorn_async.server.protocol.errors import ErrorInfo
    from unicorn_async.server.protocol.thoughts import Splitter

CHUNK = "chat.completion.chunk"


class ChatAnswer:
    """Encodes one choice of a chat completion, as chunks while it comes and as one object at its end."""

    def __init__(
        self,
        head: CompletionHead,
        index: int,
        token_bytes: Callable[[int], bytes],
        *,
        wants_logprobs: bool = False,
        splitter: Splitter | None = None,
    ) -> None:
        """`splitter` tells thoughts and answer apart, where the model may think."""
        self.error: ErrorInfo | None = None
        self.num_input = 0  # tokens of the prompt
        self.num_tokens = 0
        self.num_cached = 0
        self.predicted = (0, 0)
        self.num_thought = 0
        self._splitter = splitter
        self._thoughts: list[str] = []
        self._ready: list[dict[str, object]] = []  # log-probabilities whose text comes with the next chunk
        self._head = head
        self._index = index
        self._logprobs = Logprobs(token_bytes) if wants_logprobs else None
        self._texts: list[str] = []
        self._finish_reason = "stop"
        self._delta_head = (
            encode_object(head.fields(CHUNK))[:-1] + f',"choices":[{{"index":{index},"delta":{{"content":'
        )
        self._delta_tail = ',"finish_reason":null}]' + (',"usage":null}' if head.usage.at_end else "}")

    def begin(self) -> Sequence[str]:
        """Return the chunk that names the role."""
        return [self._chunk({"role": "assistant", "content": ""}, None)]

    def heartbeat(self) -> None:
        """Return nothing: a chunk without content means nothing to this API's clients."""

    def opened(self) -> Sequence[str]:
        """Return nothing: the role's chunk has opened the message."""
        return ()

    def token(self, token: Token) -> Sequence[str]:
        """Return the token's chunk, nothing if it shows nothing yet."""
        self.num_tokens += 1
        self.num_cached = token.num_prompt_found
        self.predicted = (token.num_predicted_right, token.num_predicted_wrong)
        if self._logprobs is not None:
            self._ready += self._logprobs.add(token)
        splitter = self._splitter
        if splitter is None:
            return (self._delta(token.text),) if token.text else ()
        was_thinking = splitter.is_thinking
        pieces = splitter.feed(token.text + splitter.markers.get(token.id, ""))
        if was_thinking or splitter.is_thinking:
            self.num_thought += 1
            if self._logprobs is not None:
                self._logprobs.forget()
                self._ready.clear()
        return [self._piece(is_thought, text) for is_thought, text in pieces]

    def finished(self, reason: FinishReason) -> Sequence[str]:
        """Return what was held back, and the chunk with the finish reason."""
        self._finish_reason = self._reason(reason)
        held = self._splitter.finish() if self._splitter is not None else ()
        chunks = [self._piece(is_thought, text) for is_thought, text in held]
        rest = None
        if self._logprobs is not None:
            rest = self._ready + self._logprobs.rest()
        return [*chunks, self._chunk({}, self._finish_reason, rest)]

    def _piece(self, is_thought: bool, text: str) -> str:
        if not is_thought:
            return self._delta(text)
        self._thoughts.append(text)
        return self._chunk({"reasoning_content": text}, None)

    def _delta(self, text: str) -> str:
        self._texts.append(text)
        logprobs = "null"
        if self._logprobs is not None:
            logprobs = encode_object({"content": self._ready, "refusal": None})
            self._ready = []
        tail = self._delta_tail
        if self._head.usage.in_each:
            usage = encode_object(self._head.usage_of((self.num_input, self.num_tokens)))
            tail = f',"finish_reason":null}}],{usage[1:]}'
        return f'{self._delta_head}{encode_text(text)}}},"logprobs":{logprobs}{tail}'

    def failed(self, error: ErrorInfo) -> Sequence[str]:
        """Return the error in the place of a chunk."""
        self.error = error
        return [encode_object({"error": error.to_json()})]

    def to_choice(self) -> dict[str, object]:
        """Return the whole choice."""
        choice: dict[str, object] = {
            "index": self._index,
            "message": self._message(),
            "finish_reason": self._finish_reason,
        }
        choice["logprobs"] = None if self._logprobs is None else {"content": self._logprobs.sent, "refusal": None}
        return choice

    def _reason(self, reason: FinishReason) -> str:
        """What the API calls the end."""
        return FINISH_REASON[reason]

    def _message(self) -> dict[str, object]:
        message: dict[str, object] = {"role": "assistant", "content": "".join(self._texts), "refusal": None}
        if self._splitter is not None:
            message["reasoning_content"] = "".join(self._thoughts) or None
        return message

    def _chunk(
        self, delta: dict[str, object], finish_reason: str | None, logprobs: list[dict[str, object]] | None = None
    ) -> str:
        choice: dict[str, object] = {"index": self._index, "delta": delta, "finish_reason": finish_reason}
        choice["logprobs"] = {"content": logprobs, "refusal": None} if logprobs else None
        return self._head.chunk(CHUNK, choice, (self.num_input, self.num_tokens))
