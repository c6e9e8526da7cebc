"""Where conversations become token ids: beside the event loop, and so that a short one never waits for a long one."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from unicorn_async.round_robin import RoundRobin
from unicorn_async.tokenizer.caller import Caller

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")
_AT_A_TIME = 2


class Tokenizing:
    """Encodes conversations; made once a server, used in its loop alone.

    Short ones take milliseconds, and are bounded by the time that their template takes. Long ones, and those with such
    a template, may take seconds: they are encoded beside the short ones. Of each there are two at a time, and clients
    take turns.
    """

    def __init__(self) -> None:
        self._short = Turns("unicorn-tokenize")
        self._long = Turns("unicorn-tokenize-long")

    async def short(self, client: str, work: Callable[[], T]) -> T:
        """Return what `work` makes of a short conversation of a client; raises what it does."""
        return await self._short.run(client, work)

    async def long(self, client: str, work: Callable[[], T]) -> T:
        """Return what `work` makes of any other one; raises what it does."""
        return await self._long.run(client, work)

    def close(self) -> None:
        """Begin nothing more."""
        self._short.close()
        self._long.close()


class Turns:
    """Threads for works of clients, which take turns; used in one event loop alone."""

    def __init__(self, name: str) -> None:
        self.threads = ThreadPoolExecutor(_AT_A_TIME, thread_name_prefix=name)
        self._num_free = _AT_A_TIME
        self._waiting: RoundRobin[asyncio.Future[None]] = RoundRobin()

    async def run(self, client: str, work: Callable[[], T]) -> T:
        """Return what a client's work does; raises what it does."""
        await self._turn(client)
        caller = Caller()
        try:
            future = self.threads.submit(caller.run, work)
        except BaseException:
            self._end_turn()
            raise
        loop = asyncio.get_running_loop()

        def ended(_: object) -> None:  # also of one whose client has gone: what can't be ended keeps its turn
            with suppress(RuntimeError):  # the loop was closed meanwhile
                loop.call_soon_threadsafe(self._end_turn)

        future.add_done_callback(ended)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            caller.go()
            raise
        finally:
            del future  # it has the error, whose traceback has this frame: both, and the text, would be there for long

    def close(self) -> None:
        """Begin nothing more."""
        self.threads.shutdown(wait=False, cancel_futures=True)

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
