"""Which layers of which steps went to a queue."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from unicorn_async.engine.layer_recording import LayerRecording
from unicorn_async.gpu.queue import Queue

if TYPE_CHECKING:
    import pytest

    from unicorn_async.engine.attention_writer import AttentionParts
    from unicorn_async.engine.batch_writer import StepShape
    from unicorn_async.gpu.command import CommandBuffer


class LayerLog:
    """Notes, for each submission of one layer's commands, the recording that these are of, and the layer."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.entries: list[tuple[LayerRecording, int]] = []
        self._changed = asyncio.Event()
        names: dict[CommandBuffer, tuple[LayerRecording, int]] = {}
        layers, submit = LayerRecording.layers, Queue.submit

        def named_layers(
            recording: LayerRecording, shape: StepShape, work: AttentionParts, first: int, stop: int
        ) -> CommandBuffer:
            commands = layers(recording, shape, work, first, stop)
            if stop == first + 1:
                names[commands] = recording, first
            return commands

        def noted_submit(queue: Queue, commands: list[CommandBuffer], **options: Any) -> int:
            found = [names[buffer] for buffer in commands if buffer in names]
            if found:
                self.entries += found
                self._changed.set()
            return submit(queue, commands, **options)

        patch.setattr(LayerRecording, "layers", named_layers)
        patch.setattr(Queue, "submit", noted_submit)

    async def has(self, layer: int, count: int) -> None:
        """Wait until so many steps went through a layer."""
        while len(self.steps(layer)) < count:
            self._changed.clear()
            await self._changed.wait()

    def steps(self, layer: int) -> list[LayerRecording]:
        """The recordings of the steps that went through a layer, in order."""
        return [recording for recording, other in self.entries if other == layer]
