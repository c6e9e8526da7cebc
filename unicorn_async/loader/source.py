"""Where a load takes its bytes from: a checkpoint's files, or an entry of the cache."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

from unicorn_async.errors import CheckpointError
from unicorn_async.weights.chunk import PlaneChunk

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence
    from pathlib import Path

    from unicorn_async.checkpoint.file_stamp import FileStamp
    from unicorn_async.checkpoint.partial_file import PartialFiles
    from unicorn_async.loader.checksums import ChecksumKernel
    from unicorn_async.loader.read_strategy import ReadStrategy
    from unicorn_async.packing import Piece
    from unicorn_async.weights.chunk import AnyChunk


@dataclass(frozen=True, slots=True)
class LoadSource:
    """Files, what is read of them in the order of the layers, and how.

    `stamps` are what the files were when their headers were read. `checksums` are those that the destinations must have
    once they are read, by name; they are empty where the files are taken as they are. `partial` are those of the files
    that are on their way: their chunks are read in the order in which they come.
    """

    files: tuple[Path, ...]
    chunks: tuple[AnyChunk, ...]
    strategy: ReadStrategy
    stamps: tuple[FileStamp, ...] = ()
    checksums: Mapping[str, str] = field(default_factory=dict)
    partial: PartialFiles = field(default_factory=dict)

    @property
    def bytes_to_read(self) -> int:
        """Bytes of all chunks, as the files have them."""
        return sum(chunk.read_bytes for chunk in self.chunks)

    def arrival(self, chunk: AnyChunk) -> tuple[int, int]:
        """Return what orders chunks as they come: the turn of their last file, and where in it they end."""
        ends = (
            (-1, 0) if (found := self.partial.get(self.files[piece.file])) is None else (found.turn, _end(piece))
            for piece in _pieces(chunk)
        )
        return max(ends)

    async def arrived(self, chunks: Iterable[AnyChunk]) -> None:
        """Return when the bytes of chunks can be read.

        Raises:
            DownloadError: they don't come any more.
        """
        for piece in (piece for chunk in chunks for piece in _pieces(chunk)):
            found = self.partial.get(self.files[piece.file])
            if found is not None:
                await found.reached(_end(piece))

    async def settled(self) -> None:
        """Return when all files are there, and are what they should be; raises as `arrived`."""
        for found in self.partial.values():
            await found.settled()

    def of_layers(self, layers: Collection[int]) -> LoadSource:
        """Return the part of it that belongs to some layers."""
        wanted = frozenset(layers)
        return replace(self, chunks=tuple(chunk for chunk in self.chunks if chunk.layer in wanted))


class CachedWeights(Protocol):
    """What a load needs to take device-ready weights in place of the checkpoint's."""

    @property
    def source(self) -> LoadSource:
        """The entry's file; every destination has a checksum."""

    @property
    def checksum(self) -> ChecksumKernel:
        """What computes checksums on the device."""

    async def damaged(self, error: CheckpointError) -> None:
        """Take note that the entry is no good; the load goes on without it."""


class Prelude(Protocol):
    """What has to be on the device before the first chunk that is blended, for as long as a load needs it."""

    async def ready(self) -> None:
        """Return when it is there; raises CheckpointError or OutOfMemoryError."""

    def close(self) -> None:
        """Free it; nothing on the device uses it any more."""


def only_checkpoint_error(error: BaseException) -> CheckpointError | None:
    """Return the first error of those that ended a load, if files are the reason for all of them."""
    if isinstance(error, BaseExceptionGroup):
        found = [only_checkpoint_error(inner) for inner in error.exceptions]
        return found[0] if all(found) else None
    return error if isinstance(error, CheckpointError) else None


def _pieces(chunk: AnyChunk) -> Sequence[AnyChunk | Piece]:
    """What is read of files; groups of codes were read with the headers."""
    if not isinstance(chunk, PlaneChunk):
        return [chunk]
    return [piece for _, piece in chunk.pieces if piece is not chunk.plane.groups]


def _end(piece: AnyChunk | Piece) -> int:
    return piece.offset + piece.nbytes
