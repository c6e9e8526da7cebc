"""Queries, keys and values that lie in one tensor of a GGUF file, in a family that has three.

llama.cpp's converter joins their rows so where it is asked to, whatever the family.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from unicorn_async.checkpoint.gguf.architectures import ARCHITECTURES
from unicorn_async.checkpoint.gguf.names import WITH_GATED_QUERIES, layer_of, may_fuse_attention
from unicorn_async.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from unicorn_async.checkpoint.source_tensor import TensorEntry

    Entries = Mapping[str, tuple[TensorEntry, int]]

_PARTS = ("attn_q", "attn_k", "attn_v")


def with_parts(entries: Entries, architecture: str, files: tuple[Path, ...]) -> dict[str, tuple[TensorEntry, int]]:
    """Return the entries with three in place of each that fuses queries, keys and values; each has a file's index.

    Queries have as many rows as the attention's output has columns, or twice as many where a gate lies beside them;
    keys and values share what is left. Those of an architecture that is not known stay as they are.

    Raises:
        CheckpointError: the rows are no such three parts, or one of them is there as well.
    """
    if architecture not in ARCHITECTURES:
        return dict(entries)
    result: dict[str, tuple[TensorEntry, int]] = {}
    for name, (entry, file) in entries.items():
        if not may_fuse_attention(name, architecture) or f"blk.{layer_of(name)}.ssm_conv1d.weight" in entries:
            result[name] = entry, file
            continue
        for part in _parts(entry, entries, architecture, files[file]):
            if part.name in entries:
                raise CheckpointError(f"{files[file]}: {name!r} and {part.name!r} are both there")
            result[part.name] = part, file
    return result


def _parts(entry: TensorEntry, entries: Entries, architecture: str, path: Path) -> Iterator[TensorEntry]:
    prefix, _, kind = entry.name.rpartition("attn_qkv.")
    output = entries.get(f"{prefix}attn_output.weight")
    rows = entry.shape[0]
    queries = output[0].shape[-1] * (2 if architecture in WITH_GATED_QUERIES else 1) if output is not None else 0
    keys, rest = divmod(rows - queries, 2)
    if not queries or keys < 1 or rest:
        raise CheckpointError(
            f"{path}: tensor {entry.name!r}: {rows} rows are no {queries} of queries, "
            "and of keys and values equal numbers"
        )
    row_bytes, offset = entry.nbytes // rows, entry.offset
    for part, count in zip(_PARTS, (queries, keys, keys), strict=True):
        nbytes, shape = count * row_bytes, (count, *entry.shape[1:])
        yield replace(entry, name=f"{prefix}{part}.{kind}", shape=shape, offset=offset, nbytes=nbytes)
        offset += nbytes
