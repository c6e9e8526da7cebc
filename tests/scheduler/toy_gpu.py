"""A GPU that computes hashes: it keeps a KV cache and state rows, and notices when they are not what a step needs."""

from __future__ import annotations

import zlib
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from unicorn_async.scheduler.sequence import PENDING, Sequence

if TYPE_CHECKING:
    from collections.abc import Callable

    from unicorn_async.scheduler.batch import Batch, ScheduledSequence
    from unicorn_async.scheduler.block_manager import BlockGroup
    from unicorn_async.scheduler.kept_prefixes import BlockCopy

VOCAB_SIZE = 50


def next_token(seed: int, prefix: tuple[int, ...], windows: tuple[int, ...]) -> int:
    """The toy model: a token that depends on all that the layers of every group can see."""
    seen = [prefix[-window:] if window else prefix for window in windows]
    return zlib.crc32(repr((seed, len(prefix), seen)).encode()) % VOCAB_SIZE


def answer_alone(
    sequence: Sequence, groups: tuple[BlockGroup, ...], max_context: int, eos_token_ids: frozenset[int]
) -> list[int]:
    """What a request gets when it has the model for itself."""
    windows = tuple(group.window for group in groups)
    tokens, output = list(sequence.prompt_ids), []
    while len(output) < sequence.sampling.max_tokens and len(tokens) < max_context:
        output.append(next_token(sequence.seed, tuple(tokens), windows))
        tokens.append(output[-1])
        if output[-1] in eos_token_ids and not sequence.sampling.ignore_eos:
            break
    return output


@dataclass(frozen=True)
class Part:
    """A sequence's part of a step, as it is when the step is submitted."""

    item: ScheduledSequence
    state_index: int
    tables: tuple[tuple[int, ...], ...]
    known_output: tuple[int, ...]


class ToyGPU:
    """Runs steps in order, each at some time after its submission.

    Where steps may not rely on this order, not `in_order`, those in flight must have blocks of their own.
    """

    def __init__(self, groups: tuple[BlockGroup, ...], block_size: int, *, in_order: bool = False) -> None:
        self.groups = groups
        self.in_order = in_order
        self.block_size = block_size
        self.cells: dict[tuple[int, int, int], tuple[int, ...]] = {}  # -> the tokens up to its position
        self.rows: dict[int, tuple[Sequence, list[int]]] = {}  # state index -> (sequence, tokens counted)
        self.supposed: dict[int, list[int]] = {}  # state index -> tokens with those that were proposed in this step
        self.unclear: set[int] = set()  # states whose last token may be any of those that the last step sampled
        self.submitted: deque[tuple[Batch, tuple[Part, ...]]] = deque()
        self.copies: deque[tuple[Batch | None, Callable[[], None]]] = deque()  # and the step before each of them

    def submit(self, batch: Batch) -> None:
        parts = tuple(
            Part(
                item,
                item.sequence.state_index,
                tuple(tuple(table) for table in item.sequence.block_tables),
                tuple(item.sequence.output_ids),
            )
            for item in batch.scheduled
        )
        self._check_no_conflict(parts)
        self.submitted.append((batch, parts))

    def submit_copy(self, copy: Callable[[], None]) -> None:
        """Have something done behind the steps that are submitted."""
        self.copies.append((self.submitted[-1][0] if self.submitted else None, copy))

    def run_copies(self) -> None:
        """Do the copies that no submitted step lies before."""
        batches = [batch for batch, _ in self.submitted]
        while self.copies and self.copies[0][0] not in batches:
            self.copies.popleft()[1]()

    def content(self, copy: BlockCopy) -> list[tuple[int, ...] | None]:
        """What a block holds."""
        return [self.cells.get((copy.name.group, copy.block, index)) for index in range(self.block_size)]

    def set_content(self, copy: BlockCopy, content: list[tuple[int, ...] | None]) -> None:
        """Have a block hold something."""
        for index, cell in enumerate(content):
            assert cell is not None, "what is kept of a block is full"
            self.cells[copy.name.group, copy.block, index] = cell

    def run_oldest(self) -> tuple[Batch, list[int]]:
        self.run_copies()
        batch, parts = self.submitted.popleft()
        sampled = [self._run(part) for part in parts]
        return batch, [token for token in sampled if token is not None]

    def _used(self, part: Part) -> set[tuple[int, int]]:
        """Blocks that a part reads or writes; where steps run in order, those that it writes, which nobody shares."""
        item, used = part.item, set()
        for index, group in enumerate(self.groups):
            first = max(item.start - group.window + 1, 0) if group.window else 0
            first = item.start if self.in_order else first
            for logical in range(first // self.block_size, (item.start + item.num_tokens - 1) // self.block_size + 1):
                block = part.tables[index][logical]
                assert 0 <= block < group.num_blocks
                used.add((index, block))
        return used

    def _check_no_conflict(self, parts: tuple[Part, ...]) -> None:
        """Nobody has a block or a state that another sequence uses in this step or in one in flight."""
        block_owners: dict[tuple[int, int], Sequence] = {}
        state_owners: dict[int, Sequence] = {}
        for part in (*(part for _, parts in self.submitted for part in parts), *parts):
            assert state_owners.setdefault(part.state_index, part.item.sequence) is part.item.sequence
            for block in self._used(part) if part in parts or not self.in_order else ():
                assert block_owners.setdefault(block, part.item.sequence) is part.item.sequence

    def _run(self, part: Part) -> int | None:
        item, sequence = part.item, part.item.sequence
        if item.resets:
            self.rows[part.state_index] = (sequence, [*sequence.prompt_ids, *part.known_output])
        owner, counted = self.rows[part.state_index]
        assert owner is sequence
        text = [*self.supposed[part.state_index], *item.token_ids] if item.proposal else counted
        assert not item.is_decode or item.is_given or part.state_index not in self.unclear
        for position, token in enumerate(item.token_ids, item.start):
            fed = text[-1] if token == PENDING else token
            assert fed == text[position]
            for index, table in enumerate(part.tables):
                block = table[position // self.block_size]
                assert block >= 0
                self.cells[index, block, position % self.block_size] = tuple(text[: position + 1])
        positions = range(item.start, item.start + item.num_tokens)
        seen = [self._read(part, position, tuple(text)) for position in positions][-1]
        if not item.samples:
            return None
        assert item.start + item.num_tokens == len(text)
        token = zlib.crc32(repr((sequence.seed, len(text), seen)).encode()) % VOCAB_SIZE
        self.supposed[part.state_index] = list(text)
        if item.proposal:
            self.unclear.add(part.state_index)
        else:
            self.unclear.discard(part.state_index)
        if text == counted:
            counted.append(token)
        return token

    def _read(self, part: Part, query: int, known: tuple[int, ...]) -> list[tuple[int, ...]]:
        """The tokens that a query sees in each group, each from its place in the cache."""
        seen = []
        for index, group in enumerate(self.groups):
            tokens = []
            for position in range(max(query - group.window + 1, 0) if group.window else 0, query + 1):
                block = part.tables[index][position // self.block_size]
                written = self.cells[index, block, position % self.block_size]
                assert written == known[: position + 1]
                tokens.append(written[-1])
            seen.append(tuple(tokens))
        return seen
