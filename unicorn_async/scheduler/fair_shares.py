"""What each client holds of the steps' places and of the KV cache, and who gives up first."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from unicorn_async.scheduler.block_pool import WHOLE

if TYPE_CHECKING:
    from collections.abc import Iterable
    from collections.abc import Sequence as SequenceOf

    from unicorn_async.scheduler.block_manager import BlockManager
    from unicorn_async.scheduler.sequence import Sequence


class Claim(NamedTuple):
    """A running sequence, and what its client holds with older ones: the less that is, the better its claim."""

    before: int
    place: int
    sequence: Sequence


class FairShares:
    """Weighs sequences: each by the largest part that it has of what there is, of the places or of a group's blocks.

    A part is a number of `WHOLE`. Of blocks that several sequences share each has its part.
    """

    def __init__(self, blocks: BlockManager, max_num_seqs: int) -> None:
        self._blocks = blocks
        self._place = WHOLE // max_num_seqs

    def held(self, running: Iterable[Sequence]) -> Counter[str]:
        """Return what each client holds."""
        held: Counter[str] = Counter()
        for sequence in running:
            held[sequence.client] += self._weight(sequence)
        return held

    def claims(self, running: Iterable[Sequence]) -> list[Claim]:
        """Return what runs, best claims first: the last one is the youngest of a client who holds more than others.

        A client's oldest is before all that are not their clients' oldest, and the oldest of all is the first. It is
        the youngest of a client that gives up, so that the others, nearer to their ends, get there; and mostly it has
        the least to compute again.
        """
        held: Counter[str] = Counter()
        claims: list[Claim] = []
        for sequence in running:
            claims.append(Claim(held[sequence.client], sequence.place, sequence))
            held[sequence.client] += self._weight(sequence)
        return sorted(claims)

    def excess(self, running: SequenceOf[Sequence], first: Sequence, lacking: SequenceOf[int]) -> list[Sequence]:
        """Return who may be asked to give up for a sequence that waits and lacks so many blocks, the last one first.

        Those are others' whose client holds, without them, as much as the one that waits will hold, or more. So nobody
        is asked back for what it was given, and every client keeps its oldest.
        """
        claims = self.claims(running)
        own = sum(self._weight(sequence) for sequence in running if sequence.client == first.client)
        own += max(self._place, self._blocks.part(lacking))
        found = [claim.sequence for claim in claims if claim.before >= own and claim.sequence.client != first.client]
        return found[::-1]

    def _weight(self, sequence: Sequence) -> int:
        return max(self._place, self._blocks.weight(sequence))
