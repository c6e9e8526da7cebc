"""Token ids to text, one token at a time."""

from __future__ import annotations

import codecs
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from unicorn_async.tokenizer.pieces import PieceBytes


class TokenBytes(Protocol):
    """What a decoder needs of a tokenizer."""

    pieces: PieceBytes
    hidden_ids: frozenset[int]


class StreamDecoder:
    """Decodes incrementally: the joined results equal `Tokenizer.decode` of all ids.

    A character whose bytes are spread over tokens comes with the last of them. Bytes that are not UTF-8 become
    U+FFFD. The cost per token does not depend on how many came before.
    """

    __slots__ = ("_decoder", "_skipped", "_strip_left", "_tokenizer")

    def __init__(self, tokenizer: TokenBytes, *, skip_special: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skipped = tokenizer.hidden_ids if skip_special else frozenset()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._strip_left = tokenizer.pieces.strip[1]

    def add(self, token_id: int) -> str:
        """Return the text that is complete with this token."""
        if token_id in self._skipped:
            return ""
        piece = self._tokenizer.pieces[token_id]
        if self._strip_left and piece:
            piece = self._stripped(piece)
        return self._decoder.decode(piece)

    def finish(self) -> str:
        """Return what is left of an incomplete character (U+FFFD), and be ready for another text."""
        rest = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        self._strip_left = self._tokenizer.pieces.strip[1]
        return rest

    def _stripped(self, piece: bytes) -> bytes:
        content = self._tokenizer.pieces.strip[0]
        while self._strip_left and piece.startswith(content):
            piece = piece.removeprefix(content)
            self._strip_left -= 1
        if piece:
            self._strip_left = 0
        return piece
