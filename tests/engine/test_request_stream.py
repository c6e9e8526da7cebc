"""Tokens on their way to one consumer, without an engine."""

from __future__ import annotations

import asyncio

import pytest

from unicorn_async.engine.request_stream import RequestStream
from unicorn_async.engine.types import FinishReason
from unicorn_async.sampling_params import SamplingParams
from unicorn_async.scheduler.sequence import Sequence
from unicorn_async.step.result import SampledToken


def make_stream() -> RequestStream:
    return RequestStream(Sequence("a", (1,), SamplingParams(max_tokens=8), seed=0), None)


async def waiting(stream: RequestStream) -> asyncio.Task[int]:
    """Begin to wait for a token's id."""

    async def next_id() -> int:
        return (await stream.get()).id

    task = asyncio.create_task(next_id())
    await asyncio.sleep(0)
    return task


async def test_tokens_come_in_order_whoever_is_first() -> None:
    stream = make_stream()
    consumer = await waiting(stream)
    for number in range(3):
        stream.add(SampledToken(number), FinishReason.LENGTH if number == 2 else None)
    last = [await stream.get() for _ in range(2)] if await consumer == 0 else []
    assert [(token.id, token.finish_reason) for token in last] == [(1, None), (2, FinishReason.LENGTH)]


async def test_a_consumer_that_gives_up_loses_no_token() -> None:
    stream = make_stream()
    consumer = await waiting(stream)
    consumer.cancel()
    with pytest.raises(asyncio.CancelledError):
        await consumer
    stream.add(SampledToken(5), None)
    consumer = await waiting(stream)
    assert await consumer == 5


async def test_a_token_that_comes_as_the_consumer_gives_up_is_there_for_the_next() -> None:
    stream = make_stream()
    consumer = await waiting(stream)
    stream.add(SampledToken(5), None)
    consumer.cancel()
    with pytest.raises(asyncio.CancelledError):
        await consumer
    stream.add(SampledToken(6), None)
    assert [(await stream.get()).id for _ in range(2)] == [5, 6]


async def test_an_error_comes_behind_the_tokens_that_were_there() -> None:
    stream = make_stream()
    stream.add(SampledToken(5), None)
    stream.fail(ValueError("broken"))
    assert (await stream.get()).id == 5
    with pytest.raises(ValueError, match="broken"):
        await stream.get()
