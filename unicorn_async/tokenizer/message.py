"""One message of a conversation."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """Who says it ("system", "developer", "user", "assistant" or "tool"), and what."""

    role: str
    content: str
