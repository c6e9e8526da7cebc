"""The NPU's caches and the exchanges with it, in memory that is shared or copied."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from unicorn_async.background import run_to_end
from unicorn_async.config import ExchangeKind
from unicorn_async.errors import DeviceError, NpuSelfCheckError
from unicorn_async.hybrid.interface import NUM_HALVES
from unicorn_async.hybrid.npu_exchange import CopiedExchange
from unicorn_async.hybrid.npu_shared_exchange import LayerCache, SharedExchange, SharedRegion, packet_shape
from unicorn_async.hybrid.npu_trial import check_sharing
from unicorn_async.npu.cache import NpuCache

if TYPE_CHECKING:
    from contextlib import AsyncExitStack

    from unicorn_async.config import EngineConfig
    from unicorn_async.gpu.device import Device
    from unicorn_async.gpu.kernel import KernelRequest
    from unicorn_async.hybrid.npu_exchange import NpuExchange
    from unicorn_async.memory.kv_plan import KVPlan
    from unicorn_async.npu.attention import AttentionService
    from unicorn_async.step.frame import FrameLimits


class NpuMemory:
    """One cache for each layer and one exchange for each half; close it when neither device has work of it any more.

    `reason` says why it is of its `kind`.
    """

    def __init__(
        self,
        near: Device,
        npu: AttentionService,
        options: EngineConfig,
        kv_plan: KVPlan,
        limits: FrameLimits,
        kind: ExchangeKind,
        reason: str,
    ) -> None:
        """Allocate.

        Raises:
            OutOfMemoryError: it does not fit; nothing stays allocated.
            DeviceError: it can't be shared; as `SharedRegion`.
        """
        self.kind = kind
        self.reason = reason
        self._heads = npu.heads
        with contextlib.ExitStack() as made:
            self.caches: list[NpuCache] = []
            layers: list[LayerCache] = []
            for layer in range(len(kv_plan.layer_group)):
                group = kv_plan.group_of(layer)
                name, num_blocks = f"KV cache of layer {layer}", kv_plan.groups[group].num_blocks
                if kind is ExchangeKind.SHARED:
                    region = SharedRegion(near, npu, npu.cache_bytes(num_blocks, name=name), name=name)
                    made.callback(region.close)
                    cache = NpuCache(region.far, npu.heads, num_blocks)
                    layers.append(LayerCache(region.near.address, num_blocks * npu.heads.chunks_per_block, group))
                else:
                    cache = npu.allocate_cache(num_blocks, name=name)
                    made.callback(cache.close)
                self.caches.append(cache)
            exchanges: list[NpuExchange] = []
            for half in range(NUM_HALVES):
                name = f"exchange {'AB'[half]}"
                if kind is ExchangeKind.SHARED:
                    exchanges.append(SharedExchange(near, npu, options, layers, limits.tokens, name=name))
                else:
                    exchanges.append(CopiedExchange(near, npu.heads, limits.tokens, name=name))
                made.callback(exchanges[-1].close)
            self.exchanges = tuple(exchanges)
            self._made = made.pop_all()

    def near_kernels(self) -> tuple[KernelRequest, ...]:
        """Name the pipelines that the near device needs to hand over."""
        return packet_shape(self._heads).kernels() if self.kind is ExchangeKind.SHARED else CopiedExchange.kernels()

    def close(self) -> None:
        """Free everything; a second call does nothing."""
        self._made.close()


async def open_memory(
    near: Device,
    npu: AttentionService,
    options: EngineConfig,
    kv_plan: KVPlan,
    limits: FrameLimits,
    stack: AsyncExitStack,
) -> NpuMemory:
    """Allocate: shared where both devices take it and it works, else for copies; or of the kind that is asked for.

    `stack` gets what has to be closed.

    Raises:
        OutOfMemoryError: there is not so much memory.
        DeviceError: it can't be of the kind that was asked for.
    """

    def make(kind: ExchangeKind, reason: str) -> NpuMemory:
        memory = NpuMemory(near, npu, options, kv_plan, limits, kind, reason)
        stack.callback(memory.close)
        return memory

    asked, why = options.attention_exchange, "asked for"
    if asked is not ExchangeKind.COPIED:
        shared = "both devices have the same pages, and answered alike through them and through copies"
        try:
            memory = await run_to_end(lambda: make(ExchangeKind.SHARED, shared))
        except DeviceError as exc:
            if asked is ExchangeKind.SHARED:
                raise
            why = str(exc)
        else:
            try:
                await check_sharing(near, npu, memory.exchanges, memory.caches[0], kv_plan, limits.tokens)
            except NpuSelfCheckError as exc:
                if asked is ExchangeKind.SHARED:
                    raise
                why = str(exc)
                memory.close()
            else:
                return memory
    return await run_to_end(lambda: make(ExchangeKind.COPIED, why))
