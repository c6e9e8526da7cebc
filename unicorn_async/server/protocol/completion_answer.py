"""The chunks and the whole choice of the Completions API, which continues plain text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unicorn_async.engine.types import FinishReason
from unicorn_async.server.protocol.completion_object import FINISH_REASON, CompletionObject
from unicorn_async.server.protocol.encoding import encode_object
from unicorn_async.server.protocol.logprobs import Logprobs

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from unicorn_async.engine.types import Token
    from unicorn_async.server.protocol.completion_object import CompletionHead
    from unicorn_async.server.protocol.errors import ErrorInfo

KIND = "text_completion"


class CompletionAnswer:
    """Encodes one choice; `echo` is the prompt's text where it comes first."""

    num_thought = 0

    def __init__(
        self,
        head: CompletionHead,
        index: int,
        token_bytes: Callable[[int], bytes],
        *,
        wants_logprobs: bool = False,
        echo: str = "",
    ) -> None:
        self.error: ErrorInfo | None = None
        self.index = index
        self.num_input = 0  # tokens of the prompt
        self.is_prompt_alone = False  # without an answer
        self.num_tokens = 0
        self.num_cached = 0
        self.predicted = (0, 0)
        self.logprob = 0.0  # of all tokens together
        self._head = head
        self._logprobs = Logprobs(token_bytes) if wants_logprobs else None
        self._offsets: list[int] = []  # of the tokens with log-probabilities, which do not go with an echo
        self._num_told = 0  # of them, in chunks
        self._texts = [echo] if echo else []
        self._finish_reason: str | None = None

    @property
    def mean_logprob(self) -> float:
        """How likely the model found what it wrote, a token."""
        return self.logprob / max(self.num_tokens, 1)

    def begin(self) -> Sequence[str]:
        """Return the prompt's text, where it is wanted."""
        return [self._chunk(text) for text in self._texts]

    def heartbeat(self) -> None:
        """Return nothing, as for chats."""

    def opened(self) -> Sequence[str]:
        """Return nothing."""
        return ()

    def token(self, token: Token) -> Sequence[str]:
        """Return the token's chunk, nothing if it shows nothing yet."""
        self.num_tokens += 1
        self.num_cached = token.num_prompt_found
        self.logprob += token.logprob or 0.0
        self._offsets.append(token.text_offset)
        entries = [] if self._logprobs is None else self._logprobs.add(token)
        if not token.text:
            return ()
        self._texts.append(token.text)
        return (self._chunk(token.text, entries),)

    def finished(self, reason: FinishReason) -> Sequence[str]:
        """Return the chunk with the finish reason."""
        self._finish_reason = FINISH_REASON[FinishReason.LENGTH if self.is_prompt_alone else reason]
        return [self._chunk("", [] if self._logprobs is None else self._logprobs.rest())]

    def failed(self, error: ErrorInfo) -> Sequence[str]:
        """Return the error in the place of a chunk."""
        self.error = error
        return [encode_object({"error": error.to_json()})]

    def to_choice(self) -> dict[str, object]:
        """Return the whole choice."""
        sent = None if self._logprobs is None else self._logprobs.sent
        text = "".join(self._texts)
        return self._choice(text, None if sent is None else completion_logprobs(sent, self._offsets))

    def _chunk(self, text: str, entries: Sequence[dict[str, object]] = ()) -> str:
        logprobs = None
        if entries:
            logprobs = completion_logprobs(entries, self._offsets[self._num_told :])
            self._num_told += len(entries)
        return self._head.chunk(KIND, self._choice(text, logprobs), (self.num_input, self.num_tokens))

    def _choice(self, text: str, logprobs: dict[str, object] | None) -> dict[str, object]:
        return {"index": self.index, "text": text, "logprobs": logprobs, "finish_reason": self._finish_reason}


class TextCompletion(CompletionObject[CompletionAnswer]):
    """The choices of one request: of each prompt's `best_of`, the `n` likeliest."""

    kind = chunk_kind = KIND

    def __init__(
        self, head: CompletionHead, choices: Sequence[CompletionAnswer], num_input: int, *, n: int, best_of: int
    ) -> None:
        super().__init__(head, choices, num_input)
        self._n = n
        self._best_of = best_of

    def _num_cached(self) -> int:
        return sum(choice.num_cached for choice in self.choices[:: self._best_of])

    def _told(self) -> list[dict[str, object]]:
        told: list[dict[str, object]] = []
        for first in range(0, len(self.choices), self._best_of):
            group = self.choices[first : first + self._best_of]
            if self._best_of > self._n:
                group = sorted(group, key=lambda choice: -choice.mean_logprob)[: self._n]
            told += [choice.to_choice() for choice in group]
        return [{**choice, "index": index} for index, choice in enumerate(told)]


def completion_logprobs(entries: Sequence[dict[str, Any]], offsets: Sequence[int]) -> dict[str, object]:
    """Return log-probabilities as this API spells them, of tokens that stand so many characters into the text."""
    return {
        "tokens": [_spelled(entry) for entry in entries],
        "token_logprobs": [entry["logprob"] for entry in entries],
        "top_logprobs": [_likeliest(entry) for entry in entries],
        "text_offset": list(offsets[: len(entries)]),
    }


def _likeliest(entry: dict[str, Any]) -> dict[str, float]:
    """The likeliest tokens, and the one that was taken; of those that are spelled alike the likelier one."""
    found: dict[str, float] = {}
    for one in (*entry["top_logprobs"], entry):
        found.setdefault(_spelled(one), one["logprob"])
    return found


def _spelled(entry: dict[str, Any]) -> str:
    """A token's text; parts of characters by their bytes, which would be one and the same U+FFFD."""
    piece = bytes(entry["bytes"])
    text: str = entry["token"]
    return text if text.encode("utf-8", "replace") == piece else "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)
