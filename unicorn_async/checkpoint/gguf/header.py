"""The header of a GGUF file, read as hostile input.

Format: magic, version, counts, metadata as typed keys and values, one record a tensor, then the tensors' bytes, each
aligned (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from unicorn_async.checkpoint.gguf.fields import MAX_KEY_BYTES, FieldReader, shown
from unicorn_async.checkpoint.gguf.ggml_types import GGML_TYPES
from unicorn_async.checkpoint.partial_file import NO_PARTIAL_FILES, open_file
from unicorn_async.checkpoint.source_tensor import TensorEntry
from unicorn_async.errors import CheckpointError, UnsupportedModelError
from unicorn_async.tensor import aligned

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from typing import BinaryIO

    from unicorn_async.checkpoint.gguf.fields import GgufValue
    from unicorn_async.checkpoint.partial_file import PartialFiles

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_KEYS = 1 << 16  # known files have hundreds
MAX_TENSORS = 1 << 16  # of a file; a layer's experts are one tensor
MAX_NAME_BYTES = 256  # of a tensor; the format allows 64
MAX_DIMENSIONS = 4
DEFAULT_ALIGNMENT = 32
MAX_ALIGNMENT = 1 << 16
_ALIGNMENT_KEY = "general.alignment"
_SMALLEST_PAIR_BYTES = 13  # a key of no bytes, a type, a value of one byte
_SMALLEST_TENSOR_BYTES = 24


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """A file's metadata, and its tensors by name in the order of their bytes; shapes are row-major."""

    metadata: Mapping[str, GgufValue]
    tensors: Mapping[str, TensorEntry]


def read_header(path: Path, partial: PartialFiles = NO_PARTIAL_FILES) -> GgufHeader:
    """Read the header of a GGUF file; it blocks on the disk, and of a partial file until the header is there.

    Raises:
        CheckpointError: the file can't be read, is truncated or breaks the format's rules.
        UnsupportedModelError: it is big-endian, or of an unknown version, or has tensors of an unknown type.
    """
    try:
        file, file_bytes = open_file(path, partial)
        with file:
            return parse_header(file, file_bytes, source=str(path))
    except OSError as exc:
        raise CheckpointError(f"{path}: {exc.strerror or exc}") from exc


def parse_header(file: BinaryIO, file_bytes: int, *, source: str) -> GgufHeader:
    """Parse the header at the beginning of `file`, which has `file_bytes`; raises as `read_header` does."""
    fields = FieldReader(file, file_bytes, source)
    _check_kind(fields, source)
    num_tensors = fields.count("the number of tensors", _SMALLEST_TENSOR_BYTES, MAX_TENSORS)
    metadata = _metadata(fields, fields.count("the number of metadata keys", _SMALLEST_PAIR_BYTES, MAX_KEYS))
    alignment = _alignment(metadata, source)
    records = [_record(fields, source) for _ in range(num_tensors)]
    data_start = aligned(fields.offset, alignment)
    tensors = sorted(
        (_entry(record, data_start, alignment, file_bytes, source) for record in records),
        key=lambda entry: entry.offset,
    )
    _check_layout(tensors, source)
    return GgufHeader(metadata, {entry.name: entry for entry in tensors})


def _check_kind(fields: FieldReader, source: str) -> None:
    magic = fields.take(len(MAGIC), "the magic")
    if magic != MAGIC:
        raise CheckpointError(f"{source}: begins with {magic!r}, a GGUF file begins with {MAGIC!r}")
    version = fields.u32("the version")
    if version and version & 0xFFFF == 0:
        raise UnsupportedModelError(f"{source}: a big-endian GGUF file, which is not supported")
    if version not in VERSIONS:
        raise UnsupportedModelError(f"{source}: GGUF version {version} is not supported, only 2 and 3")


def _metadata(fields: FieldReader, count: int) -> dict[str, GgufValue]:
    metadata: dict[str, GgufValue] = {}
    for _ in range(count):
        key = fields.string("a metadata key", MAX_KEY_BYTES)
        if key in metadata:
            raise fields.error(f"metadata key {shown(key)} appears twice")
        metadata[key] = fields.value(key)
    return metadata


def _alignment(metadata: Mapping[str, GgufValue], source: str) -> int:
    value = metadata.get(_ALIGNMENT_KEY, DEFAULT_ALIGNMENT)
    if type(value) is not int or not 0 < value <= MAX_ALIGNMENT or value & (value - 1):
        raise CheckpointError(
            f"{source}: {_ALIGNMENT_KEY}: expected a power of two up to {MAX_ALIGNMENT}, got {shown(value)}"
        )
    return value


@dataclass(frozen=True, slots=True)
class _Record:
    name: str
    dims: tuple[int, ...]  # innermost first
    type_number: int
    offset: int


def _record(fields: FieldReader, source: str) -> _Record:
    name = fields.string("a tensor's name", MAX_NAME_BYTES)
    num_dims = fields.u32(f"the number of dimensions of {name!r}")
    if not 1 <= num_dims <= MAX_DIMENSIONS:
        raise CheckpointError(f"{source}: tensor {name!r}: expected 1 to {MAX_DIMENSIONS} dimensions, got {num_dims}")
    dims = tuple(fields.u64(f"dimensions of {name!r}") for _ in range(num_dims))
    return _Record(name, dims, fields.u32(f"the type of {name!r}"), fields.u64(f"the offset of {name!r}"))


def _entry(record: _Record, data_start: int, alignment: int, file_bytes: int, source: str) -> TensorEntry:
    where = f"{source}: tensor {record.name!r}"
    kind = GGML_TYPES.get(record.type_number)
    if kind is None:
        raise UnsupportedModelError(f"{where}: ggml type {record.type_number} is not known")
    if 0 in record.dims or record.dims[0] % kind.block_elements:
        raise CheckpointError(
            f"{where}: {kind.name} with dimensions {list(record.dims)}: expected at least 1 each, the first a multiple "
            f"of {kind.block_elements}"
        )
    if record.offset % alignment:
        raise CheckpointError(f"{where}: offset {record.offset} is not a multiple of {alignment}")
    nbytes = record.dims[0] // kind.block_elements * kind.block_bytes
    for size in record.dims[1:]:
        nbytes *= size
    offset = data_start + record.offset
    if offset + nbytes > file_bytes:
        raise CheckpointError(f"{where}: ends at byte {offset + nbytes}, the file has {file_bytes} bytes")
    return TensorEntry(record.name, kind.name, record.dims[::-1], offset, nbytes)


def _check_layout(tensors: list[TensorEntry], source: str) -> None:
    names: set[str] = set()
    end, before = 0, ""
    for entry in tensors:
        if entry.name in names:
            raise CheckpointError(f"{source}: tensor {entry.name!r} appears twice")
        if entry.offset < end:
            raise CheckpointError(f"{source}: tensor {entry.name!r} overlaps {before!r}")
        names.add(entry.name)
        end, before = entry.offset + entry.nbytes, entry.name
