"""The file of an entry: a safetensors file, one tensor of bytes for each destination, at pages' starts. Pure.

The holes that pages leave are not allowed in the format, so a tensor of the file ends with the page.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from unicorn_async.errors import CacheError
from unicorn_async.loader.open_file import PAGE_BYTES
from unicorn_async.tensor import aligned
from unicorn_async.weights.chunk import RawChunk
from unicorn_async.weights.plan import CHUNK_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from unicorn_async.checkpoint.source_tensor import TensorEntry
    from unicorn_async.weights.plan import DestTensor

_LENGTH_BYTES = 8


@dataclass(frozen=True, slots=True)
class Container:
    """Where everything lies: `header` is all before the first tensor, `offsets` are absolute, by destination."""

    header: bytes
    offsets: Mapping[str, int]
    nbytes: int


def container_of(destinations: Sequence[DestTensor]) -> Container:
    """Lay out a file for destinations, in their order."""
    fields: dict[str, object] = {"__metadata__": {"format": "unicorn_async weights in device layout"}}
    starts, end = {}, 0
    for dest in destinations:
        starts[dest.name] = end
        end += _pages(dest.nbytes)
        size = end - starts[dest.name]
        fields[dest.name] = {"dtype": "U8", "shape": [size], "data_offsets": [starts[dest.name], end]}
    text = json.dumps(fields, separators=(",", ":")).encode()
    text += b" " * (_pages(_LENGTH_BYTES + len(text)) - _LENGTH_BYTES - len(text))
    header = len(text).to_bytes(_LENGTH_BYTES, "little") + text
    offsets = {name: len(header) + start for name, start in starts.items()}
    return Container(header, offsets, len(header) + end)


def container_chunks(
    entries: Mapping[str, TensorEntry], destinations: Iterable[DestTensor], *, chunk_bytes: int = CHUNK_BYTES
) -> tuple[RawChunk, ...]:
    """Return the reads that fill the destinations from a file with these tensors.

    Raises:
        CacheError: the file has other tensors than the destinations want.
    """
    chunks: list[RawChunk] = []
    names = set()
    for dest in destinations:
        names.add(dest.name)
        entry = entries.get(dest.name)
        if entry is None:
            raise CacheError(f"tensor {dest.name!r} is missing")
        if entry.nbytes != _pages(dest.nbytes):
            raise CacheError(f"tensor {dest.name!r}: expected {_pages(dest.nbytes)} bytes, got {entry.nbytes}")
        chunks += _split(entry.offset, dest, chunk_bytes)
    if unknown := entries.keys() - names:
        raise CacheError(f"tensor {min(unknown)!r} is not the model's")
    return tuple(chunks)


def _split(offset: int, dest: DestTensor, chunk_bytes: int) -> Iterator[RawChunk]:
    for start in range(0, dest.nbytes, chunk_bytes):
        yield RawChunk(0, offset + start, min(chunk_bytes, dest.nbytes - start), dest.name, start, dest.layer)


def _pages(nbytes: int) -> int:
    return aligned(nbytes, PAGE_BYTES)
