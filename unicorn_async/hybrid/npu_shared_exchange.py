"""How a Vulkan device and the NPU hand over a half's q, k, v and result in memory of both, without a copy."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from unicorn_async.background import THREAD_BYTES, run_to_end
from unicorn_async.errors import OutOfMemoryError
from unicorn_async.gpu.host_pages import SharedPages
from unicorn_async.gpu.memory import MemoryKind
from unicorn_async.hybrid.npu_exchange import RotatedMemory
from unicorn_async.npu.geometry import BF16_BYTES
from unicorn_async.npu.schedule import PACKET_BYTES
from unicorn_async.npu.shared import SharedPackets, first_rows, max_items, result_elements
from unicorn_async.ops.kv_cache import NO_SLOT
from unicorn_async.ops.npu_packets import ROW, PacketShape, npu_new_tokens, npu_queries, npu_results
from unicorn_async.step.mapped_arrays import Field, made_block

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from unicorn_async.config import EngineConfig
    from unicorn_async.gpu.arena import ArenaSlice
    from unicorn_async.gpu.command import CommandRecorder
    from unicorn_async.gpu.device import Device
    from unicorn_async.npu.attention import AttentionService
    from unicorn_async.npu.cache import NpuCache
    from unicorn_async.npu.step import PreparedStep
    from unicorn_async.npu.work import AttentionHeads


class SharedRegion:
    """Pages of the host that the near device and the NPU have as buffers, `near` and `far`.

    The NPU's buffer is closed first, then the near device's, then the pages go. Neither may have work of it then.
    """

    def __init__(self, near: Device, npu: AttentionService, nbytes: int, *, name: str) -> None:
        """Map the pages, and have both devices take them.

        Raises:
            MissingFeatureError: the near device or this XRT takes no memory of the host.
            OutOfMemoryError: there is not so much, or one of them can't lock it. NpuError: XRT refuses it.
        """
        with contextlib.ExitStack() as made:
            pages = SharedPages(nbytes, alignment=near.info.host_pointer_alignment)
            made.callback(pages.close)
            if pages.view.nbytes > near.info.max_allocation:
                raise OutOfMemoryError(
                    f"{name}: {near.info.name} takes {near.info.max_allocation:,} bytes at once at most, not"
                    f" {pages.view.nbytes:,}"
                )
            self.near = near.memory.import_host(pages.view, name=name)
            made.callback(self.near.close)
            self.far = npu.wrap(pages.view, name=name)
            made.callback(self.far.close)
            self._made = made.pop_all()

    def close(self) -> None:
        """Give everything back; a second call does nothing."""
        self._made.close()


@dataclass(frozen=True, slots=True)
class LayerCache:
    """Where a layer's cache is for the near device, its chunks for each kv head, and its block group."""

    address: int
    num_chunks: int
    group: int


def shared_bytes(heads: AttentionHeads, options: EngineConfig) -> int:
    """Return the memory of the host that a half's packets and results take at most."""
    num_items = max_items(heads, options.max_num_batched_tokens, options.max_seqs)
    return num_items * (PACKET_BYTES + heads.layout.result_bytes)


def packet_shape(heads: AttentionHeads) -> PacketShape:
    """Return what the near device's kernels have to know of the NPU's layouts."""
    return PacketShape(heads.num_kv_heads, heads.group, heads.layout.head_dim, heads.layout.chip.tile_n)


