"""From a model's name to everything that runs it: checks, device, memory, commands. Weights are loaded after it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from unicorn_async.background import run_to_end, wait_to_end
from unicorn_async.config import AttentionKind
from unicorn_async.engine.arriving_layers import ArrivingLayers
from unicorn_async.engine.conversion import WeightConverter, factor_converter
from unicorn_async.engine.hybrid.opening import fit_options, open_far_attention
from unicorn_async.engine.kernel_list import kernel_requests
from unicorn_async.engine.memory_plan import MemoryPlan, attention_shape
from unicorn_async.engine.memory_report import driver_usage
from unicorn_async.engine.model_cache import ModelCache
from unicorn_async.engine.model_load import ModelLoad
from unicorn_async.engine.model_memory import ModelMemory
from unicorn_async.engine.model_on_disk import ModelOnDisk
from unicorn_async.engine.model_tensors import unplaced_matrices
from unicorn_async.engine.opened_vulkan import OpenedVulkan, choose_opened, open_vulkan, opened_beside
from unicorn_async.engine.runner import Runner
from unicorn_async.engine.staging_place import stages_near
from unicorn_async.engine.tokenizer_start import TokenizerStart
from unicorn_async.engine.types import AdapterInfo, AttentionInfo
from unicorn_async.engine.user_folders import weight_cache_folder
from unicorn_async.errors import CheckpointError
from unicorn_async.loader.arriving_places import ArrivingPlaces
from unicorn_async.loader.lora_factors import LoraFactors
from unicorn_async.loader.placement import MemoryGroup
from unicorn_async.loader.stream import LoadStream
from unicorn_async.loader.trace import LoadTrace
from unicorn_async.loader.unfit import UnfitCounters
from unicorn_async.models.decoder import Decoder, DecoderState
from unicorn_async.ops.attention import GpuAttention
from unicorn_async.ops.page_touch import pays_to_touch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AsyncExitStack
    from pathlib import Path

    from unicorn_async.config import EngineConfig, ModelConfig
    from unicorn_async.engine.hybrid.far_attention import FarAttention
    from unicorn_async.engine.hybrid.remote_attention import RemoteAttention
    from unicorn_async.engine.hybrid.runner import HybridRunner
    from unicorn_async.engine.tokenizer_start import MadeTokenizer
    from unicorn_async.gpu.arena import ArenaSlice
    from unicorn_async.gpu.device import Device
    from unicorn_async.gpu.instance import Instance
    from unicorn_async.gpu.instance_start import InstanceStart
    from unicorn_async.gpu.kernel import KernelRequest
    from unicorn_async.tokenizer import Tokenizer

T = TypeVar("T")
AnyRunner = TypeVar("AnyRunner", "Runner", "HybridRunner")


@dataclass(frozen=True, slots=True)
class LoadingModel:
    """A model whose workspace is allocated and whose weights are on their way; `load` is the task that brings them."""

    name: str
    config: ModelConfig
    instance: Instance
    device: Device
    memory_plan: MemoryPlan
    usage_before: tuple[int, ...] | None  # of memory, as the driver said before anything was allocated
    passing_bytes: int  # of memory that the load takes at most beside the model: staging and adapters
    memory: ModelMemory
    runner: Runner | HybridRunner
    attention: AttentionInfo
    stream: LoadStream
    load: asyncio.Task[None]
    requests: tuple[KernelRequest, ...]
    cache: ModelCache
    adapters: tuple[AdapterInfo, ...]
    far: RemoteAttention | None  # what attends in place of the device
    twin: Device | None  # the device that attends, if it is another logical one of the same GPU


@dataclass(frozen=True, slots=True)
class StartedModel:
    """A model whose weights are on their way, and its tokenizer.

    `options` are those that it was opened with, fitted to the model. `tokenizer_s` is how long the tokenizer took,
    beside everything else. Without one, nobody wanted it.
    """

    model: LoadingModel
    options: EngineConfig
    tokenizer: Tokenizer | None
    tokenizer_s: float


async def start(
    model: str | Path, options: EngineConfig, stack: AsyncExitStack, vulkan: InstanceStart | None = None
) -> StartedModel:
    """Check a model, choose and open a device, allocate, begin the load; `stack` gets what has to be closed.

    What waits for the device, or for its driver, is closed in threads: the event loop serves others meanwhile.

    The instance is that of `vulkan`, if it has begun already. Where only one device may run the model, it is opened
    beside the reading of the model's files.

    The tokenizer is made beside all of that, and awaited last, unless it is to be skipped.

    Raises:
        ConfigError, CheckpointError, TokenizerError, DeviceError: see `Engine.open`.
    """
    opening = asyncio.create_task(run_to_end(lambda: open_vulkan(options, stack, vulkan)), name="open Vulkan")
    try:
        on_disk = await asyncio.to_thread(ModelOnDisk.read, model, options.weights, options.loras)
        options = fit_options(on_disk.config, options)
        making = None if options.skip_tokenizer else await _start_tokenizer(on_disk, stack)
    except BaseException:
        await _end(opening)
        raise
    opened = await opening
    loading = await _begin_load(on_disk, opened, options, stack)
    if making is None:
        return StartedModel(loading, options, None, 0.0)
    tokenizer, seconds = await making
    _check_vocabulary(tokenizer, on_disk)
    return StartedModel(loading, options, tokenizer, seconds)


async def _start_tokenizer(on_disk: ModelOnDisk, stack: AsyncExitStack) -> asyncio.Task[MadeTokenizer]:
    def begin() -> TokenizerStart:
        started = TokenizerStart(on_disk.tokenizer_source)
        stack.callback(started.close)  # which ends a thread that a cancelled task leaves behind
        return started

    started = await run_to_end(begin)
    making = asyncio.create_task(asyncio.to_thread(started.make), name="tokenizer")
    stack.push_async_callback(_end, making)
    return making


async def _end(task: asyncio.Task[T]) -> None:
    """Cancel a task, and wait for it; what it ends with was handed on, or comes too late."""
    task.cancel()
    await wait_to_end(task)
    if not task.cancelled():
        task.exception()


async def _begin_load(
    on_disk: ModelOnDisk, opened_vulkan: OpenedVulkan, options: EngineConfig, stack: AsyncExitStack
) -> LoadingModel:
    instance = opened_vulkan.instance
    device, memory_plan = await run_to_end(lambda: choose_opened(on_disk, opened_vulkan, options, stack))
    options = replace(options, staging_bytes=memory_plan.staging_bytes)
    usage_before = driver_usage(device)
    config, kv_plan, far_plan = on_disk.config, memory_plan.kv, memory_plan.far
    strategy = await asyncio.to_thread(
        on_disk.read_strategy, device.info, options.num_reader_threads, memory=memory_plan
    )
    trace = None if options.load_trace is None else LoadTrace(options.load_trace)
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
    stack.callback(cache.finish)  # also where the load is cancelled before it begins
    workspace = memory_plan.placement.names(MemoryGroup.WORKSPACE)
    unfit = await run_to_end(lambda: _count_unfit(device, on_disk, stack))  # it would wait for larger allocations
    near = stages_near(device, memory_plan, options)  # by the memory that is free before the model's is allocated
    places.begin(() if options.attends_elsewhere else workspace)
    factors = LoraFactors(
        device,
        on_disk.lora,
        on_disk.plan,
        convert=factor_converter(device.kernels),
        staging_bytes=options.staging_bytes,
    )
    stream = LoadStream(
        device,
        on_disk.plan,
        on_disk.checkpoint.files,
        places.slices,
        convert=WeightConverter(device.kernels, on_disk.plan, unfit, on_disk.lora, factors).record,
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
    stack.push_async_callback(_end, load)
    if gpu is None:
        await places.all()
    else:  # the rest is waited for layer by layer
        await places.wait(workspace)
    memory = await run_to_end(lambda: _name_memory(device, on_disk, options, places.slices, workspace, stack))
    state = DecoderState(
        weights=memory.weights,
        matrices=memory.matrices,
        freqs=memory.freqs,
        activations=memory.activations,
        last_token=memory.last_token,
    )
    touches = pays_to_touch(device.info, unplaced_matrices(on_disk.plan).values())
    decoder = Decoder(config, shape, device.kernels, device.info, state, touches_pages=touches)
    runner: Runner | HybridRunner
    if gpu is not None:
        runner = await _made_runner(
            lambda: Runner(
                device,
                config,
                options,
                memory,
                kv_plan,
                decoder,
                gpu,
                ArrivingLayers(stream, places, config.num_layers),
            ),
            stack,
        )
        places.go_on()
        stack.push_async_callback(run_to_end, device.wait_idle)
        attends = AttentionInfo(
            AttentionKind.GPU,
            device.info.name,
            device.info.is_software,
            kv_dtype=options.kv_dtype.value,
            kv_cache_bytes=kv_plan.nbytes,
        )
    else:
        assert opened is not None, "another device attends"
        from unicorn_async.engine.hybrid.runner import HybridRunner
        from unicorn_async.engine.hybrid.step_trace import StepTrace

        attends, step_trace = opened.info, None
        if options.step_trace is not None:
            step_trace = StepTrace(options.step_trace, device.info.name, attends.device)
        limits, attention, track = opened.limits, opened.attention, opened.track
        runner = await _made_runner(
            lambda: HybridRunner(
                device, config, options, memory, limits, decoder, attention, track, stream, step_trace
            ),
            stack,
        )
        stack.push_async_callback(runner.stop)
    stack.push_async_callback(_end, load)  # before the device is waited for, and what its steps wait for is closed
    return LoadingModel(
        options.model_name or on_disk.name,
        config,
        instance,
        device,
        memory_plan,
        usage_before,
        on_disk.passing_bytes + (2 if on_disk.lora.adapters else 1) * options.staging_bytes,
        memory,
        runner,
        attends,
        stream,
        load,
        requests,
        cache,
        tuple(AdapterInfo.of(adapter) for adapter in on_disk.lora.adapters),
        far,
        None if opened is None else opened.twin,
    )


def _name_memory(
    device: Device,
    on_disk: ModelOnDisk,
    options: EngineConfig,
    places: Mapping[str, ArenaSlice],
    workspace: Sequence[str],
    stack: AsyncExitStack,
) -> ModelMemory:
    memory = ModelMemory.of(device, on_disk.config, options, on_disk.plan, places, workspace)
    stack.push_async_callback(run_to_end, memory.close)
    return memory


def _count_unfit(device: Device, on_disk: ModelOnDisk, stack: AsyncExitStack) -> UnfitCounters:
    counters = UnfitCounters(device.memory, on_disk.plan, on_disk.lora)
    stack.push_async_callback(run_to_end, counters.close)
    return counters


async def _made_runner(make: Callable[[], AnyRunner], stack: AsyncExitStack) -> AnyRunner:
    """Make a runner in a thread: it allocates two dozen times, beside a load that wants the event loop."""

    def begin() -> AnyRunner:
        runner = make()
        stack.push_async_callback(run_to_end, runner.close)
        return runner

    return await run_to_end(begin)


def _check_vocabulary(tokenizer: Tokenizer, on_disk: ModelOnDisk) -> None:
    if tokenizer.vocab_size > on_disk.config.vocab_size:
        raise CheckpointError(
            f"{on_disk.checkpoint.path}: the tokenizer has {tokenizer.vocab_size} tokens, "
            f"the embeddings have {on_disk.config.vocab_size} rows"
        )
