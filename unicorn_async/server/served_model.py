"""An open model and the answers that it gives now."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING
from weakref import WeakSet

from unicorn_async.errors import EngineClosedError, GrammarError, RequestError, TokenizerError, UnicornError
from unicorn_async.server.ending import Ending
from unicorn_async.server.generation import Generation
from unicorn_async.server.protocol.errors import ApiError, describe_error, engine_failed, load_failed
from unicorn_async.server.request_context import asking

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from unicorn_async.engine.types import EngineAPI, Token
    from unicorn_async.grammar import Grammar
    from unicorn_async.server.generation import QueueWait

END_TIMEOUT_S = 0.25


class ServedModel:
    """One open engine and the generations on it; its name is the engine's.

    `public_text` makes texts out of those that name paths on the server's disk.
    """

    def __init__(self, engine: EngineAPI, public_text: Callable[[str], str]) -> None:
        self.engine = engine
        self.public_text = public_text
        self.is_loaded = False
        self._ending = Ending()
        self._generations: WeakSet[Generation] = WeakSet()

    async def generate(
        self,
        stream: AsyncGenerator[Token, None],
        *,
        keepalive_s: float,
        queue: QueueWait | None = None,
        on_close: Callable[[], None] = lambda: None,
    ) -> Generation:
        """Begin an answer; its `close` has to follow. `on_close` is called then, or when it is refused.

        Raises:
            RequestError: the engine refused it at once.
            UnicornError: the model is on its way out.
        """
        if self._ending.cause is not None:
            on_close()
            raise self._ending.cause
        generation = Generation(
            stream, keepalive_s=keepalive_s, explained=self.explained, queue=queue, on_close=on_close
        )
        self._generations.add(generation)
        try:
            await generation.start()
        except BaseException:
            await generation.close()
            raise
        return generation

    async def check_grammar(self, grammar: Grammar) -> None:
        """Have a grammar compiled, of who asks, until the model's end.

        Raises:
            GrammarError: it can't be used.
            UnicornError: the engine has failed, or the model is on its way out.
        """
        try:
            async with self._ending.cuts_short():
                await self.engine.check_grammar(grammar, client=asking.get().name)
        except GrammarError:
            raise
        except UnicornError as exc:
            if not self.engine.has_failed:
                raise
            raise self.explained(exc) from exc

    def explained(self, error: UnicornError) -> UnicornError:
        """Return an engine's error as clients are to see it: what fails while the model loads is the load."""
        if isinstance(error, RequestError | TokenizerError | EngineClosedError):
            return error
        name, info = self.engine.model_name, describe_error(error)
        reason = self.public_text(info.message)
        if not self.is_loaded:
            return load_failed(name, reason)
        if self.engine.has_failed:
            return engine_failed(name, reason)
        return ApiError(reason, status=info.status, code=info.code)

    async def end(self, cause: UnicornError) -> None:
        """End every answer under way with an error, and who waits for a grammar; refuse further ones.

        Slow clients are not waited for long.
        """
        self._ending.come(cause)
        generations = tuple(self._generations)
        for generation in generations:
            generation.cancel(self._ending.cause)
        with suppress(TimeoutError):
            async with asyncio.timeout(END_TIMEOUT_S):
                await asyncio.gather(*(generation.ended() for generation in generations))

    async def idle(self) -> None:
        """Wait until no answer is under way."""
        while busy := [generation for generation in self._generations if not generation.has_ended]:
            await busy[0].ended()
