"""Finished responses, kept in memory for conversations that go on from them."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from unicorn_async.tokenizer import ChatMessage


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """A finished response: the object as clients see it, and the conversation up to its end without instructions."""

    id: str
    body: str  # JSON
    messages: tuple[ChatMessage, ...]
    num_inputs: int  # of the messages: all but the answer

    @property
    def chars(self) -> int:
        """What it counts for against the store's bound; messages that it shares with others count each time."""
        return len(self.body) + sum(len(message.content) for message in self.messages)


class ResponseStore:
    """Keeps the responses used last, bounded by their number and by their characters in all."""

    def __init__(self, max_entries: int, max_chars: int) -> None:
        self._max_entries = max_entries
        self._max_chars = max_chars
        self._chars = 0
        self._entries: OrderedDict[str, StoredResponse] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, response_id: str) -> StoredResponse | None:
        """Return a response and count that as a use."""
        entry = self._entries.get(response_id)
        if entry is not None:
            self._entries.move_to_end(response_id)
        return entry

    def put(self, entry: StoredResponse) -> None:
        """Keep a response; those not used for longest go where there is no room."""
        self.remove(entry.id)
        self._entries[entry.id] = entry
        self._chars += entry.chars
        while self._entries and (len(self._entries) > self._max_entries or self._chars > self._max_chars):
            _, oldest = self._entries.popitem(last=False)
            self._chars -= oldest.chars

    def remove(self, response_id: str) -> bool:
        """Forget a response; return whether it was there."""
        entry = self._entries.pop(response_id, None)
        if entry is None:
            return False
        self._chars -= entry.chars
        return True
