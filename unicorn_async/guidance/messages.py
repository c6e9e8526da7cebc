"""What goes between the engine's process and those that follow grammars."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from unicorn_async.errors import GrammarError
    from unicorn_async.grammar import Grammar

LENGTH_BYTES = 4  # in front of each message, little-endian
UNASKED = 0  # the number of replies to no request


class Compile(NamedTuple):
    """The first request of a process: compile what it is to follow, within so many seconds of the processor.

    Answered with the bytes of memory that this took, or with an error.
    """

    grammar: Grammar
    seconds: float
    is_nice: bool  # to others that want the processor


class Begin(NamedTuple):
    """Answered with the first mask of an answer, or with an error."""

    key: int


class Advance(NamedTuple):
    """Take an answer's next tokens; answered with `Masks`, or with an error.

    Masks are foreseen behind up to `most` tokens more: those of `proposed` as long as they may come, and what has to.
    """

    key: int
    token_ids: tuple[int, ...]
    proposed: tuple[int, ...] = ()
    most: int = 0


class Masks(NamedTuple):
    """Which tokens may come next, a bit for each; and tokens that are likely to, each with the mask behind it."""

    mask: bytes
    foreseen: tuple[tuple[int, bytes], ...] = ()


class End(NamedTuple):
    """Answered with None: an answer is forgotten."""

    key: int


class Ended(NamedTuple):
    """The last, unasked: the process has ended, with a status, or minus a signal."""

    status: int


Request: TypeAlias = "Compile | Begin | Advance | End"
Reply: TypeAlias = "Masks | bytes | int | GrammarError | Ended | None"


def packed(number: int, content: Request | Reply) -> bytes:
    """Return a message, with its length in front; a reply has the number of its request."""
    body = pickle.dumps((number, content), pickle.HIGHEST_PROTOCOL)
    return len(body).to_bytes(LENGTH_BYTES, "little") + body
