"""The factors of adapters in device memory, for as long as a load needs them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from unicorn_async.background import run_to_end
from unicorn_async.gpu.arena import Arena
from unicorn_async.gpu.memory_types import MemoryKind
from unicorn_async.loader.read_strategy import ReadMode, ReadStrategy
from unicorn_async.loader.stream import LoadStream
from unicorn_async.tensor import aligned
from unicorn_async.weights.chunk import Chunk, Transform

if TYPE_CHECKING:
    from unicorn_async.gpu.arena import ArenaSlice
    from unicorn_async.gpu.device import Device
    from unicorn_async.loader.uploader import ConvertRecorder, Preparation
    from unicorn_async.lora.plan import LoraPlan
    from unicorn_async.weights.plan import LoadPlan

_BLOCK_BYTES = 256 << 20
_NUM_THREADS = 2


class LoraFactors:
    """Brings the factors to the device when a chunk first needs them, as F32, and frees them at the load's end.

    There is scratch memory beside them for the F32 values of one chunk; all chunks are blended on one queue, one after
    the other. `convert` records the factors' conversion to F32, `prepare` compiles what it needs.
    """

    def __init__(
        self,
        device: Device,
        lora: LoraPlan,
        plan: LoadPlan,
        *,
        convert: ConvertRecorder,
        staging_bytes: int,
        prepare: Preparation | None = None,
    ) -> None:
        self._device = device
        self._lora = lora
        self._convert = convert
        self._prepare = prepare
        self._staging_bytes = staging_bytes
        self._scratch_bytes = scratch_bytes(plan)
        self._places: dict[str, ArenaSlice] = {}
        self._scratch: ArenaSlice | None = None
        self._arena: Arena | None = None
        self._are_loaded = False
        self._turn = asyncio.Lock()

    async def ready(self) -> None:
        """Return when the factors are in device memory; who comes first loads them, cancelling that ends the load.

        Raises:
            CheckpointError: a file can't be read, or is not the one that was checked.
            OutOfMemoryError: they do not fit.
        """
        async with self._turn:
            if self._are_loaded:
                return
            try:
                await self._load()
            except BaseException:
                self.close()  # who waits for the turn may try again before the load's end cancels it
                raise
            self._are_loaded = True

    def address(self, name: str) -> int:
        """Return where a destination of the factors' plan lies; they are ready."""
        return self._places[name].address

    @property
    def scratch_address(self) -> int:
        """Where there is room for a chunk's values in F32; the factors are ready."""
        assert self._scratch is not None, "the factors are ready"
        return self._scratch.address

    def close(self) -> None:
        """Free everything; nothing on the device uses it any more."""
        arena, self._arena = self._arena, None
        self._places, self._scratch, self._are_loaded = {}, None, False
        if arena is not None:
            arena.close()

    async def _load(self) -> None:
        plan = self._lora.factors
        await run_to_end(self._allocate)
        stream = LoadStream(
            self._device,
            plan,
            [adapter.tensors_path for adapter in self._lora.adapters],
            self._places,
            convert=self._convert,
            prepare=self._prepare,
            strategy=ReadStrategy(ReadMode.WARM, _NUM_THREADS),
            stamps=[adapter.stamp for adapter in self._lora.adapters],
            staging_bytes=self._staging_bytes,
        )
        try:
            await stream.run()
        finally:
            await stream.close()

    def _allocate(self) -> None:
        block_bytes = min(_BLOCK_BYTES, lora_bytes(self._lora, self._scratch_bytes))
        self._arena = Arena(self._device.memory, MemoryKind.DEVICE, block_bytes, name="adapters")
        self._places = {dest.name: self._arena.allocate(dest.nbytes) for dest in self._lora.factors.destinations}
        self._scratch = self._arena.allocate(self._scratch_bytes)


def scratch_bytes(plan: LoadPlan) -> int:
    """Return the bytes of the largest blended chunk's values in F32."""
    blended = (chunk for chunk in plan.chunks if isinstance(chunk, Chunk) and chunk.transform is Transform.BLEND)
    return max((4 * chunk.num_elements for chunk in blended), default=4)


def lora_bytes(lora: LoraPlan, scratch: int) -> int:
    """Return the device memory that factors and scratch take while a model is loaded."""
    sizes = [*(dest.nbytes for dest in lora.factors.destinations), scratch]
    return sum(aligned(size) for size in sizes)
