"""Models whose answers are known, at the cost of real ones: each token is followed by the next one of a cycle.

No layer adds anything to the stream, so that behind each token it is that token's own embedding. The output head has
that embedding's row in the place of the token that is to follow, and no other row is like it. The matrices of the
layers are there and are computed, those through which a layer adds to the stream with scales of zero.

A model that drafts says something else behind a chosen share of tokens: the rows of the head that belong to these are
exchanged among them. A layer of the model's own that predicts a token more shares embeddings and head with it. It reads
the next token's embedding through a matrix that takes the first half of its columns as they are, and each of the others
from the place before it, and makes it small. Tokens about which it is to be wrong have zeros in the first half of their
embeddings: behind these it says anything. The model itself follows the cycle behind all of them.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

import numpy as np
from gguf_blocks import BLOCKS, clear, random_blocks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

CHUNK_ROWS = 4096  # of tables, which are drawn together
FIRST_KEY = "cycle.first_token"  # in a file's metadata: from this token on each is followed by the next
_KEPT = 16  # times of what is small
_LEAVING = ("attn_output", "ssm_out", "ffn_down", "ffn_down_exps", "ffn_down_shexp")


class Fill(Enum):
    """What a tensor holds, of which no bounds are told."""

    RANDOM = "random"
    NOTHING = "nothing"  # zeros, of random codes
    PROJECTION = "projection"  # what a predicting layer reads its token through


@dataclass(frozen=True, slots=True)
class Cycle:
    """The tokens from `first` on, each of which is followed by the next, and the last one by `first`.

    Behind a `share` of them the model says so, and its predicting layer, if it has one, behind a share `predicted`.
    """

    first: int
    share: float = 1.0
    predicted: float | None = None

    def __post_init__(self) -> None:
        """Raises ValueError where a share is none."""
        for share in (self.share, self.predicted or 0.0):
            if not 0 <= share <= 1:
                raise ValueError(f"share of tokens: expected 0 to 1, got {share}")


def leaves(name: str) -> bool:
    """Whether a layer adds to the stream through a matrix of this name."""
    return name.rpartition(".")[2] in _LEAVING


def is_right(tokens: NDArray[np.int64], share: float) -> NDArray[np.bool_]:
    """Return which tokens are among a share of all; which ones are so does not depend on those before."""
    mixed = (tokens.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    for factor in (0xBF58476D1CE4E5B9, 0x94D049BB133111EB):  # splitmix64
        mixed = (mixed ^ (mixed >> np.uint64(29))) * np.uint64(factor)
    return (mixed >> np.uint64(40)) < share * (1 << 24)


@dataclass(frozen=True, slots=True)
class Tables:
    """Embeddings and output head, alike: a row of each for each of `vocab` tokens, in blocks of a `kind`."""

    kind: str
    hidden: int
    vocab: int
    cycle: Cycle

    @property
    def chunks(self) -> range:
        """First tokens of what is drawn together."""
        return range(0, self.vocab, CHUNK_ROWS)

    def put(self, file: int, at: Sequence[int], first: int) -> None:
        """Write a chunk's rows to an open file, in which the tables lie `at` these two places."""
        rows, followers = self.rows(first), self.followers(first)
        order = np.argsort(followers)
        parts = np.split(order, np.flatnonzero(np.diff(followers[order]) != 1) + 1)  # of rows side by side
        for start, part in [(at[0] + first * rows.shape[1], rows)] + [
            (at[1] + int(followers[part[0]]) * rows.shape[1], rows[part]) for part in parts
        ]:
            os.pwrite(file, part, start)

    def followers(self, first: int) -> NDArray[np.int64]:
        """Return what follows the tokens of a chunk that begins with token `first`, (tokens); wrong ones are of it."""
        tokens = self._tokens(first)
        found = np.where(tokens < self.cycle.first, tokens, tokens + 1)
        found[found == self.vocab] = self.cycle.first
        wrong = np.flatnonzero(~is_right(tokens, self.cycle.share) & (tokens >= self.cycle.first))
        found[wrong] = np.roll(found[wrong], 1)
        return found

    def rows(self, first: int) -> NDArray[np.uint8]:
        """Return embeddings of the tokens of a chunk that begins with token `first`, (tokens, bytes)."""
        tokens, (values, size, _) = self._tokens(first), BLOCKS[self.kind]
        rng, shape = np.random.default_rng([27, first]), (len(tokens), self.hidden // values, size)
        rows = random_blocks(rng, self.kind, self.hidden**-0.5, shape[0] * shape[1]).reshape(shape)
        if self.cycle.predicted is not None:
            wrong, half = ~is_right(tokens, self.cycle.predicted), half_columns(self.kind, self.hidden) // values
            begun = rows[wrong, :half]
            clear(begun, self.kind)
            rows[wrong, :half] = begun
        return rows.reshape(len(tokens), -1)

    def _tokens(self, first: int) -> NDArray[np.int64]:
        return np.arange(first, min(first + CHUNK_ROWS, self.vocab))


def projection(kind: str, hidden: int) -> bytes:
    """Return Q8_0 blocks of (hidden, 2 · hidden), for embeddings in blocks of a type; the state counts for nothing."""
    half, (values, size, _) = half_columns(kind, hidden), BLOCKS["Q8_0"]
    columns = np.arange(hidden)
    columns[half:] = np.roll(columns[half:], 1)
    blocks = np.zeros((hidden, 2 * hidden // values, size), np.uint8)
    blocks[..., :2] = np.array([1], "<f2").view(np.uint8)
    blocks[np.arange(hidden), columns // values, 2 + columns % values] = np.where(np.arange(hidden) < half, _KEPT, 1)
    return blocks.tobytes()


def half_columns(kind: str, hidden: int) -> int:
    """Return how many columns, whole blocks of a type, are the first half; raises ValueError where there is none."""
    values = BLOCKS[kind][0]
    half = hidden // values // 2 * values
    if not half:
        raise ValueError(f"a predicting layer: expected embeddings of 2 blocks of {kind} or more, got {hidden} columns")
    return half
