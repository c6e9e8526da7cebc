"""What an opening has made of a model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from unicorn_async.engine.types import AdapterInfo

if TYPE_CHECKING:
    import asyncio

    from unicorn_async.cache.session import CacheSession
    from unicorn_async.config import EngineConfig
    from unicorn_async.engine.draft_files import DraftFiles
    from unicorn_async.engine.files import ModelFiles
    from unicorn_async.engine.runner import AnyRunner
    from unicorn_async.gpu.device import Device
    from unicorn_async.gpu.instance import Instance
    from unicorn_async.hybrid.opened_far import OpenedFar
    from unicorn_async.hybrid.report import AttentionInfo
    from unicorn_async.hybrid.step_times import StepTimes
    from unicorn_async.kv_store.store import KVStore
    from unicorn_async.loader.stream import LoadStream
    from unicorn_async.memory.kv_pool import KVPool
    from unicorn_async.memory.plan import MemoryPlan
    from unicorn_async.memory.report import MemoryReport
    from unicorn_async.step.kernel_list import NeededKernels
    from unicorn_async.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class OpenedModel:
    """What was opened for a model, which the stack of its opening closes; its weights may still be on their way."""

    files: ModelFiles
    options: EngineConfig  # fitted to the model and to the device
    instance: Instance
    device: Device
    memory_plan: MemoryPlan
    usage_before: tuple[int, ...] | None  # of memory, as the driver said before anything was allocated
    cache: CacheSession
    stream: LoadStream
    kernels: NeededKernels
    load: asyncio.Task[None]  # brings the weights
    runner: AnyRunner
    attention: AttentionInfo
    far: OpenedFar | None  # what attends in place of the device
    kv_pool: KVPool | None  # the device's own KV cache; None where something else attends, or nothing
    tokenizer: Tokenizer | None  # None where nobody wants it
    tokenizer_s: float  # how long it took, beside everything else
    step_times: StepTimes | None  # what notes the times of steps; None where nobody goes by them
    draft: DraftFiles | None = None  # the model that drafts, for which `draft_bytes` of the device's memory are left
    draft_bytes: int = 0
    kv_store: KVStore | None = None  # of blocks outside the device's memory

    @property
    def name(self) -> str:
        """What the model is called."""
        return self.options.model_name or self.files.name

    @property
    def transient_bytes(self) -> int:
        """Memory that the load takes at most beside the model: staging and adapters."""
        rings = 2 if self.files.lora.adapters else 1
        return self.files.transient_bytes + rings * self.options.staging_bytes

    @property
    def adapters(self) -> tuple[AdapterInfo, ...]:
        """The adapters that are blended into the weights."""
        return tuple(AdapterInfo.of(adapter) for adapter in self.files.lora.adapters)

    def memory_report(self) -> MemoryReport:
        """Compare what was planned in the device's memory with what is allocated there now."""
        from unicorn_async.memory.report import memory_report

        return memory_report(
            self.device,
            self.memory_plan.placement,
            self.usage_before,
            beside_bytes=self.runner.nbytes
            + self.draft_bytes
            + (0 if self.load.done() else self.transient_bytes)
            + (0 if self.kv_store is None else self.kv_store.nbytes),
            twin=self.twin,
            twin_cache_bytes=0 if self.twin is None else self.memory_plan.kv.nbytes,
            kv_pool=self.kv_pool,
        )

    def attention_now(self) -> AttentionInfo:
        """Return where the attention is, with the size that the KV cache has now, and will have."""
        pool = self.kv_pool
        if pool is None:
            return replace(self.attention, kv_cache_bytes_now=self.attention.kv_cache_bytes)
        return replace(self.attention, kv_cache_bytes=pool.most_nbytes, kv_cache_bytes_now=pool.nbytes)

    @property
    def twin(self) -> Device | None:
        """The device that attends, if it is another logical one of the same GPU."""
        return None if self.far is None else self.far.twin
