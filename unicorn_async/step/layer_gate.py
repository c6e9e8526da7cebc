"""Layers of a model that may be recorded and submitted, while its memory is still allocated."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unicorn_async.memory.plan import kv_names

if TYPE_CHECKING:
    from unicorn_async.gpu.timeline import Timeline
    from unicorn_async.loader.allocator import BackgroundAllocator
    from unicorn_async.loader.stream import LoadStream


class LayerGate:
    """A `LayerReadiness`: a layer is there once its weights are on the way, and its cache has memory."""

    def __init__(self, stream: LoadStream, allocator: BackgroundAllocator, num_layers: int) -> None:
        self._stream = stream
        self._allocator = allocator
        self._num_layers = num_layers

    @property
    def all_active(self) -> bool:
        """Whether the weights of every layer may be used without waiting."""
        return self._stream.all_active

    async def layer_submitted(self, layer: int) -> tuple[Timeline, int]:
        """Return the timeline value at which the layer may be used, as soon as a device may wait for it.

        Raises:
            OutOfMemoryError: its cache has no room after all.
            UnicornError: what made the load fail.
        """
        ready = await self._stream.layer_submitted(layer)
        if 0 <= layer < self._num_layers:
            await self._allocator.wait(kv_names(layer))
        return ready

    async def checked(self) -> None:
        """Wait until all layers are active and nothing was wrong with their values; raises what made the load fail."""
        await self._stream.checked()
