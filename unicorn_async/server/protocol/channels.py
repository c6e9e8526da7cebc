"""A model's thoughts, answer and calls in the channels of the Harmony format, told apart as they arrive."""

from __future__ import annotations

import re
from enum import Enum
from typing import TYPE_CHECKING

from unicorn_async.calls.harmony import APART, CALL, CHANNEL, CONSTRAIN, END, FUNCTIONS, MARKS, MESSAGE, RETURN, START

if TYPE_CHECKING:
    from collections.abc import Mapping

_MARK = re.compile(f"({'|'.join(map(re.escape, MARKS))})")
_CHANNEL_NAME = re.compile(rf"{re.escape(CHANNEL)}\s*([a-z]+)")
_RECIPIENT = re.compile(rf"(?<!\S)to=([^\s{APART}]+)")
_TO = "to="
_THOUGHTS = "analysis"
_MOST_HEADER = 512  # characters: a longer one is none
_GAP = "\n\n"  # between messages that are one text to clients


class _State(Enum):
    BEGINNING = "beginning"  # behind the prompt's "<|start|>assistant"
    HEADER = "header"
    BETWEEN = "between"  # messages
    THINKING = "thinking"
    ANSWERING = "answering"
    CALLING = "calling"


class ChannelSplitter:
    """Takes an answer's text in pieces, with the marks of `markers` in the place of control tokens; see `Splitter`.

    A message to one of the `tools` is a call, for a `HarmonyReader`. Any other is a thought in its channel, and else
    the answer; of several there are lines between. What comes without a header is the answer. Unless thoughts are to be
    `apart`, they are a part of the answer, within their marks.
    """

    def __init__(self, markers: Mapping[int, str], tools: frozenset[str] = frozenset(), *, apart: bool = True) -> None:
        self.markers = markers
        self._tools = tools
        self._apart = apart
        self._state = _State.BEGINNING
        self._held = ""  # of a header, or of what may be one
        self._has_answered = False  # a message that is no thought has begun
        self._has_shown = {True: False, False: False}  # a thought, and a part of the answer
        self._is_new = {True: False, False: False}  # a message of these has begun, and nothing is shown of it

    @property
    def is_thinking(self) -> bool:
        """Whether what comes next is a thought, as far as is known, or a header before the answer."""
        is_between = self._state in (_State.HEADER, _State.BETWEEN) and not self._has_answered
        return is_between or self._state is _State.THINKING

    def feed(self, text: str) -> list[tuple[bool, str]]:
        """Return what is known to be a thought (True) or a part of the answer or of a call (False)."""
        found: list[tuple[bool, str]] = []
        for part in _MARK.split(text):
            if part in MARKS:
                self._mark(part, found)
            elif part:
                self._text(part, found)
        return found

    def finish(self) -> list[tuple[bool, str]]:
        """Return what was held back; the text ends here."""
        held, self._held = self._held, ""
        return [(False, held)] if held and self._state is _State.BEGINNING else []

    def _mark(self, mark: str, found: list[tuple[bool, str]]) -> None:
        is_in_header = self._state in (_State.BEGINNING, _State.HEADER, _State.BETWEEN)
        if mark in (START, CHANNEL):
            if not is_in_header:
                self._end(found)
            self._held = self._held + mark if mark == CHANNEL and is_in_header else mark
            self._state = _State.HEADER
        elif mark == CONSTRAIN and is_in_header:
            self._held += mark
        elif mark == MESSAGE and is_in_header:
            header, self._held = self._held, ""
            self._open(header, found)
        elif mark in (END, RETURN, CALL):
            if not is_in_header:
                self._end(found)
            self._held, self._state = "", _State.BETWEEN

    def _text(self, text: str, found: list[tuple[bool, str]]) -> None:
        if self._state is _State.BEGINNING:
            self._begin(self._held + text, found)
        elif self._state is _State.HEADER:
            self._held += text
            if len(self._held) > _MOST_HEADER:
                held, self._held, self._state = self._held, "", _State.ANSWERING
                self._show(False, held.replace(APART, ""), found)
        elif self._state is _State.BETWEEN:
            if text.strip():
                self._state, self._is_new[False] = _State.ANSWERING, True
                self._show(False, text, found)
        else:
            self._show(self._state is _State.THINKING and self._apart, text, found)

    def _begin(self, held: str, found: list[tuple[bool, str]]) -> None:
        """A header may go on behind the prompt; anything else is the answer, such as one that has a grammar."""
        start = held.lstrip()
        self._held = held
        if start.startswith(_TO):
            self._state = _State.HEADER
        elif not _TO.startswith(start):
            self._held, self._state = "", _State.ANSWERING
            self._show(False, held, found)

    def _open(self, header: str, found: list[tuple[bool, str]]) -> None:
        channel, recipient = _CHANNEL_NAME.search(header), _RECIPIENT.search(header)
        name = "" if recipient is None else recipient[1].removeprefix(FUNCTIONS)
        is_thought = channel is not None and channel[1] == _THOUGHTS
        self._has_answered = self._has_answered or not is_thought
        if recipient is not None and name in self._tools:
            self._state = _State.CALLING
            found.append((False, f"{START}{name}{MESSAGE}"))
            return
        self._state = _State.THINKING if is_thought else _State.ANSWERING
        self._is_new[is_thought and self._apart] = True
        if is_thought and not self._apart:
            self._show(False, f"{CHANNEL}{_THOUGHTS}{MESSAGE}".replace(APART, ""), found)

    def _end(self, found: list[tuple[bool, str]]) -> None:
        if self._state is _State.CALLING:
            found.append((False, CALL))
        elif self._state is _State.THINKING and not self._apart:
            self._show(False, END.replace(APART, ""), found)

    def _show(self, is_thought: bool, text: str, found: list[tuple[bool, str]]) -> None:
        if self._state is not _State.CALLING:
            if self._is_new[is_thought] and self._has_shown[is_thought]:
                text = _GAP + text
            self._is_new[is_thought], self._has_shown[is_thought] = False, True
        found.append((is_thought, text))
