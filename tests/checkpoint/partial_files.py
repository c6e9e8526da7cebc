"""Files that come bit by bit, as a download brings them."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from unicorn_async.checkpoint.partial_file import PartialFile

if TYPE_CHECKING:
    from pathlib import Path


class Coming:
    """A file that is at `path` in the end, of which the first `there` bytes are beside it so far."""

    def __init__(self, path: Path, content: bytes, there: int, *, turn: int = 0) -> None:
        self.path = path
        self._content = content
        self._part = path.with_name(path.name + ".part")
        self._part.parent.mkdir(parents=True, exist_ok=True)
        self._part.write_bytes(content[:there])
        self.file = PartialFile(self._part, len(content), hashlib.sha256(content).hexdigest(), turn=turn)

    @classmethod
    def of(cls, path: Path, there: int, *, turn: int = 0) -> Coming:
        """Take the rest of a file away again."""
        content = path.read_bytes()
        path.unlink()
        return cls(path, content, there, turn=turn)

    def come(self, end: int | None = None) -> None:
        """Have the bytes before `end` come, None = all."""
        with self._part.open("ab") as opened:
            opened.write(self._content[self.file.num_there : end])
        self.file.grow(self._part.stat().st_size)

    def settle(self) -> None:
        """Have all come, be found right, and be at its place."""
        self.come()
        self.file.settle(self.path)
