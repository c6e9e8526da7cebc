"""Encodes by what was kept of a tokenizer, until the whole is there in its own process."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from unicorn_async.errors import RequestError, TokenizerLostError, UnicornError
from unicorn_async.tokenizer.excerpt import Excerpts
from unicorn_async.tokenizer.library_errors import library_errors

if TYPE_CHECKING:
    from unicorn_async.tokenizer.kept import KeptTokenizer
    from unicorn_async.tokenizer.pieces import PieceTable
    from unicorn_async.tokenizer.process import TokenizerProcess

_log = logging.getLogger(__name__)


class KeptPieces:
    """The bytes of tokens; see `PieceBytes`."""

    def __init__(self, table: PieceTable, strip: tuple[bytes, int]) -> None:
        self.strip = strip
        self._table = table

    def __getitem__(self, token_id: int) -> bytes:
        """Bytes of a token, special ones included; empty for an id outside of the vocabulary."""
        return self._table[token_id]


class KeptEncoder:
    """An `Encoder` that has no vocabulary to wait for: of short texts the part that they need is enough.

    The process that makes the whole is borrowed; longer texts, and all others from then on, are encoded there.
    """

    def __init__(self, kept: KeptTokenizer, process: TokenizerProcess) -> None:
        self.pieces = KeptPieces(kept.pieces, kept.strip)
        self._process = process
        self._excerpts: Excerpts | None = Excerpts(kept)
        self._failure: UnicornError | None = None
        self._whole = threading.Event()
        threading.Thread(target=self._wait, name="whole tokenizer", daemon=True).start()

    def encode(self, text: str, *, with_control: bool) -> list[int]:
        """Return the ids; see `Encoder.encode`."""
        excerpts = self._excerpts
        if excerpts is not None and not self._whole.is_set():
            with library_errors("the vocabulary can't encode the text"):
                try:
                    ids = excerpts.encode(text, with_control=with_control)
                except (TypeError, UnicodeEncodeError) as exc:
                    raise RequestError(f"the text is not valid Unicode: {exc}") from exc
            if ids is not None:
                return ids
        self._whole.wait()
        if self._failure is not None and not isinstance(self._failure, TokenizerLostError):
            raise self._failure
        return self._process.encode(text, with_control=with_control)

    def close(self) -> None:
        """End the process."""
        self._process.close()

    def _wait(self) -> None:
        try:
            self._process.tokenizer()
        except UnicornError as exc:
            self._failure = exc
            _log.debug("the whole tokenizer: %s", exc)
        else:
            self._excerpts = None  # with the tables that only it needs
        finally:
            self._whole.set()  # whatever happened: nobody waits for what does not come
