"""Which layers of which steps went to a queue."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from unicorn_async.engine.layer_recording import LayerRecording
from unicorn_async.gpu.queue import Queue

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pytest

    from unicorn_async.engine.attention_writer import AttentionParts
    from unicorn_async.engine.batch_writer import StepShape
    from unicorn_async.gpu.command import CommandBuffer
    from unicorn_async.gpu.queue import Submission


class LayerLog:
    """Notes, whenever one layer's commands are submitted behind a load, the recording that these are of, and the layer.

    `most_at_once` is how many layers one submission had; one call of the driver may have several of these.
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.entries: list[tuple[LayerRecording, int]] = []
        self.most_at_once = 0
        self._changed = asyncio.Event()
        names: dict[CommandBuffer, tuple[LayerRecording, int]] = {}
        layers, submit_each = LayerRecording.layers, Queue.submit_each

        def named_layers(
            recording: LayerRecording, shape: StepShape, work: AttentionParts, first: int, stop: int
        ) -> CommandBuffer:
            commands = layers(recording, shape, work, first, stop)
            if stop == first + 1:
                names[commands] = recording, first
            return commands

        def noted_submit(queue: Queue, submissions: Sequence[Submission]) -> list[int]:
            for each in submissions:
                found = [names[buffer] for buffer in each.commands if buffer in names]
                if found:
                    self.entries += found
                    self.most_at_once = max(self.most_at_once, len(found))
                    self._changed.set()
            return submit_each(queue, submissions)

        patch.setattr(LayerRecording, "layers", named_layers)
        patch.setattr(Queue, "submit_each", noted_submit)

    async def has(self, layer: int, count: int) -> None:
        """Wait until so many steps went through a layer."""
        while len(self.steps(layer)) < count:
            self._changed.clear()
            await self._changed.wait()

    def steps(self, layer: int) -> list[LayerRecording]:
        """The recordings of the steps that went through a layer, in order."""
        return [recording for recording, other in self.entries if other == layer]
