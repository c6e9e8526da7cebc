"""A process that follows one grammar, as the engine's event loop sees it."""

from __future__ import annotations

import asyncio
import logging
import pickle
import signal
from typing import TYPE_CHECKING

from unicorn_async.errors import GrammarError, GrammarLostError, UnicornError
from unicorn_async.guidance.limits import ANSWER_S, LONG_SECONDS, MAX_BYTES, PATIENCE, SHORT_SECONDS
from unicorn_async.guidance.messages import LENGTH_BYTES, UNASKED, Compile, Ended, packed

if TYPE_CHECKING:
    from collections.abc import Callable

    from unicorn_async.grammar import Grammar
    from unicorn_async.guidance.messages import Masks, Reply, Request

_log = logging.getLogger(__name__)

_LATE = -signal.SIGPROF
_FAULTS = (-signal.SIGABRT, -signal.SIGSEGV, -signal.SIGBUS)  # no memory for the heap, or for the stack


class GrammarSlowError(GrammarError):
    """A grammar took more than its seconds of the processor."""


class Follower:
    """Asks the process; close it at the end, with which the process ends. It belongs to one event loop.

    When the process ends by itself, or does not answer, whoever waits gets an error, and `has_ended` is set.
    `on_silence` is called when it does not answer.
    """

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, on_silence: Callable[[], None]
    ) -> None:
        self.num_bytes = 0  # that its grammar took when it was compiled
        self.has_ended = False
        self._writer = writer
        self._on_silence = on_silence
        self._replies: dict[int, asyncio.Future[Masks | bytes | int | None]] = {}
        self._last_number = UNASKED
        self._watched: int | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._reading = asyncio.create_task(self._read(reader), name="grammar")

    async def compile(self, grammar: Grammar, *, is_short: bool) -> None:
        """Have the process compile what it is to follow; to be called once, before all else.

        Raises:
            GrammarSlowError: it took more than its time of the processor.
            GrammarError: it can't be used.
            GrammarLostError: the process ended, or does not answer.
        """
        seconds = SHORT_SECONDS if is_short else LONG_SECONDS
        try:
            async with asyncio.timeout(PATIENCE * seconds):
                found = await self._ask(Compile(grammar, seconds, is_nice=not is_short))
        except TimeoutError as exc:
            if is_short:
                raise GrammarSlowError("the grammar has to wait for another turn") from exc
            reason = f"the process that compiles a grammar did not answer within {PATIENCE * seconds:g} s"
            _log.warning("%s; it is ended", reason)
            self._on_silence()
            raise GrammarLostError(reason) from exc
        assert isinstance(found, int)
        self.num_bytes = found

    def ask(self, request: Request) -> asyncio.Future[Masks | bytes | int | None]:
        """Send a request; the future has its answer, or GrammarError, or GrammarLostError where the process ended."""
        reply = self._ask(request)
        if self._timer is None and not self.has_ended:
            self._watch()
        return reply

    def close(self) -> None:
        """End the process; whoever waits for an answer gets an error."""
        self._reading.cancel()
        self._end(GrammarLostError("the process that follows the grammar has ended"))

    def _ask(self, request: Request) -> asyncio.Future[Masks | bytes | int | None]:
        reply: asyncio.Future[Masks | bytes | int | None] = asyncio.get_running_loop().create_future()
        if self.has_ended:
            _fail(reply, GrammarLostError("the process that follows the grammar has ended"))
            return reply
        self._last_number += 1
        self._replies[self._last_number] = reply
        self._writer.write(packed(self._last_number, request))
        return reply

    def _watch(self) -> None:
        """Look whether the oldest request is still the one that it was before."""
        oldest = next(iter(self._replies), None)
        self._timer = None
        if oldest is None:
            return
        if oldest == self._watched:
            reason = f"the process that follows a grammar did not answer within {ANSWER_S:g} s"
            _log.warning("%s; it is ended", reason)
            self._reading.cancel()
            self._end(GrammarLostError(reason))
            self._on_silence()
            return
        self._watched = oldest
        self._timer = asyncio.get_running_loop().call_later(ANSWER_S, self._watch)

    async def _read(self, reader: asyncio.StreamReader) -> None:
        error: UnicornError = GrammarLostError("the process that follows the grammar has ended")
        try:
            while True:
                length = int.from_bytes(await reader.readexactly(LENGTH_BYTES), "little")
                number, reply = pickle.loads(await reader.readexactly(length))
                if isinstance(reply, Ended):
                    error = _error_of(reply.status)
                    return
                self._settle(number, reply)
        except (asyncio.IncompleteReadError, ConnectionError):
            if self._replies:  # one that nobody waits for is made again when it is wanted
                _log.warning("the process that follows a grammar has ended, and the one that made it")
        except Exception:
            _log.exception("what the process that follows a grammar says is not understood")
        finally:
            self._end(error)

    def _settle(self, number: int, reply: Reply) -> None:
        waiting = self._replies.pop(number)
        if waiting.done():  # whoever asked has gone
            return
        if isinstance(reply, GrammarError):
            _fail(waiting, reply)
        else:
            assert not isinstance(reply, Ended)
            waiting.set_result(reply)

    def _end(self, error: UnicornError) -> None:
        if self.has_ended:
            return
        self.has_ended = True
        if self._timer is not None:
            self._timer.cancel()
        self._writer.transport.abort()  # a process that is stopped takes no more
        for reply in self._replies.values():
            if not reply.done():
                _fail(reply, error)
        self._replies.clear()


def _fail(reply: asyncio.Future[Masks | bytes | int | None], error: UnicornError) -> None:
    reply.set_exception(error)
    reply.exception()  # seen: not everybody waits


def _error_of(status: int) -> UnicornError:
    if status == _LATE:
        return GrammarSlowError("the grammar takes too much time")
    if status in _FAULTS:
        return GrammarError(f"the grammar takes more than {MAX_BYTES >> 20} MiB, or is nested too deeply")
    _log.warning("the process that follows a grammar has ended (%d)", status)
    return GrammarLostError("the process that follows the grammar has ended")
