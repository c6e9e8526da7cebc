"""What a gateway asks a replica, and what it gets: they go between processes, and are small and plain."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from unicorn_async.server.client import Client


@dataclass(frozen=True, slots=True)
class HttpCall:
    """An HTTP request, its body read."""

    method: str
    path: str
    query: bytes
    headers: tuple[tuple[bytes, bytes], ...]
    client: tuple[str, int] | None  # the address that it comes from
    body: bytes


@dataclass(frozen=True, slots=True)
class LaneCall:
    """A websocket's event that has an answer, and whose it is: the gateway has seen to that."""

    connection: str  # that what the connection did with `store` false belongs to
    lane: str  # by which this call may be cancelled
    client: Client
    text: str | bytes


class Accepted(NamedTuple):
    """The first that any call gets: a replica has a place for it."""

    replica: str


class Head(NamedTuple):
    """The begin of an HTTP answer; its body follows in pieces of bytes."""

    status: int
    headers: tuple[tuple[bytes, bytes], ...]


class Began(NamedTuple):
    """A lane's response has a name; its events follow as texts."""

    response_id: str


class Report(NamedTuple):
    """How a replica is."""

    replica: str
    is_well: bool
    is_ready: bool
    health: dict[str, object]
    metrics: str


HttpPiece = Accepted | Head | bytes
LanePiece = Accepted | Began | str
