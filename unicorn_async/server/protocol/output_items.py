"""The items of a response's output, as they grow."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field


@dataclass(slots=True)
class TextItem:
    """A message, or the model's thoughts; `status` is the item's own."""

    id: str
    is_thought: bool = False
    texts: list[str] = field(default_factory=list)
    logprobs: list[dict[str, object]] = field(default_factory=list)
    status: str = "in_progress"

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(self.texts)

    @property
    def event(self) -> str:
        """What the names of its text's events begin with."""
        return "response.reasoning_text" if self.is_thought else "response.output_text"

    def part(self) -> dict[str, object]:
        """Return the text as a content part."""
        if self.is_thought:
            return {"type": "reasoning_text", "text": self.text}
        return {"type": "output_text", "text": self.text, "annotations": [], "logprobs": self.logprobs}

    def to_json(self) -> dict[str, object]:
        """Return the item; it has content once it has ended."""
        content = [] if self.status == "in_progress" else [self.part()]
        if self.is_thought:
            return {"id": self.id, "type": "reasoning", "status": self.status, "summary": [], "content": content}
        return {
            "id": self.id,
            "type": "message",
            "status": self.status,
            "role": "assistant",
            "content": content,
        }


@dataclass(slots=True)
class CallItem:
    """A call of a tool; the client names it by `call_id` when it tells what the tool returned."""

    name: str
    number: str = field(default_factory=lambda: secrets.token_hex(12))
    parts: list[str] = field(default_factory=list)
    status: str = "in_progress"

    @property
    def id(self) -> str:
        """The item's own name."""
        return f"fc_{self.number}"

    @property
    def call_id(self) -> str:
        """The call's name."""
        return f"call_{self.number}"

    @property
    def arguments(self) -> str:
        """The arguments so far, as the model writes them."""
        return "".join(self.parts)

    def to_json(self) -> dict[str, object]:
        """Return the item; it has arguments once it has ended."""
        return {
            "id": self.id,
            "type": "function_call",
            "status": self.status,
            "call_id": self.call_id,
            "name": self.name,
            "arguments": "" if self.status == "in_progress" else self.arguments,
        }
