"""Reads a call whose arguments stand between tags, each as text, and gives them as JSON as they come."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING

from unicorn_async.calls.argument_types import TEXT_ALONE, argument_json, argument_schema, string_part, types_of
from unicorn_async.calls.call_format import CallKind
from unicorn_async.calls.events import Arguments, CallBegun, CallEnded, Said
from unicorn_async.calls.marks import num_begun
from unicorn_async.calls.python_text import python_argument
from unicorn_async.calls.stepped_reader import SteppedReader

if TYPE_CHECKING:
    from collections.abc import Mapping

    from unicorn_async.calls.call_format import CallFormat
    from unicorn_async.calls.events import CallEvent

_MOST_NAME = 256
_MOST_SPACE = 64  # between tags


@dataclass(frozen=True, slots=True)
class Tags:
    """What stands around a call's name, each key and each value, and what ends the call."""

    name: tuple[str, str]
    key: tuple[str, str]
    value: tuple[str, str]
    end: str
    is_lined: bool = False  # a line's end before and behind each value is none of its own

    @classmethod
    def of(cls, form: CallFormat) -> Tags:
        """Return those of a form."""
        if form.kind is CallKind.KEYED:
            return cls(("", "\n"), ("<arg_key>", "</arg_key>"), ("<arg_value>", "</arg_value>"), form.closing)
        return cls(
            ("<function=", ">"), ("<parameter=", ">"), ("", "</parameter>"), "</function>", is_lined=form.is_lined
        )


class _Place(Enum):
    NAME = auto()
    KEY = auto()  # or the end
    VALUE = auto()


