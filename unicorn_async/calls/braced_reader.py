"""Reads a call whose arguments stand in braces, texts between marks of their own, and gives them as JSON as they come.

    call:name{key:<|"|>text<|"|>,count:3,parts:[<|"|>a<|"|>,{x:true}]}

Source: the chat template of Gemma 4.
"""

from __future__ import annotations

import re
from enum import Enum, auto
from typing import TYPE_CHECKING

from unicorn_async.calls.argument_types import ALL_TYPES, argument_json, argument_schema, string_part, types_of
from unicorn_async.calls.events import Arguments, CallBegun, CallEnded, Said
from unicorn_async.calls.marks import num_begun
from unicorn_async.calls.stepped_reader import SteppedReader

if TYPE_CHECKING:
    from collections.abc import Mapping

    from unicorn_async.calls.events import CallEvent

QUOTE = '<|"|>'
HEAD = "call:"
_NAME = re.compile(r"(?:call:)?([\w.-]{1,128})\s{0,64}\{")
_PART_OF_NAME = re.compile(r"(?:call:)?[\w.-]{0,128}\s{0,64}")
_MOST_KEY = 256
_MOST_VALUE = 4096  # characters without marks around them
_MOST_DEPTH = 64
_CLOSERS = {"{": "}", "[": "]"}


class _Place(Enum):
    NAME = auto()
    KEY = auto()  # or the end of an object
    VALUE = auto()  # or the end of a list that has none
    TEXT = auto()
    PLAIN = auto()  # a value without marks
    AFTER = auto()  # a value: another one, or the end


