"""A cache whose blocks have the numbers that they would have as a piece among others, far from 0."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unicorn_async.memory.kv_pieces import Numbering
from unicorn_async.ops.kv_cache import KVCache

if TYPE_CHECKING:
    from unicorn_async.ops.kv_cache import AttentionShape


def far_blocks(k: int, v: int, shape: AttentionShape) -> tuple[KVCache, int]:
    """Return where keys and values at two addresses begin for kernels, and the number of the first block there."""
    numbering = Numbering.around(k, shape.block_nbytes, shape.block_size)
    blocks = numbering.blocks(k, 1)
    assert blocks is not None
    return KVCache(numbering.origin, v - (k - numbering.origin)), blocks[0]
