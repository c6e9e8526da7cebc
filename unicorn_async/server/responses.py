"""The responses that there are, by their names: under way, in the background, and those finished and kept."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from unicorn_async.server.archive import Archive
from unicorn_async.server.background_answers import BackgroundAnswers
from unicorn_async.server.protocol.encoding import encode_object
from unicorn_async.server.protocol.errors import ApiError, no_previous, unknown_response
from unicorn_async.server.protocol.response_object import ResponseStatus
from unicorn_async.server.request_context import asking
from unicorn_async.server.store import ResponseStore

if TYPE_CHECKING:
    from unicorn_async.server.active_response import ActiveResponse
    from unicorn_async.server.background_answers import BackgroundAnswer
    from unicorn_async.server.options import ServerOptions
    from unicorn_async.server.protocol.retrieval import Retrieval
    from unicorn_async.server.store import LocalStore, StoredResponse
    from unicorn_async.tokenizer import ChatMessage


class Responses:
    """Finds them, and ends and forgets them, for who asks: what belongs to another client is not there.

    Close it at the end.
    """

    def __init__(self, options: ServerOptions) -> None:
        self.active: dict[str, ActiveResponse] = {}
        self.store = ResponseStore(options.max_stored, options.max_stored_chars)
        self.archive = Archive(self.store, options)
        self.background = BackgroundAnswers(options)

    async def close(self) -> None:
        """End the answers in the background, and write what waits for the disk."""
        self.archive.end()
        await self.background.close()
        await self.archive.close()

    def keep(self, entry: StoredResponse) -> None:
        """Keep a finished response; `archive.room` has to follow."""
        self.store.put(entry)
        self.archive.keep(entry)

    async def resume(self, response_id: str, place: Retrieval) -> BackgroundAnswer | list[str]:
        """Return a background answer that has the events of a place, or will have them; of others that have ended
        the events themselves, made again from the response's object.

        Waits for one that is about to begin, as `cancel` and `delete` do.

        Raises:
            ApiError: 404, no such response; 400, it has no such events, or its events are not kept.
        """
        await self.background.opened(response_id)
        await self.recall(response_id)
        answer = self._own_background(response_id)
        if answer is None:
            return self._replayed(response_id, place)
        answer.log.check(place)
        return answer

    async def recall(self, response_id: str) -> None:
        """Take a response that is not in memory, nor under way, from the disk; raises as the archive's `recall`."""
        if response_id not in self.active:
            await self.archive.recall(response_id)

    def _replayed(self, response_id: str, place: Retrieval) -> list[str]:
        from unicorn_async.server.protocol.replay import replayed

        body: dict[str, object] = json.loads(self.find(response_id))
        if body["status"] == ResponseStatus.IN_PROGRESS.value:
            message = f"response {response_id!r} is under way: its events go to who asked for it, until it has ended"
            raise ApiError(message, code="events_not_kept", param="response_id")
        return replayed(body, place)

    async def delete(self, response_id: str) -> None:
        """Forget a response; one that is under way is ended, and not kept.

        Raises:
            ApiError: 404, no such response.
        """
        await self.background.opened(response_id)
        await self.recall(response_id)
        self.find(response_id)
        active = self.active.pop(response_id, None)
        if active is not None:
            active.is_deleted = True
            if active.generation is not None:
                active.generation.cancel()
        answer = self._own_background(response_id)
        if answer is not None:
            await answer.log.ended()
            self.background.forget(response_id)
        await self.archive.remove(response_id)

    def cancel_background(self, response_id: str) -> bool:
        """End a background answer without waiting for that; return whether one of this name is under way."""
        active = self._own_active(response_id)
        if active is None or active.generation is None or self._own_background(response_id) is None:
            return False
        active.generation.cancel()
        return True

    async def cancel(self, response_id: str) -> str:
        """End a response under way and return its object as JSON; a finished one is returned as it is.

        Raises:
            ApiError: 404, no such response.
        """
        await self.background.opened(response_id)
        active = self._own_active(response_id)
        if active is None:
            return self.find(response_id)
        if active.generation is not None:
            active.generation.cancel()
            await active.generation.ended()
        return encode_object(active.answer.state.to_json())

    def find(self, response_id: str) -> str:
        """Return a response's object as JSON, under way or finished.

        Raises:
            ApiError: 404, no such response.
        """
        active = self._own_active(response_id)
        if active is not None:
            return encode_object(active.answer.state.to_json())
        stored = self._own_stored(response_id)
        if stored is not None:
            return stored.body
        kept = self._own_background(response_id)
        if kept is None:
            raise unknown_response(response_id, "response_not_found", "response_id")
        return kept.body

    async def holds(self, response_id: str) -> bool:
        """Whether anybody has a response of this name, under way, kept or about to begin."""
        await self.background.opened(response_id)
        await self.recall(response_id)
        return response_id in self.active or bool(self.store.get(response_id) or self.background.get(response_id))

    def _own_active(self, response_id: str) -> ActiveResponse | None:
        found = self.active.get(response_id)
        return found if found is not None and asking.get().sees(found.owner) else None

    def _own_stored(self, response_id: str) -> StoredResponse | None:
        found = self.store.get(response_id)
        return found if found is not None and asking.get().sees(found.owner) else None

    def _own_background(self, response_id: str) -> BackgroundAnswer | None:
        found = self.background.get(response_id)
        return found if found is not None and asking.get().sees(found.owner) else None

    def inputs(self, response_id: str) -> tuple[ChatMessage, ...]:
        """Return the conversation that a response was made from.

        Raises:
            ApiError: 404, no such response, or no more of it than its object.
        """
        if (active := self._own_active(response_id)) is not None:
            return active.conversation
        stored = self._own_stored(response_id)
        if stored is None:
            raise unknown_response(response_id, "response_not_found", "response_id")
        return stored.messages[: stored.num_inputs]

    async def earlier(self, response_id: str | None, local: LocalStore | None = None) -> tuple[ChatMessage, ...]:
        """Return the conversation up to the end of the response that a request names as the previous one, if it does.

        Raises:
            ApiError: 400, no such response, or one that is under way or has failed.
        """
        if response_id is None:
            return ()
        await self.recall(response_id)
        stored = local.get(response_id) if local is not None else None
        stored = stored or self._own_stored(response_id)
        if stored is None and (active := self._own_active(response_id)):
            stored = active.to_go_on_from()  # its client has got all of it, and asked on before it was closed
        if stored is None:
            raise unknown_response(response_id, "previous_response_not_found", "previous_response_id", status=400)
        if stored.has_failed:
            raise no_previous(response_id, "has failed: there is no answer to go on from", "previous_response_failed")
        return stored.messages
