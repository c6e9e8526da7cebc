"""Proposals without a text, and whatever steps cost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unicorn_async.scheduler.step_costs import StepCosts

from .toy_gpu import VOCAB_SIZE

if TYPE_CHECKING:
    from collections.abc import Sequence
    from random import Random


class AnyCosts(StepCosts):
    """Takes any number of tokens to be worth their time."""

    def __init__(self, random: Random) -> None:
        super().__init__((1 << 20,))
        self._random = random

    def worth(self, num_tokens: int, expected: float, rate: float, most: int, **_: object) -> int:
        return self._random.randint(0, most)


class Foreseeing:
    """Proposes what will be the answer, but for some tokens."""

    def __init__(self, random: Random, right_share: float, answer: list[int]) -> None:
        self.rate = right_share
        self.is_predicted = False
        self._random = random
        self._answer = answer
        self._num_seen = 0

    def follow(self, output_ids: Sequence[int]) -> None:
        self._num_seen = len(output_ids)

    def propose(self, ahead: int, most: int) -> tuple[int, ...]:
        coming = self._answer[self._num_seen + ahead :][:most]
        coming += [0] * (most - len(coming))
        return tuple(token if self._random.random() < self.rate else (token + 1) % VOCAB_SIZE for token in coming)
