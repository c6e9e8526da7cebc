"""A response of the Responses API that is being made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from unicorn_async.server.protocol.encoding import encode_object
from unicorn_async.server.protocol.response_object import ResponseStatus
from unicorn_async.server.store import StoredResponse
from unicorn_async.tokenizer import ChatMessage

if TYPE_CHECKING:
    from unicorn_async.server.generation import Generation
    from unicorn_async.server.protocol.responses_answer import ResponsesAnswer


@dataclass(slots=True)
class ActiveResponse:
    """A response under way: what is known of it, and what generates it (None when nothing is to be generated)."""

    answer: ResponsesAnswer
    generation: Generation | None
    conversation: tuple[ChatMessage, ...]  # without instructions and without the answer
    owner: str = ""  # name of the client whose it is
    is_deleted: bool = False  # it is not kept

    @property
    def id(self) -> str:
        """The response's id."""
        return self.answer.state.id

    def entry(self) -> StoredResponse | None:
        """What is kept of it; nothing while it is under way, and of one that has failed or is deleted."""
        state = self.answer.state
        if state.status in (ResponseStatus.IN_PROGRESS, ResponseStatus.FAILED) or self.is_deleted:
            return None
        said = ChatMessage("assistant", state.text, state.calls)
        answer = (said,) if said.chars else ()
        body = encode_object(state.to_json())
        return StoredResponse(self.id, body, self.conversation + answer, len(self.conversation), self.owner)
