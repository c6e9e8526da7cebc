"""From a model's name to everything that runs it: checks, device, memory, commands. Weights are loaded after it."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from unicorn_async.config import WeightScheme
from unicorn_async.engine.background import run_to_end
from unicorn_async.engine.conversion import converter
from unicorn_async.engine.kernel_list import kernel_requests
from unicorn_async.engine.kv_plan import KVPlan, minimal_kv_bytes, plan_kv_cache
from unicorn_async.engine.model_memory import ModelMemory, workspace_bytes
from unicorn_async.engine.runner import Runner
from unicorn_async.errors import CheckpointError
from unicorn_async.gpu.device import Device
from unicorn_async.gpu.device_info import DeviceType, select_device
from unicorn_async.gpu.instance import Instance
from unicorn_async.gpu.memory import MemoryKind
from unicorn_async.loader.checkpoint import Checkpoint
from unicorn_async.loader.gguf.split import model_stem
from unicorn_async.loader.location import find_model
from unicorn_async.loader.plan import make_plan
from unicorn_async.loader.read_facts import read_facts
from unicorn_async.loader.read_strategy import choose_read_strategy
from unicorn_async.loader.stream import LoadStream
from unicorn_async.loader.trace import LoadTrace
from unicorn_async.models.decoder import Decoder, DecoderState
from unicorn_async.models.registry import model_config
from unicorn_async.models.weights import check_unused, wanted_tensors
from unicorn_async.ops.attention import GpuAttention
from unicorn_async.ops.kv_cache import AttentionShape
from unicorn_async.resources import resource_dir
from unicorn_async.tokenizer import Tokenizer

if TYPE_CHECKING:
    from contextlib import AsyncExitStack

    from unicorn_async.config import EngineConfig, ModelConfig
    from unicorn_async.gpu.device_info import DeviceInfo
    from unicorn_async.gpu.kernel import KernelRequest
    from unicorn_async.loader.plan import LoadPlan
    from unicorn_async.loader.read_strategy import ReadStrategy
    from unicorn_async.ops.attention_plan import AttentionPlan

_RESERVE_SHARE = 0.1  # of the free memory, left to the driver and to other programs
_SHARED_MEMORY_SHARE = 0.25  # of the free memory, at most, for the KV cache where the CPU uses the same memory


@dataclass(frozen=True, slots=True)
class ModelOnDisk:
    """A model's files, checked, and what is to be loaded of them."""

    name: str
    checkpoint: Checkpoint
    config: ModelConfig
    plan: LoadPlan

    @classmethod
    def read(cls, model: str | Path, scheme: WeightScheme = WeightScheme.AUTO) -> ModelOnDisk:
        """Find and check a model, to be loaded by a scheme; it blocks on the disk, and reads no weights.

        Raises:
            ConfigError, CheckpointError: there is no such model, or it can't be used.
        """
        checkpoint = Checkpoint.read(find_model(model))
        config = model_config(checkpoint.config, checkpoint.config_name)
        name = _model_name(checkpoint) if Path(model).expanduser().exists() else str(model)
        plan = make_plan(checkpoint, wanted_tensors(config), scheme=scheme)
        check_unused(plan.ignored, config)
        return cls(name, checkpoint, config, plan)

    def tokenizer(self) -> Tokenizer:
        """Make the model's tokenizer; raises TokenizerError, and takes a second for a large vocabulary."""
        metadata = self.checkpoint.gguf_metadata
        return Tokenizer.load(self.checkpoint.path) if metadata is None else Tokenizer.from_gguf(metadata)

    def read_strategy(self, device: DeviceInfo, num_threads: int | None = None) -> ReadStrategy:
        """Choose how to read the files for a device, by the memory that is free now; it blocks on the disk."""
        host_bytes = self.plan.dest_bytes if device.shares_host_memory else 0
        facts = read_facts(self.checkpoint.files, file_bytes=self.plan.bytes_to_read, host_bytes=host_bytes)
        return choose_read_strategy(facts, num_threads=num_threads)


@dataclass(frozen=True, slots=True)
class StartedModel:
    """A model whose memory is allocated and whose weights are on their way."""

    name: str
    config: ModelConfig
    tokenizer: Tokenizer
    instance: Instance
    device: Device
    kv_plan: KVPlan
    memory: ModelMemory
    runner: Runner
    stream: LoadStream
    requests: tuple[KernelRequest, ...]
    trace: LoadTrace | None

    async def load(self) -> None:
        """Load the weights and, beside that, compile the kernels that a first request needs."""
        try:
            await self._load()
        finally:
            if self.trace is not None:
                await run_to_end(self.trace.write)

    async def _load(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self.stream.run(), name="load stream")
            # A thread that compiles beyond a cancellation ends by itself: a closed device refuses the next kernel.
            group.create_task(asyncio.to_thread(self.device.kernels.prepare, self.requests), name="compile kernels")
        await run_to_end(self.device.kernels.save_cache)


