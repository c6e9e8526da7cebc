"""The processes that follow grammars: one for each that answers follow, or did a moment ago."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from unicorn_async.client_turns import ClientTurns
from unicorn_async.errors import GrammarBusyError, GrammarError, QueueFullError
from unicorn_async.guidance.follower import GrammarSlowError
from unicorn_async.guidance.limits import LONG_SECONDS, TURNS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from unicorn_async.grammar import Grammar
    from unicorn_async.guidance.follower import Follower

_log = logging.getLogger(__name__)

_MAX_KEPT = 32  # grammars that stay compiled when no answer follows them any more
_MAX_KEPT_BYTES = 256 << 20  # of all of them
_MAX_BYTES = 4 << 30  # of those that answers follow, too


@dataclass(slots=True, eq=False)
class Held:
    """A grammar that is compiled, or will be: for so many that wait for it, or follow it."""

    grammar: Grammar
    task: asyncio.Task[Follower]
    holders: int = 0

    @property
    def is_over(self) -> bool:
        """Whether nothing is to be had of it."""
        if not self.task.done():
            return False
        return self.task.cancelled() or self.task.exception() is not None or self.task.result().has_ended

    @property
    def follower(self) -> Follower:
        """What follows it, once it is compiled."""
        return self.task.result()

    @property
    def num_bytes(self) -> int:
        """The memory that it takes."""
        return 0 if not self.task.done() or self.is_over else self.follower.num_bytes


class Followers:
    """Compiles grammars that are asked for; close it at the end.

    Grammars that take some milliseconds never wait for those that take seconds, and clients take turns. What nobody
    waits for any more ends at once.
    """

    def __init__(self, copy: Callable[[], Awaitable[Follower]]) -> None:
        """`copy` has a process make a copy of itself, and starts it where it was not."""
        self._copy = copy
        self._short = ClientTurns("grammars wait to be compiled", TURNS)
        self._long = ClientTurns("grammars wait to be compiled", TURNS)
        self._held: OrderedDict[Grammar, Held] = OrderedDict()
        self._all: set[Held] = set()

    async def hold(self, grammar: Grammar, client: str) -> Held:
        """Return a grammar, compiled; `release` has to follow.

        Raises:
            GrammarError: it can't be used.
            GrammarBusyError, QueueFullError: others are compiled before it.
            GrammarLostError: a process ended, or can't be started.
        """
        held = self._held.get(grammar)
        if held is None or held.is_over:
            compiling = self._compiled(grammar, client)
            held = self._held[grammar] = Held(grammar, asyncio.create_task(compiling, name="compile grammar"))
            self._all.add(held)
        held.holders += 1
        try:
            await asyncio.shield(held.task)
        except BaseException:
            self.release(held)
            raise
        return held

    def release(self, held: Held) -> None:
        """Need a grammar no longer: it stays for a while, where it is compiled."""
        held.holders -= 1
        if held.holders:
            return
        if held.is_over or not held.task.done() or self._held.get(held.grammar) is not held:
            self._drop(held)
            return
        self._held.move_to_end(held.grammar)
        idle = [one for one in self._held.values() if not one.holders]
        while len(idle) > _MAX_KEPT or sum(one.num_bytes for one in idle) > _MAX_KEPT_BYTES:
            self._drop(idle.pop(0))

    async def close(self) -> None:
        """End all of them; who waits for one gets an error."""
        tasks = [held.task for held in self._all]
        for held in tuple(self._all):
            self._drop(held)
        if tasks:
            await asyncio.wait(tasks)

    def _drop(self, held: Held) -> None:
        self._all.discard(held)
        if self._held.get(held.grammar) is held:
            del self._held[held.grammar]
        if not held.task.cancel() and not held.is_over:
            held.follower.close()

    async def _compiled(self, grammar: Grammar, client: str) -> Follower:
        try:
            async with _turn(self._short, client):
                return await self._tried(grammar, is_short=True)
        except GrammarSlowError:
            pass  # the next turn is not waited for in this one
        try:
            async with _turn(self._long, client):
                return await self._tried(grammar, is_short=False)
        except GrammarSlowError as exc:
            raise GrammarError(f"to compile it takes more than {LONG_SECONDS:g} s of the processor") from exc

    async def _tried(self, grammar: Grammar, *, is_short: bool) -> Follower:
        follower = await self._copy()
        try:
            await follower.compile(grammar, is_short=is_short)
            taken = follower.num_bytes + sum(held.num_bytes for held in self._all if held.holders)
            if taken > _MAX_BYTES:
                raise QueueFullError(f"grammars that answers follow take {_MAX_BYTES >> 20} MiB already")
        except BaseException:
            follower.close()
            raise
        return follower


@asynccontextmanager
async def _turn(turns: ClientTurns, client: str) -> AsyncIterator[None]:
    """Wait for a client's turn to have a grammar compiled, which lasts as long as the block."""
    try:
        await turns.begin(client)
    except TimeoutError as exc:
        reason = f"other grammars are compiled: this one's turn did not come within {TURNS.wait_s:g} s"
        _log.warning("a grammar of %s: %s", client, reason)
        raise GrammarBusyError(reason) from exc
    try:
        yield
    finally:
        turns.end()
