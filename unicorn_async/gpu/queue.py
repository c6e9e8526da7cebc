"""Queues: where recorded work is submitted, in order, each submission with a value on the queue's timeline."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from unicorn_async.gpu.binding import QueueHandle, check
from unicorn_async.gpu.timeline import Timeline

if TYPE_CHECKING:
    from collections.abc import Sequence

    from unicorn_async.gpu.binding import CData, CommandBufferHandle
    from unicorn_async.gpu.device_context import DeviceContext

FLAG_COMPUTE = 0x2
_STAGE_ALL_COMMANDS = 0x10000


@dataclass(eq=False, slots=True)
class CommandBuffer:
    """Recorded commands, ready for `Queue.submit` any number of times; its pool owns it.

    It is never pending twice, unless its pool is `shared`.
    """

    handle: CommandBufferHandle


class Submission(NamedTuple):
    """Command buffers that run in order, after `waits`; `signals` and the queue's timeline follow their end."""

    commands: Sequence[CommandBuffer] = ()
    waits: Sequence[tuple[Timeline, int]] = ()
    signals: Sequence[tuple[Timeline, int]] = ()


class Queue:
    """A VkQueue; any thread may submit. The device owns it and its timeline.

    `has_compute` is False for a queue that only copies.
    """

    def __init__(
        self, device: DeviceContext, family: int, index: int, *, flags: int, timestamp_bits: int, name: str
    ) -> None:
        self.name = name
        self.family = family
        self.has_compute = bool(flags & FLAG_COMPUTE)
        self.timestamp_bits = timestamp_bits
        self.lock = threading.Lock()
        self._api = api = device.api
        out = api.ffi.new("VkQueue *")
        api.lib.vkGetDeviceQueue(device.handle, family, index, out)
        self.handle = QueueHandle(out[0])
        self.timeline = Timeline(device, name=f"{name}-timeline")
        self._info = api.struct("VkSubmitInfo2")
        self._commands = self._waits = api.null
        self._signals = self._semaphores(1)
        self._signals[0].semaphore = self.timeline.handle
        self._info.signalSemaphoreInfoCount, self._info.pSignalSemaphoreInfos = 1, self._signals
        self._reserve(4, 4)

    def submit(self, command_buffers: Sequence[CommandBuffer], *, waits: Sequence[tuple[Timeline, int]] = ()) -> int:
        """Submit the buffers in order, to start after `waits`; return the queue timeline's value at their end.

        A command buffer must not be pending already, unless its pool is shared. `waits` apply to all commands.

        Raises:
            DeviceLostError: the device is lost.
            OutOfMemoryError: the driver ran out of memory.
        """
        with self.lock:
            self._reserve(len(command_buffers), len(waits))
            value = self.timeline.last_submitted + 1
            info = self._info
            info.commandBufferInfoCount = len(command_buffers)
            info.waitSemaphoreInfoCount = len(waits)
            for index, commands in enumerate(command_buffers):
                self._commands[index].commandBuffer = commands.handle
            for index, (timeline, wanted) in enumerate(waits):
                item = self._waits[index]
                item.semaphore, item.value = timeline.handle, wanted
            self._signals[0].value = value
            check(self._api.step.vkQueueSubmit2(self.handle, 1, info, self._api.null), f"{self.name}: vkQueueSubmit2")
            self.timeline.last_submitted = value
        return value

    def submit_each(self, submissions: Sequence[Submission]) -> list[int]:
        """Submit several in one call of the driver; return the queue timeline's value at the end of each.

        It makes new structs each time: `submit` is for what is submitted all the time. Raises as that does.
        """
        api = self._api
        with self.lock:
            first = self.timeline.last_submitted + 1
            values = [first + index for index in range(len(submissions))]
            infos = [self._submit_info(one, value) for one, value in zip(submissions, values, strict=True)]
            made = api.array("VkSubmitInfo2", infos)
            check(api.step.vkQueueSubmit2(self.handle, len(infos), made, api.null), f"{self.name}: vkQueueSubmit2")
            self.timeline.last_submitted += len(submissions)
            for one in submissions:
                for timeline, reached in one.signals:
                    timeline.last_submitted = max(timeline.last_submitted, reached)
        return values

    def close(self) -> None:
        """Close the timeline, once all that was submitted is done; the queue itself goes with the device."""
        self.timeline.close()

    def _submit_info(self, submission: Submission, value: int) -> CData:
        buffers = [
            self._api.struct("VkCommandBufferSubmitInfo", commandBuffer=commands.handle)
            for commands in submission.commands
        ]
        waits = [self._semaphore(*wait) for wait in submission.waits]
        signals = [self._semaphore(*signal) for signal in (*submission.signals, (self.timeline, value))]
        return self._api.struct(
            "VkSubmitInfo2",
            commandBufferInfoCount=len(buffers),
            pCommandBufferInfos=self._api.array("VkCommandBufferSubmitInfo", buffers),
            waitSemaphoreInfoCount=len(waits),
            pWaitSemaphoreInfos=self._api.array("VkSemaphoreSubmitInfo", waits),
            signalSemaphoreInfoCount=len(signals),
            pSignalSemaphoreInfos=self._api.array("VkSemaphoreSubmitInfo", signals),
        )

    def _semaphore(self, timeline: Timeline, value: int) -> CData:
        return self._api.struct(
            "VkSemaphoreSubmitInfo", semaphore=timeline.handle, value=value, stageMask=_STAGE_ALL_COMMANDS
        )

    def _reserve(self, num_commands: int, num_waits: int) -> None:
        api, info = self._api, self._info
        if self._commands == api.null or num_commands > len(self._commands):
            items = [api.struct("VkCommandBufferSubmitInfo") for _ in range(num_commands * 2)]
            info.pCommandBufferInfos = self._commands = api.array("VkCommandBufferSubmitInfo", items)
        if self._waits == api.null or num_waits > len(self._waits):
            info.pWaitSemaphoreInfos = self._waits = self._semaphores(num_waits * 2)

    def _semaphores(self, count: int) -> CData:
        items = [self._api.struct("VkSemaphoreSubmitInfo", stageMask=_STAGE_ALL_COMMANDS) for _ in range(count)]
        return self._api.array("VkSemaphoreSubmitInfo", items)
