"""A response of the Responses API that is being made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from unicorn_async.server.generation import Generation
    from unicorn_async.server.protocol.responses_answer import ResponsesAnswer
    from unicorn_async.tokenizer import ChatMessage


@dataclass(slots=True)
class ActiveResponse:
    """A response under way: what is known of it, and what generates it (None when nothing is to be generated)."""

    answer: ResponsesAnswer
    generation: Generation | None
    conversation: tuple[ChatMessage, ...]  # without instructions and without the answer

    @property
    def id(self) -> str:
        """The response's id."""
        return self.answer.state.id
