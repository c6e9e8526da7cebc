"""From a model's files to a load that has begun: its device, the plan of its memory, the stream of its weights."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from unicorn_async.background import run_to_end
from unicorn_async.engine.chosen_device import choose_opened
from unicorn_async.engine.model_cache import ModelCache
from unicorn_async.engine.model_load import ModelLoad
from unicorn_async.engine.model_on_disk import ModelOnDisk
from unicorn_async.engine.opened_vulkan import opened_beside
from unicorn_async.engine.types import AdapterInfo
from unicorn_async.engine.user_folders import weight_cache_folder
from unicorn_async.hybrid.opening import fit_options, open_far_attention
from unicorn_async.loader.arriving_places import ArrivingPlaces
from unicorn_async.loader.conversion import WeightConverter, factor_converter, prepare_conversion
from unicorn_async.loader.lora_factors import LoraFactors
from unicorn_async.loader.stream import LoadStream
from unicorn_async.loader.unfit import UnfitCounters
from unicorn_async.memory.plan import attention_shape
from unicorn_async.memory.report import driver_usage
from unicorn_async.memory.staging_place import stages_near
from unicorn_async.ops.attention import GpuAttention
from unicorn_async.step.kernel_list import kernel_requests
from unicorn_async.weights.placement import MemoryGroup
from unicorn_async.weights.tensors import unplaced_matrices

if TYPE_CHECKING:
    from contextlib import AsyncExitStack
    from pathlib import Path

    from unicorn_async.config import EngineConfig, ModelConfig
    from unicorn_async.engine.opened_vulkan import OpenedVulkan
    from unicorn_async.gpu.device import Device
    from unicorn_async.gpu.instance import Instance
    from unicorn_async.gpu.kernel import KernelRequest
    from unicorn_async.hybrid.far_attention import FarAttention
    from unicorn_async.hybrid.remote_attention import RemoteAttention
    from unicorn_async.loader.trace import LoadTrace
    from unicorn_async.memory.plan import MemoryPlan
    from unicorn_async.ops.kv_cache import AttentionShape


@dataclass(frozen=True, slots=True)
class LoadingModel:
    """A model whose weights are on their way; `load` is the task that brings them, `places` where they go."""

    on_disk: ModelOnDisk
    options: EngineConfig
    instance: Instance
    device: Device
    memory_plan: MemoryPlan
    usage_before: tuple[int, ...] | None  # of memory, as the driver said before anything was allocated
    places: ArrivingPlaces
    stream: LoadStream
    load: asyncio.Task[None]
    requests: tuple[KernelRequest, ...]
    cache: ModelCache
    shape: AttentionShape
    gpu: GpuAttention | None  # the device's own attention, unless it is elsewhere
    opened: FarAttention | None  # what attends elsewhere

    @property
    def name(self) -> str:
        """What the model is called."""
        return self.options.model_name or self.on_disk.name

    @property
    def config(self) -> ModelConfig:
        """The model's shape."""
        return self.on_disk.config

    @property
    def passing_bytes(self) -> int:
        """Memory that the load takes at most beside the model: staging and adapters."""
        rings = 2 if self.on_disk.lora.adapters else 1
        return self.on_disk.passing_bytes + rings * self.options.staging_bytes

    @property
    def adapters(self) -> tuple[AdapterInfo, ...]:
        """The adapters that are blended into the weights."""
        return tuple(AdapterInfo.of(adapter) for adapter in self.on_disk.lora.adapters)

    @property
    def workspace(self) -> list[str]:
        """Names of what all layers use, in the plan of the memory."""
        return self.memory_plan.placement.names(MemoryGroup.WORKSPACE)

    @property
    def far(self) -> RemoteAttention | None:
        """What attends in place of the device."""
        return None if self.opened is None else self.opened.attention

    @property
    def twin(self) -> Device | None:
        """The device that attends, if it is another logical one of the same GPU."""
        return None if self.opened is None else self.opened.twin


def read_model(model: str | Path, options: EngineConfig) -> tuple[ModelOnDisk, EngineConfig]:
    """Read and check a model's files, and fit the options to it; it blocks on the disk.

    Raises:
        ConfigError, CheckpointError: see `Engine.open`.
    """
    on_disk = ModelOnDisk.read(model, options.weights, options.loras)
    return on_disk, fit_options(on_disk.config, options)


