"""Reads calls out of an answer's text as it comes."""

from __future__ import annotations

import json
from enum import Enum, auto
from typing import TYPE_CHECKING

from unicorn_async.calls import separated
from unicorn_async.calls.braced_reader import BracedReader
from unicorn_async.calls.call_format import CallKind
from unicorn_async.calls.events import Arguments, Said
from unicorn_async.calls.marks import num_begun
from unicorn_async.calls.object_reader import ObjectReader
from unicorn_async.calls.python_reader import PythonReader
from unicorn_async.calls.tag_reader import TagReader, Tags

if TYPE_CHECKING:
    from collections.abc import Mapping

    from unicorn_async.calls.call_format import CallFormat
    from unicorn_async.calls.events import CallEvent

_FENCE = "```"
_FENCES = ("```json\n", "```tool_call\n", "```tool_code\n")  # around JSON that is the whole answer
_FUNCTION = "<function="
_LISTS = ("[", "<|python_tag|>[", "<|python_start|>[")
_MOST_NAME = 128


class _Place(Enum):
    START = auto()  # nothing but white space has come
    TEXT = auto()
    CALLS = auto()  # between calls
    OBJECT = auto()
    NAME = auto()
    WRITTEN = auto()  # by tags, instead of an object


class CallReader:
    """Text in, events out. What only looks like a call is text; text that may begin one is held back."""

    def __init__(self, form: CallFormat, tools: Mapping[str, Mapping[str, object]]) -> None:
        """`tools` are the parameters of those that can be called, by their names."""
        self._form = form
        self._tools = tools
        # Qwen3-Coder leaves the outer tag out at times, DeepSeek likewise.
        more = {CallKind.XML: (_FUNCTION,), CallKind.SEPARATED: (separated.CALL[0],)}.get(form.kind, ())
        self._openings = (form.opening, *more)
        self._place = _Place.START
        self._held = ""
        self._lead = ""  # what stands before a call that may be none: its opening, and white space
        self._object: ObjectReader | None = None
        self._has_arguments_alone = False  # the object is that of the arguments, without a name
        self._written: TagReader | PythonReader | BracedReader | None = None

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
        elif self._written is not None:
            events += [] if self._written.has_begun else [Said(self._lead)]
            events += self._written.finish()
        elif self._held and (self._place is not _Place.CALLS):
            events.append(Said(self._held))
        self._held, self._object, self._written = "", None, None
        return _joined(events)

    def _step(self, events: list[CallEvent]) -> bool:
        """Take something of what is held; returns whether there may be more to take."""
        match self._place:
            case _Place.START:
                return self._start()
            case _Place.TEXT:
                return self._text(events)
            case _Place.CALLS:
                return self._calls(events)
            case _Place.NAME:
                return self._called_name(events)
            case _Place.OBJECT:
                return self._read_object(events)
            case _Place.WRITTEN:
                return self._read_written(events)

    def _start(self) -> bool:
        begun, form = self._held.lstrip(), self._form
        if not begun:
            return False
        # Models that are told the general form have forms of their own beside it.
        is_general = not form.takes_tools and form.kind is CallKind.TAGGED
        if form.kind is CallKind.PYTHON and not form.opening:
            return self._start_list(begun)
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

    def _start_list(self, begun: str) -> bool:
        """Begin with a list in Python, which may have calls."""
        prefix = next((prefix for prefix in _LISTS if begun.startswith(prefix)), "")
        if not prefix and any(prefix.startswith(begun) for prefix in _LISTS):
            return False
        self._place = _Place.CALLS if prefix else _Place.TEXT
        if prefix:
            behind = len(self._held) - len(begun) + len(prefix)
            self._lead, self._held = self._held[:behind], self._held[behind:]
        return True

    def _text(self, events: list[CallEvent]) -> bool:
        if not self._form.opening:
            events.append(Said(self._held))
            self._held = ""
            return False
        found = [(at, opening) for opening in self._openings if (at := self._held.find(opening)) >= 0]
        if found:
            at, opening = min(found)
            shown = self._held[:at].rstrip()  # white space before a call is not the answer's
            if shown:
                events.append(Said(shown))
            behind = at if opening == _FUNCTION else at + len(opening)
            self._lead, self._held = self._held[len(shown) : behind], self._held[behind:]
            self._place = _Place.CALLS
            return True
        kept = max(num_begun(self._held, opening) for opening in self._openings)
        shown = self._held[: len(self._held) - kept].rstrip()
        if shown:
            events.append(Said(shown))
        self._held = self._held[len(shown) :]
        return False

    def _calls(self, events: list[CallEvent]) -> bool:
        form = self._form
        if form.is_written:
            return self._written_calls(events)
        if form.kind is CallKind.SEPARATED:
            return self._separated_calls()
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
            self._place, self._object = _Place.OBJECT, ObjectReader(self._tools)
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

    def _separated_calls(self) -> bool:
        """Go over what stands beside a call, to its name or the end of all."""
        self._held = rest = self._held.lstrip()
        mark = next((mark for mark in (self._form.closing, *separated.BESIDE) if rest.startswith(mark)), None)
        if mark is not None:
            self._held = rest.removeprefix(mark)
            self._place = _Place.TEXT if mark == self._form.closing else _Place.CALLS
            return True
        if any(mark.startswith(rest) for mark in (self._form.closing, *separated.BESIDE)):
            return False
        self._place = _Place.NAME
        return True

    def _written_calls(self, events: list[CallEvent]) -> bool:
        form, is_python = self._form, self._form.kind is CallKind.PYTHON
        rest = self._held.lstrip(" \n\r\t,[]" if is_python else None)
        if self._lead:
            self._lead += self._held[: len(self._held) - len(rest)]
        self._held = rest
        begins = _FUNCTION if form.kind is CallKind.XML else ""
        if form.closing and rest.startswith(form.closing):
            self._held, self._place = rest.removeprefix(form.closing), _Place.TEXT
        elif form.opening and rest.startswith("{"):
            self._place, self._object = _Place.OBJECT, ObjectReader(self._tools)
        elif not rest or form.closing.startswith(rest) or (rest != begins and begins.startswith(rest)):
            return False
        elif rest.startswith(begins):
            self._place, self._written = _Place.WRITTEN, self._written_reader()
        else:
            self._no_calls(0, events)
        return True

    def _written_reader(self) -> TagReader | PythonReader | BracedReader:
        match self._form.kind:
            case CallKind.PYTHON:
                return PythonReader(self._tools)
            case CallKind.BRACED:
                return BracedReader(self._tools)
            case _:
                return TagReader(Tags.of(self._form), self._form.closing, self._tools)

    def _read_written(self, events: list[CallEvent]) -> bool:
        assert self._written is not None
        events += self._written.feed(self._held)
        self._held = self._written.rest if self._written.is_done else ""
        if not self._written.is_done:
            return False
        if not self._written.has_begun:
            self._no_calls(1 if self._held.startswith(_FUNCTION) else 0, events)
        else:
            self._lead, self._place = "", _Place.TEXT if self._form.kind is CallKind.KEYED else _Place.CALLS
        self._written = None
        return True

    def _no_calls(self, count: int, events: list[CallEvent]) -> None:
        """Show what only looked like the beginning of a call, `count` characters of what is held among it."""
        events.append(Said(self._lead + self._held[:count]))
        self._lead, self._held, self._place = "", self._held[count:], _Place.TEXT

    def _called_name(self, events: list[CallEvent]) -> bool:
        """Take a name, behind which the object of the arguments comes by itself."""
        name, found, after = self._held.partition("{")
        if not found and len(self._held) <= _MOST_NAME:
            return False
        if self._form.kind is CallKind.SEPARATED:
            name = separated.called_name(name)
        else:
            name = name.partition("[ARGS]")[0].partition("[CALL_ID]")[0].strip()
        if name not in self._tools:
            self._place = _Place.TEXT
            return True
        self._object, self._has_arguments_alone = ObjectReader(self._tools), True
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
            self._lead = ""
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
