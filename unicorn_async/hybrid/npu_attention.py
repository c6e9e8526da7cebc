"""Attention on an NPU: its caches, and passes over layers."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from unicorn_async.background import run_to_end
from unicorn_async.config import KVDType
from unicorn_async.npu.work import SequenceWork

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from unicorn_async.config import EngineConfig
    from unicorn_async.gpu.kernel import KernelRequest
    from unicorn_async.hybrid.busy import BusyTrack
    from unicorn_async.hybrid.npu_exchange import NpuExchange
    from unicorn_async.hybrid.npu_memory import NpuMemory
    from unicorn_async.memory.kv_plan import KVPlan
    from unicorn_async.npu.attention import AttentionService, PreparedStep
    from unicorn_async.scheduler.batch import Batch


class NpuFarAttention:
    """Keys, values and attention on an NPU; a `FarAttention`. Close it when the near device has no work of it.

    A pass is an `AttentionPass`: for each layer the cache gets the new keys and values, and the NPU attends. The NPU's
    attention is borrowed, but closed before the memory is, which belongs to this.
    """

    def __init__(
        self,
        npu: AttentionService,
        memory: NpuMemory,
        options: EngineConfig,
        kv_plan: KVPlan,
        track: BusyTrack,
    ) -> None:
        """`track` gets the NPU's spans, with the host's copies of queries and results in them, if there are any."""
        self.kv_dtype: KVDType = KVDType.F32
        self._npu = npu
        self._block_size = options.block_size
        self._kv_plan = kv_plan
        self._track = track
        self._is_abandoned = False
        self._memory = memory

    @property
    def exchanges(self) -> Sequence[NpuExchange]:
        """One for each half."""
        return self._memory.exchanges

    @property
    def kernels(self) -> tuple[str, ...]:
        """Name the kernels that the NPU runs, by its chip and their head_dim."""
        layout = self._npu.heads.layout
        return (f"npu_attention_{layout.chip.name}_{layout.head_dim}",)

    @property
    def recoveries(self) -> int:
        """How often the NPU's context was made anew."""
        return self._npu.counts.recoveries

    @property
    def run_s(self) -> float | None:
        """Less than at the start behind runs that the driver ended, until enough have ended well."""
        return self._npu.pace.run_s

    def near_kernels(self) -> tuple[KernelRequest, ...]:
        """Name the pipelines that round to the NPU's type, and bring things to their places."""
        return self._memory.near_kernels()

    def prepare_kernels(self) -> None:
        """Do nothing: the NPU's kernels are loaded, and have answered known questions."""

    def save_kernels(self) -> None:
        """Do nothing: nothing was compiled."""

    async def begin(self, turn: int, half: int, batch: Batch, num_tokens: int) -> NpuPass:
        """See `FarAttention`; rows of padding are not handed to the NPU."""
        del num_tokens
        exchange = self._memory.exchanges[half]
        groups = list(enumerate(self._kv_plan.groups))
        works = [_works(batch, group) for group, _ in groups]
        slots = tuple(_slots(batch, group, self._block_size) for group, _ in groups)

        def prepare() -> tuple[PreparedStep, ...]:
            count = batch.num_tokens
            return tuple(
                self._npu.prepare(
                    works[group],
                    num_tokens=count,
                    num_blocks=blocks.num_blocks,
                    window=blocks.window,
                    is_shared=exchange.is_shared,
                )
                for group, blocks in groups
            )

        # Thousands of instructions for a long prompt: in a thread the event loop gets its turns in between.
        steps = await run_to_end(prepare)
        exchange.begin(turn, steps, slots)
        return NpuPass(self, batch.step, half, steps, slots)

    async def attend(self, turn: NpuPass, layer: int) -> None:
        """Compute a layer on behalf of a pass."""
        if self._is_abandoned:  # a run may still read what the host is about to write
            await self._npu.drain()
            self._is_abandoned = False
        exchange = self._memory.exchanges[turn.half]
        cache, group = self._memory.caches[layer], self._kv_plan.group_of(layer)
        await exchange.store(cache, turn.slots[group])
        submitted_s = time.perf_counter()
        try:
            await exchange.attend(self._npu, turn.steps[group], cache)
        except BaseException:
            self._is_abandoned = True
            raise
        self._track.ended(turn.step, turn.half, layer, submitted_s)

    async def drain(self) -> None:
        """See `FarAttention`."""
        await self._npu.drain()

    async def close(self) -> None:
        """Close the NPU's attention, which waits for its runs, then free everything; a second call does nothing."""
        try:
            await self._npu.close()
        finally:
            self._memory.close()


@dataclass(frozen=True, slots=True)
class NpuPass:
    """The attention of one half of a step; `steps` and `slots` are by block group."""

    attention: NpuFarAttention
    step: int
    half: int
    steps: tuple[PreparedStep, ...]
    slots: tuple[NDArray[np.int64], ...]

    async def attend(self, layer: int) -> None:
        """See `AttentionPass`."""
        await self.attention.attend(self, layer)


def _works(batch: Batch, group: int) -> list[SequenceWork]:
    works, row = [], 0
    for item in batch.scheduled:
        blocks = tuple(item.sequence.block_tables[group])
        works.append(SequenceWork(row, item.num_tokens, item.start + item.num_tokens, blocks))
        row += item.num_tokens
    return works


def _slots(batch: Batch, group: int, block_size: int) -> NDArray[np.int64]:
    """Return the places of the batch's tokens in the caches of a group, (tokens)."""
    slots: list[int] = []
    for item in batch.scheduled:
        table = item.sequence.block_tables[group]
        where = range(item.start, item.start + item.num_tokens)
        slots += [table[position // block_size] * block_size + position % block_size for position in where]
    return np.array(slots, np.int64)