async def start(model: str | Path, options: EngineConfig, stack: AsyncExitStack) -> StartedModel:
    """Check a model, choose and open a device, allocate; `stack` gets what has to be closed, in the right order.

    Raises:
        ConfigError, CheckpointError, TokenizerError, DeviceError: see `Engine.open`.
    """
    on_disk = await asyncio.to_thread(ModelOnDisk.read, model, options.weights)
    tokenizer = await asyncio.to_thread(on_disk.tokenizer)
    _check_vocabulary(tokenizer, on_disk)
    instance, device = await run_to_end(lambda: _open_device(on_disk, options, stack))
    config = on_disk.config
    shape = AttentionShape(config.num_heads, config.num_kv_heads, config.head_dim, options.block_size, options.kv_dtype)
    attention = GpuAttention(device.info, device.kernels, shape, soft_cap=config.attention_soft_cap)
    kv_plan = plan_kv_cache(config, options, _kv_budget(device, on_disk, options, attention.plan))
    strategy = await asyncio.to_thread(on_disk.read_strategy, device.info, options.num_reader_threads)
    trace = None if options.load_trace is None else LoadTrace(options.load_trace)
    memory = ModelMemory.allocate(device, config, options, on_disk.plan, kv_plan, attention.plan)
    stack.callback(memory.close)
    stream = LoadStream(
        device,
        on_disk.plan,
        on_disk.checkpoint.files,
        memory.slices,
        convert=converter(device.kernels, on_disk.plan),
        strategy=strategy,
        staging_bytes=options.staging_bytes,
        trace=trace,
    )
    stack.callback(stream.close)
    state = DecoderState(
        weights=memory.weights,
        matrices=memory.matrices,
        caches=memory.caches,
        layer_group=kv_plan.layer_group,
        freqs=memory.freqs,
        activations=memory.activations,
        last_token=memory.last_token,
    )
    decoder = Decoder(config, shape, device.kernels, device.info, attention, state)
    runner = Runner(device, config, options, memory, kv_plan, decoder, attention.plan, stream)
    stack.callback(runner.close)
    stack.callback(device.wait_idle)
    requests = kernel_requests(device.info, config, shape, attention, memory.matrices, on_disk.plan, options)
    return StartedModel(
        options.model_name or on_disk.name,
        config,
        tokenizer,
        instance,
        device,
        kv_plan,
        memory,
        runner,
        stream,
        requests,
        trace,
    )


def cache_directory() -> Path:
    """Return the user's folder for what can be made anew."""
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "unicorn_async"


def _open_device(on_disk: ModelOnDisk, options: EngineConfig, stack: AsyncExitStack) -> tuple[Instance, Device]:
    instance = Instance.create(validation=options.validation)
    stack.callback(instance.close)
    needed = on_disk.plan.dest_bytes + minimal_kv_bytes(on_disk.config, options)
    info = select_device(instance.devices(), options.device, needed_bytes=needed, allow_software=options.allow_software)
    device = Device.open(instance, info, cache_dir=cache_directory(), shader_dir=resource_dir("shaders"))
    stack.callback(device.close)
    return instance, device


def _kv_budget(device: Device, on_disk: ModelOnDisk, options: EngineConfig, attention: AttentionPlan) -> int:
    available = device.memory.available_bytes(MemoryKind.DEVICE)
    left = available * (1 - _RESERVE_SHARE) - on_disk.plan.dest_bytes
    left -= workspace_bytes(on_disk.config, options, attention)
    if device.info.type is not DeviceType.DISCRETE:
        left = min(left, available * _SHARED_MEMORY_SHARE)
    return max(0, int(left))


def _model_name(checkpoint: Checkpoint) -> str:
    path = checkpoint.path
    return path.resolve().name if checkpoint.gguf_metadata is None else model_stem(path)


def _check_vocabulary(tokenizer: Tokenizer, on_disk: ModelOnDisk) -> None:
    if tokenizer.vocab_size > on_disk.config.vocab_size:
        raise CheckpointError(
            f"{on_disk.checkpoint.path}: the tokenizer has {tokenizer.vocab_size} tokens, "
            f"the embeddings have {on_disk.config.vocab_size} rows"
        )
