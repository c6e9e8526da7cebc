"""A double of the process of the whole tokenizer."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from unicorn_async.errors import TokenizerLostError
    from unicorn_async.tokenizer import Tokenizer


class HeldProcess:
    """Stands in for the process of the whole tokenizer, which is made when the test says so."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.made = threading.Event()
        self.texts: list[str] = []
        self.failure: TokenizerLostError | None = None
        self._tokenizer = tokenizer

    def make(self) -> None:
        assert self.made.wait(600)
        if self.failure is not None:
            raise self.failure

    def encode(self, text: str, *, with_control: bool) -> list[int]:
        if self.failure is not None:
            raise self.failure
        self.texts.append(text)
        return self._tokenizer.encoder.encode(text, with_control=with_control)

    def close(self) -> None:
        self.made.set()
