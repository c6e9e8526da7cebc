"""Log-probabilities of tokens, sent along with the text that they became."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from unicorn_async.engine.types import Token

MIN_LOGPROB = -9999.0  # JSON has no infinity


class Logprobs:
    """The entries of one answer, as both APIs spell them: those sent, and those of tokens whose text is yet to come."""

    def __init__(self, token_bytes: Callable[[int], bytes]) -> None:
        self.sent: list[dict[str, object]] = []
        self._token_bytes = token_bytes
        self._pending: list[dict[str, object]] = []

    def add(self, token: Token) -> list[dict[str, object]]:
        """Take a token; return what goes with its text. What a stop string cut off, or an end token, is forgotten."""
        self._pending.append(self._entry(token))
        num_seen = max(0, len(self._pending) - token.num_unseen)
        if token.finish_reason is not None:
            del self._pending[num_seen:]
        return self._send(num_seen) if token.text else []

    def rest(self) -> list[dict[str, object]]:
        """Return what goes with the answer's end."""
        return self._send(len(self._pending))

    def forget(self) -> None:
        """Leave out all that came so far."""
        self.sent.clear()
        self._pending.clear()

    def _send(self, count: int) -> list[dict[str, object]]:
        ready, self._pending = self._pending[:count], self._pending[count:]
        self.sent += ready
        return ready

    def _entry(self, token: Token) -> dict[str, object]:
        entry = self._logprob(token.id, token.logprob if token.logprob is not None else MIN_LOGPROB)
        entry["top_logprobs"] = [self._logprob(token_id, logprob) for token_id, _, logprob in token.top_logprobs]
        return entry

    def _logprob(self, token_id: int, logprob: float) -> dict[str, object]:
        """A token by its bytes, which may be a part of a character; then its text has U+FFFD in the place of that."""
        piece = self._token_bytes(token_id)
        return {
            "token": piece.decode("utf-8", "replace"),
            "logprob": max(logprob, MIN_LOGPROB),
            "bytes": list(piece),
        }
