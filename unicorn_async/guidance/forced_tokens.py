"""Which token comes where a grammar leaves only one text to go on with."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence


class ForcedTokens:
    """Finds tokens by their bytes: of those that a forced text begins with, the longest.

    A model may cut the text otherwise, so it is a guess; a certain one where the mask has a single token.
    """

    def __init__(self, tokens: Sequence[bytes], control: Collection[int]) -> None:
        """`tokens` are the bytes of each; those of `control` tokens are no text."""
        left_out = frozenset(control)
        self._ids: dict[bytes, int] = {}
        for token_id, piece in enumerate(tokens):
            if piece and token_id not in left_out:
                self._ids.setdefault(piece, token_id)
        self._longest = max(map(len, self._ids), default=0)

    def next(self, mask: bytes, forced: bytes) -> int | None:
        """Return the token that comes next, by the mask of those that may and the bytes that have to; None = open."""
        bits = int.from_bytes(mask, "little")
        if bits & (bits - 1) == 0:
            return bits.bit_length() - 1
        for length in range(min(self._longest, len(forced)), 0, -1):
            token_id = self._ids.get(forced[:length])
            if token_id is not None:
                return token_id
        return None
