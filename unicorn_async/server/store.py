"""Finished responses, kept in memory for conversations that go on from them."""

from __future__ import annotations

import json
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from unicorn_async.tokenizer import ChatMessage


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """A finished response: the object as clients see it, and the conversation up to its end without instructions."""

    id: str
    body: str  # JSON
    messages: tuple[ChatMessage, ...]
    num_inputs: int  # of the messages: all but the answer
    owner: str = ""  # name of the client whose it is

    @property
    def has_failed(self) -> bool:
        """Whether it ended with an error, so that there is no answer to go on from."""
        has_answer = len(self.messages) > self.num_inputs
        return not has_answer and json.loads(self.body).get("status") == "failed"

    @property
    def chars(self) -> int:
        """What it counts for against the store's bound; messages that it shares with others count each time."""
        return len(self.body) + sum(message.chars for message in self.messages)


class LocalStore(Protocol):
    """What a connection did with `store` false, and can go on from."""

    def get(self, response_id: str) -> StoredResponse | None:
        """Return a response and count that as a use."""

    def put(self, entry: StoredResponse) -> None:
        """Keep a response."""


class ResponseStore:
    """Keeps responses, bounded by their number and by their characters in all.

    Where there is no room, that goes which was not used for longest, of the client who has most of what is short: so
    that one who fills the store loses its own.
    """

    def __init__(self, max_entries: int, max_chars: int) -> None:
        self._max_entries = max_entries
        self._max_chars = max_chars
        self._chars = 0
        self._shares: dict[str, _Share] = {}
        self._owners: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self._owners)

    def get(self, response_id: str) -> StoredResponse | None:
        """Return a response and count that as a use."""
        owner = self._owners.get(response_id)
        if owner is None:
            return None
        entries = self._shares[owner].entries
        entries.move_to_end(response_id)
        return entries[response_id]

    def put(self, entry: StoredResponse) -> None:
        """Keep a response."""
        self.remove(entry.id)
        share = self._shares.setdefault(entry.owner, _Share())
        share.entries[entry.id] = entry
        share.chars += entry.chars
        self._chars += entry.chars
        self._owners[entry.id] = entry.owner
        while len(self._owners) > self._max_entries:
            self._remove_oldest(max(self._shares.values(), key=lambda one: len(one.entries)))
        while self._chars > self._max_chars:
            self._remove_oldest(max(self._shares.values(), key=lambda one: one.chars))

    def remove(self, response_id: str) -> bool:
        """Forget a response; return whether it was there."""
        owner = self._owners.pop(response_id, None)
        if owner is None:
            return False
        share = self._shares[owner]
        entry = share.entries.pop(response_id)
        share.chars -= entry.chars
        self._chars -= entry.chars
        if not share.entries:
            del self._shares[owner]
        return True

    def _remove_oldest(self, share: _Share) -> None:
        self.remove(next(iter(share.entries)))


@dataclass(slots=True)
class _Share:
    """What one client has, the one used last at the end."""

    entries: OrderedDict[str, StoredResponse] = field(default_factory=OrderedDict)
    chars: int = 0
