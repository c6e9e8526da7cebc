"""Encodes by RWKV's world vocabulary: at each place of a text the longest token that is there."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from unicorn_async.errors import RequestError
from unicorn_async.tokenizer.pieces import PieceTable
from unicorn_async.tokenizer.world_vocabulary import END

if TYPE_CHECKING:
    from unicorn_async.tokenizer.world_vocabulary import WorldVocabulary

_END = re.compile(f"({re.escape(END)})")


class WorldPieces:
    """The bytes of the tokens, see `PieceBytes`."""

    strip = (b" ", 0)

    def __init__(self, vocabulary: WorldVocabulary) -> None:
        self._tokens = vocabulary.tokens

    def __getitem__(self, token_id: int) -> bytes:
        """Bytes of a token; empty for an id outside of the vocabulary."""
        if token_id == 0:
            return END.encode()
        return self._tokens[token_id] if 0 < token_id < len(self._tokens) else b""

    def table(self, num_ids: int) -> PieceTable:
        """Return the bytes of all tokens; see `PieceBytes`."""
        table = PieceTable()
        for token_id in range(num_ids):
            table.append(self[token_id])
        return table


class WorldEncoder:
    """Encodes in this process, see `Encoder`; nothing in it changes, so any thread may call it."""

    def __init__(self, vocabulary: WorldVocabulary) -> None:
        self.pieces = WorldPieces(vocabulary)
        self._ids = vocabulary.ids
        self._lengths = vocabulary.lengths
        self._longest = max(len(END), *map(len, vocabulary.ids))

    def encode(self, text: str, *, with_control: bool) -> list[int]:
        """Return the ids; see `Encoder.encode`."""
        ids: list[int] = []
        for part in _END.split(text) if with_control else (text,):
            if with_control and part == END:
                ids.append(0)
                continue
            try:
                self._append(ids, part.encode())
            except UnicodeEncodeError as exc:
                raise RequestError(f"the text is not valid Unicode: {exc}") from exc
        return ids

    def at_once(self) -> None:
        """Return nothing: the vocabulary is there."""

    async def whole(self) -> None:
        """Return at once."""

    def least_tokens(self, text: str) -> int:
        """Return how many tokens a text is sure to have; see `Encoder`."""
        return -(-len(text.encode("utf-8", "replace")) // self._longest)

    def close(self) -> None:
        """Do nothing: the memory goes with the object."""

    def _append(self, ids: list[int], data: bytes) -> None:
        start, known, lengths = 0, self._ids, self._lengths
        while start < len(data):
            for length in lengths.get(data[start : start + 2], ()):
                token_id = known.get(data[start : start + length])
                if token_id is not None and start + length <= len(data):
                    break
            else:
                length, token_id = 1, known[data[start : start + 1]]
            ids.append(token_id)
            start += length
