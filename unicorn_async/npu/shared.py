"""Packets and results in memory that another device writes queries to, and reads results from."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from unicorn_async.npu.geometry import BF16_BYTES, CORE_BUFFER_BYTES, F32_BYTES
from unicorn_async.npu.packets import write_parameters
from unicorn_async.npu.schedule import PACKET_BYTES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from unicorn_async.npu.buffer import Buffer
    from unicorn_async.npu.geometry import HeadLayout
    from unicorn_async.npu.part import PreparedPart
    from unicorn_async.npu.step import PreparedStep
    from unicorn_async.npu.work import AttentionHeads


def max_items(heads: AttentionHeads, max_tokens: int, max_sequences: int) -> int:
    """Return how many items a step can have, however its tokens are spread over its sequences."""
    return heads.num_kv_heads * min(max_tokens, max_sequences + max_tokens // heads.queries_per_item)


def result_elements(step: PreparedStep) -> int:
    """Return how far the results of two neighbouring items of a shared step are apart, in elements."""
    return step.parts[0].result_bytes // F32_BYTES if step.parts else 0


def first_rows(step: PreparedStep) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return tokens of a shared step, the item of each one's first kv head, and its first row in that item.

    Items of the other kv heads follow the first one's.
    """
    tokens, numbers, rows = [], [], []
    for part in step.parts:
        for number, item in enumerate(part.items, part.first):
            if item.kv_head == 0:
                queries = np.arange(item.num_queries)
                tokens.append(item.first_query + queries)
                numbers.append(np.full(len(queries), number))
                rows.append(queries * step.heads.group)
    empty = [np.empty(0, np.int64)]
    return np.concatenate(tokens or empty), np.concatenate(numbers or empty), np.concatenate(rows or empty)


class SharedPackets:
    """Two buffers for the steps of one half, one after another; both are borrowed, and nothing is copied.

    Another device writes queries, (strips, head_dim, N) bf16, behind the parameters in packets, and reads results.
    """

    def __init__(self, packets: Buffer, results: Buffer, layout: HeadLayout) -> None:
        self.packets = packets
        self.results = results
        self.num_items = min(packets.nbytes // PACKET_BYTES, results.nbytes // layout.result_bytes)
        self._layout = layout
        self._loaded: list[PreparedPart] = []  # whose parameters are there

    def load(self, part: PreparedPart) -> None:
        """Write a part's parameters if they are not there, and show the NPU its queries."""
        items = range(part.first, part.first + len(part.items))
        if part not in self._loaded:
            self._loaded = [other for other in self._loaded if not _overlap(other, part)]
            write_parameters(self.packets.mapped, part)
            for number in items:
                self.packets.to_device(number * PACKET_BYTES, 4 * part.parameters.shape[1])
            self._loaded.append(part)
        nbytes = part.strips * self._layout.strip_bytes * BF16_BYTES // F32_BYTES
        for number in items:
            self.packets.to_device(number * PACKET_BYTES + CORE_BUFFER_BYTES, nbytes)

    def unload(self, part: PreparedPart) -> None:
        """Show other devices the results of a run that has ended."""
        self.results.from_device(part.first * part.result_bytes, len(part.items) * part.result_bytes)


def _overlap(one: PreparedPart, other: PreparedPart) -> bool:
    return one.first < other.first + len(other.items) and other.first < one.first + len(one.items)
