"""Where a tensor's bytes lie."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One tensor of a file, row-major; `offset` is absolute in the file, `dtype` is the format's word for it."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class SourceTensor:
    """One tensor on disk: `file` indexes `Checkpoint.files`, `offset` is absolute in that file.

    `interleaved_head_rows` is 0 where rows lie in the model's order. Otherwise the file has, for each head of so many
    rows, row i and row i + half a head side by side (what rotary embeddings of adjacent pairs want).
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: int
    offset: int
    nbytes: int
    interleaved_head_rows: int = 0

    @classmethod
    def of(cls, entry: TensorEntry, file: int, *, interleaved_head_rows: int = 0) -> SourceTensor:
        """Place an entry in a checkpoint's file."""
        return cls(entry.name, entry.dtype, entry.shape, file, entry.offset, entry.nbytes, interleaved_head_rows)
