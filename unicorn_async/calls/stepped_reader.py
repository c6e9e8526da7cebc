"""What readers of calls have in common that take their text step by step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from unicorn_async.calls.events import CallEvent


class SteppedReader(ABC):
    """Holds text until there is enough of it for a step; `is_done` where the call has ended, or there is none."""

    def __init__(self) -> None:
        self.is_done = False
        self.has_begun = False
        self._held = ""

    @property
    def rest(self) -> str:
        """The text behind the call."""
        return self._held

    def feed(self, text: str) -> list[CallEvent]:
        """Take more text."""
        self._held += text
        events: list[CallEvent] = []
        while not self.is_done and self._held and self._step(events):
            pass
        return events

    @abstractmethod
    def _step(self, events: list[CallEvent]) -> bool:
        """Take a part of what is held; returns False where more text is needed."""
