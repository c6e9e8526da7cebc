"""Memory through which two Vulkan devices hand over a half's q, k, v and result."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from unicorn_async.background import THREAD_BYTES, run_to_end
from unicorn_async.config import ExchangeKind
from unicorn_async.errors import DeviceError
from unicorn_async.gpu.host_pages import SharedPages
from unicorn_async.gpu.memory import MemoryKind
from unicorn_async.ops.kv_cache import KVCache
from unicorn_async.tensor import DType, Tensor, aligned

if TYPE_CHECKING:
    from unicorn_async.gpu.arena import ArenaSlice
    from unicorn_async.gpu.command import CommandRecorder
    from unicorn_async.gpu.device import Device
    from unicorn_async.gpu.memory import Buffer
    from unicorn_async.ops.kv_cache import AttentionShape


@dataclass(frozen=True, slots=True)
class ExchangeLayout:
    """Offsets in a half's exchange memory, in bytes, for at most `max_tokens` tokens; q begins at 0.

    q and the result are (tokens, num_heads * head_dim) f32; k and v are (tokens, num_kv_heads, head_dim) in the
    cache's type, in f16 for one of int8.
    """

    shape: AttentionShape
    max_tokens: int

    @property
    def row_bytes(self) -> int:
        """Bytes of q of a token."""
        return 4 * self.shape.num_heads * self.shape.head_dim

    @property
    def kv_row_bytes(self) -> int:
        """Bytes of k of a token."""
        return self.shape.handed_over.block_nbytes

    @property
    def k_offset(self) -> int:
        """Where keys begin."""
        return aligned(self.max_tokens * self.row_bytes)

    @property
    def v_offset(self) -> int:
        """Where values begin."""
        return self.k_offset + aligned(self.max_tokens * self.kv_row_bytes)

    @property
    def result_offset(self) -> int:
        """Where the result begins."""
        return self.v_offset + aligned(self.max_tokens * self.kv_row_bytes)

    @property
    def nbytes(self) -> int:
        """Size of all."""
        return self.result_offset + aligned(self.max_tokens * self.row_bytes)


class VulkanExchange:
    """One half's exchange memory; an `Exchange` of the near device. Close it when neither device uses it any more.

    `reason` says why it is of its `kind`. `far` is what the far device sees of it.
    """

    def __init__(
        self, near: Device, far: Device, layout: ExchangeLayout, *, name: str, kind: ExchangeKind | None = None
    ) -> None:
        """Allocate: shared where both devices take the host's memory, else memory of each; or of the `kind` asked for.

        Raises:
            OutOfMemoryError: there is not so much memory.
            DeviceError: it can't be of the kind that was asked for.
        """
        self.layout = layout
        with contextlib.ExitStack() as made:
            self.kind, self.reason, self.result, self.far = _allocate(made, near, far, layout, name, kind)
            self._made = made.pop_all()
        start = self.result.address
        self.q = start
        self.new_kv = KVCache(start + layout.k_offset, start + layout.v_offset)
        self.result_offset = layout.result_offset
        self.nbytes = self.result.nbytes
        far_start = self.far.address
        self.far_kv = KVCache(far_start + layout.k_offset, far_start + layout.v_offset)

    def record_filled(self, recorder: CommandRecorder, num_tokens: int, *, turn: int, layer: int) -> None:
        """See `Exchange`; the memory is the host's, so that nothing but its visibility is left to do."""
        del num_tokens, turn, layer
        recorder.host_barrier()

    def record_result(
        self, recorder: CommandRecorder, num_tokens: int, attended: ArenaSlice, *, turn: int, layer: int
    ) -> None:
        """See `Exchange`."""
        del turn, layer
        nbytes = num_tokens * self.layout.row_bytes
        recorder.copy(self.result, self.result_offset, attended.buffer, attended.offset, nbytes)

    def far_result(self, num_tokens: int) -> Tensor:
        """Return where the far device writes the result, (tokens, num_heads * head_dim) f32."""
        shape = self.layout.shape
        address = self.far.address + self.layout.result_offset
        return Tensor(address, (num_tokens, shape.num_heads * shape.head_dim), DType.F32)

    async def to_far(self, num_tokens: int) -> None:
        """Bring q, k and v over; the near device has written them."""
        if self.kind is ExchangeKind.COPIED:
            layout = self.layout
            kv_bytes = num_tokens * layout.kv_row_bytes
            ranges = ((0, num_tokens * layout.row_bytes), (layout.k_offset, kv_bytes), (layout.v_offset, kv_bytes))
            await _copy(self.result, self.far, *ranges)

    async def to_near(self, num_tokens: int) -> None:
        """Bring the result back; the far device has written it."""
        if self.kind is ExchangeKind.COPIED:
            await _copy(self.far, self.result, (self.result_offset, num_tokens * self.layout.row_bytes))

    def close(self) -> None:
        """Free the memory; a second call does nothing."""
        self._made.close()


def _allocate(
    made: contextlib.ExitStack,
    near: Device,
    far: Device,
    layout: ExchangeLayout,
    name: str,
    kind: ExchangeKind | None,
) -> tuple[ExchangeKind, str, Buffer, Buffer]:
    """Return the kind, why, and what the near and the far device see."""
    why = "asked for"
    if kind is not ExchangeKind.COPIED:
        try:
            with contextlib.ExitStack() as sharing:
                buffers = _share(sharing, near, far, layout.nbytes, name)
                made.push(sharing.pop_all())
            return ExchangeKind.SHARED, "both devices import the host's memory", *buffers
        except DeviceError as exc:
            if kind is ExchangeKind.SHARED:
                raise
            why = str(exc)
    copies = []
    for device in (near, far):
        buffer = device.memory.allocate(layout.nbytes, MemoryKind.STAGING, name=name)
        made.callback(buffer.close)
        copies.append(buffer)
    return ExchangeKind.COPIED, why, copies[0], copies[1]


def _share(made: contextlib.ExitStack, near: Device, far: Device, nbytes: int, name: str) -> tuple[Buffer, Buffer]:
    pages = SharedPages(nbytes, alignment=max(near.info.host_pointer_alignment, far.info.host_pointer_alignment))
    made.callback(pages.close)
    first = near.memory.import_host(pages.view, name=name)
    made.callback(first.close)
    second = far.memory.import_host(pages.view, name=name)
    made.callback(second.close)
    return first, second


async def _copy(src: Buffer, dst: Buffer, *ranges: tuple[int, int]) -> None:
    """Copy (offset, bytes) ranges to the same offsets."""
    assert src.mapped is not None and dst.mapped is not None
    source, target = np.frombuffer(src.mapped, np.uint8), np.frombuffer(dst.mapped, np.uint8)

    def copy() -> None:
        for offset, nbytes in ranges:
            target[offset : offset + nbytes] = source[offset : offset + nbytes]

    if sum(nbytes for _, nbytes in ranges) < THREAD_BYTES:
        copy()
    else:
        await run_to_end(copy)
