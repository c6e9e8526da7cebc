"""JSON pieces that both APIs share."""

from __future__ import annotations

import json

# One encoder for good: json.dumps with options would build one at every call.
_PLAIN = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False)
_ASCII = json.JSONEncoder(separators=(",", ":"), allow_nan=False)


def encode_text(text: str) -> str:
    """Return a JSON string; the text must be valid Unicode."""
    return _PLAIN.encode(text)


def encode_object(value: object) -> str:
    """Return compact JSON in ASCII, which holds whatever a string may hold."""
    return _ASCII.encode(value)
