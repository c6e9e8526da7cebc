"""Reads calls out of what is told apart of an answer in the Harmony format."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unicorn_async.calls.events import Arguments, CallBegun, CallEnded, Said
from unicorn_async.calls.harmony import CALL, MESSAGE, START

if TYPE_CHECKING:
    from unicorn_async.calls.events import CallEvent


class HarmonyReader:
    """Pieces in, events out: a call is START, its name and MESSAGE in one piece, then its arguments, and CALL alone."""

    def __init__(self) -> None:
        self._is_called = False
        self._has_arguments = False

    def feed(self, text: str) -> list[CallEvent]:
        """Take a piece, return what it brought."""
        if text.startswith(START):
            self._is_called, self._has_arguments = True, False
            return [CallBegun(text.removeprefix(START).removesuffix(MESSAGE))]
        if text == CALL:
            return self._ended()
        if self._is_called:
            self._has_arguments = True
            return [Arguments(text)]
        return [Said(text)]

    def finish(self) -> list[CallEvent]:
        """Take the end of the answer."""
        return self._ended() if self._is_called else []

    def _ended(self) -> list[CallEvent]:
        """End the call; one without arguments has an empty object of them, as clients expect."""
        self._is_called = False
        return [CallEnded()] if self._has_arguments else [Arguments("{}"), CallEnded()]
