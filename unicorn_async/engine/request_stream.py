"""One request between the scheduler and its consumer: tokens in, text out."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from unicorn_async.engine.types import FinishReason, Token
from unicorn_async.tokenizer import StopChecker, StreamDecoder

if TYPE_CHECKING:
    from unicorn_async.engine.step import SampledToken
    from unicorn_async.scheduler.sequence import Sequence
    from unicorn_async.tokenizer import Tokenizer


class RequestStream:
    """Turns sampled tokens into text and hands them to one consumer.

    The queue is bounded by the request's own `max_tokens`, so the engine never waits for a consumer.
    """

    def __init__(self, sequence: Sequence, tokenizer: Tokenizer) -> None:
        self.sequence = sequence
        self._tokenizer = tokenizer
        self._decoder = StreamDecoder(tokenizer)
        self._stops = StopChecker(sequence.sampling.stop)
        self._queue: asyncio.Queue[Token | BaseException] = asyncio.Queue(sequence.sampling.max_tokens + 1)

    def add(self, sampled: SampledToken, reason: FinishReason | None) -> FinishReason | None:
        """Take one token; returns why the answer ends with it, a stop string included, or None."""
        is_end_token = reason is FinishReason.STOP
        text = "" if is_end_token else self._decoder.add(sampled.id)
        text, stopped = self._stops.feed(text)
        if not stopped and reason is not None:
            rest, stopped = self._stops.feed(self._decoder.finish())
            text += rest if stopped else rest + self._stops.flush()
        if stopped:
            reason = FinishReason.STOP
        top = tuple((token_id, self._tokenizer.token_text(token_id), value) for token_id, value in sampled.top)
        self._queue.put_nowait(Token(sampled.id, text, sampled.logprob, top, reason))
        return reason

    def fail(self, error: BaseException) -> None:
        """End the stream with an error; a consumer gets it after the tokens that it has not read yet."""
        self._queue.put_nowait(error)

    async def get(self) -> Token:
        """Return the next token, or raise what ended the stream."""
        item = await self._queue.get()
        if isinstance(item, BaseException):
            raise item
        return item
