"""First uses of kernels, for drivers that leave most of a kernel's compilation to them: software devices' do.

Such a pipeline is made in milliseconds. Its code is made by the queue when it is first dispatched, which takes a tenth
of a second or more; a dispatch of no workgroups is enough.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING

from unicorn_async.background import run_to_end
from unicorn_async.gpu.command import CommandPool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from unicorn_async.gpu.device import Device
    from unicorn_async.gpu.kernel import Kernel


class WarmUp:
    """Uses a device's kernels a first time whenever its compute queue has nothing else to do; of a GPU none.

    One after the other, so that a step that comes meanwhile waits for one of them at most.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._left: deque[Kernel] = deque()

    def add(self, kernels: Iterable[Kernel]) -> None:
        """Remember kernels to use, the most urgent ones first."""
        if self._device.info.is_software:
            self._left.extend(kernels)

    async def run(self, wanted: Callable[[], bool] = lambda: True) -> None:
        """Use what is left, as long as `wanted`; a cancellation waits for the kernel that is being used.

        Raises:
            DeviceLostError: the device is lost.
            OutOfMemoryError: the driver ran out of memory.
        """
        timeline = self._device.compute.timeline
        while self._left and wanted():
            if timeline.completed() < timeline.last_submitted:
                await timeline.reached(timeline.last_submitted)
            else:
                await run_to_end(partial(self._use, self._left.popleft()))

    def _use(self, kernel: Kernel) -> None:
        queue = self._device.compute
        pool = CommandPool(self._device, queue)
        try:
            recorder = pool.recorder()
            recorder.dispatch(kernel, bytes(kernel.push_bytes), 0, 0, 0)
            queue.timeline.wait(queue.submit([recorder.end()]))
        finally:
            pool.close()
