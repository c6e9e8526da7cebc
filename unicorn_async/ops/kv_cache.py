"""The paged key/value cache as kernels see it."""

from __future__ import annotations

from dataclasses import dataclass

from unicorn_async.config import KVDType
from unicorn_async.errors import UnsupportedModelError

NO_SLOT = 0xFFFFFFFF  # slot of a padded token: nothing is written

MIN_HEAD_DIM = 32
MAX_HEAD_DIM = 256


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """What decides the layout of one layer's cache, and the attention kernels' constants.

    K and V of a layer are each (blocks, num_kv_heads, block_size, head_dim); a token's slot is block * block_size +
    its offset in the block. Raises UnsupportedModelError for what the kernels don't do.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    block_size: int
    kv_dtype: KVDType

    def __post_init__(self) -> None:
        if not MIN_HEAD_DIM <= self.head_dim <= MAX_HEAD_DIM or self.head_dim % 8:
            raise UnsupportedModelError(
                f"head_dim: expected a multiple of 8 from {MIN_HEAD_DIM} to {MAX_HEAD_DIM}, got {self.head_dim}"
            )
        if self.num_kv_heads < 1 or self.num_heads % self.num_kv_heads:
            raise UnsupportedModelError(
                f"num_heads: expected a multiple of num_kv_heads = {self.num_kv_heads}, got {self.num_heads}"
            )

    @property
    def group(self) -> int:
        """Query heads that share a kv head."""
        return self.num_heads // self.num_kv_heads

    @property
    def block_nbytes(self) -> int:
        """Bytes of one block of K, or of V, in one layer."""
        itemsize = 2 if self.kv_dtype is KVDType.F16 else 4
        return self.num_kv_heads * self.block_size * self.head_dim * itemsize


@dataclass(frozen=True, slots=True)
class KVCache:
    """Device addresses of one layer's K and V, borrowed, aligned to 16 bytes."""

    k: int
    v: int
