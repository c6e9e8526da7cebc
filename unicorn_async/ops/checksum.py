"""Checksums of what lies in device memory, computed there."""

from __future__ import annotations

from typing import TYPE_CHECKING

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
        words = shares.cast("Q")
        first, second = (sum(words[index::2]) % (1 << 64) for index in range(2))
        return f"{first:016x}{second:016x}"


def checksum_kernel(info: DeviceInfo) -> KernelRequest:
    """Name the pipeline that `Checksum` uses on a device."""
    lanes = _STREAM_WORKGROUP if info.is_software else _WORKGROUP
    return KernelRequest("checksum", {"WORKGROUP": lanes, "STREAMS": info.is_software})


def _num_workgroups(nbytes: int) -> int:
    return max(1, min(_MAX_WORKGROUPS, -(-nbytes // _RUN_BYTES)))
