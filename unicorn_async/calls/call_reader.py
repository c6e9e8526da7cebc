"""Reads calls out of an answer's text as it comes."""

from __future__ import annotations

import json
from enum import Enum, auto
from typing import TYPE_CHECKING

from unicorn_async.calls.call_format import CallKind
from unicorn_async.calls.events import Arguments, Said
from unicorn_async.calls.object_reader import ObjectReader

if TYPE_CHECKING:
    from collections.abc import Collection

    from unicorn_async.calls.call_format import CallFormat
    from unicorn_async.calls.events import CallEvent

_FENCE = "```"
_FENCES = ("```json\n", "```tool_call\n", "```tool_code\n")  # around JSON that is the whole answer
_MOST_NAME = 128


class _Place(Enum):
    START = auto()  # nothing but white space has come
    TEXT = auto()
    CALLS = auto()  # between calls
    OBJECT = auto()
    NAME = auto()


class CallReader:
    """Text in, events out. What only looks like a call is text; text that may begin one is held back."""

    def __init__(self, form: CallFormat, names: Collection[str]) -> None:
        self._form = form
        self._names = names
        self._place = _Place.START
        self._held = ""
        self._object: ObjectReader | None = None
        self._has_arguments_alone = False  # the object is that of the arguments, without a name

    def feed(self, text: str) -> list[CallEvent]:
        """Take text, return what it brought."""
        self._held += text
        events: list[CallEvent] = []
        while self._held and self._step(events):
            pass
        return _joined(events)

    def finish(self) -> list[CallEvent]:
        """Take the end of the answer."""
        events: list[CallEvent] = []
        if self._object is not None:
            events += self._object.finish()
        elif self._held and (self._place is not _Place.CALLS):
            events.append(Said(self._held))
        self._held, self._object = "", None
        return _joined(events)

    def _step(self, events: list[CallEvent]) -> bool:
        """Take something of what is held; returns whether there may be more to take."""
        match self._place:
            case _Place.START:
                return self._start()
            case _Place.TEXT:
                return self._text(events)
            case _Place.CALLS:
                return self._calls()
            case _Place.NAME:
                return self._called_name(events)
            case _Place.OBJECT:
                return self._read_object(events)

    def _start(self) -> bool:
        begun, form = self._held.lstrip(), self._form
        if not begun:
            return False
        is_general = not form.takes_tools  # such models have forms of their own beside the one that they are told
        prefixes = ("<|python_tag|>",) if form.kind is CallKind.BARE else _FENCES if is_general else ()
        for prefix in prefixes:
            if len(begun) <= len(prefix) and prefix.startswith(begun):
                return False
            if begun.startswith(prefix) and begun[len(prefix)] == "{":
                begun = begun[len(prefix) :]
                break
        is_call = begun[0] == "{" and (form.kind is CallKind.BARE or is_general)
        self._place = _Place.CALLS if is_call else _Place.TEXT
        self._held = begun if is_call else self._held
        return True

    def _text(self, events: list[CallEvent]) -> bool:
        opening = self._form.opening
        if not opening:
            events.append(Said(self._held))
            self._held = ""
            return False
        before, found, after = self._held.partition(opening)
        if found:
            if before.strip():
                events.append(Said(before))
            self._held, self._place = after, _Place.CALLS
            return True
        kept = next((n for n in range(min(len(opening) - 1, len(before)), 0, -1) if opening.startswith(before[-n:])), 0)
        shown = before[: len(before) - kept]
        tail = len(shown) - len(shown.rstrip())  # white space before a call is not the answer's
        shown = shown[: len(shown) - tail] if kept or tail else shown
        if shown:
            events.append(Said(shown))
        self._held = before[len(shown) :]
        return False

    def _calls(self) -> bool:
        form = self._form
        if form.kind is CallKind.NAMED:
            rest = self._held.lstrip()
            if rest.startswith(form.opening):
                rest = rest.removeprefix(form.opening).lstrip()
        else:
            rest = self._held.lstrip(" \n\r\t,;[]")
        self._held = rest
        if not rest:
            return False
        if rest[0] == "{":
            self._place, self._object = _Place.OBJECT, ObjectReader(self._names)
            return True
        ends = [mark for mark in (form.closing, _FENCE) if mark]
        for mark in ends:
            if rest.startswith(mark):
                self._held, self._place = rest[len(mark) :], _Place.TEXT
                return True
        if any(mark.startswith(rest) for mark in (*ends, *([form.opening] if form.kind is CallKind.NAMED else []))):
            return False
        self._place = _Place.NAME if form.kind is CallKind.NAMED else _Place.TEXT
        return True

    def _called_name(self, events: list[CallEvent]) -> bool:
        """Take a name, behind which the object of the arguments comes by itself."""
        name, found, after = self._held.partition("{")
        if not found and len(self._held) <= _MOST_NAME:
            return False
        name = name.partition("[ARGS]")[0].partition("[CALL_ID]")[0].strip()
        if name not in self._names:
            self._place = _Place.TEXT
            return True
        self._object, self._has_arguments_alone = ObjectReader(self._names), True
        for char in f'{{"name": {json.dumps(name)}, "arguments": ':
            events += self._object.feed(char)
        self._held, self._place = "{" + after, _Place.OBJECT
        return True

    def _read_object(self, events: list[CallEvent]) -> bool:
        assert self._object is not None
        events += self._object.feed(self._held[0])
        self._held = self._held[1:]
        if self._has_arguments_alone and self._object.has_whole_value:
            events += self._object.feed("}")
        if self._object.is_done:
            self._object, self._has_arguments_alone, self._place = None, False, _Place.CALLS
        return True


def _joined(events: list[CallEvent]) -> list[CallEvent]:
    """The same, with neighbouring pieces of text, and of arguments, as one."""
    found: list[CallEvent] = []
    for event in events:
        last = found[-1] if found else None
        if isinstance(event, Said) and isinstance(last, Said):
            found[-1] = Said(last.text + event.text)
        elif isinstance(event, Arguments) and isinstance(last, Arguments):
            found[-1] = Arguments(last.delta + event.delta)
        else:
            found.append(event)
    return found
