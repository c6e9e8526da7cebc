"""One layer's attention through an exchange, without a model: what a start checks, and what a validation times."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import numpy as np

from unicorn_async.background import run_to_end
from unicorn_async.errors import NpuSelfCheckError
from unicorn_async.gpu.arena import ArenaSlice
from unicorn_async.gpu.command import CommandPool
from unicorn_async.gpu.memory import MemoryKind
from unicorn_async.npu.work import SequenceWork

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from unicorn_async.gpu.device import Device
    from unicorn_async.hybrid.npu_exchange import NpuExchange
    from unicorn_async.memory.kv_plan import KVPlan
    from unicorn_async.npu.attention import AttentionService
    from unicorn_async.npu.cache import NpuCache
    from unicorn_async.npu.packets import Bf16Bits

_NUM_QUESTIONS = 2  # the second one finds what is left of the first
_MAX_TOKENS = 48


class HandOverTrial:
    """Sequences that are all new, of `lengths` tokens, in a layer's first blocks; layer 0's, turn 0's.

    Values are multiples of 1/8 below 1: bf16 and f32 both hold them. Close it once nothing of it is under way.
    """

    def __init__(
        self,
        near: Device,
        npu: AttentionService,
        exchange: NpuExchange,
        cache: NpuCache,
        kv_plan: KVPlan,
        lengths: Sequence[int],
    ) -> None:
        """Record what the near device does; the blocks have to suffice.

        Raises:
            OutOfMemoryError: there is not so much memory.
        """
        self._near, self._npu, self._exchange, self._cache = near, npu, exchange, cache
        heads, self.num_tokens = npu.heads, sum(lengths)
        window = kv_plan.groups[kv_plan.group_of(0)].window
        works, slots, start, block = [], [], 0, 0
        for length in lengths:
            count = -(-length // heads.block_size)
            table = tuple(reversed(range(block, block + count)))
            works.append(SequenceWork(start, length, length, table))
            tokens = np.arange(length)
            slots.append(np.array(table)[tokens // heads.block_size] * heads.block_size + tokens % heads.block_size)
            start, block = start + length, block + count
        self._slots = np.concatenate(slots)
        self._num_blocks = block
        self._step, self._copied = (
            npu.prepare(works, num_tokens=self.num_tokens, num_blocks=count, window=window, is_shared=is_shared)
            for count, is_shared in ((cache.num_blocks, exchange.is_shared), (block, False))
        )
        num_groups = len(kv_plan.groups)
        exchange.begin(0, [self._step] * num_groups, [self._slots] * num_groups)
        rows = (heads.num_heads, heads.num_kv_heads, heads.num_kv_heads)
        self._shapes = [(self.num_tokens, count, heads.layout.head_dim) for count in rows]
        offsets = [0, *(address - exchange.q for address in (exchange.new_kv.k, exchange.new_kv.v))]
        with contextlib.ExitStack() as made:
            self._values = near.memory.allocate(exchange.rotated.nbytes, MemoryKind.STAGING, name="trial: values")
            made.callback(self._values.close)
            nbytes = 4 * int(np.prod(self._shapes[0]))
            self._out = near.memory.allocate(nbytes, MemoryKind.STAGING, name="trial: result")
            made.callback(self._out.close)
            pool = CommandPool(near, near.compute)
            made.callback(pool.close)
            recorder = pool.recorder()
            for offset, shape in zip(offsets, self._shapes, strict=True):
                recorder.copy(self._values, offset, exchange.rotated, offset, 4 * int(np.prod(shape)))
            recorder.barrier()
            exchange.record_filled(recorder, self.num_tokens, turn=0, layer=0)
            self._fill = recorder.end()
            recorder = pool.recorder()
            out = ArenaSlice(self._out, 0, self._out.address, nbytes)
            exchange.record_result(recorder, self.num_tokens, out, turn=0, layer=0)
            recorder.host_barrier()
            self._take = recorder.end()
            self._made = made.pop_all()
        self._offsets = offsets

    def ask(self, seed: int) -> list[Bf16Bits]:
        """Write q, k and v for the near device; returns them in bf16, (tokens, heads, head_dim) each."""
        assert self._values.mapped is not None
        rng, asked = np.random.default_rng(seed), []
        for offset, shape in zip(self._offsets, self._shapes, strict=True):
            values = (rng.integers(-7, 8, shape) / 8).astype(np.float32)
            self._values.mapped[offset : offset + values.nbytes] = values.tobytes()
            asked.append((values.view(np.uint32) >> 16).astype(np.uint16))
        return asked

    async def attend(self) -> None:
        """Take what was asked through the exchange, as a layer of a step is.

        Raises:
            DeviceError: one of the devices failed.
        """
        queue = self._near.compute
        await queue.timeline.reached(queue.submit([self._fill]))
        await self._exchange.store(self._cache, self._slots)
        await self._exchange.attend(self._npu, self._step, self._cache)
        await queue.timeline.reached(queue.submit([self._take]))

    def result(self) -> NDArray[np.float32]:
        """Return a copy of what came back, (tokens, num_heads, head_dim)."""
        assert self._out.mapped is not None
        return (
            np.frombuffer(self._out.mapped, np.float32)[: int(np.prod(self._shapes[0]))].reshape(self._shapes[0]).copy()
        )

    def poison(self) -> None:
        """Fill the room for the result with NaN."""
        assert self._out.mapped is not None
        np.frombuffer(self._out.mapped, np.float32)[:] = np.nan

    async def copied(self, asked: Sequence[Bf16Bits]) -> NDArray[np.float32]:
        """Return the answer that the NPU gives through copies alone, with a cache of its own."""
        q, k, v = asked
        out = np.full(q.shape, np.nan, np.float32)
        cache = self._npu.allocate_cache(self._num_blocks, name="trial: cache")
        try:
            cache.write(k, v, self._slots)
            await self._npu.submit(self._copied, q=q, cache=cache, out=out)
        finally:
            try:
                await self._npu.drain()
            finally:
                cache.close()
        return out

    def close(self) -> None:
        """Free everything; a second call does nothing."""
        self._made.close()


async def check_sharing(
    near: Device,
    npu: AttentionService,
    exchanges: Sequence[NpuExchange],
    cache: NpuCache,
    kv_plan: KVPlan,
    max_tokens: int,
) -> None:
    """Have questions answered through memory that both devices share, and through copies: the answers have to be equal.

    Memory that one device does not see as the other wrote it gives no error, only another answer. `cache` is layer 0's.

    Raises:
        NpuSelfCheckError: they differ. DeviceError: one of the devices failed.
    """
    length = min(max_tokens, cache.num_blocks * npu.heads.block_size, _MAX_TOKENS)
    for exchange in exchanges:
        trials: list[HandOverTrial] = []  # also those that were made for a caller who is cancelled

        def make(exchange: NpuExchange = exchange, trials: list[HandOverTrial] = trials) -> None:
            trials.append(HandOverTrial(near, npu, exchange, cache, kv_plan, [length]))

        try:
            await run_to_end(make)
            (trial,) = trials
            for seed in range(_NUM_QUESTIONS):
                asked = trial.ask(seed)
                expected = await trial.copied(asked)
                trial.poison()
                await trial.attend()
                wrong = int((trial.result() != expected).sum())
                if wrong:
                    raise NpuSelfCheckError(
                        f"NPU, memory shared with {near.info.name}: {wrong} of {expected.size} results differ from"
                        " those that came through copies"
                    )
        finally:
            try:
                await npu.drain()
                await run_to_end(near.wait_idle)
            finally:
                for trial in trials:
                    trial.close()
