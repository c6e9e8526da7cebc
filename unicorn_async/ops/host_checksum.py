"""The checksums of device memory, computed on the host: for tools that have no device, and for tests."""

from __future__ import annotations

import numpy as np

_BLOCK_BYTES = 16

# As in the shader: keys of the words of a block, what is added to them from block to block, and which are multiplied.
_STARTS = np.array(
    [[0x9E3779B9, 0x7F4A7C15, 0xF39CC060, 0x5CEDC834], [0x1082276B, 0xF3A27251, 0xF86C6A11, 0xD0C18E95]], np.uint32
)
_STEPS = np.array(
    [[0x85EBCA6B, 0xC2B2AE35, 0x27D4EB2F, 0x165667B1], [0xCC9E2D51, 0x1B873593, 0xE6546B65, 0x38B34AE5]], np.uint32
)
_PAIRS = ((0, 1, 2, 3), (0, 2, 1, 3))


class HostChecksum:
    """The same sums, computed on the host from bytes that come in pieces; for tools that have no device."""

    def __init__(self) -> None:
        self._sums = [0, 0]
        self._blocks = 0

    def update(self, data: memoryview) -> None:
        """Add bytes: a multiple of 16, unless they are the last ones."""
        blocks = np.frombuffer(bytes(data) + bytes(-len(data) % _BLOCK_BYTES), np.uint32).reshape(-1, 4)
        places = np.arange(self._blocks, self._blocks + len(blocks), dtype=np.uint64).astype(np.uint32)[:, None]
        self._blocks += len(blocks)
        for index, (start, step, (a, b, c, d)) in enumerate(zip(_STARTS, _STEPS, _PAIRS, strict=True)):
            words = (blocks + start + places * step).astype(np.uint64)
            products = words[:, a] * words[:, b] + words[:, c] * words[:, d]
            self._sums[index] = (self._sums[index] + int(products.sum(dtype=np.uint64))) % (1 << 64)

    def value(self) -> str:
        """Return the checksum of all bytes so far."""
        return f"{self._sums[0]:016x}{self._sums[1]:016x}"
