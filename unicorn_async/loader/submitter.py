"""A load's submissions, from a thread of their own: while the driver holds one up, the event loop reads on."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from unicorn_async.gpu.queue import Submission
from unicorn_async.loader.reader_threads import ReaderThreads

if TYPE_CHECKING:
    from collections.abc import Sequence

    from unicorn_async.gpu.queue import CommandBuffer, Queue
    from unicorn_async.gpu.timeline import Timeline


@dataclass(eq=False, slots=True)
class _Item:
    """What is to be submitted; None for the activation of a layer, whose submission is made at its turn."""

    queue: Queue
    submission: Submission | None
    value: int = 0  # of the queue's timeline, once it is submitted
    error: Exception | None = None


class Submitter:
    """Submits in the order of the calls; those that come while the driver takes its time go to it in one call.

    Drivers make a submission wait while another thread allocates, five milliseconds at a time beside a load's
    allocations. Each of the submissions keeps its own value of its queue's timeline, so that what it read is free as
    soon as it is done. One event loop calls this. The thread runs from the first submission to `close`, after which
    there may be a next one.
    """

    def __init__(self, copy_queue: Queue, convert_queue: Queue, layers: Timeline) -> None:
        self.num_activated = 0
        self._copy_queue = copy_queue
        self._convert_queue = convert_queue
        self._layers = layers
        self._submitted = {copy_queue: 0, convert_queue: 0}  # the thread changes values, nobody keys
        self._waiting: deque[_Item] = deque()
        self._thread: ReaderThreads | None = None

    @property
    def pending(self) -> tuple[tuple[Timeline, int], ...]:
        """What to wait for until all commands that were submitted are done."""
        return tuple((queue.timeline, value) for queue, value in self._submitted.items() if value)

    async def submit(self, queue: Queue, commands: CommandBuffer) -> int:
        """Submit to one of the two queues; return its timeline's value at the commands' end.

        Cancelled, it may be submitted or not, and is not any more once `close` has returned.

        Raises:
            DeviceLostError: the device is lost.
            OutOfMemoryError: the driver ran out of memory, or the system allows no thread.
        """
        return (await self._send(_Item(queue, Submission([commands])))).value

    async def activate_next(self) -> None:
        """Have the layers' timeline count one more once all commands are done.

        Raises and may be cancelled as `submit`; `num_activated` has what was submitted.
        """
        await self._send(_Item(self._copy_queue, None))

    def close(self) -> None:
        """End the thread after the driver's call; what has not begun is left out."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.close()
        self._waiting.clear()

    async def _send(self, item: _Item) -> _Item:
        if self._thread is None:
            self._thread = ReaderThreads(1, name="unicorn-submitter")
        self._waiting.append(item)
        await self._thread.run(self._submit_waiting)
        if item.error is not None:
            raise item.error
        return item

    def _submit_waiting(self) -> None:
        """Submit what waits by now; what a call came with may have gone with an earlier one."""
        items = [self._waiting.popleft() for _ in range(len(self._waiting))]
        try:
            # A layer's activation waits for the conversions that came before it, which need their values for that.
            converted = self._submitted[self._convert_queue]
            self._submit(self._convert_queue, [item for item in items if item.queue is not self._copy_queue])
            layers = self.num_activated
            for item in items:
                if item.submission is None:
                    layers += 1
                    item.submission = self._activation(layers, converted)
                elif item.queue is self._convert_queue:
                    converted = item.value
            self._submit(self._copy_queue, [item for item in items if item.queue is self._copy_queue])
            self.num_activated = layers
        except Exception as exc:  # it is raised where each of them is awaited
            for item in items:
                item.error = None if item.value else exc

    def _activation(self, layers: int, converted: int) -> Submission:
        """Follow what went to the copy queue before, and a value of the other queue, if it is another one."""
        waits = [(self._convert_queue.timeline, converted)] if self._convert_queue is not self._copy_queue else []
        return Submission(waits=waits if converted else [], signals=[(self._layers, layers)])

    def _submit(self, queue: Queue, items: Sequence[_Item]) -> None:
        if not items:
            return
        values = queue.submit_each([item.submission for item in items if item.submission is not None])
        for item, value in zip(items, values, strict=True):
            item.value = value
        self._submitted[queue] = values[-1]
