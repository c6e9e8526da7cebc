"""The host memory that a load holds at its worst, sampled beside it."""

from __future__ import annotations

import ctypes
import mmap
import threading
from typing import TYPE_CHECKING, Self

import numpy as np

from unicorn_async.gpu.memory_types import MemoryKind

if TYPE_CHECKING:
    from unicorn_async.gpu.device import Device
    from unicorn_async.gpu.memory import Buffer

INTERVAL_S = 0.005
PAGE_BYTES = mmap.PAGESIZE


class HostMemoryWatch:
    """Samples this process's own memory (RssAnon and RssShmem of /proc/self/status) while its block runs.

    What the device's memory has of it is subtracted, page by page as mincore sees it, because on a software device it
    is host memory. Staging memory counts as the host's, unless it lies in the GPU's own; what a driver holds of it
    outside of this process's pages is added. File pages that are mapped (RssFile) are the page cache, which the kernel
    takes back, and are left out.
    Sampling costs time: do not time the same load.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="host-memory")
        self._libc = ctypes.CDLL(None)
        self._libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
        self.start_bytes = self.peak_bytes = self.sample()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()
        self.peak_bytes = max(self.peak_bytes, self.sample())

    def sample(self) -> int:
        """Return the bytes that are held now."""
        software, heaps = self._device.info.is_software, self._device.info.heaps
        buffers = list(self._device.memory._live)
        own = _own_bytes()
        for buffer in buffers:
            is_staging = buffer.kind is not MemoryKind.DEVICE
            if software and not is_staging:
                own -= self._resident(buffer)
            elif is_staging and not software and not heaps[buffer.heap].device_local:
                own += buffer.allocated_bytes
        return own

    def _run(self) -> None:
        while not self._end.wait(INTERVAL_S):
            self.peak_bytes = max(self.peak_bytes, self.sample())

    def _resident(self, buffer: Buffer) -> int:
        mapped = buffer.mapped
        if mapped is None:  # closed meanwhile
            return 0
        address = ctypes.addressof(ctypes.c_char.from_buffer(mapped))
        start = address // PAGE_BYTES * PAGE_BYTES
        size = address + mapped.nbytes - start
        pages = np.zeros(-(-size // PAGE_BYTES), np.uint8)
        if self._libc.mincore(start, size, pages.ctypes.data):  # freed meanwhile
            return 0
        return int(np.count_nonzero(pages & 1)) * PAGE_BYTES


def _own_bytes() -> int:
    with open("/proc/self/status", encoding="ascii") as status:
        return sum(int(line.split()[1]) << 10 for line in status if line.startswith(("RssAnon:", "RssShmem:")))
