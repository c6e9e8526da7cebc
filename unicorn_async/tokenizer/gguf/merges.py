"""Merges that do what a SentencePiece vocabulary's scores say."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_MARK_SHIFT = np.uint64(40)  # a hash's highest 24 bits have a mark
_BATCH = 1 << 13  # pieces, of which a file has 256 characters at most


def merges_of(scores: Mapping[str, float]) -> list[tuple[str, str]]:
    """Return every pair of pieces that join to a piece, the pair that is to be joined first in front.

    `scores` are of the pieces that may be joined and result from joining. A higher score comes first, of equal ones the
    longest piece, of one piece's pairs the one with the longest left part.
    """
    ordered = sorted(scores, key=lambda piece: (-scores[piece], -len(piece)))
    batches = [ordered[first : first + _BATCH] for first in range(0, len(ordered), _BATCH)]
    marks = np.zeros(1 << 24, np.bool_)
    for batch in batches:
        lengths, characters = _characters(batch)
        marks[_left_hashes(characters)[np.arange(len(batch)), lengths - 1] >> _MARK_SHIFT] = True
    return [
        (left, right)
        for batch in batches
        for row, cut in _cuts(marks, *_characters(batch))
        if (left := batch[row][:cut]) in scores and (right := batch[row][cut:]) in scores
    ]


def _characters(pieces: Sequence[str]) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
    """Return the lengths of pieces, and their characters by number, (pieces, longest)."""
    lengths = np.array([len(piece) for piece in pieces])
    longest = int(lengths.max(initial=0))
    text = "".join([piece.ljust(longest, "\0") for piece in pieces]).encode("utf-32-le", "surrogatepass")
    return lengths, np.frombuffer(text, np.uint32).reshape(len(pieces), longest).astype(np.uint64) + np.uint64(1)


def _left_hashes(characters: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the hash of each piece's beginning, up to and with each of its characters."""
    hashes = np.empty_like(characters)
    value = np.zeros(len(characters), np.uint64)
    for column in range(characters.shape[1]):
        value = value * _FACTOR + characters[:, column]
        hashes[:, column] = value
    return hashes


def _right_hashes(lengths: NDArray[np.int64], characters: NDArray[np.uint64]) -> NDArray[np.uint64]:
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
    marks: NDArray[np.bool_], lengths: NDArray[np.int64], characters: NDArray[np.uint64]
) -> list[tuple[int, int]]:
    """Return (row, cut) where both parts may be pieces, by row, the longest left part first."""
    longest = characters.shape[1]
    may_be = np.arange(1, longest + 1) < lengths[:, None]
    may_be &= marks[_left_hashes(characters) >> _MARK_SHIFT]
    may_be &= marks[_right_hashes(lengths, characters) >> _MARK_SHIFT]
    rows, columns = np.nonzero(may_be[:, ::-1])
    cuts: list[int] = (longest - columns).tolist()
    return list(zip(rows.tolist(), cuts, strict=True))
