"""Held-out conversations with the demo model: how likely the right answers are to it, and what it answers."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import numpy as np

from unicorn_async.sampling_params import SamplingParams
from unicorn_async.tokenizer import ChatMessage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from unicorn_async.engine.engine import Engine
    from unicorn_async.tokenizer import Tokenizer

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

from demo_world.conversation import evaluation

SEED = 77
LONGEST_ANSWER = 300  # tokens
_SLAB = 16  # rows that a cache holds in double precision


@dataclass(frozen=True, slots=True)
class Question:
    """A conversation up to the model's turn, an answer of the demo's world with its end token, and all right ones."""

    prompt: tuple[int, ...]
    answer: tuple[int, ...]
    accepted: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Likelihood:
    """Of all conversations' tokens but the first, one row each: log-probabilities of every token, and the right one.

    `in_answer` marks the tokens of the answers asked for. The others are mostly the user's, which the model was never
    trained to predict: they tell formats apart where the answers are certain.
    """

    log_probs: NDArray[np.float32]  # (tokens, vocabulary)
    right: NDArray[np.int64]
    in_answer: NDArray[np.bool_]

    @property
    def perplexity(self) -> float:
        """Of the answers' tokens."""
        return _perplexity(self._chosen[self.in_answer])

    @property
    def text_perplexity(self) -> float:
        """Of all tokens."""
        return _perplexity(self._chosen)

    def divergence_from(self, other: Likelihood) -> float:
        """Mean Kullback-Leibler divergence of a token's distribution from that of `other`, in nats; of all tokens."""
        parts = -(-len(self.log_probs) // _SLAB) or 1
        slabs = zip(np.array_split(other.log_probs, parts), np.array_split(self.log_probs, parts), strict=True)
        return float(np.concatenate([_divergences(first, second) for first, second in slabs]).mean())

    def agreement_with(self, other: Likelihood) -> float:
        """Share of all tokens whose likeliest is the same."""
        return float((self.log_probs.argmax(axis=1) == other.log_probs.argmax(axis=1)).mean())

    @property
    def _chosen(self) -> NDArray[np.float32]:
        return np.take_along_axis(self.log_probs, self.right[:, None], axis=1)[:, 0]


def questions(tokenizer: Tokenizer, count: int, seed: int = SEED) -> list[Question]:
    """Return so many questions that the model was not trained on; `tokenizer` is the demo directory's."""
    found = []
    for turns in evaluation(Random(seed), count):
        texts = [text for turn in turns for text in (turn.prompt, turn.answer)]
        messages = [ChatMessage(("user", "assistant")[index % 2], text) for index, text in enumerate(texts)]
        prompt = tokenizer.encode_chat(messages[:-1])
        whole = tokenizer.encode_chat(messages, add_generation_prompt=False)
        assert whole[: len(prompt)] == prompt
        answer = whole[len(prompt) :]
        end = next(index for index, token in enumerate(answer) if token in tokenizer.eos_token_ids)
        found.append(Question(tuple(prompt), tuple(answer[: end + 1]), turns[-1].accepted))
    return found


async def likelihood(engine: Engine, asked: Sequence[Question]) -> Likelihood:
    """Compute how likely the conversations' tokens are, each after the tokens before it."""

    async def of_one(question: Question) -> NDArray[np.float32]:
        return _log_softmax(await engine.logits([*question.prompt, *question.answer[:-1]]))

    rows = await asyncio.gather(*map(of_one, asked))
    right = [token for question in asked for token in (*question.prompt[1:], *question.answer)]
    in_answer = [index >= len(one.prompt) for one in asked for index in range(1, len(one.prompt) + len(one.answer))]
    return Likelihood(np.concatenate(rows), np.array(right, np.int64), np.array(in_answer))


async def greedy(engine: Engine, asked: Sequence[Question]) -> list[tuple[int, ...]]:
    """Answer every question with the likeliest tokens, up to and with the end token."""

    async def one(question: Question) -> tuple[int, ...]:
        stream = engine.stream(question.prompt, SamplingParams(max_tokens=LONGEST_ANSWER))
        return tuple([token.id async for token in stream])

    return await asyncio.gather(*map(one, asked))


def num_right(found: Sequence[tuple[int, ...]], asked: Sequence[Question], tokenizer: Tokenizer) -> int:
    """Count the answers that the demo's world accepts."""
    return sum(tokenizer.decode(ids) in question.accepted for ids, question in zip(found, asked, strict=True))


def num_equal(found: Sequence[tuple[int, ...]], wanted: Sequence[tuple[int, ...]]) -> int:
    """Count the answers that are the same to the last token."""
    return sum(a == b for a, b in zip(found, wanted, strict=True))


def _divergences(first: NDArray[np.float32], second: NDArray[np.float32]) -> NDArray[np.float64]:
    """The divergence of each row of `second` from that of `first`, in double precision."""
    logs, others = first.astype(np.float64), second.astype(np.float64)
    # With the sums of both, which are 1 but for rounding, no term is negative.
    found: NDArray[np.float64] = (np.exp(logs) * (logs - others - 1) + np.exp(others)).sum(axis=1)
    return found


def _perplexity(log_probs: NDArray[np.float32]) -> float:
    return float(np.exp(-log_probs.astype(np.float64).mean()))


def _log_softmax(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    shifted = logits - logits.max(axis=1, keepdims=True)
    result: NDArray[np.float32] = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return result
