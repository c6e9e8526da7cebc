"""Which layers of which steps went to a queue."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from unicorn_async.gpu.queue import Queue
from unicorn_async.step.layer_cache import SharedRecordings

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pytest

    from unicorn_async.gpu.queue import CommandBuffer, Submission
    from unicorn_async.step.frame import Frame
    from unicorn_async.step.layer_cache import Turn


class LayerLog:
    """Notes, whenever one layer's commands are submitted behind a load, the frame of the step, and the layer.

    `most_at_once` is how many layers one submission had; one call of the driver may have several of these.
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.entries: list[tuple[Frame, int]] = []
        self.most_at_once = 0
        self._changed = asyncio.Event()
        frames: dict[CommandBuffer, Frame] = {}  # by what brings a step's arguments
        layers: dict[CommandBuffer, int] = {}
        commands, submit_each = SharedRecordings.commands, Queue.submit_each

        def named_commands(shared: SharedRecordings, turn: Turn, layer: int) -> list[CommandBuffer]:
            enter, made, leave = commands(shared, turn, layer)
            frames[enter], layers[made] = turn.frame, layer
            return [enter, made, leave]

        def noted_submit(queue: Queue, submissions: Sequence[Submission]) -> list[int]:
            for each in submissions:
                found = [layers[buffer] for buffer in each.commands if buffer in layers]
                if found:
                    self.entries += [(frames[each.commands[0]], layer) for layer in found]
                    self.most_at_once = max(self.most_at_once, len(found))
                    self._changed.set()
            return submit_each(queue, submissions)

        patch.setattr(SharedRecordings, "commands", named_commands)
        patch.setattr(Queue, "submit_each", noted_submit)

    async def has(self, layer: int, count: int) -> None:
        """Wait until so many steps went through a layer."""
        while len(self.steps(layer)) < count:
            self._changed.clear()
            await self._changed.wait()

    def steps(self, layer: int) -> list[Frame]:
        """The frames of the steps that went through a layer, in order."""
        return [frame for frame, other in self.entries if other == layer]
