"""Merges that do what a SentencePiece vocabulary's scores say."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    Hashes = NDArray[np.uint64]

_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_MARKS = 64  # as many as pieces, at least: so few parts that are no pieces have the mark of one
_BATCH_CHARS = 1 << 18


def merges_of(scores: Mapping[str, float]) -> list[tuple[str, str]]:
    """Return every pair of pieces that join to a piece, the pair that is to be joined first in front.

    `scores` are of the pieces that may be joined and result from joining. A higher score comes first, of equal ones the
    longest piece, of one piece's pairs the one with the longest left part.
    """
    ordered = sorted(filter(None, scores), key=lambda piece: (-scores[piece], -len(piece)))
    if not ordered:
        return []
    marks = _Marks(len(ordered))
    for _, lengths, characters in _batches(ordered):
        marks.set(_left_hashes(characters)[np.arange(len(lengths)), lengths - 1])
    found = [_cuts(marks, *batch) for batch in _batches(ordered)]
    indices, cuts = (np.concatenate(parts) for parts in zip(*found, strict=True))
    order = np.lexsort((-cuts, indices))
    return [
        (left, right)
        for piece, cut in zip(map(ordered.__getitem__, indices[order].tolist()), cuts[order].tolist(), strict=True)
        if (left := piece[:cut]) in scores and (right := piece[cut:]) in scores
    ]


class _Marks:
    """A bit for the hash of each piece: what has none is no piece."""

    def __init__(self, num_pieces: int) -> None:
        bits = (_MARKS * num_pieces).bit_length()
        self._shift = np.uint64(64 - bits)
        self._bits = np.zeros(1 << bits, np.bool_)

    def set(self, hashes: Hashes) -> None:
        self._bits[hashes >> self._shift] = True

    def of(self, hashes: Hashes) -> NDArray[np.bool_]:
        found: NDArray[np.bool_] = self._bits[hashes >> self._shift]
        return found


def _batches(pieces: Sequence[str]) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64], Hashes]]:
    """Yield pieces of like lengths: their indices, their lengths, and their characters by number, (pieces, longest)."""
    lengths = np.array([len(piece) for piece in pieces])
    shortest, longest = 0, 8
    while shortest < lengths.max():
        indices = np.flatnonzero((lengths > shortest) & (lengths <= longest))
        most = max(_BATCH_CHARS // longest, 1)
        for first in range(0, len(indices), most):
            some = indices[first : first + most]
            text = "".join([pieces[index].ljust(longest, "\0") for index in some.tolist()])
            numbers = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
            yield some, lengths[some], numbers.reshape(len(some), longest).astype(np.uint64) + np.uint64(1)
        shortest, longest = longest, 2 * longest


def _left_hashes(characters: Hashes) -> Hashes:
    """Return the hash of each piece's beginning, up to and with each of its characters."""
    hashes = np.empty_like(characters)
    value = np.zeros(len(characters), np.uint64)
    for column in range(characters.shape[1]):
        value = value * _FACTOR + characters[:, column]
        hashes[:, column] = value
    return hashes


def _right_hashes(lengths: NDArray[np.int64], characters: Hashes) -> Hashes:
    """Return the hash of each piece's rest behind each of its characters: what it would have as a piece."""
    hashes = np.zeros_like(characters)
    value, power = np.zeros(len(characters), np.uint64), np.ones(len(characters), np.uint64)
    for column in range(characters.shape[1] - 1, 0, -1):
        is_inside = column < lengths
        value = np.where(is_inside, characters[:, column] * power + value, value)
        power = np.where(is_inside, power * _FACTOR, power)
        hashes[:, column - 1] = value
    return hashes


def _cuts(
    marks: _Marks, indices: NDArray[np.int64], lengths: NDArray[np.int64], characters: Hashes
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return where both parts may be pieces: the pieces' indices, and the characters of the left parts."""
    may_be = np.arange(1, characters.shape[1] + 1) < lengths[:, None]
    may_be &= marks.of(_left_hashes(characters))
    may_be &= marks.of(_right_hashes(lengths, characters))
    rows, columns = np.nonzero(may_be)
    return indices[rows], columns + 1