async def begin_load(
    on_disk: ModelOnDisk, opened_vulkan: OpenedVulkan, options: EngineConfig, stack: AsyncExitStack
) -> LoadingModel:
    """Choose the device and plan its memory, and begin the load; `stack` gets what has to be closed, but for its task.

    Raises:
        ConfigError, CheckpointError, DeviceError: see `Engine.open`.
    """
    instance = opened_vulkan.instance
    device, memory_plan = await run_to_end(lambda: choose_opened(on_disk, opened_vulkan, options, stack))
    options = replace(
        options, staging_bytes=memory_plan.staging_bytes, num_loading_frames=memory_plan.num_loading_frames
    )
    usage_before = driver_usage(device)
    config, kv_plan, far_plan = on_disk.config, memory_plan.kv, memory_plan.far
    strategy = await asyncio.to_thread(
        on_disk.read_strategy, device.info, options.num_reader_threads, memory=memory_plan
    )
    trace = None if options.load_trace is None else await asyncio.to_thread(_load_trace, options.load_trace)
    places = ArrivingPlaces(device.memory, memory_plan.placement)
    stack.push_async_callback(places.close)
    cache = await ModelCache.open(
        weight_cache_folder() if options.weight_cache else None,
        on_disk,
        device,
        places.slices,
        options,
        memory_plan,
    )
    workspace = memory_plan.placement.names(MemoryGroup.WORKSPACE)
    unfit = await run_to_end(lambda: _count_unfit(device, on_disk, stack))  # it would wait for larger allocations
    near = stages_near(device, memory_plan, options)  # by the memory that is free before the model's is allocated
    places.begin(() if options.attends_elsewhere else workspace)
    prepare = partial(prepare_conversion, device.kernels, on_disk.plan, on_disk.lora)
    factors = LoraFactors(
        device,
        on_disk.lora,
        on_disk.plan,
        convert=factor_converter(device.kernels),
        staging_bytes=options.staging_bytes,
        prepare=prepare,
    )
    stream = LoadStream(
        device,
        on_disk.plan,
        on_disk.checkpoint.files,
        places.slices,
        convert=WeightConverter(device.kernels, on_disk.plan, unfit, on_disk.lora, factors).record,
        prepare=prepare,
        strategy=strategy,
        stamps=on_disk.checkpoint.stamps,
        staging_bytes=options.staging_bytes,
        trace=trace,
        factors=factors,
        unfit=unfit,
        cached=cache.cached,
        arriving=places,
        stages_near=near,
    )
    stack.push_async_callback(stream.close)
    opened: FarAttention | None = None
    if far_plan is not None:
        opened = await open_far_attention(
            device, config, options, kv_plan, far_plan, lambda info: opened_beside(device, instance, info), stack
        )
    shape = attention_shape(config, options) if opened is None else opened.shape
    gpu: GpuAttention | None = None
    if opened is None:
        gpu = GpuAttention(device.info, device.kernels, shape, soft_cap=config.attention_soft_cap)
    far = None if opened is None else opened.attention
    requests = kernel_requests(
        device.info,
        config,
        shape,
        gpu,
        () if far is None else far.near_kernels(),
        unplaced_matrices(on_disk.plan),
        on_disk.plan,
        on_disk.lora,
        options,
        from_cache=cache.cached is not None,
    )
    # The first weights have memory before the last ones do, and what is made of all addresses is made beside them.
    load = asyncio.create_task(ModelLoad(device, stream, requests, trace, cache, far).run(), name="load")
    return LoadingModel(
        on_disk,
        options,
        instance,
        device,
        memory_plan,
        usage_before,
        places,
        stream,
        load,
        requests,
        cache,
        shape,
        gpu,
        opened,
    )


def _load_trace(path: Path) -> LoadTrace:
    from unicorn_async.loader.trace import LoadTrace  # few loads have one, and it is for those to wait for the import

    return LoadTrace(path)


def _count_unfit(device: Device, on_disk: ModelOnDisk, stack: AsyncExitStack) -> UnfitCounters:
    counters = UnfitCounters(device.memory, on_disk.plan, on_disk.lora)
    stack.push_async_callback(run_to_end, counters.close)
    return counters
