"""Encodes by what was kept of a tokenizer, until the whole is there in its own process."""

from __future__ import annotations

import asyncio
import logging
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING

from unicorn_async.errors import RequestError, TokenizerLostError
from unicorn_async.tokenizer.encoder import WholeNeededError
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

    def table(self, num_ids: int) -> PieceTable:
        """Return the bytes of all tokens; see `PieceBytes`."""
        del num_ids  # they were kept with all of them
        return self._table


class KeptEncoder:
    """An `Encoder` that has no vocabulary to wait for: of short texts the part that they need is enough.

    The process that makes the whole is borrowed; longer texts, and all others from then on, are encoded there.
    """

    def __init__(self, kept: KeptTokenizer, process: TokenizerProcess) -> None:
        self.pieces = KeptPieces(kept.pieces, kept.strip)
        self._process = process
        self._excerpts: Excerpts | None = Excerpts(kept)
        self._whole: Future[None] = Future()
        self._whole.set_running_or_notify_cancel()  # who waits for it and is cancelled leaves it to others
        threading.Thread(target=self._wait, name="whole tokenizer", daemon=True).start()

    def encode(self, text: str, *, with_control: bool) -> list[int]:
        """Return the ids; see `Encoder.encode`. Blocks where only the whole can tell, until that is there."""
        ids = self.encode_part(text, with_control=with_control)
        if ids is not None:
            return ids
        self._whole.result()
        return self._process.encode(text, with_control=with_control)

    def encode_part(self, text: str, *, with_control: bool) -> list[int] | None:
        """Return the ids without the whole; None where it is there, or is what can tell."""
        excerpts = self._excerpts
        if excerpts is None or self._whole.done():
            return None
        with library_errors("the vocabulary can't encode the text"):
            try:
                return excerpts.encode(text, with_control=with_control)
            except (TypeError, UnicodeEncodeError) as exc:
                raise RequestError(f"the text is not valid Unicode: {exc}") from exc

    def at_once(self) -> PartEncoder | None:
        """Return one that does not wait for the whole, unless that is there."""
        return None if self._whole.done() else PartEncoder(self)

    async def whole(self) -> None:
        """Wait until the whole is there, or never will be."""
        await asyncio.wrap_future(self._whole)

    def least_tokens(self, text: str) -> int:
        """Return 0: nobody can tell."""
        return 0

    def close(self) -> None:
        """End the process."""
        self._process.close()

    def _wait(self) -> None:
        try:
            self._process.make()
        except TokenizerLostError as exc:  # who needs it asks the process, which is started again
            _log.debug("the whole tokenizer: %s", exc)
        else:
            self._excerpts = None  # with the tables that only it needs
        finally:
            self._whole.set_result(None)  # whatever happened: nobody waits for what does not come


class PartEncoder:
    """Encodes by what was kept alone."""

    def __init__(self, kept: KeptEncoder) -> None:
        self._kept = kept
        self.pieces = kept.pieces

    def encode(self, text: str, *, with_control: bool) -> list[int]:
        """Return the ids; raises `WholeNeededError` where only the whole can tell."""
        ids = self._kept.encode_part(text, with_control=with_control)
        if ids is None:
            raise WholeNeededError
        return ids

    def least_tokens(self, text: str) -> int:
        """Return 0: nobody can tell."""
        return 0

    def at_once(self) -> PartEncoder:
        """Return this."""
        return self

    async def whole(self) -> None:
        """Wait as that does which has the whole."""
        await self._kept.whole()

    def close(self) -> None:
        """Do nothing: what it encodes by is another's."""
