"""Answers of an engine, whole, and what they should be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from unicorn_async.sampling_params import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from unicorn_async.engine.engine import Engine
    from unicorn_async.engine.types import FinishReason, Token

PROMPT = (2, 17, 300, 45, 120, 9, 411)


def prompt_of(length: int, seed: int = 0) -> tuple[int, ...]:
    """Return a prompt of arbitrary tokens, none of them a control token."""
    return (2, *(int(token) for token in np.random.default_rng([seed, length]).integers(3, 512, length - 1)))


@dataclass(frozen=True)
class Answer:
    """All tokens of one answer."""

    tokens: tuple[Token, ...]

    @property
    def ids(self) -> list[int]:
        return [token.id for token in self.tokens]

    @property
    def text(self) -> str:
        return "".join(token.text for token in self.tokens)

    @property
    def finish_reason(self) -> FinishReason | None:
        assert all(token.finish_reason is None for token in self.tokens[:-1])
        return self.tokens[-1].finish_reason


async def answer(engine: Engine, prompt: str | Sequence[int] = PROMPT, /, **sampling: Any) -> Answer:
    """Generate to the end; end tokens, which random weights may choose any time, end nothing unless asked to."""
    params = SamplingParams(**({"ignore_eos": True, "max_tokens": 16} | sampling))
    return Answer(tuple([token async for token in engine.stream(prompt, params)]))


async def logits_behind(engine: Engine, prompt: Sequence[int], ids: Sequence[int]) -> NDArray[np.float32]:
    """Return the logits from which the tokens of an answer were chosen, (tokens, vocabulary)."""
    logits = await engine.logits([*prompt, *ids[:-1]])
    return logits[len(prompt) - 1 :]
