"""The folder of kept tokenizers: a file for each source, named by what tells the source from others."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import tokenizers

from unicorn_async.tokenizer.kept import FORMAT, is_whole, parse_kept

if TYPE_CHECKING:
    from collections.abc import Sequence

    from unicorn_async.tokenizer.kept import KeptTokenizer

MAX_FILES = 16
MAX_BYTES = 512 << 20  # of all files; a vocabulary of 262,144 tokens takes 20 MB
_SUFFIX = ".tokenizer"
_PARTIAL = ".part"
# What of a model's directory a tokenizer is made from.
_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "chat_template.json",
    "generation_config.json",
    "config.json",
)


class KeptFolder:
    """Kept tokenizers in a folder that need not exist yet; several processes may use it. All methods block on the disk.

    A folder that can't be read or written is as good as none: nothing here raises for it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def file_for(self, model: Path) -> Path | None:
        """Return where the tokenizer of a model, a directory or a GGUF file, is kept or would be.

        The name changes with the files' identity, size and times, and with the library's version. None: they can't be
        looked at.
        """
        digest = hashlib.blake2b(f"{FORMAT} {tokenizers.__version__} {os.fspath(model)}".encode(), digest_size=20)
        try:
            for path in [model / name for name in _FILES] if model.is_dir() else [model]:
                digest.update(_stamp(path))
        except OSError:
            return None
        return self.path / f"{digest.hexdigest()}{_SUFFIX}"

    def read(self, file: Path) -> KeptTokenizer | None:
        """Return what a file holds; None where there is none, or a damaged one, which is removed."""
        content = self.content(file)
        return None if content is None else parse_kept(content)

    def content(self, file: Path) -> memoryview | None:
        """Return a file's bytes, for `parse_kept`; None as `read`. Other threads run meanwhile."""
        try:
            with file.open("rb", buffering=0) as opened:
                content = memoryview(opened.readall())
        except OSError:
            return None
        found = is_whole(content)
        with contextlib.suppress(OSError):
            if found:
                os.utime(file)
            else:
                file.unlink()
        return content if found else None

    def write(self, file: Path, content: bytes) -> bool:
        """Write a file in one step, remove those unused for longest beyond the limits; returns whether it is there."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            descriptor, partial = tempfile.mkstemp(suffix=_PARTIAL, dir=self.path)
            try:
                with os.fdopen(descriptor, "wb") as opened:
                    opened.write(content)
                Path(partial).replace(file)
            except BaseException:
                Path(partial).unlink(missing_ok=True)
                raise
        except OSError:
            return False
        self.prune()
        return True

    def files(self) -> Sequence[tuple[Path, int]]:
        """Return the files with their sizes, the one that was used last first; what writers have left is among them."""
        found: list[tuple[float, Path, int]] = []
        with contextlib.suppress(OSError):
            for path in self.path.iterdir():
                with contextlib.suppress(OSError):
                    if path.suffix in (_SUFFIX, _PARTIAL):
                        status = path.stat()
                        found.append((status.st_mtime, path, status.st_size))
        return [(path, nbytes) for _, path, nbytes in sorted(found, reverse=True)]

    def prune(self, *, most: int = MAX_FILES, nbytes: int = MAX_BYTES) -> int:
        """Remove the files unused for longest that are too many or too large together; returns how many went."""
        total = removed = 0
        for count, (path, size) in enumerate(self.files(), 1):
            total += size
            if count > most or total > nbytes:
                with contextlib.suppress(OSError):
                    path.unlink()
                    removed += 1
        return removed


def _stamp(path: Path) -> bytes:
    try:
        found = path.stat()
    except FileNotFoundError:
        return b"none;"
    parts = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
    return f"{parts};".encode()
