"""One message of a conversation."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a tool by the model: `arguments` are JSON, as the model wrote it."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """Who says it ("system", "developer", "user", "assistant" or "tool"), and what.

    An assistant's message may have calls of tools, with the thoughts that came before them, and a tool's message names
    the call that it answers.
    """

    role: str
    content: str
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    thoughts: str = ""

    @property
    def chars(self) -> int:
        """Characters of the content, of thoughts, and of calls."""
        return (
            len(self.content)
            + len(self.thoughts)
            + sum(len(call.name) + len(call.arguments) for call in self.tool_calls)
        )
