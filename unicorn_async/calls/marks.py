"""Marks in a text that comes in pieces."""

from __future__ import annotations


def num_begun(text: str, mark: str) -> int:
    """Return how many characters at the end of a text begin a mark, which is not there as a whole."""
    longest = min(len(mark) - 1, len(text))
    return next((count for count in range(longest, 0, -1) if mark.startswith(text[-count:])), 0)
