"""Makes a model's tokenizer beside everything else that a start has to do."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from unicorn_async.checkpoint.location import find_model
from unicorn_async.errors import CheckpointError, ConfigError
from unicorn_async.tokenizer.files import LARGE_BYTES
from unicorn_async.tokenizer.kept import parse_kept
from unicorn_async.tokenizer.kept_encoder import KeptEncoder
from unicorn_async.tokenizer.on_demand import OnDemandProcess
from unicorn_async.tokenizer.process import TokenizerProcess
from unicorn_async.tokenizer.template_process import TemplateProcess
from unicorn_async.tokenizer.tokenizer import Tokenizer
from unicorn_async.tokenizer.worker import make_tokenizer
from unicorn_async.tokenizer.world_vocabulary import FILE_NAME, LARGE_FILE_BYTES

if TYPE_CHECKING:
    from unicorn_async.tokenizer.kept_folder import KeptFolder
    from unicorn_async.tokenizer.worker import Source

_LARGE_VOCABULARY = 16384  # of a GGUF file


class MadeTokenizer(NamedTuple):
    """A tokenizer, and the seconds from the start to its end."""

    tokenizer: Tokenizer
    seconds: float


class TokenizerTask:
    """Makes a tokenizer beside everything else: a large one in a process of its own, which would hold up every thread.

    What an earlier start kept of a large one stands for it until that process has made it; it is looked for at once,
    before the model's files have been checked. The chat template, a stranger's program, has a process of its own,
    however small it is. A program without a Python interpreter to start has all of that in this process all the same.
    Close it when the tokenizer is used no more.
    """

    def __init__(self, model: str | Path, folder: KeptFolder | None, path: Path | None = None) -> None:
        """Look into the `folder` of kept tokenizers, None = nothing is kept; `path` is where the model is, if known."""
        self._started = time.monotonic()
        self._folder = folder
        self._file: Path | None = None
        self._kept: memoryview | None = None  # the file's content: to take it apart keeps other threads waiting
        self._source: Source | None = None
        self._process: TokenizerProcess | None = None
        self._long_texts: OnDemandProcess | None = None
        # It imports Jinja, which takes as long as all that is done here until its template is known.
        self._templates = TemplateProcess() if _has_interpreter() else None
        self._looking = threading.Thread(target=self._look, args=(model, path), name="kept tokenizer")
        self._looking.start()

    @property
    def has_kept(self) -> bool:
        """Whether one that was kept is there to `make` it of, once it has begun."""
        return self._process is not None and self._kept is not None

    def begin(self, source: Source) -> None:
        """Begin to make it; called once, when the model's files are checked."""
        self._source = source
        if not is_large(source) or not _has_interpreter():
            return
        self._looking.join()
        has_kept = self._kept is not None
        self._process = TokenizerProcess(source, keep_in=None if has_kept else self._file, in_background=has_kept)

    def make(self) -> MadeTokenizer:
        """Return the tokenizer as soon as it is made; to be called once, in a thread, after `begin`.

        Raises:
            TokenizerError: it can't be used, or this was closed meanwhile.
        """
        assert self._source is not None, "it has begun"
        if self._process is None:
            tokenizer = make_tokenizer(self._source)
            if _has_interpreter():
                self._long_texts = OnDemandProcess(self._source)
                tokenizer = tokenizer.with_apart(self._long_texts)
        elif self._kept is not None:
            kept, self._kept = parse_kept(self._kept), None  # its tables go when the whole is there
            tokenizer = Tokenizer(KeptEncoder(kept, self._process), kept.facts, apart=self._process)
        else:
            tokenizer = self._process.tokenizer()
        return MadeTokenizer(self._with_template(tokenizer), time.monotonic() - self._started)

    def _with_template(self, tokenizer: Tokenizer) -> Tokenizer:
        template, templates = tokenizer.chat_template, self._templates
        if template is None:
            if templates is not None:
                templates.close()
            return tokenizer
        source = tokenizer.facts.template_source(template)
        if templates is None:
            # Jinja takes longer to import than all of this package, and most programs have it in the other process.
            from unicorn_async.tokenizer.local_conversations import LocalConversations

            return tokenizer.with_conversations(LocalConversations(source))
        templates.prepare(source)
        return tokenizer.with_conversations(templates)

    def close(self) -> None:
        """End the processes, if there are some; a thread in `make` gets an error."""
        self._looking.join()
        if self._templates is not None:
            self._templates.close()
        if self._process is not None:
            self._process.close()
        if self._long_texts is not None:
            self._long_texts.close()

    def _look(self, model: str | Path, path: Path | None) -> None:
        if self._folder is None:
            return
        with contextlib.suppress(ConfigError, CheckpointError):  # who reads the files says so
            self._file = self._folder.file_for(find_model(model) if path is None else path)
        if self._file is not None:
            self._kept = self._folder.content(self._file)


def _has_interpreter() -> bool:
    """Whether there is a Python to start: a program that embeds or freezes one has none."""
    return bool(sys.executable) and not getattr(sys, "frozen", False)


def is_large(source: Source) -> bool:
    """Whether a tokenizer takes so long to make that other threads would notice."""
    if not isinstance(source, Path):
        tokens = source.get("tokenizer.ggml.tokens")
        return isinstance(tokens, Sequence) and not isinstance(tokens, str) and len(tokens) >= _LARGE_VOCABULARY
    for name, limit in (("tokenizer.json", LARGE_BYTES), (FILE_NAME, LARGE_FILE_BYTES)):
        with contextlib.suppress(OSError):
            return (source / name).stat().st_size >= limit
    return False