class BracedReader(SteppedReader):
    """Takes text from a call's name on, until `is_done`; `rest` is what came behind it.

    What is no call is the rest, as it was; what is no argument ends the call where it stands. Of two arguments of one
    name the first counts.
    """

    def __init__(self, tools: Mapping[str, Mapping[str, object]]) -> None:
        """`tools` are the parameters of those that can be called, by their names."""
        super().__init__()
        self._tools = tools
        self._place = _Place.NAME
        self._name = ""
        self._open: list[str] = []  # brackets
        self._is_first = True  # nothing stands in the innermost bracket yet
        self._keys: set[str] = set()  # of the arguments themselves
        self._types = ALL_TYPES  # of the value that comes
        self._is_dropped = False  # the argument that comes

    def finish(self) -> list[CallEvent]:
        """Take the end of the answer, within the call: what has come of it stays."""
        self.is_done = True
        if not self.has_begun:
            return [Said(self._held)]
        events: list[CallEvent] = []
        begun, self._held = self._held, ""
        if self._place is _Place.TEXT:
            self._show(string_part(begun), events)
        elif self._place is _Place.PLAIN:
            self._show(begun.strip(), events)
        return [*events, CallEnded()]

    def _step(self, events: list[CallEvent]) -> bool:
        match self._place:
            case _Place.NAME:
                return self._read_name(events)
            case _Place.TEXT:
                return self._read_text(events)
            case _Place.PLAIN:
                return self._read_plain(events)
        self._held = self._held.lstrip()
        if not self._held:
            return False
        match self._place:
            case _Place.KEY:
                return self._read_key(events)
            case _Place.VALUE:
                return self._begin_value(events)
            case _:
                return self._read_after(events)

    def _read_name(self, events: list[CallEvent]) -> bool:
        found = _NAME.match(self._held)
        if found is None or found[1] not in self._tools:
            may_come = found is None and _PART_OF_NAME.fullmatch(self._held) is not None
            self.is_done = not may_come
            return False
        self._name, self.has_begun, self._held = found[1], True, self._held[found.end() :]
        events.append(CallBegun(self._name))
        self._enter("{", events)
        return True

    def _enter(self, bracket: str, events: list[CallEvent]) -> None:
        self._open.append(bracket)
        self._show(bracket, events)
        self._is_first, self._place = True, _Place.KEY if bracket == "{" else _Place.VALUE

    def _leave(self, events: list[CallEvent]) -> bool:
        """Close the innermost bracket; returns whether the call goes on."""
        if len(self._open) == 1:
            self._is_dropped = False
        self._show(_CLOSERS[self._open.pop()], events)
        self._is_first, self._place = False, _Place.AFTER
        if not self._open:
            self.is_done = True
            events.append(CallEnded())
        return not self.is_done

    def _read_key(self, events: list[CallEvent]) -> bool:
        held = self._held
        if held.startswith("}"):
            self._held = held[1:]
            return self._leave(events)
        if held.startswith(QUOTE):
            key, found, after = held.removeprefix(QUOTE).partition(QUOTE)
            after = after.lstrip()
            if found and after and not after.startswith(":"):
                return self._break_off(events)
            found, after = (found, after[1:]) if after else ("", "")
        else:
            key, found, after = held.partition(":")
            key = key.strip()
            if any(char in key for char in "{}[],"):
                return self._break_off(events)
        if not found:
            return self._break_off(events) if len(held) > _MOST_KEY else False
        self._held = after
        self._begin_argument(key, events)
        return True

    def _begin_argument(self, key: str, events: list[CallEvent]) -> None:
        if len(self._open) == 1:
            parameters = self._tools[self._name]
            self._is_dropped, self._types = key in self._keys, types_of(argument_schema(parameters, key), parameters)
            self._is_first = not self._keys
            self._keys.add(key)
        else:
            self._types = ALL_TYPES
        self._show(f'{"" if self._is_first else ", "}"{string_part(key)}": ', events)
        self._is_first, self._place = False, _Place.VALUE

    def _begin_value(self, events: list[CallEvent]) -> bool:
        held, is_item = self._held, self._open[-1] == "["
        if is_item and self._is_first and held.startswith("]"):
            self._held = held[1:]
            return self._leave(events)
        if len(held) < len(QUOTE) and QUOTE.startswith(held):
            return False
        if is_item:
            self._types = ALL_TYPES
            self._show("" if self._is_first else ", ", events)
            self._is_first = False
        if held.startswith(QUOTE):
            self._held, self._place = held.removeprefix(QUOTE), _Place.TEXT
            self._show('"', events)
        elif held[0] in _CLOSERS:
            if len(self._open) == _MOST_DEPTH:
                self._show("null", events)
                return self._break_off(events)
            self._held = held[1:]
            self._enter(held[0], events)
        else:
            self._place = _Place.PLAIN
        return True

    def _read_text(self, events: list[CallEvent]) -> bool:
        text, found, after = self._held.partition(QUOTE)
        if not found:
            shown = len(text) - num_begun(text, QUOTE)
            self._show(string_part(text[:shown]), events)
            self._held = text[shown:]
            return False
        self._show(string_part(text) + '"', events)
        self._held, self._place = after, _Place.AFTER
        return True

    def _read_plain(self, events: list[CallEvent]) -> bool:
        end = next((at for at, char in enumerate(self._held) if char in ",}]"), -1)
        if end < 0 and len(self._held) <= _MOST_VALUE:
            return False
        text = (self._held if end < 0 else self._held[:end]).strip()
        self._show(argument_json(text, self._types), events)
        self._held, self._place = self._held[end:] if end >= 0 else "", _Place.AFTER
        return end >= 0 or self._break_off(events)

    def _read_after(self, events: list[CallEvent]) -> bool:
        char = self._held[0]
        if char == _CLOSERS[self._open[-1]]:
            self._held = self._held[1:]
            return self._leave(events)
        if char != ",":
            return self._break_off(events)
        self._held = self._held[1:]
        self._place = _Place.KEY if self._open[-1] == "{" else _Place.VALUE
        if len(self._open) == 1:
            self._is_dropped = False
        return True

    def _break_off(self, events: list[CallEvent]) -> bool:
        """End a call that goes on as none does: what is open is closed, and the rest is text."""
        while not self.is_done:
            self._leave(events)
        return False

    def _show(self, text: str, events: list[CallEvent]) -> None:
        if text and not self._is_dropped:
            events.append(Arguments(text))
