"""What ops record with: the one interface of what records, what measures, and what only lists."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from unicorn_async.gpu.kernel import Kernel
    from unicorn_async.gpu.manifest import ConstantValue
    from unicorn_async.gpu.memory import Buffer


class Kernels(Protocol):
    """Where kernels come from; see `KernelLibrary`."""

    def get(
        self, name: str, *, constants: Mapping[str, ConstantValue] | None = None, subgroup_size: int | None = None
    ) -> Kernel:
        """Return a kernel of the manifest with these constants."""


class Recorder(Protocol):
    """Takes dispatches and barriers, one after the other; see `CommandRecorder`."""

    def dispatch(self, kernel: Kernel, push: bytes, x: int, y: int = 1, z: int = 1) -> None:
        """Run a kernel on x·y·z workgroups."""

    def dispatch_indirect(self, kernel: Kernel, push: bytes, buffer: Buffer, offset: int) -> None:
        """Run a kernel on as many workgroups as a buffer says when the dispatch starts."""

    def label(self, text: str) -> None:
        """Say what the dispatches that follow are for, for those who list them."""

    def barrier(self) -> None:
        """Make all writes so far visible to what follows."""
