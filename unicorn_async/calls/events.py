"""What is read of an answer, piece by piece."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias


class Said(NamedTuple):
    """Text of the answer."""

    text: str


class CallBegun(NamedTuple):
    """A call of a tool."""

    name: str


class Arguments(NamedTuple):
    """More of the arguments of the call that has begun."""

    delta: str


class CallEnded(NamedTuple):
    """The call that has begun is whole, or was cut off with the answer."""


CallEvent: TypeAlias = "Said | CallBegun | Arguments | CallEnded"