class TagReader(SteppedReader):
    """Takes text from what stands before a call's name on, until `is_done`; `rest` is what came behind it.

    A value ends where its closing tag is followed by the next argument, or the end of the call: as a part of a value,
    that tag is text. What is no call is the rest, as it was. `closing` ends a call, too, but is left in the rest.
    """

    def __init__(self, tags: Tags, closing: str, tools: Mapping[str, Mapping[str, object]]) -> None:
        """`tools` are the parameters of those that can be called, by their names."""
        super().__init__()
        self._tags = tags
        self._followers = tuple(dict.fromkeys((tags.key[0], tags.end, closing)))
        self._tools = tools
        self._place = _Place.NAME
        self._name = ""
        self._head = 0  # characters of what is held that are the name and the tags around it
        self._keys: set[str] = set()
        self._key = ""
        self._types = TEXT_ALONE
        self._parts: list[str] = []  # of a value that is shown as a whole
        self._is_at_start = self._is_dropped = False  # the value that comes

    def finish(self) -> list[CallEvent]:
        """Take the end of the answer, within the call: what has come of it stays."""
        self.is_done = True
        if not self.has_begun:
            return [Said(self._held)]
        events: list[CallEvent] = []
        if self._place is _Place.VALUE:
            close = self._tags.value[1]
            text, found, _ = self._held.partition(close)
            if found:
                self._end_value(self._without_line(text), events)
            else:
                self._take(text[: len(text) - self._num_kept(text)], events)
                if self._parts and not self._is_dropped:
                    events.append(Arguments(self._before_value() + "".join(self._parts).strip()))
        return [*events, CallEnded()]

    def _step(self, events: list[CallEvent]) -> bool:
        match self._place:
            case _Place.NAME:
                return self._read_name(events)
            case _Place.KEY:
                return self._read_key(events)
            case _Place.VALUE:
                return self._read_value(events)

    def _read_name(self, events: list[CallEvent]) -> bool:
        before, after = self._tags.name
        start = len(before)
        ends = [at for at in (self._held.find(char, start) for char in (after, "<", "\n")) if at >= 0]
        if not ends:
            return self._is_no_call(events) if len(self._held) > _MOST_NAME else False
        end = min(ends)
        has_tag = self._held[end] == after
        self._name = self._held[start:end].strip()
        if not (has_tag or after == "\n") or end > _MOST_NAME or self._name not in self._tools:
            return self._is_no_call(events)
        self._head, self._place = end + has_tag, _Place.KEY
        return True

    def _read_key(self, events: list[CallEvent]) -> bool:
        rest = self._held[self._head :].lstrip()
        if len(self._held) - self._head - len(rest) > _MOST_SPACE:
            return self._is_no_call(events)
        if not rest.startswith(self._followers):
            return False if self._may_follow(rest) else self._is_no_call(events)
        if not self.has_begun:
            self.has_begun = True
            events.append(CallBegun(self._name))
        self._held, self._head = rest, 0
        opening, closing = self._tags.key
        if not rest.startswith(opening):
            self._held = rest.removeprefix(self._tags.end)
            self._end(events)
            return False
        key, found, after = rest.removeprefix(opening).partition(closing)
        if len(key) > _MOST_NAME:
            return self._is_no_call(events)
        return bool(found) and self._read_before_value(key.strip(), after, events)

    def _read_before_value(self, key: str, after: str, events: list[CallEvent]) -> bool:
        opening = self._tags.value[0]
        if opening:
            rest = after.lstrip()
            if len(after) - len(rest) > _MOST_SPACE or not (rest.startswith(opening) or opening.startswith(rest)):
                return self._is_no_call(events)
            if not rest.startswith(opening):
                return False
            after = rest.removeprefix(opening)
        self._held = after
        self._begin_value(key, events)
        return True

    def _begin_value(self, key: str, events: list[CallEvent]) -> None:
        self._place, self._is_at_start = _Place.VALUE, self._tags.is_lined
        parameters = self._tools[self._name]
        self._key, self._types = key, types_of(argument_schema(parameters, key), parameters)
        self._is_dropped, self._parts = key in self._keys, []
        if self._types == TEXT_ALONE and not self._is_dropped:
            events.append(Arguments(self._before_value() + '"'))

    def _before_value(self) -> str:
        before = ", " if self._keys else "{"
        self._keys.add(self._key)
        return f'{before}"{string_part(self._key)}": '

    def _read_value(self, events: list[CallEvent]) -> bool:
        if self._is_at_start and self._held:
            self._held, self._is_at_start = self._held.removeprefix("\n"), False
        close = self._tags.value[1]
        text, found, after = self._held.partition(close)
        if not found:
            shown = len(text) - self._num_kept(text)
            self._take(text[:shown], events)
            self._held = text[shown:]
            return False
        rest = after.lstrip()
        if len(after) - len(rest) <= _MOST_SPACE:
            if rest.startswith(self._followers):
                self._end_value(self._without_line(text), events)
                self._held, self._place = rest, _Place.KEY
                return True
            if self._may_follow(rest):
                shown = len(self._without_line(text))
                self._take(text[:shown], events)
                self._held = self._held[shown:]
                return False
        self._take(text + close, events)
        self._held = after
        return True

    def _num_kept(self, text: str) -> int:
        """How many characters at the end may begin what ends the value."""
        close = self._tags.value[1]
        close = "\n" + close if self._tags.is_lined else close
        return num_begun(text, close) or num_begun(text, close.lstrip())

    def _without_line(self, text: str) -> str:
        return text.removesuffix("\n") if self._tags.is_lined else text

    def _take(self, text: str, events: list[CallEvent]) -> None:
        if not text or self._is_dropped:
            return
        if self._types == TEXT_ALONE:
            events.append(Arguments(string_part(text)))
        else:
            self._parts.append(text)

    def _end_value(self, text: str, events: list[CallEvent]) -> None:
        self._take(text, events)
        if self._is_dropped:
            return
        if self._types == TEXT_ALONE:
            events.append(Arguments('"'))
        else:
            # Seed-OSS' template writes lists as Python does.
            in_json = argument_json if "string" in self._types else python_argument
            events.append(Arguments(self._before_value() + in_json("".join(self._parts), self._types)))

    def _may_follow(self, rest: str) -> bool:
        return any(tag.startswith(rest) for tag in self._followers)

    def _is_no_call(self, events: list[CallEvent]) -> bool:
        """Leave what is no call, or no argument of the one that has begun, to the rest."""
        self.is_done = True
        if self.has_begun:
            self._end(events)
        return False

    def _end(self, events: list[CallEvent]) -> None:
        self.is_done = True
        events += [Arguments("}" if self._keys else "{}"), CallEnded()]
