"""What a grammar has to know of a model's vocabulary: small, and fit to be sent to another process."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from array import array


class Vocabulary(NamedTuple):
    """The bytes of the tokens 0, 1, 2, …, where each ends, which of them are control tokens, and which end an answer.

    Logits, and masks with them, are of `size` tokens: those beyond the bytes mean nothing and never come.
    """

    data: bytes
    ends: array[int]
    control: dict[int, str]
    eos_token_ids: tuple[int, ...]
    size: int

    @property
    def mask_bytes(self) -> int:
        """Size of a mask: a bit for each token, in words of 32."""
        return -(-self.size // 32) * 4

    def tokens(self) -> list[bytes]:
        """Return the bytes of every token; none for those that mean nothing."""
        found: list[bytes] = []
        start = 0
        for token_id, end in enumerate(self.ends[: self.size]):
            control = self.control.get(token_id)
            found.append(self.data[start:end] if control is None else control.encode())
            start = end
        return found + [b""] * (self.size - len(found))
