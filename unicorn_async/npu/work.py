"""Cuts a step's attention into items, and spreads them over the teams of cores. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from unicorn_async.errors import UnsupportedModelError
from unicorn_async.npu.geometry import CORE_BUFFER_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from unicorn_async.npu.geometry import HeadLayout


@dataclass(frozen=True, slots=True)
class AttentionHeads:
    """What decides the layout of a layer's cache on the NPU.

    Blocks have `block_size` tokens, a multiple of a chunk's keys; `num_heads` is a multiple of `num_kv_heads`. Raises
    UnsupportedModelError for what the kernels don't do.
    """

    layout: HeadLayout
    num_heads: int
    num_kv_heads: int
    block_size: int

    def __post_init__(self) -> None:
        if self.num_kv_heads < 1 or self.num_heads % self.num_kv_heads:
            raise UnsupportedModelError(
                f"attention on the NPU: num_heads: expected a multiple of num_kv_heads = {self.num_kv_heads},"
                f" got {self.num_heads}"
            )
        if self.group > self.layout.rows:
            raise UnsupportedModelError(
                f"attention on the NPU: at most {self.layout.rows} query heads of head_dim {self.layout.head_dim} may"
                f" share a kv head, got {self.group}"
            )
        if self.block_size < 1 or self.block_size % self.layout.chunk_keys:
            raise UnsupportedModelError(
                f"attention on the NPU: block_size: expected a multiple of {self.layout.chunk_keys} for head_dim"
                f" {self.layout.head_dim}, got {self.block_size}"
            )

    @property
    def group(self) -> int:
        """Query heads that share a kv head."""
        return self.num_heads // self.num_kv_heads

    @property
    def queries_per_item(self) -> int:
        """Queries whose heads fit into an item."""
        return self.layout.rows // self.group

    @property
    def chunks_per_block(self) -> int:
        """Chunks of a block."""
        return self.block_size // self.layout.chunk_keys

    def cache_bytes(self, num_blocks: int) -> int:
        """Bytes of a layer's keys and values in so many blocks."""
        return self.num_kv_heads * num_blocks * self.chunks_per_block * CORE_BUFFER_BYTES


@dataclass(frozen=True, slots=True)
class SequenceWork:
    """One sequence of a step: its queries are rows `query_start` … of q, the last of `context_len` tokens.

    `blocks` is its row of the block table; entries whose keys no query sees are not read.
    """

    query_start: int
    query_len: int
    context_len: int
    blocks: Sequence[int]


@dataclass(frozen=True, slots=True)
class Item:
    """Queries of one sequence that share a kv head, and the keys that they see.

    `first_query` is a row of q and `position` that row's place in the sequence. `runs` are the chunks, in order, as
    (offset, size) in the layer's cache, in bytes; `base` is the first chunk's first key.
    """

    kv_head: int
    first_query: int
    num_queries: int
    position: int
    base: int
    num_chunks: int
    runs: tuple[tuple[int, int], ...]


def plan_items(
    heads: AttentionHeads, sequences: Sequence[SequenceWork], *, window: int, num_blocks: int
) -> Iterator[Item]:
    """Cut a step's sequences into items; `window` in tokens, 0 = none. The layer's cache has `num_blocks` blocks."""
    keys, per_block = heads.layout.chunk_keys, heads.chunks_per_block
    for sequence in sequences:
        blocks = np.array(sequence.blocks)
        start = sequence.context_len - sequence.query_len
        for done in range(0, sequence.query_len, heads.queries_per_item):
            count = min(heads.queries_per_item, sequence.query_len - done)
            position = start + done
            first = max(0, position + 1 - window) if window else 0
            chunks = range(first // keys, (position + count - 1) // keys + 1)
            block, place = np.divmod(chunks, per_block)
            runs = _runs(blocks[block] * per_block + place)
            for kv_head in range(heads.num_kv_heads):
                head = kv_head * num_blocks * per_block
                yield Item(
                    kv_head=kv_head,
                    first_query=sequence.query_start + done,
                    num_queries=count,
                    position=position,
                    base=chunks.start * keys,
                    num_chunks=len(chunks),
                    runs=tuple(
                        (CORE_BUFFER_BYTES * (head + chunk), CORE_BUFFER_BYTES * length) for chunk, length in runs
                    ),
                )


def spread(items: Sequence[Item], num_teams: int) -> tuple[tuple[int, ...], ...]:
    """Return the numbers of the items that each team works on: the longest first, each to the team with least to do."""
    teams: list[list[int]] = [[] for _ in range(num_teams)]
    load = [0] * num_teams
    for number in sorted(range(len(items)), key=lambda i: (-items[i].num_chunks, i)):
        team = load.index(min(load))
        teams[team].append(number)
        load[team] += items[number].num_chunks + 2  # parameters and queries
    return tuple(map(tuple, teams))


def _runs(places: NDArray[np.int64]) -> list[tuple[int, int]]:
    """Join neighbours: (first place, how many)."""
    starts = np.flatnonzero(np.diff(places, prepend=places[0] - 2) != 1)
    lengths = np.diff(starts, append=len(places))
    return list(zip(places[starts].tolist(), lengths.tolist(), strict=True))
