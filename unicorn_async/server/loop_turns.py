"""Whose turn it is in the event loop: however many connections a client opens, one of them acts in each turn of it."""

from __future__ import annotations

import asyncio
from contextvars import copy_context
from typing import TYPE_CHECKING

from unicorn_async.round_robin import RoundRobin

if TYPE_CHECKING:
    from collections.abc import Callable


class LoopTurns:
    """Takes what connections have to do with what came: of each address one thing in a turn of the loop.

    So the loop comes round, for others and for who looks after the server, as soon as it would with a single connection
    of that address. Each acts outside of any request, whosever it was that made room for it.
    """

    def __init__(self) -> None:
        self._waiting: RoundRobin[Callable[[], None]] = RoundRobin()
        self._acted: set[str] = set()  # in this turn
        self._next_turn: asyncio.Handle | None = None
        self._context = copy_context()  # of who starts the server

    def take(self, address: str, act: Callable[[], None]) -> None:
        """Act now, or in the first turn in which nothing of the address does before it.

        A connection that is lost meanwhile acts all the same.
        """
        if address in self._acted or self._waiting.num_of(address):
            self._waiting.add(address, act)
            return
        self._acted.add(address)
        self._begin()
        self._act(act)

    def _begin(self) -> None:
        if self._next_turn is None:
            self._next_turn = asyncio.get_running_loop().call_soon(self._begin_turn, context=self._context)

    def _begin_turn(self) -> None:
        self._next_turn = None
        self._acted.clear()
        if not len(self._waiting):
            return
        self._begin()  # before anything that may fail
        for address in tuple(self._waiting.owners):
            self._acted.add(address)
            self._act(self._waiting.pop_of(address))

    def _act(self, act: Callable[[], None]) -> None:
        self._context.copy().run(act)  # a copy, since one that acts may have another act within it
