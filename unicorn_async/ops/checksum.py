"""Checksums of what lies in device memory, computed there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from unicorn_async.gpu.kernel import KernelRequest

if TYPE_CHECKING:
    from unicorn_async.gpu.command import CommandRecorder
    from unicorn_async.gpu.device_info import DeviceInfo
    from unicorn_async.gpu.kernel import KernelLibrary

_WORKGROUP = 128
_STREAM_WORKGROUP = 8  # the lanes that a CPU runs side by side: more would wait for each other at barriers
_BLOCK_BYTES = 16
_RUN_BYTES = 4 * _WORKGROUP * _BLOCK_BYTES  # a workgroup's at least
_MAX_WORKGROUPS = 512
_SHARE_BYTES = 16  # what a workgroup writes
_MAX_BLOCKS = (1 << 31) - 1

# As in the shader: keys of the words of a block, what is added to them from block to block, and which are multiplied.
_STARTS = np.array(
    [[0x9E3779B9, 0x7F4A7C15, 0xF39CC060, 0x5CEDC834], [0x1082276B, 0xF3A27251, 0xF86C6A11, 0xD0C18E95]], np.uint32
)
_STEPS = np.array(
    [[0x85EBCA6B, 0xC2B2AE35, 0x27D4EB2F, 0x165667B1], [0xCC9E2D51, 0x1B873593, 0xE6546B65, 0x38B34AE5]], np.uint32
)
_PAIRS = ((0, 1, 2, 3), (0, 2, 1, 3))


class Checksum:
    """Sums of 128 bits that hang on every byte and on its place; see shaders/checksum.comp.

    A kernel leaves several shares of the sums, which `combined` adds up. They find damage; they are no protection
    against somebody who makes a file on purpose.
    """

    def __init__(self, info: DeviceInfo, kernels: KernelLibrary) -> None:
        self._kernels = kernels
        self._request = checksum_kernel(info)

    def prepare(self) -> None:
        """Compile the kernel; it blocks."""
        self._kernels.get(self._request.name, constants=self._request.constants)

    @staticmethod
    def share_bytes(nbytes: int) -> int:
        """Return how many bytes of shares `record` writes for `nbytes`."""
        return _num_workgroups(nbytes) * _SHARE_BYTES

    def record(self, recorder: CommandRecorder, *, src: int, nbytes: int, shares: int) -> None:
        """Record summing up `nbytes` from the address `src` into shares from the address `shares` on.

        Both addresses are multiples of 16.

        Raises:
            ValueError: there are no bytes, an odd number, or more than a kernel can count.
        """
        blocks, tail = divmod(nbytes, _BLOCK_BYTES)
        if nbytes < 1 or nbytes % 2 or blocks > _MAX_BLOCKS:
            raise ValueError(f"checksum: expected an even number of bytes below 2**35, got {nbytes}")
        kernel = self._kernels.get(self._request.name, constants=self._request.constants)
        push = kernel.pack(src=src, sums=shares, blocks=blocks, tail=tail // 2)
        recorder.dispatch(kernel, push, _num_workgroups(nbytes))

    @staticmethod
    def combined(shares: memoryview) -> str:
        """Return the checksum whose shares these are, as 32 hexadecimal digits."""
        first, second = np.frombuffer(shares, np.uint64).reshape(-1, 2).sum(axis=0, dtype=np.uint64).tolist()
        return f"{first:016x}{second:016x}"


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


def checksum_kernel(info: DeviceInfo) -> KernelRequest:
    """Name the pipeline that `Checksum` uses on a device."""
    lanes = _STREAM_WORKGROUP if info.is_software else _WORKGROUP
    return KernelRequest("checksum", {"WORKGROUP": lanes, "STREAMS": info.is_software})


def _num_workgroups(nbytes: int) -> int:
    return max(1, min(_MAX_WORKGROUPS, -(-nbytes // _RUN_BYTES)))
