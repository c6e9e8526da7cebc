"""The header of a safetensors file, read as hostile input.

Format: 8 bytes little-endian header length, a JSON object, then the tensors' bytes without holes
(https://huggingface.co/docs/safetensors). The library of that name gives no file offsets, hence this parser.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from unicorn_async.checkpoint.partial_file import NO_PARTIAL_FILES, open_file
from unicorn_async.checkpoint.source_tensor import TensorEntry
from unicorn_async.checkpoint.strict_json import JsonWalk, decode
from unicorn_async.errors import CheckpointError

if TYPE_CHECKING:
    from pathlib import Path

    from unicorn_async.checkpoint.partial_file import PartialFiles

MAX_HEADER_BYTES = 16 << 20  # the format allows 100 MB; real headers have 0.1 KB a tensor
MAX_TENSORS = 1 << 17  # of a file; experts one by one come to some tens of thousands in a whole model
MAX_METADATA = 1 << 14  # keys, of which nothing here needs one
MAX_NAME_CHARS = 256
MAX_DIMENSIONS = 64
MAX_TENSOR_CHARS = 4096  # of a tensor's description, which has about 60
HEADER_LENGTH_BYTES = 8
_METADATA = "__metadata__"
_DTYPE_BITS = {
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "BOOL": 8,
    "U8": 8,
    "I8": 8,
    "F8_E5M2": 8,
    "F8_E4M3": 8,
    "F8_E5M2FNUZ": 8,
    "F8_E4M3FNUZ": 8,
    "F8_E8M0": 8,
    "I16": 16,
    "U16": 16,
    "F16": 16,
    "BF16": 16,
    "I32": 32,
    "U32": 32,
    "F32": 32,
    "I64": 64,
    "U64": 64,
    "F64": 64,
    "C64": 64,
}


def read_header(path: Path, partial: PartialFiles = NO_PARTIAL_FILES) -> dict[str, TensorEntry]:
    """Return the tensors of a safetensors file by name, in the order of their bytes; of a partial file it waits for it.

    Raises:
        CheckpointError: the file can't be read, is truncated or breaks the format's rules.
    """
    try:
        file, file_bytes = open_file(path, partial)
        with file:
            header_bytes = int.from_bytes(file.read(HEADER_LENGTH_BYTES), "little")
            _check_lengths(path, file_bytes, header_bytes)
            header = file.read(header_bytes)
    except OSError as exc:
        raise CheckpointError(f"{path}: {exc.strerror or exc}") from exc
    return parse_header(header, file_bytes, source=str(path))


def parse_header(header: bytes, file_bytes: int, *, source: str) -> dict[str, TensorEntry]:
    """Return the tensors that the JSON `header` of a file of `file_bytes` describes.

    Raises:
        CheckpointError: the header breaks the format's rules; `source` names the file.
    """
    if not header.startswith(b"{"):
        raise CheckpointError(f"{source}: header begins with {header[:1]!r}, expected b'{{'")
    data_start = HEADER_LENGTH_BYTES + len(header)
    walk = JsonWalk(decode(header, f"{source}: header"), f"{source}: header")
    found: dict[str, TensorEntry] = {}
    has_metadata = False

    def member(name: str, at: int) -> int:
        nonlocal has_metadata
        if name in found or (has_metadata and name == _METADATA):
            raise CheckpointError(f"{source}: header: key {name[:200]!r} appears twice")
        if name == _METADATA:
            has_metadata = True
            return _pass_metadata(walk, at, source)
        if len(name) > MAX_NAME_CHARS:
            raise CheckpointError(f"{source}: header: a name of {len(name)} characters, at most {MAX_NAME_CHARS}")
        if len(found) == MAX_TENSORS:
            raise CheckpointError(f"{source}: header: more than {MAX_TENSORS} tensors")
        value, end = walk.value(at, MAX_TENSOR_CHARS)
        found[name] = _entry(name, value, data_start, source)
        return end

    walk.whole(member)
    entries = sorted(found.values(), key=lambda entry: (entry.offset, entry.nbytes))
    _check_layout(entries, data_start, file_bytes, source)
    return {entry.name: entry for entry in entries}


def _check_lengths(path: Path, file_bytes: int, header_bytes: int) -> None:
    if file_bytes < HEADER_LENGTH_BYTES:
        raise CheckpointError(f"{path}: {file_bytes} bytes, too short for a safetensors file")
    if header_bytes > MAX_HEADER_BYTES:
        raise CheckpointError(f"{path}: header of {header_bytes} bytes, at most {MAX_HEADER_BYTES} are allowed")
    if header_bytes > file_bytes - HEADER_LENGTH_BYTES:
        raise CheckpointError(f"{path}: header of {header_bytes} bytes in a file of {file_bytes} bytes")


def _pass_metadata(walk: JsonWalk, at: int, source: str) -> int:
    """Check that the metadata are an object of strings, which nothing here needs; returns where it ends."""
    count = 0

    def member(key: str, at: int) -> int:
        nonlocal count
        count += 1
        if count > MAX_METADATA:
            raise CheckpointError(f"{source}: more than {MAX_METADATA} keys")
        return walk.string(at)[1]

    try:
        return walk.members(at, member)
    except CheckpointError as exc:
        raise CheckpointError(f"{source}: {_METADATA}: expected an object of strings; {exc}") from exc


def _sizes(value: object, where: str) -> tuple[int, ...]:
    if not isinstance(value, list) or not all(type(size) is int and 0 <= size < 1 << 63 for size in value):
        raise CheckpointError(f"{where}: expected a list of sizes below 2**63")
    if len(value) > MAX_DIMENSIONS:
        raise CheckpointError(f"{where}: {len(value)} sizes, at most {MAX_DIMENSIONS} are allowed")
    return tuple(value)


def _entry(name: str, value: object, data_start: int, source: str) -> TensorEntry:
    where = f"{source}: tensor {name!r}"
    if not isinstance(value, dict) or value.keys() != {"dtype", "shape", "data_offsets"}:
        raise CheckpointError(f"{where}: expected an object with dtype, shape and data_offsets")
    dtype = value["dtype"]
    if not isinstance(dtype, str) or dtype not in _DTYPE_BITS:
        raise CheckpointError(f"{where}: unknown dtype {dtype!r}")
    shape = _sizes(value["shape"], f"{where}: shape")
    offsets = _sizes(value["data_offsets"], f"{where}: data_offsets")
    if len(offsets) != 2 or offsets[0] > offsets[1]:
        raise CheckpointError(f"{where}: data_offsets: expected [begin, end], got {list(offsets[:4])}")
    nbytes = offsets[1] - offsets[0]
    if _num_bits(shape, _DTYPE_BITS[dtype], limit=nbytes * 8) != nbytes * 8:
        raise CheckpointError(f"{where}: {dtype} of shape {list(shape[:8])} does not have {nbytes} bytes")
    return TensorEntry(name, dtype, shape, data_start + offsets[0], nbytes)


def _num_bits(shape: tuple[int, ...], bits: int, *, limit: int) -> int:
    """Product of sizes and bits; it stops growing beyond the limit."""
    if 0 in shape:
        return 0
    for size in shape:
        bits *= size
        if bits > limit:
            break
    return bits


def _check_layout(entries: list[TensorEntry], data_start: int, file_bytes: int, source: str) -> None:
    end, before = data_start, "the header"
    for entry in entries:
        where = f"{source}: tensor {entry.name!r}"
        if entry.offset < end:
            raise CheckpointError(f"{where}: begins at byte {entry.offset}, overlaps {before}, which ends at {end}")
        if entry.offset > end:
            raise CheckpointError(f"{where}: begins at byte {entry.offset}, leaves a hole after {before}, end {end}")
        end, before = entry.offset + entry.nbytes, repr(entry.name)
    if end > file_bytes:
        raise CheckpointError(f"{source}: truncated: {before} ends at byte {end}, the file at {file_bytes}")
    if end < file_bytes:
        raise CheckpointError(f"{source}: {file_bytes - end} bytes after the last tensor belong to none")
