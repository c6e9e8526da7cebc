"""Makes a model's tokenizer beside everything else that a start has to do."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from unicorn_async.tokenizer.files import LARGE_BYTES
from unicorn_async.tokenizer.process import TokenizerProcess
from unicorn_async.tokenizer.worker import make_tokenizer

if TYPE_CHECKING:
    from unicorn_async.tokenizer import Tokenizer
    from unicorn_async.tokenizer.worker import Source

_LARGE_VOCABULARY = 16384  # of a GGUF file


class MadeTokenizer(NamedTuple):
    """A tokenizer, and the seconds from the start to its end."""

    tokenizer: Tokenizer
    seconds: float


class TokenizerTask:
    """Begins at once: a large vocabulary in a process of its own, for it would hold up every thread of this one.

    A program without a Python interpreter to start makes it in this process all the same.

    Close it when the tokenizer is used no more.
    """

    def __init__(self, source: Source) -> None:
        self._started = time.monotonic()
        self._source = source
        self._process = TokenizerProcess(source) if is_large(source) and _has_interpreter() else None

    def make(self) -> MadeTokenizer:
        """Return the tokenizer as soon as it is made; to be called once, in a thread.

        Raises:
            TokenizerError: it can't be used, or this was closed meanwhile.
        """
        tokenizer = make_tokenizer(self._source) if self._process is None else self._process.tokenizer()
        return MadeTokenizer(tokenizer, time.monotonic() - self._started)

    def close(self) -> None:
        """End the process, if there is one; a thread in `make` gets an error."""
        if self._process is not None:
            self._process.close()


def _has_interpreter() -> bool:
    """Whether there is a Python to start: a program that embeds or freezes one has none."""
    return bool(sys.executable) and not getattr(sys, "frozen", False)


def is_large(source: Source) -> bool:
    """Whether a tokenizer takes so long to make that other threads would notice."""
    if not isinstance(source, Path):
        tokens = source.get("tokenizer.ggml.tokens")
        return isinstance(tokens, Sequence) and not isinstance(tokens, str) and len(tokens) >= _LARGE_VOCABULARY
    try:
        return (source / "tokenizer.json").stat().st_size >= LARGE_BYTES
    except OSError:
        return False
