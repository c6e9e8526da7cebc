"""What goes between the engine's process and the one that follows grammars."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from unicorn_async.errors import GrammarError
    from unicorn_async.grammar import Grammar

LENGTH_BYTES = 4  # in front of each message, little-endian


class Check(NamedTuple):
    """Answered with None, or with an error."""

    grammar: Grammar


class Begin(NamedTuple):
    """Answered with the first mask of an answer, or with an error."""

    key: int
    grammar: Grammar


class Advance(NamedTuple):
    """Answered with the next mask of an answer, or with an error."""

    key: int
    token_id: int


class End(NamedTuple):
    """Answered with None: an answer is forgotten."""

    key: int


Request: TypeAlias = "Check | Begin | Advance | End"
Reply: TypeAlias = "bytes | GrammarError | None"


def packed(number: int, content: Request | Reply) -> bytes:
    """Return a message, with its length in front; a reply has the number of its request."""
    body = pickle.dumps((number, content), pickle.HIGHEST_PROTOCOL)
    return len(body).to_bytes(LENGTH_BYTES, "little") + body
