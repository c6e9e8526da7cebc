"""Whose turn it is at what only a few can have at a time: clients take turns, and none waits without bound."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from unicorn_async.errors import QueueFullError
from unicorn_async.round_robin import RoundRobin


class TurnBounds(NamedTuple):
    """How many have a turn at a time, how many may wait for one, and how long."""

    at_a_time: int
    max_of_client: int
    max_waiting: int
    wait_s: float


class ClientTurns:
    """Turns of clients; used in one event loop alone. `what` is what errors call those that wait, in the plural."""

    def __init__(self, what: str, bounds: TurnBounds) -> None:
        self._what = what
        self._bounds = bounds
        self._num_free = bounds.at_a_time
        self._waiting: RoundRobin[tuple[str, asyncio.Future[None]]] = RoundRobin()

    async def begin(self, client: str) -> None:
        """Wait for a client's turn; `end` has to follow.

        Raises:
            QueueFullError: too many wait, of this client or in all; where it is in all, who has most loses one.
            TimeoutError: it takes too long to come.
        """
        if self._num_free:
            self._num_free -= 1
            return
        if self._waiting.num_of(client) >= self._bounds.max_of_client:
            raise self._full(self._bounds.max_of_client)
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(client, (client, turn))
        if len(self._waiting) > self._bounds.max_waiting:
            self._refuse_one()
        has_come = False
        try:
            async with asyncio.timeout(self._bounds.wait_s):
                await asyncio.shield(turn)
            has_come = True
        finally:
            is_out = self._waiting.remove(client, (client, turn))
            if not has_come and not is_out and turn.done() and turn.exception() is None:
                self.end()  # it came just now

    def end(self) -> None:
        """End a turn: the next one begins."""
        while len(self._waiting):
            _, turn = self._waiting.pop()
            if not turn.done():
                turn.set_result(None)
                return
        self._num_free += 1

    def _refuse_one(self) -> None:
        last = owner, refused = self._waiting.last_of_most()
        self._waiting.remove(owner, last)
        if not refused.done():
            refused.set_exception(self._full(self._bounds.max_waiting))

    def _full(self, most: int) -> QueueFullError:
        return QueueFullError(f"{most} {self._what} already")
