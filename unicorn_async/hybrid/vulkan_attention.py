"""Attention on a second Vulkan device."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from unicorn_async.background import run_to_end
from unicorn_async.gpu.arena import Arena
from unicorn_async.gpu.command import CommandPool
from unicorn_async.gpu.memory import MemoryKind
from unicorn_async.gpu.zero_memory import zero_memory
from unicorn_async.hybrid.interface import NUM_HALVES
from unicorn_async.hybrid.vulkan_exchange import ExchangeLayout, VulkanExchange
from unicorn_async.memory.plan import decode_scratch_bytes
from unicorn_async.ops.attention_op import DecodeScratch
from unicorn_async.ops.kv_append import kv_append, kv_append_kernel
from unicorn_async.ops.kv_cache import KVCache
from unicorn_async.step.attention_arguments import AttentionArguments
from unicorn_async.step.attention_writer import AttentionParts, AttentionWriter, GroupCut
from unicorn_async.tensor import DType, Tensor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from unicorn_async.config import EngineConfig, KVDType
    from unicorn_async.gpu.device import Device
    from unicorn_async.gpu.kernel import KernelRequest
    from unicorn_async.gpu.queue import CommandBuffer
    from unicorn_async.hybrid.busy import BusyTrack
    from unicorn_async.memory.kv_plan import KVPlan
    from unicorn_async.models.spec import ModelSpec
    from unicorn_async.ops.attention import GpuAttention
    from unicorn_async.scheduler.batch import Batch
    from unicorn_async.step.frame import FrameLimits


class VulkanFarAttention:
    """Keys, values and attention on `far`; a `FarAttention`. Close it when neither device has work of it any more.

    A pass is an `AttentionPass`: for each layer one submission to the far device, which takes the new keys and values
    into the cache and attends.
    """

    def __init__(
        self,
        near: Device,
        far: Device,
        model: ModelSpec,
        options: EngineConfig,
        kv_plan: KVPlan,
        attention: GpuAttention,
        limits: FrameLimits,
        track: BusyTrack,
    ) -> None:
        """Allocate the cache and what belongs to it; `track` gets the far device's spans.

        Raises:
            OutOfMemoryError: it does not fit; nothing stays allocated.
            DeviceError: the exchange can't be of the kind that is asked for.
        """
        self.far = far
        self.kv_dtype: KVDType = attention.plan.shape.handed_over.kv_dtype
        self._model = model
        self._attention = attention
        self._kv_plan = kv_plan
        self._track = track
        cuts = [GroupCut(group.window, attention.plan) for group in kv_plan.groups]
        self._writer = AttentionWriter(options.block_size, cuts)
        self._commands: dict[tuple[int, int, int, AttentionParts], list[CommandBuffer]] = {}
        with contextlib.ExitStack() as made:
            layout = ExchangeLayout(attention.plan.shape, limits.tokens)
            exchanges = []
            for half in range(NUM_HALVES):
                name = f"exchange {'AB'[half]}"
                exchanges.append(VulkanExchange(near, far, layout, name=name, kind=options.attention_exchange))
                made.callback(exchanges[-1].close)
            self._exchanges = tuple(exchanges)
            arena = Arena(far.memory, MemoryKind.DEVICE, 1, name="KV cache")
            made.callback(arena.close)
            sizes = [kv_plan.layer_bytes[kv_plan.group_of(layer)] for layer in range(model.num_layers)]
            self._caches = [KVCache(arena.allocate(size).address, arena.allocate(size).address) for size in sizes]
            partials, counters = map(arena.allocate, decode_scratch_bytes([attention.plan], limits.sequences).values())
            zero_memory(far, counters)
            scratch = DecodeScratch(partials.address, counters.address)
            self._q = arena.allocate(limits.tokens * layout.row_bytes)
            self._frames: dict[tuple[int, int], AttentionArguments] = {}
            for turn in range(options.num_frames):
                for half in range(NUM_HALVES):
                    frame = AttentionArguments(far, limits, scratch, f"attention frame {turn}{'AB'[half]}")
                    made.callback(frame.close)
                    self._frames[turn, half] = frame
            self._pool = CommandPool(far, far.compute)
            made.callback(self._pool.close)
            self._made = made.pop_all()

    @property
    def exchanges(self) -> Sequence[VulkanExchange]:
        """One for each half."""
        return self._exchanges

    @property
    def kernels(self) -> tuple[str, ...]:
        """Names of the kernel variants that the far device runs."""
        return tuple(dict.fromkeys(request.name for request in self._kernel_requests()))

    @property
    def recoveries(self) -> int:
        """0: a Vulkan device that failed is lost."""
        return 0

    @property
    def run_s(self) -> float | None:
        """None: nothing is cut by its time."""
        return None

    def near_kernels(self) -> tuple[KernelRequest, ...]:
        """None: the exchange takes what the rotary kernel writes."""
        return ()

    def prepare_kernels(self) -> None:
        """See `FarAttention`."""
        self.far.kernels.prepare(self._kernel_requests())

    def save_kernels(self) -> None:
        """See `FarAttention`."""
        self.far.kernels.save_cache()

    def _kernel_requests(self) -> tuple[KernelRequest, ...]:
        attention = self._attention
        cuts = [attention.kernels_for(num_tokens=most) for most, _ in attention.plan.cuts]
        return kv_append_kernel(attention.plan.shape), *(request for cut in cuts for request in cut)

    async def begin(self, turn: int, half: int, batch: Batch, num_tokens: int) -> VulkanPass:
        """See `FarAttention`; records commands for a batch of a new kind."""
        work = self._writer.write(batch, self._frames[turn, half], num_tokens)
        key = (turn, half, num_tokens, work)
        if key not in self._commands:
            self._commands[key] = await run_to_end(lambda: self._record(*key))
        return VulkanPass(self, self._exchanges[half], self._commands[key], batch.step, half, num_tokens)

    async def attend(self, turn: VulkanPass, layer: int) -> None:
        """Compute a layer on behalf of a pass."""
        await turn.exchange.to_far(turn.num_tokens)
        submitted_s = time.perf_counter()
        value = self.far.compute.submit([turn.commands[layer]])
        await self.far.compute.timeline.reached(value)
        self._track.ended(turn.step, turn.half, layer, submitted_s)
        await turn.exchange.to_near(turn.num_tokens)

    async def drain(self) -> None:
        """See `FarAttention`."""
        await run_to_end(self.far.wait_idle)

    def close(self) -> None:
        """Free everything."""
        self._commands.clear()
        self._made.close()

    def _record(self, turn: int, half: int, num_tokens: int, work: AttentionParts) -> list[CommandBuffer]:
        """Record all layers."""
        frame, exchange = self._frames[turn, half], self._exchanges[half]
        batches = [replace(batch, **work._asdict()) for batch in frame.batches]
        kernels, shape = self.far.kernels, self._attention.plan.shape
        q = Tensor(self._q.address, (num_tokens, shape.num_heads * shape.head_dim), DType.F32)
        commands = []
        for layer in range(self._model.num_layers):
            group = self._kv_plan.group_of(layer)
            recorder = self._pool.recorder()
            recorder.barrier()  # the layer before may still read what this one writes
            recorder.copy(exchange.far, 0, self._q.buffer, self._q.offset, num_tokens * exchange.layout.row_bytes)
            kv_append(
                recorder,
                kernels,
                shape=shape,
                new=exchange.far_kv,
                cache=self._caches[layer],
                slot_mapping=frame.slot_mapping[group],
                num_tokens=num_tokens,
            )
            recorder.barrier()
            self._attention.record(
                recorder,
                q=q,
                cache=self._caches[layer],
                window=self._kv_plan.groups[group].window,
                batch=batches[group],
                out=exchange.far_result(num_tokens),
            )
            recorder.host_barrier()
            commands.append(recorder.end())
        return commands


@dataclass(frozen=True, slots=True)
class VulkanPass:
    """The attention of one half of a step; `commands` are by layer."""

    attention: VulkanFarAttention
    exchange: VulkanExchange
    commands: list[CommandBuffer]
    step: int
    half: int
    num_tokens: int

    async def attend(self, layer: int) -> None:
        """See `AttentionPass`."""
        await self.attention.attend(self, layer)
