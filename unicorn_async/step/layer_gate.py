"""Layers of a model that may be recorded and submitted, while its memory is still allocated."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unicorn_async.memory.plan import fixed_name

if TYPE_CHECKING:
    from unicorn_async.gpu.timeline import Timeline
    from unicorn_async.loader.allocator import BackgroundAllocator
    from unicorn_async.loader.stream import LoadStream
    from unicorn_async.models.spec import ModelSpec


class LayerGate:
    """A `LayerReadiness`: a layer is there once its weights are on the way, and its state of fixed size has memory."""

    def __init__(self, stream: LoadStream, allocator: BackgroundAllocator, model: ModelSpec) -> None:
        self._stream = stream
        self._allocator = allocator
        self._model = model

    @property
    def all_active(self) -> bool:
        """Whether the weights of every layer may be used without waiting."""
        return self._stream.all_active

    async def layer_submitted(self, layer: int) -> tuple[Timeline, int]:
        """Return the timeline value at which the layer may be used, as soon as a device may wait for it.

        Raises:
            OutOfMemoryError: its state has no room after all.
            UnicornError: what made the load fail.
        """
        ready = await self._stream.layer_submitted(layer)
        if 0 <= layer < self._model.num_layers and self._model.layers[layer].fixed is not None:
            await self._allocator.wait([fixed_name(layer)])
        return ready

    async def checked(self) -> None:
        """Wait until all layers are active and nothing was wrong with their values; raises what made the load fail."""
        await self._stream.checked()
