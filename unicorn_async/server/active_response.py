"""A response of the Responses API that is being made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from unicorn_async.server.protocol.encoding import encode_object
from unicorn_async.server.protocol.errors import no_previous
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
        """What is kept of it; nothing while it is under way, if it is deleted, or has failed before its listener."""
        state = self.answer.state
        if state.status is ResponseStatus.IN_PROGRESS or self.is_deleted:
            return None
        if state.status is ResponseStatus.FAILED:
            return self._stored(state.to_json()) if state.request.background else None
        said = ChatMessage("assistant", state.text, state.calls, thoughts=state.thoughts if state.calls else "")
        return self._stored(state.to_json(), *((said,) if said.chars else ()))

    def to_go_on_from(self) -> StoredResponse | None:
        """What a further response may go on from, before this one is closed; None if it is not kept.

        Raises:
            ApiError: 400, it has not ended.
        """
        if self.answer.state.status is ResponseStatus.IN_PROGRESS:
            what = "is still under way: go on from it once it has ended"
            raise no_previous(self.id, what, "previous_response_in_progress")
        return self.entry() if self.answer.state.request.store else None

    def cut_short(self) -> StoredResponse:
        """What the next server is to find of it if this one ends before the answer does."""
        error = {"code": "server_error", "message": "the server was stopped before this answer had ended"}
        return self._stored({**self.answer.state.to_json(), "status": ResponseStatus.FAILED.value, "error": error})

    def _stored(self, body: dict[str, object], *answer: ChatMessage) -> StoredResponse:
        messages = self.conversation + answer
        return StoredResponse(self.id, encode_object(body), messages, len(self.conversation), self.owner)
