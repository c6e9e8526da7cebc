"""The grammars of the answers under way: which tokens may come next, asked for beside the steps."""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING

from unicorn_async.errors import ConfigError, EngineClosedError, GrammarLostError, UnicornError
from unicorn_async.guidance.vocabulary import Vocabulary

if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Sequence as SequenceOf

    from unicorn_async.grammar import Grammar
    from unicorn_async.guidance.follower import Follower
    from unicorn_async.guidance.followers import Followers, Held
    from unicorn_async.guidance.messages import Masks
    from unicorn_async.guidance.process import GuidanceProcess
    from unicorn_async.scheduler.sequence import Sequence
    from unicorn_async.tokenizer import Tokenizer


class Guides:
    """Asks processes, the first of which is started for the first grammar, and again if it has ended.

    Close it at the end.
    """

    def __init__(self, tokenizer: Tokenizer | None, vocab_size: int) -> None:
        """`vocab_size` is the number of logits."""
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._process: GuidanceProcess | None = None
        self._starting = asyncio.Lock()
        self._followers: Followers | None = None
        self._followed: dict[Sequence, tuple[int, Held]] = {}
        self._numbers = itertools.count()
        self._is_closed = False
        self._outage: str | None = None  # why no process could be had the last time that one was needed
        self._awaited: set[asyncio.Future[Masks | bytes | int | None]] = set()

    def __len__(self) -> int:
        """Answers that follow a grammar now."""
        return len(self._followed)

    @property
    def process(self) -> GuidanceProcess | None:
        """The process that makes those that follow grammars, where there is one."""
        return self._process

    @property
    def is_busy(self) -> bool:
        """Whether masks are on their way."""
        return bool(self._awaited)

    @property
    def outages(self) -> dict[str, str]:
        """What can't be had now of grammars and of the tokenizer, and why."""
        found = {} if self._tokenizer is None else self._tokenizer.outages
        return found if self._outage is None else found | {"grammars": self._outage}

    async def check(self, grammar: Grammar, client: str = "") -> None:
        """Compile a grammar, which stays compiled for a while; clients take turns.

        Raises:
            GrammarError: it can't be used.
            GrammarBusyError, QueueFullError: others are compiled before it.
            GrammarLostError: the process that compiles it has ended, or does not answer.
            ConfigError: the engine has no tokenizer.
        """
        followers = self._made()
        followers.release(await self._held(followers, grammar, client))

    async def begin(self, sequence: Sequence) -> None:
        """Follow a sequence's grammar from here on: it gets its first mask. `end` has to follow; raises as `check`."""
        from unicorn_async.guidance.messages import Begin

        assert sequence.sampling.grammar is not None
        held = await self._held(self._made(), sequence.sampling.grammar, sequence.client)
        key = next(self._numbers)
        self._followed[sequence] = key, held
        mask = await held.follower.ask(Begin(key))
        assert isinstance(mask, bytes)
        sequence.mask = mask

    def advance(
        self,
        sequence: Sequence,
        token_ids: SequenceOf[int],
        on_mask: Callable[[Sequence, UnicornError | None], None],
        *,
        proposed: SequenceOf[int] = (),
        most: int = 0,
    ) -> None:
        """Take a sequence's next tokens; `on_mask` is called once its mask is there, or with why it never will be.

        With it come masks behind up to `most` tokens more, `proposed` ones among them. One request at a time for a
        sequence, which has no mask meanwhile: it goes no further.
        """
        from unicorn_async.guidance.messages import Advance, Masks

        key, held = followed = self._followed[sequence]

        def told(mask: asyncio.Future[Masks | bytes | int | None]) -> None:
            self._awaited.discard(mask)
            if mask.cancelled() or self._followed.get(sequence) is not followed:  # it has ended meanwhile
                return
            error = mask.exception()
            if error is None:
                found = mask.result()
                assert isinstance(found, Masks)
                sequence.mask, sequence.foreseen = found
            assert error is None or isinstance(error, UnicornError)
            on_mask(sequence, error)

        sequence.mask = None
        mask = held.follower.ask(Advance(key, tuple(token_ids), tuple(proposed), most))
        self._awaited.add(mask)
        mask.add_done_callback(told)

    def end(self, sequence: Sequence) -> None:
        """Forget a sequence; harmless for those without a grammar, and more than once."""
        followed = self._followed.pop(sequence, None)
        if followed is not None:
            from unicorn_async.guidance.messages import End

            key, held = followed
            held.follower.ask(End(key))
            self._made().release(held)

    async def settle(self, timeout_s: float) -> None:
        """Wait until no mask is on its way, but not longer than that."""
        if self._awaited and timeout_s > 0:
            await asyncio.wait(tuple(self._awaited), timeout=timeout_s)

    async def close(self) -> None:
        """End the processes; who waits for a grammar gets EngineClosedError."""
        self._is_closed = True
        if self._followers is not None:
            await self._followers.close()
        if self._process is not None:
            await self._process.close()

    def _made(self) -> Followers:
        if self._followers is None:
            from unicorn_async.guidance.followers import Followers

            self._followers = Followers(self._copy)
        return self._followers

    async def _held(self, followers: Followers, grammar: Grammar, client: str) -> Held:
        try:
            return await followers.hold(grammar, client)
        except (GrammarLostError, asyncio.CancelledError):
            task = asyncio.current_task()
            if self._is_closed and not (task is not None and task.cancelling()):
                raise EngineClosedError("the engine is closed") from None
            raise

    async def _copy(self) -> Follower:
        """Have a copy of the process made; what comes of it is noted."""
        try:
            follower = await self._copied()
        except GrammarLostError as exc:
            self._outage = None if self._is_closed else str(exc)
            raise
        self._outage = None
        return follower

    async def _copied(self) -> Follower:
        """Have a copy made, by another process where the first one is found to have ended."""
        from unicorn_async.guidance.process import ProcessEndedError

        try:
            return await (await self._running()).copy()
        except ProcessEndedError:
            if self._is_closed:
                raise
        return await (await self._running()).copy()

    async def _running(self) -> GuidanceProcess:
        from unicorn_async.guidance.process import GuidanceProcess

        async with self._starting:
            if self._process is None or self._process.has_ended:
                if self._tokenizer is None:
                    raise ConfigError("grammar: the engine was opened with skip_tokenizer, and knows no tokens' texts")
                if self._process is not None:
                    await self._process.close()
                vocabulary = await asyncio.to_thread(_vocabulary, self._tokenizer, self._vocab_size)
                self._process = await GuidanceProcess.start(vocabulary)
            return self._process


def _vocabulary(tokenizer: Tokenizer, vocab_size: int) -> Vocabulary:
    """Gather what a grammar has to know; a large vocabulary takes a moment."""
    table = tokenizer.piece_table()
    control = {token_id: token.content for token_id, token in tokenizer.facts.control.items()}
    return Vocabulary(bytes(table.data), table.ends, control, tuple(tokenizer.eos_token_ids), vocab_size)
