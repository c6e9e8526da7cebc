"""From a model's name to everything that runs it, in the order in which it happens; its weights follow in a task.

What this needs is imported while Vulkan is opened, and what makes the runner while the first weights are read. What
waits for the device, or for its driver, is closed in threads: the event loop serves others meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from unicorn_async.background import end_task, run_to_end
from unicorn_async.cache.session import CacheSession
from unicorn_async.config import AttentionKind
from unicorn_async.engine.attending import keep_step_times, settle_attention
from unicorn_async.engine.devices import open_beside, open_device
from unicorn_async.engine.files import ModelFiles
from unicorn_async.engine.types import AdapterInfo
from unicorn_async.engine.user_folders import weight_cache_folder
from unicorn_async.errors import ConfigError
from unicorn_async.gpu.warm_up import WarmUp
from unicorn_async.hybrid.choice import FarDevice
from unicorn_async.loader.allocator import BackgroundAllocator
from unicorn_async.loader.conversion import WeightConverter, factor_converter, prepare_conversion
from unicorn_async.loader.lora_factors import LoraFactors
from unicorn_async.loader.range_check import RangeCounters
from unicorn_async.loader.stream import LoadStream
from unicorn_async.memory.choice import choose_device
from unicorn_async.memory.kv_pool import KVPool
from unicorn_async.memory.plan import attention_shape
from unicorn_async.memory.report import driver_usage
from unicorn_async.memory.staging import stages_in_vram
from unicorn_async.step.kernel_list import NeededKernels

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AsyncExitStack
    from pathlib import Path

    from unicorn_async.config import EngineConfig
    from unicorn_async.engine.devices import Devices, Ending
    from unicorn_async.engine.runner import AnyRunner
    from unicorn_async.engine.tokenizer_task import MadeTokenizer, TokenizerTask
    from unicorn_async.gpu.device import Device
    from unicorn_async.gpu.instance import Instance
    from unicorn_async.hybrid.opened_far import OpenedFar
    from unicorn_async.hybrid.report import AttentionInfo
    from unicorn_async.hybrid.step_times import StepTimes
    from unicorn_async.loader.trace import LoadTrace
    from unicorn_async.memory.plan import MemoryPlan
    from unicorn_async.memory.report import MemoryReport
    from unicorn_async.tokenizer import Tokenizer

_log = logging.getLogger(__name__)


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
    kv_pool: KVPool | None  # the device's own KV cache; None where something else attends
    tokenizer: Tokenizer | None  # None where nobody wants it
    tokenizer_s: float  # how long it took, beside everything else
    step_times: StepTimes | None  # what notes the times of steps; None where nobody goes by them

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
            beside_bytes=self.runner.nbytes + (0 if self.load.done() else self.transient_bytes),
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


async def open_model(
    model: str | Path,
    options: EngineConfig,
    opening: asyncio.Task[Devices],
    ending: Ending,
    on_wait: Callable[[str], None],
) -> OpenedModel:
    """Check a model, choose and open a device, allocate, begin the load; `ending` gets what has to be closed.

    `on_wait` is told what it waits for, see `Engine.open`.

    Where only one device may run the model, its `opening` has opened it beside the reading of the model's files. The
    tokenizer is made beside all of that, and awaited last, unless it is to be skipped.

    Raises:
        ConfigError, CheckpointError, TokenizerError, DeviceError: see `Engine.open`.
    """
    stack = ending.first
    on_wait("files")
    begun = None if options.skip_tokenizer else await _begin_tokenizer(model, options, stack)
    asked = options
    files = await asyncio.to_thread(read_model, model, options)
    runs = asyncio.Event()
    making = None if begun is None else await _make_tokenizer(begun, files, stack, runs)

    on_wait("device")
    devices = await opening
    options, choice = await asyncio.to_thread(settle_attention, files, options, devices.candidates)
    for line in choice.lines() if choice is not None else ():
        _log.info("%s", line)
    device, memory_plan, usage_before = await run_to_end(lambda: _choose_device(files, devices, options, ending))
    options = replace(options, staging_bytes=memory_plan.staging_bytes, num_load_steps=memory_plan.num_load_steps)
    on_wait("memory")
    # Decided by what is free before the model's memory is taken.
    in_vram = await run_to_end(lambda: stages_in_vram(device, memory_plan, options))
    allocator = BackgroundAllocator(device.memory, memory_plan.placement)
    ending.last.callback(allocator.free)
    stack.push_async_callback(allocator.close, keep=ending.left_heaps(device.info))
    allocator.begin()  # a driver may take as long as the files are read

    kernels: NeededKernels | None = None
    if memory_plan.far is None:
        shape = attention_shape(files.config, options)
        kernels = NeededKernels(device.info, files.config, shape, files.plan, options)
    reading = partial(files.read_strategy, device.info, options.num_reader_threads, memory=memory_plan)
    strategy = await asyncio.to_thread(reading)
    trace = None if options.load_trace is None else await asyncio.to_thread(_load_trace, options.load_trace)
    kv_pool = None
    if memory_plan.far is None:
        kv_pool = KVPool(device.memory, memory_plan.kv, memory_plan.placement.grown, options.block_size)
        ending.last.callback(kv_pool.close)
    cache = await CacheSession.open(
        weight_cache_folder() if options.weight_cache else None,
        files.origin,
        files.plan,
        device,
        allocator.slices,
        read_strategy=lambda found: reading(found=found),
        limit=options.cache_bytes,
    )
    out_of_range = await run_to_end(lambda: _count_out_of_range(device, files, stack))

    prepare = partial(prepare_conversion, device.kernels, files.plan, files.lora)
    factors = LoraFactors(
        device,
        files.lora,
        files.plan,
        convert=factor_converter(device.kernels),
        staging_bytes=options.staging_bytes,
        prepare=prepare,
    )
    stream = LoadStream(
        device,
        files.plan,
        files.checkpoint.files,
        allocator.slices,
        convert=WeightConverter(device.kernels, files.plan, out_of_range, files.lora, factors).record,
        prepare=prepare,
        strategy=strategy,
        stamps=files.checkpoint.stamps,
        staging_bytes=options.staging_bytes,
        trace=trace,
        factors=factors,
        out_of_range=out_of_range,
        cached=cache.cached,
        allocator=allocator,
        stages_in_vram=in_vram,
    )
    stack.push_async_callback(stream.close)
    far: OpenedFar | None = None
    if memory_plan.far is not None:
        await asyncio.to_thread(_import_far)
        from unicorn_async.hybrid.opening import open_far_attention

        far = await open_far_attention(
            device,
            files.config,
            options,
            memory_plan.kv,
            memory_plan.far,
            lambda info: open_beside(device, devices.instance, info, ending),
            stack,
        )
        seam = far.attention.near_kernels()
        kernels = NeededKernels(device.info, files.config, far.shape, files.plan, options, attends=False, seam=seam)
    assert kernels is not None, "the device attends, or another one does"
    kernels.add_load(files.plan, files.lora, from_cache=cache.cached is not None)
    # The first weights have memory before the last ones do, and what is made of all addresses is made beside them.
    load = asyncio.create_task(ModelLoad(device, stream, kernels, trace, cache, far).run(), name="load")
    stack.push_async_callback(end_task, load)

    await stream.begun.wait()
    await asyncio.to_thread(_import_runner)
    from unicorn_async.engine.runner import make_runner

    runner, attention = await make_runner(device, files, options, memory_plan, allocator, kv_pool, stream, far, stack)
    attention = replace(attention, choice=choice)
    step_times = await keep_step_times(files, asked, device.info, stack)
    await asyncio.to_thread(kernels.list_steps)  # for whoever asks what there is in the event loop
    runs.set()
    # Before the device is waited for, and what its steps wait for is closed.
    stack.push_async_callback(end_task, load)

    on_wait("tokenizer")
    tokenizer, tokenizer_s = (None, 0.0) if making is None else await making
    if tokenizer is not None:
        files.check_vocabulary(tokenizer.vocab_size)
    return OpenedModel(
        files,
        options,
        devices.instance,
        device,
        memory_plan,
        usage_before,
        cache,
        stream,
        kernels,
        load,
        runner,
        attention,
        far,
        kv_pool,
        tokenizer,
        tokenizer_s,
        step_times,
    )


def read_model(model: str | Path, options: EngineConfig) -> ModelFiles:
    """Read and check a model's files, and that the options fit it where they say what attends; blocks on the disk.

    Raises:
        ConfigError, CheckpointError: see `Engine.open`.
    """
    files = ModelFiles.read(model, options.weights, options.loras, pooling=options.pooling)
    if options.attention.kind is not AttentionKind.AUTO:
        settle_attention(files, options, ())  # what can't be is said before a device is waited for
    return files


async def _begin_tokenizer(model: str | Path, options: EngineConfig, stack: AsyncExitStack) -> TokenizerTask:
    def begin() -> TokenizerTask:
        from unicorn_async.engine.tokenizer_task import TokenizerTask
        from unicorn_async.engine.user_folders import kept_tokenizers

        started = TokenizerTask(model, kept_tokenizers() if options.weight_cache else None)
        stack.callback(started.close)  # which ends a thread that a cancelled task leaves behind
        return started

    return await run_to_end(begin)


async def _make_tokenizer(
    begun: TokenizerTask, files: ModelFiles, stack: AsyncExitStack, runs: asyncio.Event
) -> asyncio.Task[MadeTokenizer]:
    """Begin to make it; what is made of a kept one, by Python alone, lets all go first until the model `runs`."""
    await run_to_end(lambda: begun.begin(files.tokenizer_source))

    async def make() -> MadeTokenizer:
        if begun.has_kept:
            await runs.wait()
        return await asyncio.to_thread(begun.make)

    making = asyncio.create_task(make(), name="tokenizer")
    stack.push_async_callback(end_task, making)
    return making


def _choose_device(
    files: ModelFiles, devices: Devices, options: EngineConfig, ending: Ending
) -> tuple[Device, MemoryPlan, tuple[int, ...] | None]:
    """Choose the device that a model fits, and open it unless it is open.

    Return it with the model's plan there, and what the driver says that this process uses of its memory.
    """
    with ending.still():  # else what is freed between two figures would be in both, or in none
        far = FarDevice(files.config, options, ending.counted(devices.all, devices.instance))
        info, memory_plan = choose_device(
            far.near(ending.counted(devices.candidates, devices.instance)),
            files.config,
            options,
            files.plan,
            transient_bytes=files.transient_bytes,
            staging=files.staging,
            far=far.plan,
        )
    device = devices.only or open_device(devices.instance, info, options, ending)
    return device, memory_plan, driver_usage(device)


def _load_trace(path: Path) -> LoadTrace:
    from unicorn_async.loader.trace import LoadTrace  # few loads have one, and it is for those to wait for the import

    return LoadTrace(path)


def _count_out_of_range(device: Device, files: ModelFiles, stack: AsyncExitStack) -> RangeCounters:
    counters = RangeCounters(device.memory, files.plan, files.lora)
    stack.push_async_callback(run_to_end, counters.close)
    return counters


def _import_far() -> None:
    import unicorn_async.hybrid.opening  # noqa: F401  (most attention is on the device itself)


def _import_runner() -> None:
    import unicorn_async.engine.runner  # noqa: F401


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
