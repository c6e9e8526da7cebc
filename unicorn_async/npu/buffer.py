"""Buffers that the NPU and the CPU see, synced by exact ranges."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import numpy as np

from unicorn_async.errors import ConfigError
from unicorn_async.npu.xrt import xrt_errors

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyxrt
    from numpy.typing import NDArray


class Buffer:
    """A buffer object of XRT with its mapping; whoever allocated it closes it, after the last run that uses it.

    `mapped` is the memory as bytes. CPU and NPU see each other's writes after a sync of the range alone. No view of
    `mapped` may outlive the buffer. `closed` is told when it is closed.
    """

    def __init__(self, handle: pyxrt.bo, nbytes: int, name: str, closed: Callable[[Buffer], None]) -> None:
        self.name = name
        self.nbytes = nbytes
        self._closed = closed
        self._handle: pyxrt.bo | None = handle
        with xrt_errors(f"{name}: mapping {nbytes} bytes"):
            self.mapped: NDArray[np.uint8] = np.frombuffer(handle.map(), np.uint8)[:nbytes]

    @property
    def handle(self) -> pyxrt.bo:
        """The buffer object; it must not be closed."""
        assert self._handle is not None, f"{self.name}: used after it was closed"
        return self._handle

    def to_device(self, offset: int, nbytes: int) -> None:
        """Show the NPU what the CPU wrote into this range."""
        import pyxrt

        self._sync(pyxrt.xclBOSyncDirection.XCL_BO_SYNC_BO_TO_DEVICE, offset, nbytes)

    def from_device(self, offset: int, nbytes: int) -> None:
        """Show the CPU what the NPU wrote into this range."""
        import pyxrt

        self._sync(pyxrt.xclBOSyncDirection.XCL_BO_SYNC_BO_FROM_DEVICE, offset, nbytes)

    def close(self) -> None:
        """Give the memory back; a second call does nothing."""
        if self._handle is not None:
            self.mapped = np.empty(0, np.uint8)
            self._handle = None
            self._closed(self)

    def __del__(self) -> None:
        if getattr(self, "_handle", None) is not None:
            warnings.warn(f"NPU buffer {self.name!r} was not closed", ResourceWarning, stacklevel=1)

    def _sync(self, direction: pyxrt.xclBOSyncDirection, offset: int, nbytes: int) -> None:
        if offset < 0 or nbytes < 1 or offset + nbytes > self.nbytes:
            raise ConfigError(f"{self.name}: sync of {nbytes} bytes at {offset}: outside of {self.nbytes} bytes")
        with xrt_errors(f"{self.name}: sync"):
            self.handle.sync(direction, nbytes, offset)
