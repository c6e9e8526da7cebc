"""Reads a call that is written as Python does, `name(key=value, …)`, and gives its arguments as JSON as they come."""

from __future__ import annotations

import re
from enum import Enum, auto
from typing import TYPE_CHECKING

from unicorn_async.calls.argument_types import argument_json, argument_schema, string_part, types_of
from unicorn_async.calls.events import Arguments, CallBegun, CallEnded, Said
from unicorn_async.calls.marks import num_begun
from unicorn_async.calls.python_text import num_escaped, python_argument, unescaped
from unicorn_async.calls.stepped_reader import SteppedReader

if TYPE_CHECKING:
    from collections.abc import Mapping

    from unicorn_async.calls.events import CallEvent

_NAME = re.compile(r"[\w.-]{1,128}\(")
_PART_OF_NAME = re.compile(r"[\w.-]{0,128}")
_KEY = re.compile(r"\s{0,64}([\w.$-]{1,128})\s{0,64}=(?!=)\s{0,64}")
_PART_OF_KEY = re.compile(r"\s{0,64}[\w.$-]{0,128}\s{0,64}=?\s{0,64}")
_END = re.compile(r"\s{0,64}\)")
_AFTER_TEXT = re.compile(r"\s{0,64}[,)]")
_SPACE = re.compile(r"\s{0,64}")


class _Place(Enum):
    NAME = auto()
    KEY = auto()  # or the end
    TEXT = auto()  # in quotes
    VALUE = auto()  # other ones


