"""The load of an opened model, from its first weight to what is done of the driver's work beside it."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from unicorn_async.background import run_to_end
from unicorn_async.errors import ConfigError
from unicorn_async.gpu.warm_up import WarmUp

if TYPE_CHECKING:
    from unicorn_async.cache.session import CacheSession
    from unicorn_async.gpu.device import Device
    from unicorn_async.hybrid.opened_far import OpenedFar
    from unicorn_async.loader.stream import LoadStream
    from unicorn_async.loader.trace import LoadTrace
    from unicorn_async.step.kernel_list import NeededKernels

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ModelLoad:
    """The load of a model: its weights, and beside them the kernels that a first request needs; `run` it once."""

    device: Device
    stream: LoadStream
    kernels: NeededKernels
    trace: LoadTrace | None
    cache: CacheSession
    far: OpenedFar | None

    async def run(self) -> None:
        """Load the weights and, beside that, compile the kernels that a first request needs; then fill the cache.

        What the driver leaves of the compilation to a kernel's first use comes last, as far as the load was too short
        for it. A trace that can't be written is a warning in the log.
        """
        warm_up = WarmUp(self.device)
        try:
            try:
                await self._load(warm_up)
            finally:
                if self.trace is not None:
                    await _write(self.trace)
            await self.cache.write()
        finally:
            self.cache.finish()
        await warm_up.run()

    async def _load(self, warm_up: WarmUp) -> None:
        far = None if self.far is None else self.far.attention
        async with asyncio.TaskGroup() as group:
            group.create_task(self.stream.run(), name="load stream")
            group.create_task(self._compile(warm_up), name="compile kernels")
            if far is not None:
                group.create_task(asyncio.to_thread(far.prepare_kernels), name="compile for the attention")
        await run_to_end(self.device.kernels.save_cache)
        if far is not None:
            await run_to_end(far.save_kernels)

    async def _compile(self, warm_up: WarmUp) -> None:
        await self.stream.begun.wait()
        # A thread that compiles beyond a cancellation ends by itself: a closed device refuses the next kernel.
        warm_up.add(await asyncio.to_thread(lambda: self.device.kernels.prepare(self.kernels.requests)))
        await warm_up.run(lambda: not self.stream.progress.done)


async def _write(trace: LoadTrace) -> None:
    try:
        await trace.write()
    except ConfigError as exc:
        _log.warning("%s; the load itself is not affected", exc)
