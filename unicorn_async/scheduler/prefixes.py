"""Which sequences begin alike: what one has computed of the keys and values, others need not."""

from __future__ import annotations

from itertools import takewhile
from typing import TYPE_CHECKING

from unicorn_async.config import MAX_PROPOSED
from unicorn_async.scheduler.block_keys import extend_keys
from unicorn_async.scheduler.found_counts import FoundCounts

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from unicorn_async.scheduler.block_manager import BlockManager
    from unicorn_async.scheduler.sequence import Sequence
    from unicorn_async.scheduler.state_copies import GivenState, KeptState


_PATIENCE = 4  # steps, which is more than are in flight at once
_PATIENCE_WITH_CLIENT = 2  # more with each client of whom something runs: their prompts take turns


class Prefixes:
    """Shares full blocks among sequences that begin alike, and knows which are to come.

    Who is to compute a block, and gets no part of steps, since its client's own longer prompt goes first, say, is
    waited for no longer than a few steps.

    Steps run in the order in which they are scheduled, so a block is known by its key as soon as one has it.
    `num_prompt_tokens` counts those of prompts that were admitted for the first time, `num_found` those of them that
    were there.
    """

    def __init__(self, blocks: BlockManager, *, shares: bool) -> None:
        self._blocks = blocks
        self._shares = shares
        self._to_come: dict[bytes, Sequence] = {}  # blocks that a running sequence begins with, and no step has yet
        self._counts = FoundCounts()
        self._last_steps: dict[Sequence, int] = {}  # of those that run, the latest that has a part of each
        self._num_steps = 0
        self._patience = _PATIENCE
        self.num_prompt_tokens = 0
        self.num_found = 0

    def find(self, sequence: Sequence) -> int | None:
        """Return how many blocks that are there a sequence would begin behind.

        None while the block behind these is one that a running sequence is to compute: nothing is searched again
        before that has all that it has in common with the sequence.
        """
        if not self._shares:
            return 0
        if self._is_coming(sequence.awaited_key, self._to_come):
            return None
        most = self._most(sequence)
        found = self._blocks.find(sequence, most)
        behind = map(sequence.block_keys.__getitem__, range(found, most))
        coming = takewhile(lambda key: self._is_coming(key, self._to_come), behind)
        *_, sequence.awaited_key = None, *coming
        return found if sequence.awaited_key is None else None

    def has_room(self, sequence: Sequence, found: int) -> bool:
        """Whether the step in the making can count what a sequence would find, for its repetition penalty."""
        return self._counts.has_room(sequence, found * self._blocks.block_size)

    def begin(self, sequence: Sequence, found: int) -> None:
        """Have a sequence that was admitted begin behind what was found, and others wait for what it is to compute."""
        if not self._shares:
            self._count(sequence)
            return
        lacking = self._blocks.claim(sequence, found)
        assert not lacking, "what was found is here"
        self._begin_behind(sequence, found)
        self._count(sequence)
        self._announce(sequence, found)

    def know(self, sequence: Sequence, num_positions: int) -> None:
        """Note that steps have a sequence's first positions; blocks with tokens that nobody has seen are left out."""
        if not self._shares:
            return
        known = sequence.num_known
        self._blocks.know(sequence, min(num_positions, len(sequence.prompt_ids) + len(sequence.output_ids)))
        for key in sequence.block_keys[known : sequence.num_known]:
            self._to_come.pop(key, None)

    def expect(self, sequence: Sequence) -> None:
        """Hear which sequence comes next, while the step is full of prompts that it may begin like."""

    def cut(self, sequence: Sequence, count: int) -> int:
        """Return how many of the `count` next tokens of a prompt the step may have."""
        del sequence
        return count

    def reach(self, sequence: Sequence) -> None:
        """Hear that the step has a sequence's first `num_scheduled` positions."""
        self._counts.reach(sequence)
        if sequence in self._last_steps:
            self._last_steps[sequence] = self._num_steps

    def most_proposed(self, sequence: Sequence) -> int:
        """Return how many tokens may be proposed behind what the step has of a sequence."""
        del sequence
        return MAX_PROPOSED

    def take_copies(self) -> tuple[tuple[GivenState, ...], tuple[KeptState, ...]]:
        """Return the copies of states that sequences begin with in the step that was made, and those that it makes."""
        self._counts.end_step()
        self._num_steps += 1
        self._patience = _PATIENCE + _PATIENCE_WITH_CLIENT * len({sequence.client for sequence in self._last_steps})
        return (), ()

    def commit(self, kept: Iterable[KeptState]) -> None:
        """Know the copies that a step has made."""

    def leave(self, sequence: Sequence) -> None:
        """Let nobody wait for a sequence that runs no more."""
        self._counts.leave(sequence)
        self._last_steps.pop(sequence, None)
        for key in sequence.block_keys[sequence.num_known :]:
            if self._to_come.get(key) is sequence:
                del self._to_come[key]

    def _begin_behind(self, sequence: Sequence, num_blocks: int) -> None:
        found = num_blocks * self._blocks.block_size
        sequence.num_found = sequence.num_scheduled = sequence.num_computed = found
        self._counts.begin(sequence)
        self._last_steps[sequence] = self._num_steps

    def _is_coming(self, key: bytes | None, coming: Mapping[bytes, Sequence]) -> bool:
        """Whether a running sequence that goes on is to have what a key of those that are coming stands for."""
        owner = None if key is None else coming.get(key)
        if owner is None:
            return False
        return owner.is_restoring or self._num_steps - self._last_steps[owner] <= self._patience

    def _is_to_have(self, sequence: Sequence, key: bytes, coming: dict[bytes, Sequence]) -> None:
        """Have others wait for a sequence, unless there is one already that goes on."""
        if not self._is_coming(key, coming):
            coming[key] = sequence

    def _count(self, sequence: Sequence) -> None:
        """Count what was there of a prompt, if it is the first time that the sequence begins."""
        if sequence.num_prompt_found is None:
            sequence.num_prompt_found = sequence.num_found
            self.num_prompt_tokens += len(sequence.prompt_ids)
            self.num_found += sequence.num_found

    def _announce(self, sequence: Sequence, start: int) -> None:
        """Have others wait for the sequence's blocks from the `start`-th on."""
        size = self._blocks.block_size
        for key in extend_keys(sequence, sequence.length // size, size)[start:]:
            self._is_to_have(sequence, key, self._to_come)

    def _most(self, sequence: Sequence) -> int:
        """Return how many blocks a sequence may have from others: it computes a token at least.

        For penalties the sampler counts an answer's tokens when they are computed.
        """
        most = sequence.length - 1
        if not sequence.samples:
            return 0
        if sequence.sampling.has_penalties:
            most = min(most, self._counts.most(sequence))
        return most // self._blocks.block_size
