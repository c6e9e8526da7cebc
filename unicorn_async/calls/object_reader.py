"""Reads a call's JSON object as it comes, so that arguments go out before it ends."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from unicorn_async.calls.events import Arguments, CallBegun, CallEnded, Said

if TYPE_CHECKING:
    from collections.abc import Collection

    from unicorn_async.calls.events import CallEvent

_ARGUMENTS = ("arguments", "parameters")


class ObjectReader:
    """Takes characters from an object's opening brace on, until `is_done`. What is no call comes back as it was."""

    def __init__(self, names: Collection[str]) -> None:
        """`names` are those that can be called."""
        self.is_done = False
        self._names = names
        self._raw: list[str] = []
        self._depth = 0
        self._in_string = self._is_escaped = False
        self._key: str | None = None  # of the value that comes
        self._part: list[str] = []  # of that key, or value
        self._has_closed = False  # that value, where it is a string or a container
        self._name: str | None = None
        self._held: str | None = None  # arguments that came before the name
        self._has_begun = False
        self._has_arguments = False

    @property
    def has_whole_value(self) -> bool:
        """Whether the value that came last, an object or array, has ended."""
        return self._has_closed

    def feed(self, char: str) -> list[CallEvent]:
        """Take the next character."""
        self._raw.append(char)
        was_inside = self._depth > 1 or self._in_string
        self._track(char)
        if self._depth == 0:
            events = self._value_ended()
            self.is_done = True
            return [*events, *self._end()]
        if self._depth == 1 and not self._in_string and not was_inside:
            if char == ":" and self._key is None:
                self._key = _text("".join(self._part))
                self._part, self._has_closed = [], False
                return []
            if char == ",":
                return self._value_ended()
            if char.isspace() or char == "{":
                return []
        return self._taken(char)

    def finish(self) -> list[CallEvent]:
        """Take the end of the answer, within the object."""
        self.is_done = True
        return [CallEnded()] if self._has_begun else [Said("".join(self._raw))]

    def _track(self, char: str) -> None:
        if self._in_string:
            if self._is_escaped:
                self._is_escaped = False
            elif char == "\\":
                self._is_escaped = True
            elif char == '"':
                self._in_string = False
        elif char == '"':
            self._in_string = True
        elif char in "{[":
            self._depth += 1
        elif char in "}]":
            self._depth -= 1

    def _taken(self, char: str) -> list[CallEvent]:
        """Add to the key or value; arguments that are an object go out at once where the name is known."""
        if self._has_closed:
            return []
        self._part.append(char)
        is_container = self._key is not None and self._part[0] in "{["
        if is_container and self._depth == 1 and not self._in_string:
            self._has_closed = True
        if is_container and self._key in _ARGUMENTS and self._has_begun:
            self._has_arguments = True
            return [Arguments(char)]
        return []

    def _value_ended(self) -> list[CallEvent]:
        key, value = self._key, "".join(self._part)
        self._key, self._part, self._has_closed = None, [], False
        if key == "name" and self._name is None:
            self._name = _text(value)
            if self._name is None or self._name not in self._names:
                return []
            self._has_begun = True
            begun: list[CallEvent] = [CallBegun(self._name)]
            if self._held is not None:
                self._has_arguments = True
                begun.append(Arguments(self._held))
            return begun
        if key in _ARGUMENTS and not self._has_arguments and value:
            text = _text(value) or value  # some write the object as a string
            if not self._has_begun:
                self._held = text
                return []
            self._has_arguments = True
            return [Arguments(text)]
        return []

    def _end(self) -> list[CallEvent]:
        if not self._has_begun:
            return [Said("".join(self._raw))]
        return [CallEnded()] if self._has_arguments else [Arguments("{}"), CallEnded()]


def _text(value: str) -> str | None:
    """Return what a JSON string says; None for what is none."""
    try:
        found = json.loads(value)
    except ValueError:
        return None
    return found if isinstance(found, str) else None
