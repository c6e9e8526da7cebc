"""Where conversations become token ids: beside the event loop, and so that a short one never waits for a long one."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from unicorn_async.round_robin import RoundRobin
from unicorn_async.tokenizer import LONG_CHARS

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")
_LONG_AT_A_TIME = 2


class Tokenizing:
    """Encodes conversations; made once a server, used in its loop alone.

    Short ones are encoded one after the other, in milliseconds. Long ones, which may take seconds, are encoded beside
    them, two at a time, and clients take turns.
    """

    def __init__(self) -> None:
        self._short = ThreadPoolExecutor(1, thread_name_prefix="unicorn-tokenize")
        self._long = ThreadPoolExecutor(_LONG_AT_A_TIME, thread_name_prefix="unicorn-tokenize-long")
        self._num_free = _LONG_AT_A_TIME
        self._waiting: RoundRobin[asyncio.Future[None]] = RoundRobin()

    async def run(self, num_chars: int, work: Callable[[], T], client: str) -> T:
        """Return what `work` makes of so many characters of a client; raises what it does."""
        if num_chars <= LONG_CHARS:
            return await asyncio.get_running_loop().run_in_executor(self._short, work)
        await self._turn(client)
        try:
            future = self._long.submit(work)
        except BaseException:
            self._end_turn()
            raise
        loop = asyncio.get_running_loop()

        def ended(_: object) -> None:  # also of one whose client has gone: its turn takes as long as its work does
            with suppress(RuntimeError):  # the loop was closed meanwhile
                loop.call_soon_threadsafe(self._end_turn)

        future.add_done_callback(ended)
        return await asyncio.wrap_future(future)

    def close(self) -> None:
        """Begin nothing more."""
        for executor in (self._short, self._long):
            executor.shutdown(wait=False, cancel_futures=True)

    async def _turn(self, client: str) -> None:
        if self._num_free:
            self._num_free -= 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(client, turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not self._waiting.remove(client, turn) and not turn.cancelled():
                self._end_turn()  # it came just now
            raise

    def _end_turn(self) -> None:
        while len(self._waiting):
            turn = self._waiting.pop()
            if not turn.done():  # its client went this very moment
                turn.set_result(None)
                return
        self._num_free += 1
