"""The load of a model: its weights, and beside them the kernels that a first request needs."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from unicorn_async.background import run_to_end
from unicorn_async.errors import ConfigError
from unicorn_async.gpu.first_uses import FirstUses

if TYPE_CHECKING:
    from unicorn_async.engine.model_cache import ModelCache
    from unicorn_async.gpu.device import Device
    from unicorn_async.gpu.kernel import KernelRequest
    from unicorn_async.hybrid.remote_attention import RemoteAttention
    from unicorn_async.loader.stream import LoadStream
    from unicorn_async.loader.trace import LoadTrace

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ModelLoad:
    """What a load needs, all borrowed; `run` is called once."""

    device: Device
    stream: LoadStream
    requests: tuple[KernelRequest, ...]
    trace: LoadTrace | None
    cache: ModelCache
    far: RemoteAttention | None  # what attends in place of the device

    async def run(self) -> None:
        """Load the weights and, beside that, compile the kernels that a first request needs; then fill the cache.

        What the driver leaves of the compilation to a kernel's first use comes last, as far as the load was too short
        for it. A trace that can't be written is a warning in the log.
        """
        uses = FirstUses(self.device)
        try:
            try:
                await self._load(uses)
            finally:
                if self.trace is not None:
                    await _write(self.trace)
            await self.cache.write()
        finally:
            self.cache.finish()
        await uses.run()

    async def _load(self, uses: FirstUses) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self.stream.run(), name="load stream")
            group.create_task(self._compile(uses), name="compile kernels")
            if self.far is not None:
                group.create_task(asyncio.to_thread(self.far.prepare_kernels), name="compile for the attention")
        await run_to_end(self.device.kernels.save_cache)
        if self.far is not None:
            await run_to_end(self.far.save_kernels)

    async def _compile(self, uses: FirstUses) -> None:
        await self.stream.begun.wait()
        # A thread that compiles beyond a cancellation ends by itself: a closed device refuses the next kernel.
        uses.add(await asyncio.to_thread(self.device.kernels.prepare, self.requests))
        await uses.run(lambda: not self.stream.progress.done)


async def _write(trace: LoadTrace) -> None:
    try:
        await trace.write()
    except ConfigError as exc:
        _log.warning("%s; the load itself is not affected", exc)
