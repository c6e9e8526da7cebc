"""The grammars of the answers under way: which tokens may come next, asked for beside the steps."""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING

from unicorn_async.errors import ConfigError, EngineClosedError, GrammarError, GrammarLostError, UnicornError
from unicorn_async.guidance.vocabulary import Vocabulary

if TYPE_CHECKING:
    from collections.abc import Callable

    from unicorn_async.grammar import Grammar
    from unicorn_async.guidance.process import GuidanceProcess
    from unicorn_async.scheduler.sequence import Sequence
    from unicorn_async.tokenizer import Tokenizer

COMPILE_TIMEOUT_S = 30.0  # the vocabulary's preparation included, which the first grammar of a model waits for


class Guides:
    """Asks a process that is started for the first grammar, and again if it has ended; close it at the end."""

    def __init__(self, tokenizer: Tokenizer | None, vocab_size: int) -> None:
        """`vocab_size` is the number of logits."""
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._process: GuidanceProcess | None = None
        self._starting = asyncio.Lock()
        self._keys: dict[Sequence, int] = {}
        self._numbers = itertools.count()
        self._is_closed = False
        self._awaited: set[asyncio.Future[bytes | None]] = set()

    def __len__(self) -> int:
        """Answers that follow a grammar now."""
        return len(self._keys)

    @property
    def process(self) -> GuidanceProcess | None:
        """The process, where there is one."""
        return self._process

    @property
    def is_busy(self) -> bool:
        """Whether masks are on their way."""
        return bool(self._awaited)

    async def check(self, grammar: Grammar) -> None:
        """Compile a grammar, which stays compiled for a while.

        Raises:
            GrammarError: it can't be used.
            GrammarLostError: the process that compiles it has ended.
            ConfigError: the engine has no tokenizer.
        """
        from unicorn_async.guidance.messages import Check

        process = await self._running()
        await self._in_time(process.ask(Check(grammar)))

    async def begin(self, sequence: Sequence) -> None:
        """Follow a sequence's grammar from here on: it gets its first mask. `end` has to follow; raises as `check`."""
        from unicorn_async.guidance.messages import Begin

        assert sequence.sampling.grammar is not None
        process = await self._running()
        key = self._keys[sequence] = next(self._numbers)
        sequence.mask = await self._in_time(process.ask(Begin(key, sequence.sampling.grammar)))

    def advance(
        self, sequence: Sequence, token_id: int, on_mask: Callable[[Sequence, UnicornError | None], None]
    ) -> None:
        """Take a sequence's next token; `on_mask` is called once its mask is there, or with why it never will be."""
        from unicorn_async.guidance.messages import Advance

        process, key = self._process, self._keys[sequence]
        assert process is not None, "the sequence has begun"

        def told(mask: asyncio.Future[bytes | None]) -> None:
            self._awaited.discard(mask)
            if mask.cancelled() or self._keys.get(sequence) != key:  # it has ended meanwhile
                return
            error = mask.exception()
            if error is None:
                sequence.mask = mask.result()
            assert error is None or isinstance(error, UnicornError)
            on_mask(sequence, error)

        mask = process.ask(Advance(key, token_id))
        self._awaited.add(mask)
        mask.add_done_callback(told)

    def end(self, sequence: Sequence) -> None:
        """Forget a sequence; harmless for those without a grammar, and more than once."""
        key = self._keys.pop(sequence, None)
        if key is not None and self._process is not None:
            from unicorn_async.guidance.messages import End

            self._process.ask(End(key))

    async def settle(self, timeout_s: float) -> None:
        """Wait until no mask is on its way, but not longer than that."""
        if self._awaited and timeout_s > 0:
            await asyncio.wait(tuple(self._awaited), timeout=timeout_s)

    async def close(self) -> None:
        """End the process; who waits for a grammar gets EngineClosedError."""
        self._is_closed = True
        if self._process is not None:
            await self._process.close()

    async def _running(self) -> GuidanceProcess:
        from unicorn_async.guidance.process import GuidanceProcess

        async with self._starting:
            if self._process is None or self._process.has_ended:
                if self._tokenizer is None:
                    raise ConfigError("grammar: the engine was opened with skip_tokenizer, and knows no tokens' texts")
                vocabulary = await asyncio.to_thread(_vocabulary, self._tokenizer, self._vocab_size)
                self._process = await GuidanceProcess.start(vocabulary)
            return self._process

    async def _in_time(self, reply: asyncio.Future[bytes | None]) -> bytes | None:
        try:
            return await asyncio.wait_for(reply, COMPILE_TIMEOUT_S)
        except GrammarLostError:
            if self._is_closed:
                raise EngineClosedError("the engine is closed") from None
            raise
        except TimeoutError as exc:
            raise GrammarError(f"the grammar was not compiled within {COMPILE_TIMEOUT_S:g} s") from exc


def _vocabulary(tokenizer: Tokenizer, vocab_size: int) -> Vocabulary:
    """Gather what a grammar has to know; a large vocabulary takes a moment."""
    table = tokenizer.piece_table()
    control = {token_id: token.content for token_id, token in tokenizer.facts.control.items()}
    return Vocabulary(bytes(table.data), table.ends, control, tuple(tokenizer.eos_token_ids), vocab_size)
