"""Which bytes to ask the kernel for while others are read. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from unicorn_async.weights.chunk import PlaneChunk

if TYPE_CHECKING:
    from collections.abc import Iterable

    from unicorn_async.weights.chunk import AnyChunk


class ByteRange(NamedTuple):
    """`nbytes` from `offset` of a file."""

    file: int
    offset: int
    nbytes: int


class ReadAhead:
    """Keeps `window_bytes` asked for beyond what is being read; it goes through the chunks once, in their order."""

    def __init__(self, chunks: Iterable[AnyChunk], window_bytes: int) -> None:
        self._chunks = iter(chunks)
        self._left = window_bytes

    def advance(self, nbytes: int) -> list[ByteRange]:
        """Return what to ask for now that `nbytes` more are being read; neighbours in a file are one range."""
        self._left += nbytes
        ranges: list[ByteRange] = []
        while self._left > 0 and (chunk := next(self._chunks, None)) is not None:
            nbytes = chunk.lines_bytes if isinstance(chunk, PlaneChunk) else chunk.nbytes  # what is beside is known
            self._left -= chunk.read_bytes
            last = ranges[-1] if ranges else None
            if last is not None and (last.file, last.offset + last.nbytes) == (chunk.file, chunk.offset):
                ranges[-1] = last._replace(nbytes=last.nbytes + nbytes)
            else:
                ranges.append(ByteRange(chunk.file, chunk.offset, nbytes))
        return ranges
