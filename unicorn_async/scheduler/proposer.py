"""Who proposes how an answer may go on, and how often that was right."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

_MEMORY = 0.95  # of what was known before, with each token: about the last 20 count


class Proposer(Protocol):
    """Proposes the tokens that may follow one sequence's."""

    @property
    def rate(self) -> float:
        """How likely the next proposed token is right, if those before it were; 0 where none is proposed now."""

    @property
    def is_predicted(self) -> bool:
        """Whether what it proposes now is from the request's own prediction of its answer."""

    def follow(self, output_ids: Sequence[int]) -> None:
        """See the tokens that the sequence has got, all of them."""

    def propose(self, ahead: int, most: int) -> tuple[int, ...]:
        """Return up to `most` tokens behind those that were seen and `ahead` more, which nobody has seen."""


class HitRate:
    """The share of guesses that were right lately; `prior` of them, as long as there was none."""

    def __init__(self, prior: float = 0.5) -> None:
        self._prior = 2.0 * prior
        self._hits = self._prior
        self._tries = 2.0

    @property
    def value(self) -> float:
        """The share, between 0 and 1."""
        return self._hits / self._tries

    def note(self, *, is_right: bool) -> None:
        """Count a guess; two that were right as often as the prior says are always among those that count."""
        self._hits = self._prior + _MEMORY * (self._hits - self._prior) + is_right
        self._tries = 2.0 + _MEMORY * (self._tries - 2.0) + 1.0
