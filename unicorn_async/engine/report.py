"""What an engine tells of its model and of the device that runs it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from unicorn_async.cache.lookup import CacheStatus
    from unicorn_async.engine.opened_model import OpenedModel
    from unicorn_async.engine.types import AdapterInfo, LoadProgress
    from unicorn_async.gpu.device_info import DeviceInfo
    from unicorn_async.hybrid.report import AttentionInfo
    from unicorn_async.loader.read_strategy import ReadStrategy
    from unicorn_async.memory.report import MemoryReport
    from unicorn_async.models.spec import ModelSpec
    from unicorn_async.pooling import Pooler
    from unicorn_async.step.kernel_times import KernelTime, KernelTimes


class EngineReport:
    """What can be read of an opened model at any time."""

    def __init__(self, model: OpenedModel) -> None:
        self._model = model
        self._last_memory: MemoryReport | None = None  # once the device is closed, and can't be asked

    @property
    def model_name(self) -> str:
        """The name that the model was opened by, without the path to it."""
        return self._model.name

    @property
    def model_spec(self) -> ModelSpec:
        """The model's shape."""
        return self._model.files.config

    @property
    def device(self) -> DeviceInfo:
        """The device that runs the model."""
        return self._model.device.info

    @property
    def attention(self) -> AttentionInfo:
        """Where the attention runs, and the KV cache lies; its sizes are as of now."""
        return self._model.attention_now()

    @property
    def adapters(self) -> tuple[AdapterInfo, ...]:
        """The LoRA adapters that are blended into the model's weights, in their order."""
        return self._model.adapters

    @property
    def tokenizer_s(self) -> float:
        """How long it took to make the tokenizer, beside everything else that a start does; 0 without one."""
        return self._model.tokenizer_s

    @property
    def kv_cache_bytes(self) -> int:
        """Size that the KV cache grows to on the device; that which it has, where there was no memory for more."""
        return self.attention.kv_cache_bytes

    @property
    def memory(self) -> MemoryReport:
        """What was planned in the device's memory, what is allocated there, and what the driver says of it.

        It is as of now, or of just before the engine was closed.
        """
        return self._last_memory or self._model.memory_report()

    @property
    def kernels(self) -> tuple[str, ...]:
        """Names of the model's kernel variants, those still to be compiled and those of a device that attends too."""
        model = self._model
        own = {request.name for request in model.kernels.requests}.union(model.device.kernels.names)
        return tuple(sorted(own.union(model.far.attention.kernels if model.far is not None else ())))

    @property
    def validation_messages(self) -> tuple[str, ...]:
        """What the validation layers have said, if the engine was opened with them; also after it was closed."""
        return tuple(self._model.instance.validation_messages)

    @property
    def cache(self) -> CacheStatus:
        """How it stands with the model's entry in the cache of device-ready weights."""
        return self._model.cache.status

    @property
    def read_strategy(self) -> ReadStrategy:
        """How the model's files are read, and why."""
        return self._model.stream.strategy

    @property
    def progress(self) -> LoadProgress:
        """How far the model is loaded now."""
        return self._model.stream.progress

    @property
    def pooler(self) -> Pooler:
        """How the model's embeddings are made."""
        return self._model.files.pooler

    @property
    def embedding_size(self) -> int:
        """Numbers of an embedding: those of a hidden state."""
        return self.model_spec.hidden_size

    def kernel_times(self) -> tuple[KernelTime, ...]:
        """Return where the steps' time went; empty unless the engine was opened with `time_kernels`."""
        times = self._kernel_times()
        return times.table() if times is not None else ()

    def count_kernel_times(self, *, wanted: bool) -> None:
        """Say whether `kernel_times` has the steps that end from now on: those of a warm-up are of no use there."""
        times = self._kernel_times()
        if times is not None:
            times.counts = wanted

    def _kernel_times(self) -> KernelTimes | None:
        from unicorn_async.step.runner import Runner

        return self._model.runner.kernel_times if isinstance(self._model.runner, Runner) else None

    def _keep_memory(self) -> None:
        """Note what `memory` says from now on: the device is about to be closed."""
        self._last_memory = self.memory
