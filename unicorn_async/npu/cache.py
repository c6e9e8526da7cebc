"""A layer's keys and values where the NPU reads them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from unicorn_async.npu.packets import changed_ranges, write_tokens

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from unicorn_async.npu.buffer import Buffer
    from unicorn_async.npu.packets import Bf16Bits
    from unicorn_async.npu.work import AttentionHeads


class NpuCache:
    """One layer's paged cache, `num_blocks` blocks of keys and values in bf16; close it after the runs that read it.

    The layout is that of `HeadLayout`, kv head by kv head. It starts as zeros, and all that is written has to be
    finite: the kernels multiply what no query sees by zero.
    """

    def __init__(self, buffer: Buffer, heads: AttentionHeads, num_blocks: int) -> None:
        self.buffer = buffer
        self.heads = heads
        self.num_blocks = num_blocks

    def write(self, k: Bf16Bits, v: Bf16Bits, slots: NDArray[np.int64]) -> None:
        """Write tokens, and show the NPU the chunks that they are in.

        `k` and `v` are (tokens, num_kv_heads, head_dim) bf16, k rotated; `slots` (tokens) are block * block_size +
        place. No run under way may read these slots.

        Raises:
            ConfigError: other shapes, or a slot outside of the cache.
        """
        memory = self.buffer.mapped[: self.heads.cache_bytes(self.num_blocks)]  # pages may reach further
        changed = write_tokens(memory.view(np.uint16), self.heads, k, v, slots)
        for offset, nbytes in changed:
            self.buffer.to_device(offset, nbytes)

    def show(self, slots: NDArray[np.int64]) -> None:
        """Show the NPU tokens that another device wrote into the buffer's memory."""
        per_head = self.num_blocks * self.heads.chunks_per_block
        for offset, nbytes in changed_ranges(self.heads, per_head, slots):
            self.buffer.to_device(offset, nbytes)

    def close(self) -> None:
        """Give the memory back; a second call does nothing."""
        self.buffer.close()
