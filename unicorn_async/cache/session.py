"""The cache of device-ready weights, as one load uses it: taken from at its start, written to at its end."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from unicorn_async.cache.lookup import WeightCache, look_up
from unicorn_async.cache.writer import CacheWriter
from unicorn_async.ops.checksum import Checksum

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from unicorn_async.cache.folder import CacheFolder
    from unicorn_async.cache.lookup import CachedEntry, CacheLookup, CacheStatus
    from unicorn_async.cache.writer import Origin
    from unicorn_async.gpu.arena import ArenaSlice
    from unicorn_async.gpu.device import Device
    from unicorn_async.loader.read_strategy import ReadStrategy
    from unicorn_async.weights.plan import LoadPlan


class CacheSession:
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
        origin: Origin,
        plan: LoadPlan,
        device: Device,
        places: Mapping[str, ArenaSlice],
        *,
        read_strategy: Callable[[CacheLookup], ReadStrategy],
        limit: int | None,
    ) -> CacheSession:
        """Look for the entry of an origin's load; without a folder the cache is off.

        Nothing is allocated on the device yet: `places` will have the destinations' memory once the model is loaded.
        `read_strategy` blocks on the disk, and says how to read the file that was found. All entries may have `limit`
        bytes together.

        Raises:
            CheckpointError: a file of the checkpoint can't be read.
        """
        lookup = await asyncio.to_thread(
            look_up, folder, origin.checkpoint, plan, scheme=origin.scheme, lora_digest=origin.lora_digest
        )
        cache = WeightCache(folder, lookup)
        await cache.open()
        checksum = Checksum(device.info, device.kernels)
        cached = None
        if lookup.entry is not None:
            cached = cache.cached(await asyncio.to_thread(read_strategy, lookup), checksum)
        writer = CacheWriter(
            device,
            plan,
            places,
            cache,
            checksum,
            origin,
            limit=limit,
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
