"""The cache of device-ready weights, as one model's load uses it: taken from at its start, written to at its end."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from unicorn_async.cache.lookup import WeightCache
from unicorn_async.cache.writer import CacheWriter, Origin
from unicorn_async.gpu.host_memory import HostMemory
from unicorn_async.ops.checksum import Checksum

if TYPE_CHECKING:
    from collections.abc import Mapping

    from unicorn_async.cache.folder import CacheFolder
    from unicorn_async.cache.lookup import CachedEntry, CacheStatus
    from unicorn_async.config import EngineConfig
    from unicorn_async.engine.model_on_disk import ModelOnDisk
    from unicorn_async.gpu.arena import ArenaSlice
    from unicorn_async.gpu.device import Device
    from unicorn_async.memory.plan import MemoryPlan

_KEPT_SHARE = 0.5  # of the free memory: a larger entry is not left in the page cache when it is written


class ModelCache:
    """`cached` is the source of a load that finds its weights in the cache, None for others."""

    def __init__(self, cache: WeightCache, cached: CachedEntry | None, writer: CacheWriter) -> None:
        self._cache = cache
        self._writer = writer
        self.cached = cached
        self._settled = asyncio.Event()

    @classmethod
    async def open(
        cls,
        folder: CacheFolder | None,
        model: ModelOnDisk,
        device: Device,
        places: Mapping[str, ArenaSlice],
        options: EngineConfig,
        memory_plan: MemoryPlan,
    ) -> ModelCache:
        """Look for the model's entry; without a folder the cache is off. Nothing is allocated for the model yet.

        `places` will have the destinations' memory once the model is loaded.

        Raises:
            CheckpointError: a file of the checkpoint can't be read.
        """
        lookup = await asyncio.to_thread(model.look_up, folder)
        cache = WeightCache(folder, lookup)
        await cache.open()
        checksum = Checksum(device.info, device.kernels)
        cached = None
        if lookup.entry is not None:
            strategy = await asyncio.to_thread(
                model.read_strategy, device.info, options.num_reader_threads, memory=memory_plan, found=lookup
            )
            cached = cache.cached(strategy, checksum)
        available = HostMemory().available_bytes()
        if available is not None and device.info.shares_host_memory:
            available -= memory_plan.placement.total_bytes
        writer = CacheWriter(
            device,
            model.plan,
            places,
            cache,
            checksum,
            Origin(model.name, model.checkpoint, model.scheme, model.lora_digest),
            limit=options.cache_bytes,
            keeps_pages=available is None or model.plan.dest_bytes <= available * _KEPT_SHARE,
        )
        return cls(cache, cached, writer)

    @property
    def status(self) -> CacheStatus:
        """How it stands with the model's entry."""
        return self._cache.status

    async def write(self) -> None:
        """Write the entry if there should be one and is none, once the model is loaded; raises DeviceError."""
        if self._cache.wants_writing:
            await self._writer.run()

    def finish(self) -> None:
        """Note that nothing more happens to the entry, whatever ended the load."""
        self._settled.set()

    async def settled(self) -> None:
        """Return when `finish` was called."""
        await self._settled.wait()
