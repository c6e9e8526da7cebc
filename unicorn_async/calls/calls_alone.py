"""Reads an answer that has to be calls: what is left of one that was cut off is no text of the answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from unicorn_async.calls.events import Said

if TYPE_CHECKING:
    from unicorn_async.calls.events import CallEvent


class AnswerReader(Protocol):
    """Takes an answer's text in pieces, and tells calls and text apart."""

    def feed(self, text: str) -> list[CallEvent]:
        """Take text, return what it brought."""

    def finish(self) -> list[CallEvent]:
        """Take the end of the answer."""


class CallsAlone:
    """What another reader finds, but for text that it held back to the end, which was to become a call."""

    def __init__(self, reader: AnswerReader) -> None:
        self._reader = reader

    def feed(self, text: str) -> list[CallEvent]:
        """Take text, return what it brought."""
        return self._reader.feed(text)

    def finish(self) -> list[CallEvent]:
        """Take the end of the answer."""
        return [event for event in self._reader.finish() if not isinstance(event, Said)]
