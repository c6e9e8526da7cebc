"""Merges that do what a SentencePiece vocabulary's scores say."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


def merges_of(scores: Mapping[str, float]) -> list[tuple[str, str]]:
    """Return every pair of pieces that join to a piece, the pair that is to be joined first in front.

    `scores` are of the pieces that may be joined and result from joining. A higher score comes first, of equal ones the
    longest piece, of one piece's pairs the one with the longest left part.
    """
    ordered = sorted(scores, key=lambda piece: (-scores[piece], -len(piece)))
    return [
        (left, right)
        for piece in ordered
        for cut in range(len(piece) - 1, 0, -1)
        if (left := piece[:cut]) in scores and (right := piece[cut:]) in scores
    ]
