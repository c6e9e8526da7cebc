"""The paged key/value cache as kernels see it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

from unicorn_async.config import KVDType
from unicorn_async.errors import UnsupportedModelError

NO_SLOT = 0xFFFFFFFF  # slot of a padded token: nothing is written

MIN_HEAD_DIM = 32
MAX_HEAD_DIM = 512
MAX_LATENT_KEY_DIM = 576  # of a key that begins with a latent, of MAX_HEAD_DIM elements at most
_INT8_UNIT = 64  # elements: half a head has whole blocks, and every block of the cache is aligned to 16 bytes
_INT8_BLOCK = 32  # elements with one scale
_SCALE_BYTES = 2
_ITEM_BYTES = {KVDType.F16: 2, KVDType.F32: 4, KVDType.INT8: 1}


def head_nbytes(head_dim: int, kv_dtype: KVDType) -> int:
    """Bytes that a head's key, or its value, takes in the cache, with its scales."""
    scales = head_dim // _INT8_BLOCK * _SCALE_BYTES if kv_dtype is KVDType.INT8 else 0
    return head_dim * _ITEM_BYTES[kv_dtype] + scales


class KVHeads(Protocol):
    """What a layer keeps of a token: keys and values of so many heads, of so many elements.

    With a `latent_dim` it keeps keys alone, whose first so many elements are the values.
    """

    @property
    def num_kv_heads(self) -> int:
        """Heads of keys, and of values."""

    @property
    def head_dim(self) -> int:
        """Elements of a head."""

    @property
    def latent_dim(self) -> int:
        """Elements of a key that are a value, too; 0 = values are kept beside keys."""


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """What decides the layout of one layer's cache, and the attention kernels' constants.

    K and V of a layer are each (blocks, num_kv_heads, block_size, head_dim); a token's slot is block * block_size +
    its offset in the block. In int8 a block has the codes of each kv head, (block_size, head_dim) bytes, followed by
    its scales, (block_size, head_dim / 32) f16. With a `latent_dim` there is no V: the values are the first so many
    elements of the keys, which one head has for all queries. Raises UnsupportedModelError for what the kernels don't
    do.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    block_size: int
    kv_dtype: KVDType
    latent_dim: int = 0

    def __post_init__(self) -> None:
        most = MAX_LATENT_KEY_DIM if self.latent_dim else MAX_HEAD_DIM
        if not MIN_HEAD_DIM <= self.head_dim <= most or self.head_dim % 8:
            raise UnsupportedModelError(
                f"head_dim: expected a multiple of 8 from {MIN_HEAD_DIM} to {most}, got {self.head_dim}"
            )
        if self.latent_dim:
            self._check_latent()
        if self.kv_dtype is KVDType.INT8 and self.head_dim % _INT8_UNIT:
            raise UnsupportedModelError(
                f"head_dim: a cache of int8 takes a multiple of {_INT8_UNIT}, got {self.head_dim}"
            )
        if self.num_kv_heads < 1 or self.num_heads % self.num_kv_heads:
            raise UnsupportedModelError(
                f"num_heads: expected a multiple of num_kv_heads = {self.num_kv_heads}, got {self.num_heads}"
            )

    def _check_latent(self) -> None:
        unit = _INT8_BLOCK if self.kv_dtype is KVDType.INT8 else 8
        largest = min(MAX_HEAD_DIM, self.head_dim)
        if not MIN_HEAD_DIM <= self.latent_dim <= largest or self.latent_dim % unit or self.num_kv_heads != 1:
            raise UnsupportedModelError(
                f"latent: expected a multiple of {unit} from {MIN_HEAD_DIM} to {largest} of the elements of one key, "
                f"in a cache of {self.kv_dtype.value}, got {self.latent_dim} in {self.num_kv_heads}"
            )

    @property
    def value_dim(self) -> int:
        """Elements of a head's value, and of its result."""
        return self.latent_dim or self.head_dim

    @property
    def group(self) -> int:
        """Query heads that share a kv head."""
        return self.num_heads // self.num_kv_heads

    @property
    def block_nbytes(self) -> int:
        """Bytes of one block of K, or of V if there is one, in one layer."""
        return self.num_kv_heads * self.block_size * head_nbytes(self.head_dim, self.kv_dtype)

    def with_heads(self, state: KVHeads) -> AttentionShape:
        """Return the shape of another layer's attention in the same model."""
        return replace(self, num_kv_heads=state.num_kv_heads, head_dim=state.head_dim, latent_dim=state.latent_dim)

    @property
    def token_nbytes(self) -> int:
        """Bytes that a token takes in one layer."""
        parts = 1 if self.latent_dim else 2
        return parts * self.num_kv_heads * head_nbytes(self.head_dim, self.kv_dtype)

    @property
    def handed_over(self) -> AttentionShape:
        """The shape of keys and values that are handed to another device: in the tokens' order, and not yet in int8."""
        kv_dtype = KVDType.F16 if self.kv_dtype is KVDType.INT8 else self.kv_dtype
        return replace(self, block_size=1, kv_dtype=kv_dtype)


@dataclass(frozen=True, slots=True)
class KVCache:
    """Device addresses of one layer's K and V, borrowed, aligned to 16 bytes; both are the same where there is no V."""

    k: int
    v: int
