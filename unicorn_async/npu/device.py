"""The opened NPU, and the register of what lives on it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from unicorn_async.errors import ConfigError, MissingFeatureError, NpuUnavailableError
from unicorn_async.npu.buffer import Buffer
from unicorn_async.npu.completion import CompletionThread
from unicorn_async.npu.doctor import require_npu
from unicorn_async.npu.host import NpuHost
from unicorn_async.npu.xrt import address_capsule, require_pyxrt, xrt_errors

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    import pyxrt

    from unicorn_async.npu.geometry import Chip


class Device:
    """An NPU opened through XRT; close it after its contexts and buffers.

    `run_limit_s` is after how long its driver ends a run, None if it never does.
    """

    def __init__(self, handle: pyxrt.device, chip: Chip, run_limit_s: float | None) -> None:
        self.chip = chip
        self.run_limit_s = run_limit_s
        self.completion = CompletionThread()
        self._handle: pyxrt.device | None = handle
        self._buffers: set[Buffer] = set()

    @classmethod
    def open(cls, host: NpuHost | None = None) -> Device:
        """Open the machine's NPU; `host` is where the kernel's view of it is read.

        Raises:
            NpuUnavailableError: there is none, or it can't be used; the message says why, and what to do.
        """
        host = host or NpuHost()
        npu, chip = require_npu(host)
        require_pyxrt()
        import pyxrt

        with xrt_errors("listing XRT's devices"):
            count = pyxrt.enumerate_devices()
        if count < 1:
            raise NpuUnavailableError(
                "XRT finds no device, though the kernel has an NPU: XRT's NPU plugin (libxrt_driver_xdna.so.2) has to"
                " be installed beside libxrt_core.so.2, in the same version"
            )
        # By its address, not as the first one: XRT lists other cards, too.
        with xrt_errors(f"opening the NPU at {npu.address}, with {count} devices in XRT's list"):
            return cls(pyxrt.device(npu.address), chip, host.run_limit_s())

    @classmethod
    def open_emulated(cls, chip: Chip) -> Device:
        """Open what is XRT's first device, of which the kernel knows nothing: an emulator of this chip.

        Raises:
            NpuUnavailableError: there is no pyxrt. NpuError: XRT has no device.
        """
        require_pyxrt()
        import pyxrt

        with xrt_errors("opening XRT's first device as an emulator"):
            return cls(pyxrt.device(0), chip, None)

    @property
    def handle(self) -> pyxrt.device:
        """XRT's device; it must not be closed."""
        assert self._handle is not None, "NPU: used after it was closed"
        return self._handle

    @property
    def num_buffers(self) -> int:
        """How many buffers live."""
        return len(self._buffers)

    def allocate(self, nbytes: int, *, group: int, name: str, instructions: bool = False) -> Buffer:
        """Allocate zeroed memory that both sides see, for a run's argument of this memory group.

        Raises:
            OutOfMemoryError: it can't be had, or not be locked.
        """
        import pyxrt

        if nbytes < 1:
            raise ConfigError(f"{name}: expected a size of at least 1 byte, got {nbytes}")
        flags = pyxrt.bo.flags.cacheable if instructions else pyxrt.bo.flags.host_only
        with xrt_errors(f"{name}: allocating {nbytes:,} bytes"):
            handle = pyxrt.bo(self.handle, nbytes, flags, group)
        return self._zeroed(handle, nbytes, name)

    def wrap(self, pages: memoryview, *, name: str) -> Buffer:
        """Make whole pages of the host a zeroed buffer of runs; they have to outlive it, and are locked as long.

        XRT asks for no memory group here, and gives none.

        Raises:
            MissingFeatureError: this XRT has no such buffers. OutOfMemoryError: the pages can't be locked.
            NpuError: the driver refuses them.
        """
        import pyxrt

        make = getattr(getattr(pyxrt, "ext", None), "bo", None)
        if make is None:
            raise MissingFeatureError(
                f"{name}: this pyxrt has no ext.bo, which takes memory of others; newer ones have"
            )
        with xrt_errors(f"{name}: wrapping {pages.nbytes:,} bytes"):
            try:
                handle: pyxrt.bo = make(self.handle, address_capsule(pages), pages.nbytes)
            except TypeError as exc:
                raise MissingFeatureError(f"{name}: the ext.bo of this pyxrt takes no memory of others: {exc}") from exc
        return self._zeroed(handle, pages.nbytes, name)

    def _zeroed(self, handle: pyxrt.bo, nbytes: int, name: str) -> Buffer:
        buffer = Buffer(handle, nbytes, name, self.forget)
        self._buffers.add(buffer)
        buffer.mapped[:] = np.uint8(0)
        buffer.to_device(0, nbytes)
        return buffer

    def forget(self, buffer: Buffer) -> None:
        """Drop a buffer from the register, on behalf of its `close`."""
        self._buffers.discard(buffer)

    def close(self) -> None:
        """Close what still lives, and the device; a second call does nothing."""
        if self._handle is None:
            return
        self.completion.close()
        for buffer in list(self._buffers):
            buffer.close()
        self._handle = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
