"""Where a tensor's bytes lie."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from unicorn_async.packing import Packing


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One tensor of a file, row-major; `offset` is absolute in the file, `dtype` is the format's word for it."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class ScalePlane:
    """The scales of a tensor's blocks, where they are a tensor of their own; see `SourceTensor`."""

    file: int
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class SourceTensor:
    """One tensor on disk: `file` indexes `Checkpoint.files`, `offset` is absolute in that file.

    `interleaved_head_rows` is 0 where rows lie in the model's order. Otherwise the file has, for each head of so many
    rows, row i and row i + half a head side by side (what rotary embeddings of adjacent pairs want). With
    `scales` it has the codes of blocks alone. With a `packing` it has codes that lie as that says, `dtype` is what the
    device makes of them, and `shape` the matrix's.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: int
    offset: int
    nbytes: int
    interleaved_head_rows: int = 0
    scales: ScalePlane | None = None
    packing: Packing | None = None

    @property
    def whole_bytes(self) -> int:
        """Bytes of it and of what belongs to it."""
        beside = 0 if self.scales is None else self.scales.nbytes
        return self.nbytes + beside + (0 if self.packing is None else self.packing.plane_bytes)

    @classmethod
    def of(cls, entry: TensorEntry, file: int, *, interleaved_head_rows: int = 0) -> SourceTensor:
        """Place an entry in a checkpoint's file."""
        return cls(entry.name, entry.dtype, entry.shape, file, entry.offset, entry.nbytes, interleaved_head_rows)
