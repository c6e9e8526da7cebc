"""Whose grammar is compiled when: clients take turns, and none waits without bound."""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from unicorn_async.errors import GrammarBusyError, QueueFullError
from unicorn_async.guidance.limits import WAIT_S
from unicorn_async.round_robin import RoundRobin

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

_log = logging.getLogger(__name__)

_AT_A_TIME = 2
_MAX_WAITING = 256
_MAX_OF_CLIENT = 64


class Turns:
    """Two turns at a time; used in one event loop alone."""

    def __init__(self) -> None:
        self._num_free = _AT_A_TIME
        self._waiting: RoundRobin[tuple[str, asyncio.Future[None]]] = RoundRobin()

    @asynccontextmanager
    async def turn(self, client: str) -> AsyncIterator[None]:
        """Wait for a client's turn, which lasts as long as the block.

        Raises:
            QueueFullError: too many wait, of this client or in all; where it is in all, who has most loses one.
            GrammarBusyError: it takes too long to come.
        """
        await self._begin(client)
        try:
            yield
        finally:
            self._end()

    async def _begin(self, client: str) -> None:
        if self._num_free:
            self._num_free -= 1
            return
        if self._waiting.num_of(client) >= _MAX_OF_CLIENT:
            raise _full(_MAX_OF_CLIENT)
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(client, (client, turn))
        if len(self._waiting) > _MAX_WAITING:
            last = owner, refused = self._waiting.last_of_most()
            self._waiting.remove(owner, last)
            if not refused.done():
                refused.set_exception(_full(_MAX_WAITING))
        has_come = False
        try:
            async with asyncio.timeout(WAIT_S):
                await asyncio.shield(turn)
            has_come = True
        except TimeoutError as exc:
            reason = f"other grammars are compiled: this one's turn did not come within {WAIT_S:g} s"
            _log.warning("a grammar of %s: %s", client, reason)
            raise GrammarBusyError(reason) from exc
        finally:
            is_out = self._waiting.remove(client, (client, turn))
            if not has_come and not is_out and turn.done() and turn.exception() is None:
                self._end()  # it came just now

    def _end(self) -> None:
        while len(self._waiting):
            _, turn = self._waiting.pop()
            if not turn.done():
                turn.set_result(None)
                return
        self._num_free += 1


def _full(most: int) -> QueueFullError:
    return QueueFullError(f"{most} grammars wait to be compiled already")
