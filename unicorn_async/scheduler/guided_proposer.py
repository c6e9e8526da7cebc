"""Proposes what a grammar lets come: text that repeats itself, and what the grammar forces."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unicorn_async.scheduler.proposer import HitRate

if TYPE_CHECKING:
    from collections.abc import Sequence as SequenceOf

    from unicorn_async.scheduler.proposer import Proposer
    from unicorn_async.scheduler.sequence import Sequence


class GuidedProposer:
    """Proposes a sequence's foreseen tokens, of which the masks are known; what is foreseen may begin as `text` says.

    Whether it was right is noted of every token that was foreseen behind right ones, but for those that a draft model,
    or the model itself, has proposed.
    """

    def __init__(self, sequence: Sequence, text: Proposer) -> None:
        self._sequence = sequence
        self._text = text
        self._num_seen = len(sequence.output_ids)
        self._hits = HitRate()

    @property
    def rate(self) -> float:
        """See `Proposer`."""
        return self._hits.value if self._sequence.foreseen else 0.0

    @property
    def expected_rate(self) -> float:
        """How likely the next foreseen token is right, before anything is."""
        return self._hits.value

    @property
    def text_rate(self) -> float:
        """How likely the next token of the text is right, where it has one."""
        return self._text.rate

    @property
    def is_predicted(self) -> bool:
        """See `Proposer`."""
        tokens = self.propose(0, len(self._sequence.foreseen))
        return self._text.is_predicted and tokens == self._text.propose(0, len(tokens))

    def follow(self, output_ids: SequenceOf[int]) -> None:
        """See `Proposer`."""
        self._text.follow(output_ids)
        came = zip(self._sequence.foreseen, output_ids[self._num_seen :], strict=False)
        for number, ((foreseen, _), token) in enumerate(came, 1):
            if number > self._sequence.num_drafted:
                self._hits.note(is_right=foreseen == token)
            if foreseen != token:
                break
        self._num_seen = len(output_ids)

    def from_text(self, most: int) -> tuple[int, ...]:
        """Return the tokens that the text has behind those that were seen, whether the grammar allows them or not."""
        return self._text.propose(0, most) if self._text.rate else ()

    def propose(self, ahead: int, most: int) -> tuple[int, ...]:
        """See `Proposer`; nothing is known of what comes behind a token that nobody has seen."""
        return () if ahead else tuple(token for token, _ in self._sequence.foreseen[:most])