class SharedExchange:
    """One half's packets and results; an `NpuExchange`. Close it when neither device has work of it any more.

    The near device itself writes queries into packets, new keys and values into the layer's cache, and reads results.
    Which places these are changes with every step, and is in a table for each turn and block group.

    A run that an abandoned pass has left may read what the next step writes: what it computes is of no use then, and
    nothing that decides what a run does is written before it has ended. Of a cut prompt, the second half's keys and
    values may be written while the NPU attends for the first: no query sees them there, and all are finite.
    """

    def __init__(
        self,
        near: Device,
        npu: AttentionService,
        options: EngineConfig,
        layers: Sequence[LayerCache],
        max_tokens: int,
        *,
        name: str,
    ) -> None:
        """Allocate.

        Raises:
            DeviceError: as `SharedRegion`.
        """
        self.is_shared = True
        heads = npu.heads
        self._kernels = near.kernels
        self._shape = packet_shape(heads)
        self._heads = heads
        self._layers = tuple(layers)
        num_groups = 1 + max(layer.group for layer in layers)
        num_items = max_items(heads, max_tokens, options.max_seqs)
        with contextlib.ExitStack() as made:
            rotated = RotatedMemory(near, heads, max_tokens, name=name)
            made.callback(rotated.buffer.close)
            fields = {"rows": Field(ROW, (options.num_frames, num_groups, max_tokens))}
            self._table = made_block(made, near, fields, MemoryKind.ARGUMENTS, f"{name}: rows")
            packets = SharedRegion(near, npu, num_items * PACKET_BYTES, name=f"{name}: packets")
            made.callback(packets.close)
            results = SharedRegion(near, npu, num_items * heads.layout.result_bytes, name=f"{name}: results")
            made.callback(results.close)
            self._made = made.pop_all()
        self._table.arrays["rows"]["slot"] = NO_SLOT
        self._packets_address, self._results_address = packets.near.address, results.near.address
        self.packets = SharedPackets(packets.far, results.far, heads.layout)
        self.q, self.new_kv, self.rotated = rotated.q, rotated.new_kv, rotated.buffer
        self.nbytes = rotated.buffer.nbytes + self._table.buffer.nbytes

    def begin(self, turn: int, steps: Sequence[PreparedStep], slots: Sequence[NDArray[np.int64]]) -> None:
        """See `NpuExchange`."""
        for rows, step, places in zip(self._table.arrays["rows"][turn], steps, slots, strict=True):
            rows["slot"] = NO_SLOT
            rows["slot"][: len(places)] = places
            tokens, items, first = first_rows(step)
            rows["item"][tokens], rows["first"][tokens] = items, first
            rows["stride"] = result_elements(step)

    def record_filled(self, recorder: CommandRecorder, num_tokens: int, *, turn: int, layer: int) -> None:
        """See `Exchange`: writes what the NPU reads; what leads here ends with a barrier."""
        cache, rows = self._layers[layer], self._rows(turn, layer)
        npu_queries(
            recorder,
            self._kernels,
            self._shape,
            q=self.q,
            rows=rows,
            packets=self._packets_address,
            num_tokens=num_tokens,
        )
        npu_new_tokens(
            recorder,
            self._kernels,
            self._shape,
            new=self.new_kv,
            rows=rows,
            cache=cache.address,
            num_chunks=cache.num_chunks,
            num_tokens=num_tokens,
        )
        recorder.host_barrier()

    def record_result(
        self, recorder: CommandRecorder, num_tokens: int, attended: ArenaSlice, *, turn: int, layer: int
    ) -> None:
        """See `Exchange`."""
        npu_results(
            recorder,
            self._kernels,
            self._shape,
            results=self._results_address,
            rows=self._rows(turn, layer),
            attended=attended.address,
            num_tokens=num_tokens,
        )

    async def store(self, cache: NpuCache, slots: NDArray[np.int64]) -> None:
        """See `NpuExchange`: they are there, and are shown to the NPU."""
        heads = self._heads
        if 2 * BF16_BYTES * len(slots) * heads.num_kv_heads * heads.layout.head_dim < THREAD_BYTES:
            cache.show(slots)
        else:
            await run_to_end(lambda: cache.show(slots))

    async def attend(self, npu: AttentionService, step: PreparedStep, cache: NpuCache) -> None:
        """See `NpuExchange`."""
        await npu.submit_shared(step, packets=self.packets, cache=cache)

    def close(self) -> None:
        """Free the memory; a second call does nothing."""
        self._made.close()

    def _rows(self, turn: int, layer: int) -> int:
        """Return the address of the table for a layer."""
        _, num_groups, max_tokens = self._table.arrays["rows"].shape
        table = turn * num_groups + self._layers[layer].group
        return self._table.address["rows"] + int(table * max_tokens * ROW.itemsize)
