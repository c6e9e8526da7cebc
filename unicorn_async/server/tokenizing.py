"""Where conversations become token ids: beside the event loop, and so that a short one never waits for a long one."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from unicorn_async.client_turns import ClientTurns, TurnBounds
from unicorn_async.server.protocol.errors import ApiError
from unicorn_async.tokenizer.caller import Caller

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")
# A client may have a thousand short requests come at once, or long ones that take seconds each.
BOUNDS = TurnBounds(at_a_time=2, max_of_client=1024, max_waiting=4096, wait_s=600.0)
_RETRY_S = 10.0  # in which many texts are encoded


class Tokenizing:
    """Encodes conversations; made once a server, used in its loop alone.

    Short ones take milliseconds, and are bounded by the time that their template takes. Long ones, and those with such
    a template, may take seconds: they are encoded beside the short ones. Of each there are two at a time, clients take
    turns, and so many may wait so long.
    """

    def __init__(self, bounds: TurnBounds = BOUNDS) -> None:
        self._short = WorkThreads("unicorn-tokenize", bounds)
        self._long = WorkThreads("unicorn-tokenize-long", bounds)

    async def short(self, client: str, work: Callable[[], T]) -> T:
        """Return what `work` makes of a short conversation of a client.

        Raises:
            QueueFullError: too many wait, of this client or in all.
            ApiError: 503, its turn does not come.
            Exception: what `work` does.
        """
        return await self._short.run(client, work)

    async def long(self, client: str, work: Callable[[], T]) -> T:
        """Return what `work` makes of any other one; raises as `short`."""
        return await self._long.run(client, work)

    def close(self) -> None:
        """Begin nothing more."""
        self._short.close()
        self._long.close()


class WorkThreads:
    """Threads for works of clients, which take turns; used in one event loop alone."""

    def __init__(self, name: str, bounds: TurnBounds = BOUNDS) -> None:
        self.threads = ThreadPoolExecutor(bounds.at_a_time, thread_name_prefix=name)
        self._wait_s = bounds.wait_s
        self._turns = ClientTurns("texts wait to be encoded", bounds)

    async def run(self, client: str, work: Callable[[], T]) -> T:
        """Return what a client's work does; raises as `Tokenizing.short`."""
        try:
            await self._turns.begin(client)
        except TimeoutError as exc:
            message = f"other texts are encoded: this one's turn did not come within {self._wait_s:g} s"
            raise ApiError(message, status=503, code="tokenizer_busy", retry_s=_RETRY_S) from exc
        caller = Caller()
        try:
            future = self.threads.submit(caller.run, work)
        except BaseException:
            self._turns.end()
            raise
        loop = asyncio.get_running_loop()

        def ended(_: object) -> None:  # also of one whose client has gone: what can't be ended keeps its turn
            with suppress(RuntimeError):  # the loop was closed meanwhile
                loop.call_soon_threadsafe(self._turns.end)

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
