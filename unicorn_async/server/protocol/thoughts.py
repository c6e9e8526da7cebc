"""A model's thoughts in its text, between two marks before all else, told apart from the answer as both arrive."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Protocol

from unicorn_async.calls.marks import num_begun

if TYPE_CHECKING:
    from collections.abc import Mapping


class Splitter(Protocol):
    """Tells thoughts and answer apart; `markers` have the text of control tokens that it wants to see."""

    markers: Mapping[int, str]

    @property
    def is_thinking(self) -> bool:
        """Whether what comes next is a thought, as far as is known."""

    def feed(self, text: str) -> list[tuple[bool, str]]:
        """Return what is known to be a thought (True) or a part of the answer (False)."""

    def finish(self) -> list[tuple[bool, str]]:
        """Return what was held back; the text ends here."""


class _State(Enum):
    BEGINNING = "beginning"  # the mark may come
    THINKING = "thinking"
    BETWEEN = "between"  # the thoughts have ended, the answer has not begun
    ANSWERING = "answering"


class ThoughtSplitter:
    """Takes an answer's text in pieces; gives thoughts and answer without the marks and the space around them.

    `is_open`: the prompt ends with the opening one of the `marks`, as some models' templates have it.
    """

    def __init__(self, *, is_open: bool, marks: tuple[str, str] = ("<think>", "</think>")) -> None:
        self._open, self._close = marks
        self.markers: Mapping[int, str] = {}
        self._state = _State.THINKING if is_open else _State.BEGINNING
        self._held = ""  # may be a part of a mark, or space that nothing follows
        self._has_thought = False

    @property
    def is_thinking(self) -> bool:
        """Whether what comes next is a thought, as far as is known."""
        return self._state is _State.THINKING

    def feed(self, text: str) -> list[tuple[bool, str]]:
        """Return what is known to be a thought (True) or a part of the answer (False)."""
        if self._state is _State.ANSWERING:
            return [(False, text)] if text else []
        held, self._held = self._held + text, ""
        found: list[tuple[bool, str]] = []
        if self._state is _State.BEGINNING:
            held = self._begin(held, found)
        if self._state is _State.THINKING:
            held = self._think(held, found)
        if self._state is _State.BETWEEN and (held := held.lstrip()):
            self._state = _State.ANSWERING
            found.append((False, held))
        return found

    def finish(self) -> list[tuple[bool, str]]:
        """Return what was held back; the text ends here."""
        held, self._held = self._held, ""
        if self._state is _State.THINKING:
            held = held.rstrip()
        return [(self.is_thinking, held)] if held else []

    def _begin(self, text: str, found: list[tuple[bool, str]]) -> str:
        start = text.lstrip()
        if start.startswith(self._open):
            self._state = _State.THINKING
            return start.removeprefix(self._open)
        if self._open.startswith(start):
            self._held = text
            return ""
        self._state = _State.ANSWERING
        found.append((False, text))
        return ""

    def _think(self, text: str, found: list[tuple[bool, str]]) -> str:
        thought, mark, rest = text.partition(self._close)
        if not self._has_thought:
            thought = thought.lstrip()
        if mark:
            shown, self._state = thought.rstrip(), _State.BETWEEN
        else:
            shown = thought[: len(thought) - num_begun(thought, self._close)].rstrip()
            self._held = thought[len(shown) :]
        if shown:
            self._has_thought = True
            found.append((True, shown))
        return rest
