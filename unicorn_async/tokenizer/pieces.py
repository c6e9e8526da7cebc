"""The bytes that each token stands for."""

from __future__ import annotations

import json
import re
from array import array
from typing import TYPE_CHECKING, Protocol

from unicorn_async.errors import TokenizerError

if TYPE_CHECKING:
    from collections.abc import Mapping

    import tokenizers

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class PieceBytes(Protocol):
    """The bytes of tokens by their ids; `strip` as in `Pieces`."""

    strip: tuple[bytes, int]

    def __getitem__(self, token_id: int) -> bytes:
        """Bytes of a token, special ones included; empty for an id outside of the vocabulary."""

    def table(self, num_ids: int) -> PieceTable:
        """Return the bytes of all tokens below `num_ids`, borrowed; of a large vocabulary it may take a second."""


class Pieces:
    """Token ids to bytes, by the rules of the tokenizer's decoder.

    Tokens are independent of each other but for `strip`: so many times the byte string may be dropped at the very
    beginning of a text (SentencePiece puts a space there). Two kinds of decoder are known: byte-level, and
    SentencePiece's with or without byte fallback.

    Raises:
        TokenizerError: the decoder is of another kind.
    """

    def __init__(self, tokenizer: tokenizers.Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._cache: dict[int, bytes] = {}
        self._byte_level = self._byte_fallback = False
        self._replacements: list[tuple[str, str]] = []
        self.strip: tuple[bytes, int] = (b" ", 0)
        for step in _steps(_decoder_state(tokenizer)):
            self._add_step(step)
        self._byte_of_char = _byte_of_char() if self._byte_level else {}

    @property
    def byte_tokens(self) -> tuple[str, ...] | None:
        """The tokens of single bytes in a byte-level vocabulary, None in others."""
        return tuple(self._byte_of_char) if self._byte_level else None

    def __getitem__(self, token_id: int) -> bytes:
        """Bytes of a token, special ones included; empty for an id outside of the vocabulary."""
        piece = self._cache.get(token_id)
        if piece is None:
            token = self._tokenizer.id_to_token(token_id) if token_id >= 0 else None
            piece = self._cache[token_id] = b"" if token is None else self._bytes(token)
        return piece

    def table(self, num_ids: int) -> PieceTable:
        """Return the bytes of all tokens; see `PieceBytes`."""
        table = PieceTable()
        for token_id in range(num_ids):
            table.append(self[token_id])
        return table

    def _bytes(self, token: str) -> bytes:
        if self._byte_level:
            try:
                return bytes(self._byte_of_char[char] for char in token)
            except KeyError:  # an added token, which is plain text
                return token.encode()
        if self._byte_fallback and token.startswith("<0x") and (match := _BYTE_TOKEN.fullmatch(token)):
            return bytes((int(match[1], 16),))
        for old, new in self._replacements:
            token = token.replace(old, new)
        return token.encode()

    def _add_step(self, step: Mapping[str, object]) -> None:
        match step:
            case {"type": "ByteLevel"}:
                self._byte_level = True
            case {"type": "ByteFallback"}:
                self._byte_fallback = True
            case {"type": "Fuse"}:
                pass
            case {"type": "Replace", "pattern": {"String": str(old)}, "content": str(new)}:
                self._replacements.append((old, new))
            case {"type": "Strip", "content": str(content), "start": int(start), "stop": 0}:
                self.strip = (content.encode(), start)
            case {"type": "Metaspace", "replacement": str(replacement)}:
                self._replacements.append((replacement, " "))
                self.strip = (b" ", 0 if step.get("prepend_scheme") == "never" else 1)
            case _:
                raise TokenizerError(f"tokenizer.json: decoder {step.get('type')!r} is not supported")


class PieceTable:
    """The bytes of the tokens 0, 1, 2, … one after the other; it is filled in steps, and fit to be sent."""

    def __init__(self, data: bytearray | None = None, ends: array[int] | None = None) -> None:
        """Begin with what there is: the `data` of tokens, and where each ends."""
        self.data = bytearray() if data is None else data
        self.ends = array("Q") if ends is None else ends

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, token_id: int) -> bytes:
        """Bytes of a token; empty for one that is not in the table."""
        if not 0 <= token_id < len(self.ends):
            return b""
        return bytes(self.data[self.ends[token_id - 1] if token_id else 0 : self.ends[token_id]])

    def append(self, piece: bytes) -> None:
        """Add the next token."""
        self.data += piece
        self.ends.append(len(self.data))


def _decoder_state(tokenizer: tokenizers.Tokenizer) -> dict[str, object]:
    if tokenizer.decoder is None:
        raise TokenizerError("tokenizer.json: there is no decoder")
    state: dict[str, object] = json.loads(tokenizer.decoder.__getstate__())
    return state


def _steps(state: dict[str, object]) -> list[dict[str, object]]:
    decoders = state.get("decoders")
    return decoders if isinstance(decoders, list) else [state]


def _byte_of_char() -> dict[str, int]:
    """The byte of each character in byte-level vocabularies: printable bytes are themselves, the rest follow 255."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    result = {chr(byte): byte for byte in printable}
    others = [byte for byte in range(256) if chr(byte) not in result]
    return result | {chr(256 + index): byte for index, byte in enumerate(others)}
