"""Finds stop strings in text that arrives in pieces."""

from __future__ import annotations


class StopChecker:
    """Holds back the text that may be the beginning of a stop string, however the text is cut into pieces.

    The stop string that is complete first ends the text; of several that end there, the longest. The cost is constant
    per character and stop string (Knuth, Morris, Pratt: Fast pattern matching in strings, 1977).
    """

    __slots__ = ("_failures", "_held", "_matched", "_stopped", "_stops")

    def __init__(self, stops: tuple[str, ...]) -> None:
        if not all(stops):
            raise ValueError(f"stops: an empty stop string in {stops!r}")
        self._stops = stops
        self._failures = tuple(_failure_table(stop) for stop in stops)
        self._matched = [0] * len(stops)
        self._held = ""
        self._stopped = False

    def feed(self, text: str) -> tuple[str, bool]:
        """Return the text that is safe to emit now, and whether a stop string is complete.

        After a stop string nothing more is emitted.
        """
        if self._stopped:
            return "", True
        if not self._stops:
            return text, False
        buffer = self._held + text
        for index, char in enumerate(text, start=len(self._held) + 1):
            if longest := self._advance(char):
                self._held, self._stopped = "", True
                return buffer[: index - longest], True
        safe = len(buffer) - max(self._matched)
        self._held = buffer[safe:]
        return buffer[:safe], False

    def flush(self) -> str:
        """Return what was held back; the text ends here without a stop string."""
        held, self._held = self._held, ""
        self._matched = [0] * len(self._stops)
        return held

    def _advance(self, char: str) -> int:
        """Feed one character; length of the longest stop string that it completes, else 0."""
        longest = 0
        for number, stop in enumerate(self._stops):
            state, failure = self._matched[number], self._failures[number]
            while state and stop[state] != char:
                state = failure[state - 1]
            if stop[state] == char:
                state += 1
            if state == len(stop):
                longest = max(longest, state)
                state = 0
            self._matched[number] = state
        return longest


def _failure_table(pattern: str) -> tuple[int, ...]:
    """For each prefix, the length of its longest proper prefix that is also its suffix."""
    table = [0] * len(pattern)
    length = 0
    for index in range(1, len(pattern)):
        while length and pattern[index] != pattern[length]:
            length = table[length - 1]
        if pattern[index] == pattern[length]:
            length += 1
        table[index] = length
    return tuple(table)
