"""One request between the scheduler and its consumer: tokens in, text out."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

import numpy as np

from unicorn_async.engine.types import FinishReason, Token
from unicorn_async.errors import ParameterError, RequestError
from unicorn_async.tokenizer import StopChecker, StreamDecoder

if TYPE_CHECKING:
    from collections.abc import Sequence as SequenceOf

    from unicorn_async.sampling_params import SamplingParams
    from unicorn_async.scheduler.sequence import Sequence
    from unicorn_async.step.result import SampledToken
    from unicorn_async.tokenizer import Tokenizer


class RequestStream:
    """Turns sampled tokens into text and hands them to one consumer.

    What waits for the consumer is bounded by the request's own `max_tokens`, so the engine never waits for it. Where
    the text does not decide when the answer ends, it is made when the consumer takes the token: the engine's next step
    comes first. Without a tokenizer no token has text.
    """

    def __init__(self, sequence: Sequence, tokenizer: Tokenizer | None) -> None:
        self.sequence = sequence
        self._tokenizer = tokenizer
        self._decoder = None if tokenizer is None else StreamDecoder(tokenizer)
        self._stops = StopChecker(sequence.sampling.stop)
        self._starts: deque[int] | None = None if sequence.sampling.top_logprobs is None else deque()
        self._is_plain = self._starts is None and not sequence.sampling.stop  # text goes out as it comes
        self._num_early = sequence.sampling.min_tokens  # tokens to come whose text is not searched for stop strings
        self._num_decoded = 0  # characters
        self._num_shown = 0
        self._items: deque[Token | tuple[SampledToken, FinishReason | None] | BaseException] = deque()
        self._arrival: asyncio.Future[None] | None = None  # while the consumer waits

    def add(self, sampled: SampledToken, reason: FinishReason | None) -> FinishReason | None:
        """Take one token; returns why the answer ends with it, a stop string included, or None."""
        if self._is_plain:
            self._put((sampled, reason))
            return reason
        token = self._token(sampled, reason)
        self._put(token)
        return token.finish_reason

    def _token(self, sampled: SampledToken, reason: FinishReason | None) -> Token:
        sequence = self.sequence
        counts = (sequence.num_prompt_found or 0, sequence.num_predicted_right, sequence.num_predicted_wrong)
        if reason is None and self._is_plain:
            text = "" if self._decoder is None else self._decoder.add(sampled.id)
            return Token(sampled.id, text, None, (), None, 0, *counts)
        is_end_token = reason is FinishReason.STOP
        piece = "" if is_end_token or self._decoder is None else self._decoder.add(sampled.id)
        searches = self._num_early <= 0
        self._num_early -= 1
        text, stopped = self._stops.feed(piece) if searches else (piece, False)
        if not stopped and reason is not None:
            rest = "" if self._decoder is None else self._decoder.finish()
            rest, stopped = self._stops.feed(rest) if searches else (rest, False)
            text += rest if stopped else rest + self._stops.flush()
        offset = self._num_decoded
        num_unseen = self._count_unseen(len(piece), len(text))
        if reason is not None and not stopped:
            num_unseen = int(is_end_token)  # nothing else was cut off
        if stopped:
            reason = FinishReason.STOP
        top = tuple((token_id, self._text_of(token_id), value) for token_id, value in sampled.top)
        return Token(sampled.id, text, sampled.logprob, top, reason, num_unseen, *counts, offset)

    def _text_of(self, token_id: int) -> str:
        return "" if self._tokenizer is None else self._tokenizer.token_text(token_id)

    def _count_unseen(self, num_decoded: int, num_shown: int) -> int:
        """Count the tokens with nothing in the text, after one that brought and one that showed so many characters."""
        if self._starts is None:
            return 0
        self._starts.append(self._num_decoded)
        self._num_decoded += num_decoded
        self._num_shown += num_shown
        while self._starts and self._starts[0] < self._num_shown:
            self._starts.popleft()
        return len(self._starts)

    def fail(self, error: BaseException) -> None:
        """End the stream with an error; a consumer gets it after the tokens that it has not read yet."""
        self._put(error)

    async def get(self) -> Token:
        """Return the next token, or raise what ended the stream, or what is wrong with the token's text."""
        while not self._items:
            self._arrival = asyncio.get_running_loop().create_future()
            try:
                await self._arrival
            finally:
                self._arrival = None
        item = self._items.popleft()
        if isinstance(item, BaseException):
            raise item
        return item if isinstance(item, Token) else self._token(*item)

    def _put(self, item: Token | tuple[SampledToken, FinishReason | None] | BaseException) -> None:
        self._items.append(item)
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)


def checked_ids(prompt: SequenceOf[int], vocab_size: int, tokenizer: Tokenizer | None = None) -> tuple[int, ...]:
    """Return a prompt's token ids; the tokenizer knows the texts of tokens that the model has not.

    Raises:
        RequestError: there are none, or one is no token of the vocabulary.
    """
    try:
        ids = tuple(prompt)
    except TypeError as exc:
        raise RequestError(f"the prompt: expected text or token ids, got {prompt!r}") from exc
    if not ids:
        raise RequestError("the prompt is empty")
    if set(map(type, ids)) == {int} and min(ids) >= 0 and max(ids) < vocab_size:  # a long prompt holds nobody up
        return ids
    for token in ids:
        if not isinstance(token, int | np.integer) or isinstance(token, bool) or not 0 <= token < vocab_size:
            if tokenizer is not None and type(token) is int and (text := tokenizer.added_text(token)):
                raise RequestError(f"token {token} ({text!r}): the model has embeddings of 0 to {vocab_size - 1} alone")
            raise RequestError(f"token {token!r}: expected a whole number, 0 to {vocab_size - 1}")
    return tuple(int(token) for token in ids)


def check_token_ids(sampling: SamplingParams, vocab_size: int) -> None:
    """Check the tokens that sampling parameters name.

    Raises:
        ParameterError: one is no token of the vocabulary.
    """
    for name, ids in (
        ("logit_bias", [token for token, _ in sampling.logit_bias]),
        ("stop_token_ids", sampling.stop_token_ids),
    ):
        beyond = next((token for token in ids if token >= vocab_size), None)
        if beyond is not None:
            raise ParameterError(name, f"expected token ids, 0 to {vocab_size - 1}, got {beyond}")


def checked_salt(salt: str) -> str:
    """Return a cache's salt.

    Raises:
        RequestError: it is no text that can be encoded.
    """
    try:
        salt.encode()
    except (AttributeError, UnicodeEncodeError) as exc:
        raise RequestError(f"the cache's salt: expected text, got {salt!r}") from exc
    return salt
