"""What the connections of one server share."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from unicorn_async.server.idle_connections import IdleConnections
from unicorn_async.server.loop_turns import LoopTurns
from unicorn_async.server.stall import Unread

if TYPE_CHECKING:
    from unicorn_async.server.options import ServerOptions


class Port(NamedTuple):
    """Its limits, and what of them is taken."""

    options: ServerOptions
    idle: IdleConnections
    unread: Unread
    turns: LoopTurns

    @classmethod
    def of(cls, options: ServerOptions) -> Port:
        """Return one of which nothing is taken."""
        return cls(options, IdleConnections(options.max_connections), Unread(options.max_all_unread_bytes), LoopTurns())


def address_of(client: tuple[str, int] | None) -> str:
    """Return whose turns a connection takes; those through a socket in the file system are one's."""
    return "" if client is None else client[0]
