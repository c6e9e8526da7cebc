"""The tensors that packed matrices are made of, taken by their names and checked."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from unicorn_async.checkpoint.partial_file import NO_PARTIAL_FILES, open_file
from unicorn_async.errors import CheckpointError, UnsupportedModelError
from unicorn_async.packing import Plane, PlaneUse

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from unicorn_async.checkpoint.partial_file import PartialFiles
    from unicorn_async.checkpoint.source_tensor import SourceTensor

_SCALE_TYPES = ("F32", "F16", "BF16")


class Parts:
    """A directory's tensors by canonical name, of which those of packed matrices are taken one after the other."""

    def __init__(
        self,
        tensors: Mapping[str, SourceTensor],
        directory: Path,
        files: Sequence[Path] = (),
        partial: PartialFiles = NO_PARTIAL_FILES,
    ) -> None:
        self.directory = directory
        self._partial = partial
        self._files = files
        self._left = dict(tensors)

    def ending_with(self, suffix: str) -> list[str]:
        """Return what is left of a kind by the names before a suffix."""
        return [name.removesuffix(suffix) for name in self._left if name.endswith(suffix)]

    def peek(self, name: str) -> SourceTensor | None:
        """Return a tensor that stays."""
        return self._left.get(name)

    def take(self, name: str, *others: str) -> SourceTensor | None:
        """Return the first tensor of these names that is there, once."""
        found = next((one for one in (name, *others) if one in self._left), None)
        return None if found is None else self._left.pop(found)

    def need(self, name: str, codes: SourceTensor, *others: str) -> SourceTensor:
        """Return a tensor without which `codes` are nothing; raises CheckpointError where it is missing."""
        found = self.take(name, *others)
        if found is None:
            names = " or ".join(repr(one) for one in (name, *others))
            raise CheckpointError(f"{self.directory}: tensor {codes.name!r}: there is no {names}")
        return found

    def put(self, name: str, source: SourceTensor) -> None:
        """Put a matrix in the place of what was taken; raises CheckpointError where there is one already."""
        if name in self._left:
            raise CheckpointError(f"{self.directory}: tensor {source.name!r}: {name!r} is there as well")
        self._left[name] = source

    def drop(self, *suffixes: str) -> list[str]:
        """Take out what nothing here reads, and return the files' names of it."""
        names = [name for name in self._left if name.endswith(suffixes)]
        return [self._left.pop(name).name for name in names]

    @property
    def left(self) -> dict[str, SourceTensor]:
        """What is there now."""
        return self._left

    def content(self, source: SourceTensor, most: int) -> bytes:
        """Read a small tensor's bytes; raises CheckpointError where there are more than `most`, or that fails."""
        return self.content_of(source, most)

    def content_of(self, source: SourceTensor | Plane, most: int) -> bytes:
        """Do the same for a tensor that has become a plane."""
        if source.nbytes > most:
            raise CheckpointError(
                f"{self.directory}: tensor {source.name!r}: {source.nbytes} bytes, at most {most} are allowed"
            )
        try:
            with open_file(self._files[source.file], self._partial)[0] as file:
                file.seek(source.offset)
                found = file.read(source.nbytes)
        except OSError as exc:
            raise CheckpointError(f"{self.directory}: tensor {source.name!r}: {exc.strerror or exc}") from exc
        if len(found) != source.nbytes:
            raise CheckpointError(f"{self.directory}: tensor {source.name!r}: the file has become shorter")
        return found

    def check(self, source: SourceTensor, dtype: str, *shapes: tuple[int, ...]) -> None:
        """Raise CheckpointError for another type or shape."""
        if source.dtype != dtype or source.shape not in shapes:
            expected = " or ".join(str(list(shape)) for shape in shapes)
            raise CheckpointError(
                f"{self.directory}: tensor {source.name!r}: expected {dtype} {expected}, "
                f"got {source.dtype} {list(source.shape[:8])}"
            )

    def matrix(self, source: SourceTensor, dtype: str) -> tuple[int, int]:
        """Return the shape of a matrix of codes.

        Raises:
            CheckpointError: it is of another type, or empty.
            UnsupportedModelError: it is no matrix.
        """
        rows, columns = self._codes(source, dtype, 2, "one matrix a tensor")
        return rows, columns

    def matrices(self, source: SourceTensor, dtype: str) -> tuple[int, int, int]:
        """Return the shape of codes of a stack of matrices; raises as `matrix`."""
        count, rows, columns = self._codes(source, dtype, 3, "a stack of matrices")
        return count, rows, columns

    def _codes(self, source: SourceTensor, dtype: str, num_dimensions: int, expected: str) -> tuple[int, ...]:
        if source.dtype != dtype or not prod(source.shape):
            raise CheckpointError(
                f"{self.directory}: tensor {source.name!r}: expected {dtype}, "
                f"got {source.dtype} {list(source.shape[:8])}"
            )
        if len(source.shape) != num_dimensions:
            raise UnsupportedModelError(
                f"{self.directory}: tensor {source.name!r}: quantised in the shape {list(source.shape[:8])}, "
                f"expected {expected}"
            )
        return source.shape

    def scales(
        self, source: SourceTensor, *, width: int, row_block: int, column_block: int, is_turned: bool = False
    ) -> Plane:
        """Return scales, whose shape was checked, as a plane; raises CheckpointError for a type that none have."""
        if source.dtype not in _SCALE_TYPES:
            raise CheckpointError(
                f"{self.directory}: tensor {source.name!r}: expected scales of {', '.join(_SCALE_TYPES)}, "
                f"got {source.dtype}"
            )
        return plane(
            PlaneUse.SCALES,
            source,
            width=width,
            row_block=row_block,
            column_block=column_block,
            is_turned=is_turned,
        )


def plane(
    use: PlaneUse, source: SourceTensor, *, width: int, row_block: int, column_block: int, is_turned: bool = False
) -> Plane:
    """Return a tensor as a plane of a matrix."""
    return Plane(
        use,
        source.name,
        source.dtype,
        source.file,
        source.offset,
        source.nbytes,
        width,
        row_block,
        column_block,
        is_turned,
    )
