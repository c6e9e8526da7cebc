"""Long texts are encoded in a process of their own, which ends with that: its time and its memory are nobody else's."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

LONG_CHARS = 16_384  # the library takes some milliseconds for so many


class Call(NamedTuple):
    """A method of `Tokenizer` that returns ids, and what it is called with."""

    method: str
    arguments: tuple[object, ...]
    named: Mapping[str, object]


class Apart(Protocol):
    """Where calls with long texts are made; any thread may use it."""

    def run(self, call: Call) -> list[int]:
        """Make a call and wait for its ids; raises what it raises.

        Raises:
            TokenizerLostError: the process that made it ended twice.
        """
