"""JSON pieces that both APIs share."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from unicorn_async.engine.types import Token

# One encoder for good: json.dumps with options would build one at every call.
_PLAIN = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False)
_ASCII = json.JSONEncoder(separators=(",", ":"), allow_nan=False)
MIN_LOGPROB = -9999.0  # JSON has no infinity


def encode_text(text: str) -> str:
    """Return a JSON string; the text must be valid Unicode."""
    return _PLAIN.encode(text)


def encode_object(value: object) -> str:
    """Return compact JSON in ASCII, which holds whatever a string may hold."""
    return _ASCII.encode(value)


def logprob_entry(token: Token, token_text: Callable[[int], str]) -> dict[str, object]:
    """Return a token's log-probability and its alternatives' as both APIs spell them."""
    entry = _logprob(token_text(token.id), token.logprob if token.logprob is not None else MIN_LOGPROB)
    entry["top_logprobs"] = [_logprob(text, logprob) for _, text, logprob in token.top_logprobs]
    return entry


def _logprob(text: str, logprob: float) -> dict[str, object]:
    return {"token": text, "logprob": max(logprob, MIN_LOGPROB), "bytes": list(text.encode("utf-8", "replace"))}
