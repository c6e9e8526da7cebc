"""One answer being generated: tokens from the engine, through an encoder, to a client."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, NamedTuple

from unicorn_async.engine.types import FinishReason
from unicorn_async.errors import GrammarError, UnicornError
from unicorn_async.server.protocol.errors import ApiError, describe_error

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

    from unicorn_async.engine.types import Token
    from unicorn_async.server.protocol.answer import Answer

logger = logging.getLogger(__name__)


class ClientGoneError(Exception):
    """The client can't be reached any more; whoever generates for it stops."""


class QueueWait(NamedTuple):
    """How long a request may wait for a place beside those that are answered, and whether it waits for one now."""

    is_waiting: Callable[[], bool]
    timeout_s: float


class Generation:
    """Pulls one engine stream; owns it and closes it, whatever ends the generation.

    `start`, then `run` in the same task or another, then `close`. `cancel` may come at any time from elsewhere in the
    loop: the answer then ends in order, with what it has or with the error that it was cancelled for.
    """

    def __init__(
        self,
        stream: AsyncGenerator[Token, None],
        *,
        keepalive_s: float,
        explained: Callable[[UnicornError], UnicornError] = lambda error: error,
        queue: QueueWait | None = None,
        on_close: Callable[[], None] = lambda: None,
    ) -> None:
        self._stream = stream
        self._keepalive_s = keepalive_s
        self._explained = explained  # makes of an engine's error what the client is told
        self._queue = queue
        self._on_close = on_close
        self._first: asyncio.Task[Token | None] | None = None
        self._task: asyncio.Task[object] | None = None
        self._interruptible = False
        self._ended = asyncio.Event()
        self._cause: UnicornError | None = None
        self.cancelled = False
        self.refusal: Callable[[GrammarError], UnicornError] | None = None  # which names the field with the grammar

    async def start(self) -> None:
        """Hand the request to the engine.

        Raises:
            RequestError: the engine refused it at once.
        """
        self._first = asyncio.create_task(self._pull())
        await asyncio.sleep(0)  # one turn of the loop is enough for a refusal, which needs no waiting
        if self._first.done():
            try:
                self._first.result()
            except UnicornError as exc:
                raise self._explained(exc) from None

    def cancel(self, cause: UnicornError | None = None) -> None:
        """End the answer early, as failed where there is a cause to tell."""
        self.cancelled = True
        self._cause = self._cause or cause
        if self._interruptible and self._task is not None:
            self._interruptible = False
            self._task.cancel()

    @property
    def has_ended(self) -> bool:
        """Whether the answer has ended and its stream is closed."""
        return self._ended.is_set()

    async def ended(self) -> None:
        """Wait until the answer has ended and its stream is closed."""
        await self._ended.wait()

    async def run(self, answer: Answer, emit: Callable[[str], Awaitable[None]]) -> None:
        """Send the whole answer, from its first event to its last; errors of the engine become its end.

        Raises:
            ClientGoneError: by way of `emit`.
        """
        self._task = asyncio.current_task()
        try:
            await self._run(answer, emit)
        finally:
            self._task = None  # which may hold the error that ends it, and that all that was to be sent

    async def _run(self, answer: Answer, emit: Callable[[str], Awaitable[None]]) -> None:
        for event in answer.begin():
            await emit(event)
        try:
            reason = await self._interrupted(answer, emit)
            events = answer.finished(reason)
        except UnicornError as exc:
            events = answer.failed(describe_error(self._told(exc)))
        except ClientGoneError:
            raise
        except Exception as exc:
            logger.exception("generation failed")
            events = answer.failed(describe_error(exc))
        for event in events:
            await emit(event)

    def _told(self, error: UnicornError) -> UnicornError:
        if self.refusal is not None and isinstance(error, GrammarError):
            return self.refusal(error)
        return self._explained(error)

    async def close(self) -> None:
        """Give the request back to the engine; harmless at any time and more than once."""
        try:
            await self._release()
        finally:
            self._on_close()
            self._ended.set()

    async def _release(self) -> None:
        first = self._first
        if first is not None:
            if first.cancel():
                await asyncio.wait((first,))
            elif not first.cancelled():
                first.exception()  # seen by nobody if the client went before it was asked for
        await self._stream.aclose()

    async def _interrupted(self, answer: Answer, emit: Callable[[str], Awaitable[None]]) -> FinishReason:
        """Pump until the end or until `cancel`, whose interruption of this task ends here."""
        if self.cancelled:
            return self._cancelled()
        self._interruptible = True
        try:
            return await self._pump(answer, emit)
        except asyncio.CancelledError:
            if not self._was_meant():
                raise
            await self._release()  # before the client, who may be slow, is told
            return self._cancelled()
        finally:
            self._interruptible = False

    def _was_meant(self) -> bool:
        """Whether `cancel` alone has cancelled this task, which no frame of the traceback is to have."""
        return self.cancelled and self._task is not None and self._task.uncancel() == 0

    def _cancelled(self) -> FinishReason:
        if self._cause is not None:
            raise self._cause
        return FinishReason.CANCELLED

    async def _pump(self, answer: Answer, emit: Callable[[str], Awaitable[None]]) -> FinishReason:
        token = await self._wait_first(answer, emit)
        for event in answer.opened():
            await emit(event)
        if token is None:
            return FinishReason.STOP
        for event in answer.token(token):
            await emit(event)
        reason = token.finish_reason
        async for token in self._stream:
            for event in answer.token(token):
                await emit(event)
            reason = token.finish_reason
        return reason or FinishReason.STOP

    async def _wait_first(self, answer: Answer, emit: Callable[[str], Awaitable[None]]) -> Token | None:
        """Return the first token, None for an empty answer; show signs of life while it does not come."""
        assert self._first is not None, "start comes before run"
        loop, queue = asyncio.get_running_loop(), self._queue
        end_s = None if queue is None else loop.time() + queue.timeout_s
        while True:
            left_s = self._keepalive_s if end_s is None else min(self._keepalive_s, max(0.0, end_s - loop.time()))
            done, _ = await asyncio.wait((self._first,), timeout=left_s)
            if done:
                return self._first.result()
            if queue is not None and end_s is not None and loop.time() >= end_s:
                end_s = None  # who has a place by now keeps it
                if queue.is_waiting():
                    message = f"the request has waited {queue.timeout_s:g} s for others to end, and got no place"
                    raise ApiError(message, status=503, code="queue_timeout")
                continue
            event = answer.heartbeat()
            if event is not None:
                await emit(event)

    async def _pull(self) -> Token | None:
        return await anext(self._stream, None)