class PythonReader(SteppedReader):
    """Takes text from a call's name on, until `is_done`; `rest` is what came behind it.

    A string ends where the end of an argument follows its quote: models don't escape each quote within. What is no call
    is the rest, as it was.
    """

    def __init__(self, tools: Mapping[str, Mapping[str, object]]) -> None:
        """`tools` are the parameters of those that can be called, by their names."""
        super().__init__()
        self._tools = tools
        self._place = _Place.NAME
        self._name = ""
        self._head = 0  # characters of what is held that are the name
        self._keys: set[str] = set()
        self._key = ""
        self._types = frozenset[str]()
        self._is_dropped = self._is_shown = False  # the value that comes: as it comes
        self._quote = ""
        self._parts: list[str] = []  # of a value that is shown as a whole
        self._inner_quote = ""
        self._depth = 0

    def finish(self) -> list[CallEvent]:
        """Take the end of the answer, within the call: what has come of it stays."""
        self.is_done = True
        if not self.has_begun:
            return [Said(self._held)]
        events: list[CallEvent] = []
        if self._place is _Place.TEXT and self._held.startswith(self._quote):
            self._end_text(events)
        elif not self._is_dropped and self._parts:
            begun = '"' + string_part("".join(self._parts)) if self._place is _Place.TEXT else "".join(self._parts)
            events.append(Arguments(self._before_value() + begun))
        return [*events, CallEnded()]

    def _step(self, events: list[CallEvent]) -> bool:
        match self._place:
            case _Place.NAME:
                return self._read_name(events)
            case _Place.KEY:
                return self._read_key(events)
            case _Place.TEXT:
                return self._read_text(events)
            case _Place.VALUE:
                return self._read_value(events)

    def _read_name(self, events: list[CallEvent]) -> bool:
        found = _NAME.match(self._held)
        if found is None:
            return False if _PART_OF_NAME.fullmatch(self._held) else self._is_no_call(events)
        self._name = found[0][:-1]
        if self._name not in self._tools:
            return self._is_no_call(events)
        self._head, self._place = found.end(), _Place.KEY
        return len(self._held) > self._head

    def _read_key(self, events: list[CallEvent]) -> bool:
        end, key = _END.match(self._held, self._head), _KEY.match(self._held, self._head)
        if end is None and (key is None or key.end() == len(self._held)):
            return False if _PART_OF_KEY.fullmatch(self._held, self._head) else self._is_no_call(events)
        if key is not None and not self._may_begin_value(key.end()):
            return False
        if not self.has_begun:
            self.has_begun = True
            events.append(CallBegun(self._name))
        if end is not None:
            self._held = self._held[end.end() :]
            self._end(events)
        elif key is not None:
            self._held = self._held[key.end() :]
            self._begin_value(key[1], events)
        self._head = 0
        return not self.is_done

    def _may_begin_value(self, start: int) -> bool:
        """Whether enough has come to tell how the value is quoted: three quotes begin with those of an empty string."""
        quote = self._held[start]
        return quote not in "\"'" or self._held[start:] not in (quote, quote * 2)

    def _begin_value(self, key: str, events: list[CallEvent]) -> None:
        parameters = self._tools[self._name]
        self._key, self._types = key, types_of(argument_schema(parameters, key), parameters)
        self._is_dropped, self._parts, self._depth, self._inner_quote = key in self._keys, [], 0, ""
        quote = self._held[0]
        if quote not in "\"'":
            self._place, self._is_shown = _Place.VALUE, False
            return
        self._quote = quote * 3 if self._held.startswith(quote * 3) else quote
        self._held = self._held[len(self._quote) :]
        self._place, self._is_shown = _Place.TEXT, "string" in self._types
        if self._is_shown and not self._is_dropped:
            events.append(Arguments(self._before_value() + '"'))

    def _before_value(self) -> str:
        before = ", " if self._keys else "{"
        self._keys.add(self._key)
        return f'{before}"{string_part(self._key)}": '

    def _read_text(self, events: list[CallEvent]) -> bool:
        held, quote = self._held, self._quote
        at = min((at for at in (held.find(quote), held.find("\\")) if at >= 0), default=-1)
        if at:
            shown = at if at > 0 else len(held) - num_begun(held, quote)
            self._take(held[:shown], events)
            self._held = held[shown:]
            return at > 0
        if held[0] == "\\":
            count = num_escaped(held)
            self._take(unescaped(held[:count]), events)
            self._held = held[count:]
            return count > 0
        if _AFTER_TEXT.match(held, len(quote)):
            self._held = held[len(quote) :]
            self._end_text(events)
            return self._ended(events)
        if _SPACE.fullmatch(held, len(quote)):
            return False
        self._take(held[0], events)
        self._held = held[1:]
        return True

    def _read_value(self, events: list[CallEvent]) -> bool:
        """Take characters up to the end of the value, which is outside of strings and brackets."""
        is_escaped = False
        for index, char in enumerate(self._held):
            if is_escaped:
                is_escaped = False
            elif self._inner_quote:
                is_escaped = char == "\\"
                self._inner_quote = "" if char == self._inner_quote else self._inner_quote
            elif char in "\"'":
                self._inner_quote = char
            elif char in "([{":
                self._depth += 1
            elif self._depth and char in ")]}":
                self._depth -= 1
            elif not self._depth and char in ",)":
                self._parts.append(self._held[:index])
                self._held = self._held[index:]
                self._end_value(python_argument("".join(self._parts).strip(), self._types), events)
                return self._ended(events)
        kept = 1 if is_escaped else 0  # with what it escapes
        self._parts.append(self._held[: len(self._held) - kept])
        self._held = self._held[len(self._held) - kept :]
        return False

    def _take(self, text: str, events: list[CallEvent]) -> None:
        if not text or self._is_dropped:
            return
        if self._is_shown:
            events.append(Arguments(string_part(text)))
        else:
            self._parts.append(text)

    def _end_text(self, events: list[CallEvent]) -> None:
        if not self._is_shown:
            self._end_value(argument_json("".join(self._parts), self._types), events)
        elif not self._is_dropped:
            events.append(Arguments('"'))

    def _end_value(self, value: str, events: list[CallEvent]) -> None:
        if not self._is_dropped:
            events.append(Arguments(self._before_value() + value))

    def _ended(self, events: list[CallEvent]) -> bool:
        """Go on behind a value, where a comma or the call's end is."""
        self._held, self._parts, self._place = self._held.lstrip(), [], _Place.KEY
        is_end = self._held[0] == ")"
        self._held = self._held[1:]
        if is_end:
            self._end(events)
        return not is_end

    def _is_no_call(self, events: list[CallEvent]) -> bool:
        """Leave what is no call, or no argument of the one that has begun, to the rest."""
        self.is_done = True
        if self.has_begun:
            self._end(events)
        return False

    def _end(self, events: list[CallEvent]) -> None:
        self.is_done = True
        events += [Arguments("}" if self._keys else "{}"), CallEnded()]
