"""A recorder that records nothing: a dry run, which lists what would be dispatched, over tensors without memory."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from unicorn_async.gpu.binding import PipelineHandle, PipelineLayoutHandle
from unicorn_async.gpu.kernel import Kernel, KernelRequest
from unicorn_async.gpu.manifest import PushBlock

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import TypeAlias

    from unicorn_async.gpu.manifest import ConstantValue
    from unicorn_async.gpu.memory import Buffer

    _Key: TypeAlias = tuple[str, tuple[tuple[str, ConstantValue], ...], int | None]

_NO_PUSH = PushBlock((), struct.Struct(""))


class ListedDispatch(NamedTuple):
    """One dispatch: the kernel with the constants that were asked for, and the members of its push constants.

    `label` is what it was said to be for.
    """

    request: KernelRequest
    label: str
    fields: Mapping[str, int | float]


@dataclass(frozen=True, slots=True, eq=False)
class _ListedKernel(Kernel):
    """A kernel that was asked for, and the last block of push constants that was made for it."""

    asked_size: int | None = None
    fields: dict[str, int | float] = field(default_factory=dict)

    def pack(self, **fields: int | float) -> bytes:
        """Keep the members; there is no block to make of them."""
        self.fields.clear()
        self.fields.update(fields)
        return b""


class KernelListing:
    """Stands in for a device's kernels and for a recorder: `take` returns what was recorded."""

    def __init__(self) -> None:
        self._dispatches: list[ListedDispatch] = []
        self._label = ""

    def get(
        self, name: str, *, constants: Mapping[str, ConstantValue] | None = None, subgroup_size: int | None = None
    ) -> Kernel:
        """Return what takes the kernel's place."""
        pipeline, layout = PipelineHandle(0), PipelineLayoutHandle(0)
        return _ListedKernel(
            name, "", (1, 1, 1), subgroup_size or 0, pipeline, layout, _NO_PUSH, 0, constants or {}, subgroup_size
        )

    def dispatch(self, kernel: Kernel, push: bytes, x: int, y: int = 1, z: int = 1) -> None:
        """Note a dispatch."""
        assert isinstance(kernel, _ListedKernel), "a dry run has kernels of its own"
        request = KernelRequest(kernel.name, kernel.constants, kernel.asked_size)
        self._dispatches.append(ListedDispatch(request, self._label, dict(kernel.fields)))

    def dispatch_indirect(self, kernel: Kernel, push: bytes, buffer: Buffer, offset: int) -> None:
        """Note a dispatch."""
        self.dispatch(kernel, push, 0)

    def barrier(self) -> None:
        """Nothing is waited for."""

    def label(self, text: str) -> None:
        """Say what the dispatches that follow are for."""
        self._label = text

    def take(self) -> tuple[ListedDispatch, ...]:
        """Return what was recorded since the last call."""
        dispatches, self._dispatches = tuple(self._dispatches), []
        return dispatches


def unique_requests(requests: Iterable[KernelRequest]) -> tuple[KernelRequest, ...]:
    """Return pipelines each once, in the order in which they come first."""
    found: dict[_Key, KernelRequest] = {}
    for request in requests:
        found.setdefault((request.name, tuple(sorted(request.constants.items())), request.subgroup_size), request)
    return tuple(found.values())
