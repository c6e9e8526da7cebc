"""What turns plain text into token ids."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Protocol

from unicorn_async.errors import RequestError
from unicorn_async.tokenizer.apart import LONG_CHARS
from unicorn_async.tokenizer.byte_bound import byte_bound
from unicorn_async.tokenizer.library_errors import library_errors
from unicorn_async.tokenizer.pieces import Pieces

if TYPE_CHECKING:
    import tokenizers

    from unicorn_async.tokenizer.byte_bound import ByteBound
    from unicorn_async.tokenizer.pieces import PieceBytes


class WholeNeededError(Exception):
    """Only the whole vocabulary can encode the text, and it is not there yet."""


class Encoder(Protocol):
    """Encodes text by a vocabulary; any thread may call it."""

    def encode(self, text: str, *, with_control: bool) -> list[int]:
        """Return the ids; strings of control tokens are those with `with_control`, else plain text.

        Raises:
            RequestError: the text is not valid Unicode.
            TokenizerError: the vocabulary can't encode it, or the encoder is gone.
        """

    def at_once(self) -> Encoder | None:
        """Return one that raises `WholeNeededError` rather than wait for the vocabulary; None if it is there."""

    async def whole(self) -> None:
        """Wait until the vocabulary is there, or never will be."""

    @property
    def pieces(self) -> PieceBytes:
        """The bytes of the tokens."""

    def least_tokens(self, text: str) -> int:
        """Return how many tokens a text is sure to have at least; 0 where nobody can tell before it is encoded."""

    def close(self) -> None:
        """Free what it holds; a second call does nothing."""


class BackendEncoder:
    """Encodes in this process.

    Raises:
        TokenizerError: the decoder is of a kind that is not supported.
    """

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        self.backend = backend
        self.pieces = Pieces(backend)
        self._lock = threading.Lock()
        self._bound: ByteBound | None = None
        self._has_bound = False

    def encode(self, text: str, *, with_control: bool) -> list[int]:
        """Return the ids; see `Encoder.encode`."""
        with self._lock, library_errors("the vocabulary can't encode the text"):
            self.backend.encode_special_tokens = not with_control
            try:
                ids = self._ids(text)
            except (TypeError, UnicodeEncodeError) as exc:
                raise RequestError(f"the text is not valid Unicode: {exc}") from exc
        return ids

    def at_once(self) -> None:
        """Return nothing: the vocabulary is there."""

    async def whole(self) -> None:
        """Return at once."""

    def least_tokens(self, text: str) -> int:
        """Return how many tokens a text is sure to have; see `Encoder`."""
        with self._lock:
            if not self._has_bound:
                self._bound, self._has_bound = byte_bound(self.backend, self.pieces), True
        return 0 if self._bound is None else self._bound.least_tokens(text)

    def _ids(self, text: str) -> list[int]:
        if len(text) > LONG_CHARS:  # the one that lets go of Python's global lock, for which a short text is too short
            encoding = self.backend.encode_batch_fast([text], add_special_tokens=False)[0]
        else:
            encoding = self.backend.encode(text, add_special_tokens=False)
        ids: list[int] = encoding.ids
        return ids

    def close(self) -> None:
        """Do nothing: the memory goes with the object."""
