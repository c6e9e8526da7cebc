"""From a model's name to everything that runs it, in the order in which it happens; its weights follow in a task.

What this needs is imported while Vulkan is opened, and what makes the runner while the first weights are read. What
waits for the device, or for its driver, is closed in threads: the event loop serves others meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from unicorn_async.background import end_task, run_to_end
from unicorn_async.cache.session import CacheSession
from unicorn_async.config import AttentionKind, SpeculationMode
from unicorn_async.engine.attending import keep_step_times, settle_attention
from unicorn_async.engine.devices import open_beside, open_device
from unicorn_async.engine.files import ModelFiles
from unicorn_async.engine.model_load import ModelLoad
from unicorn_async.engine.opened_model import OpenedModel
from unicorn_async.engine.user_folders import kept_blocks_directory, weight_cache_folder
from unicorn_async.hybrid.choice import FarDevice
from unicorn_async.loader.allocator import BackgroundAllocator
from unicorn_async.loader.conversion import WeightConverter, factor_converter, prepare_conversion
from unicorn_async.loader.lora_factors import LoraFactors
from unicorn_async.loader.range_check import RangeCounters
from unicorn_async.loader.stream import LoadStream
from unicorn_async.memory.choice import choose_device
from unicorn_async.memory.kv_plan import passing_bytes
from unicorn_async.memory.kv_pool import KVPool
from unicorn_async.memory.plan import attention_shape
from unicorn_async.memory.report import driver_usage
from unicorn_async.memory.staging import stages_in_vram
from unicorn_async.step.kernel_list import NeededKernels

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AsyncExitStack
    from pathlib import Path

    from unicorn_async.checkpoint.partial_file import ModelDownload
    from unicorn_async.config import EngineConfig
    from unicorn_async.engine.devices import Devices, Ending
    from unicorn_async.engine.draft_files import DraftFiles
    from unicorn_async.engine.tokenizer_task import MadeTokenizer, TokenizerTask
    from unicorn_async.gpu.device import Device
    from unicorn_async.hybrid.opened_far import OpenedFar
    from unicorn_async.kv_store.store import KVStore
    from unicorn_async.loader.trace import LoadTrace
    from unicorn_async.memory.plan import MemoryPlan

_log = logging.getLogger(__name__)


async def open_model(
    model: str | Path,
    options: EngineConfig,
    opening: asyncio.Future[Devices],
    ending: Ending,
    on_wait: Callable[[str], None],
    download: ModelDownload | None = None,
) -> OpenedModel:
    """Check a model, choose and open a device, allocate, begin the load; `ending` gets what has to be closed.

    `on_wait` is told what it waits for, see `Engine.open`. With a `download` the model's files are on their way.

    Where only one device may run the model, its `opening` has opened it beside the reading of the model's files. The
    tokenizer is made beside all of that, and awaited last, unless it is to be skipped.

    Raises:
        ConfigError, CheckpointError, TokenizerError, DeviceError, DownloadError: see `Engine.open`.
    """
    stack = ending.first
    on_wait("files")
    begun = None if options.skip_tokenizer else await _begin_tokenizer(model, options, stack, download)
    asked = options
    files = await asyncio.to_thread(read_model, model, options, download)
    runs = asyncio.Event()
    making = None if begun is None else await _make_tokenizer(begun, files, stack, runs)
    if files.predictor_left_out:
        _log.warning("the layer that predicts a token more is left out: %s", files.predictor_left_out)

    on_wait("device")
    devices = await opening
    options, choice = await asyncio.to_thread(settle_attention, files, options, devices.candidates)
    for line in choice.lines() if choice is not None else ():
        _log.info("%s", line)
    draft = None if options.draft is None else await asyncio.to_thread(_read_draft, files, options)
    draft_bytes = 0 if draft is None else await run_to_end(lambda: draft.nbytes(devices.candidates[0]))
    slot_bytes = 0 if options.kv_disk_bytes is None else passing_bytes(files.config)
    device, memory_plan, usage_before = await run_to_end(
        lambda: _choose_device(files, devices, options, ending, draft_bytes + slot_bytes)
    )
    _check_kv_store(options, files, device, memory_plan)
    if memory_plan.states.num_seqs < options.max_seqs:
        _log.warning("%s", memory_plan.states.text(options.max_seqs))
    if options.speculation is not SpeculationMode.OFF and not memory_plan.states.can_go_back:
        _log.warning("%s", memory_plan.states.spare_text(predicts=files.config.predicts))
        options = replace(options, speculation=SpeculationMode.OFF)
    options = replace(
        options,
        staging_bytes=memory_plan.staging_bytes,
        num_load_steps=memory_plan.num_load_steps,
        max_num_seqs=memory_plan.states.num_seqs,
    )
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
    if memory_plan.far is None and files.config.attends:
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
        partial=files.checkpoint.partial,
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
    kv_store = _open_kv_store(options, files, device, kv_pool, allocator, memory_plan, stack)
    step_times = await keep_step_times(files, asked, device.info, stack)
    await asyncio.to_thread(kernels.list_steps)  # for whoever asks what there is in the event loop
    runs.set()
    # Before the device is waited for, and what its steps wait for is closed.
    stack.push_async_callback(end_task, load)

    on_wait("tokenizer")
    tokenizer, tokenizer_s = (None, 0.0) if making is None else await making
    if tokenizer is not None:
        files.check_vocabulary(tokenizer)
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
        draft,
        draft_bytes,
        kv_store,
    )


def read_model(model: str | Path, options: EngineConfig, download: ModelDownload | None = None) -> ModelFiles:
    """Read and check a model's files, and that the options fit it where they say what attends; blocks on the disk.

    Raises:
        ConfigError, CheckpointError, DownloadError: see `Engine.open`.
    """
    files = ModelFiles.read(
        model,
        options.weights,
        options.loras,
        pooling=options.pooling,
        predicts=options.predicts,
        no_predictor=options.no_predictor,
        download=download,
    )
    if options.attention.kind is not AttentionKind.AUTO:
        settle_attention(files, options, ())  # what can't be is said before a device is waited for
    return files


def _read_draft(files: ModelFiles, options: EngineConfig) -> DraftFiles | None:
    from unicorn_async.engine.draft_files import DraftFiles  # few starts have one

    return DraftFiles.read(files, options)


def _check_kv_store(options: EngineConfig, files: ModelFiles, device: Device, plan: MemoryPlan) -> None:
    if options.keeps_blocks:
        from unicorn_async.kv_store.store import check_copies, check_kv_store  # few starts have one

        check_kv_store(options, device.info)
        check_copies(options, plan.states)


def _open_kv_store(
    options: EngineConfig,
    files: ModelFiles,
    device: Device,
    kv_pool: KVPool | None,
    allocator: BackgroundAllocator,
    plan: MemoryPlan,
    stack: AsyncExitStack,
) -> KVStore | None:
    if not options.keeps_blocks:
        return None
    from unicorn_async.kv_store.block_places import BlockPlaces, FixedStates
    from unicorn_async.kv_store.model_key import model_key
    from unicorn_async.kv_store.store import KVStore, check_disk

    key = partial(model_key, files.origin, files.plan, files.config, options)
    places = BlockPlaces(kv_pool, FixedStates.of(files.config, allocator.slices, plan.states.num_copies))
    if options.kv_disk_bytes is not None:
        check_disk(places.nbytes, options.kv_disk_bytes)
    store = KVStore(device, places, options.kv_host_bytes, options.kv_disk_bytes, kept_blocks_directory(), key)
    stack.push_async_callback(run_to_end, store.close)
    return store


async def _begin_tokenizer(
    model: str | Path, options: EngineConfig, stack: AsyncExitStack, download: ModelDownload | None
) -> TokenizerTask:
    path = None if download is None else download.path  # by its name an older revision may be found

    def begin() -> TokenizerTask:
        from unicorn_async.engine.tokenizer_task import TokenizerTask
        from unicorn_async.engine.user_folders import kept_tokenizers

        started = TokenizerTask(model, kept_tokenizers() if options.weight_cache else None, path)
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
    files: ModelFiles, devices: Devices, options: EngineConfig, ending: Ending, beside_bytes: int
) -> tuple[Device, MemoryPlan, tuple[int, ...] | None]:
    """Choose the device that a model fits beside its draft model and others, and open it unless it is open.

    Return it with the model's plan there, and what the driver says that this process uses of its memory.
    """
    with ending.still():  # else what is freed between two figures would be in both, or in none
        far = FarDevice(files.config, options, ending.counted(devices.all, devices.instance))
        info, memory_plan = choose_device(
            far.near(ending.counted(devices.candidates, devices.instance)),
            files.config,
            options,
            files.plan,
            transient_bytes=files.transient_bytes + beside_bytes,
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
