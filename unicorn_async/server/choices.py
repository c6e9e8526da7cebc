"""Several answers to one request, generated side by side."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Generic

from unicorn_async.server.protocol.completion_object import ChoiceT

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from unicorn_async.sampling_params import SamplingParams
    from unicorn_async.server.generation import Generation
    from unicorn_async.server.protocol.completion_object import CompletionObject


class Choices(Generic[ChoiceT]):
    """The generations of one request's choices, in the order of these; it owns and closes them."""

    def __init__(self, answer: CompletionObject[ChoiceT], generations: Sequence[Generation]) -> None:
        self.answer = answer
        self._generations = generations

    async def run(self, emit: Callable[[str], Awaitable[None]]) -> None:
        """Send all answers, each token as it comes, and what follows the last of them.

        Raises:
            ClientGoneError: by way of `emit`.
        """
        pairs = list(zip(self._generations, self.answer.choices, strict=True))
        if len(pairs) == 1:
            await pairs[0][0].run(pairs[0][1], emit)
        else:
            try:
                async with asyncio.TaskGroup() as group:
                    for generation, choice in pairs:
                        group.create_task(generation.run(choice, emit))
            except BaseExceptionGroup as failed:
                raise failed.exceptions[0] from None
        for text in self.answer.closing():
            await emit(text)

    async def close(self) -> None:
        """Give all requests back to the engine; harmless at any time and more than once."""
        await close_all(self._generations)


async def close_all(generations: Sequence[Generation]) -> None:
    """Close generations, each whatever becomes of the others."""
    await asyncio.gather(*(generation.close() for generation in generations))


def seeded(sampling: SamplingParams, number: int) -> SamplingParams:
    """Return what the answer of this number is drawn with: with a seed, each has its own."""
    if sampling.seed is None or number == 0:
        return sampling
    return replace(sampling, seed=(sampling.seed + number) % (1 << 64))
