"""From a model's name to everything that runs it: checks, device, memory, commands. Weights are loaded after it."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from unicorn_async.engine.background import run_to_end
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
from unicorn_async.loader.location import find_model_directory
from unicorn_async.loader.plan import make_plan
from unicorn_async.loader.stream import LoadStream
from unicorn_async.models.decoder import Decoder, DecoderState
from unicorn_async.models.registry import model_config
from unicorn_async.models.weights import wanted_tensors
from unicorn_async.ops.attention import GpuAttention
from unicorn_async.ops.convert import convert
from unicorn_async.ops.kv_cache import AttentionShape
from unicorn_async.resources import resource_dir
from unicorn_async.tokenizer import Tokenizer

if TYPE_CHECKING:
    from contextlib import AsyncExitStack

    from unicorn_async.config import EngineConfig, ModelConfig
    from unicorn_async.gpu.command import CommandRecorder
    from unicorn_async.gpu.kernel import KernelRequest
    from unicorn_async.loader.plan import LoadPlan
    from unicorn_async.loader.uploader import ConvertRecorder
    from unicorn_async.ops.attention_plan import AttentionPlan
    from unicorn_async.tensor import DType

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
    def read(cls, model: str | Path) -> ModelOnDisk:
        """Find and check a model; it blocks on the disk, and reads no weights.

        Raises:
            ConfigError, CheckpointError: there is no such model, or it can't be used.
        """
        directory = find_model_directory(model)
        checkpoint = Checkpoint.read(directory)
        config = model_config(checkpoint.config)
        name = str(model) if not Path(model).expanduser().is_dir() else directory.resolve().name
        return cls(name, checkpoint, config, make_plan(checkpoint, wanted_tensors(config)))


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

    async def load(self) -> None:
        """Load the weights and, beside that, compile the kernels that a first request needs."""
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
    on_disk = await asyncio.to_thread(ModelOnDisk.read, model)
    tokenizer = await asyncio.to_thread(Tokenizer.load, on_disk.checkpoint.directory)
    _check_vocabulary(tokenizer, on_disk)
    instance, device = await run_to_end(lambda: _open_device(on_disk, options, stack))
    config = on_disk.config
    shape = AttentionShape(config.num_heads, config.num_kv_heads, config.head_dim, options.block_size, options.kv_dtype)
    attention = GpuAttention(device.info, device.kernels, shape, soft_cap=config.attention_soft_cap)
    kv_plan = plan_kv_cache(config, options, _kv_budget(device, on_disk, options, attention.plan))
    memory = ModelMemory.allocate(device, config, options, on_disk.plan, kv_plan, attention.plan)
    stack.callback(memory.close)
    stream = LoadStream(
        device,
        on_disk.plan,
        on_disk.checkpoint.files,
        memory.slices,
        convert=_converter(device),
        staging_bytes=options.staging_bytes,
        num_threads=options.num_reader_threads,
    )
    stack.callback(stream.close)
    state = DecoderState(
        weights=memory.weights,
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
    requests = kernel_requests(device.info, config, shape, attention, memory.weights, on_disk.plan, options)
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


def _converter(device: Device) -> ConvertRecorder:
    def record(
        recorder: CommandRecorder, src: int, dst: int, num_elements: int, src_dtype: DType, dst_dtype: DType
    ) -> None:
        convert(
            recorder,
            device.kernels,
            src=src,
            src_dtype=src_dtype,
            dst=dst,
            dst_dtype=dst_dtype,
            num_elements=num_elements,
        )

    return record


def _check_vocabulary(tokenizer: Tokenizer, on_disk: ModelOnDisk) -> None:
    if tokenizer.vocab_size > on_disk.config.vocab_size:
        raise CheckpointError(
            f"{on_disk.checkpoint.directory}: tokenizer.json has {tokenizer.vocab_size} tokens, "
            f"the embeddings have {on_disk.config.vocab_size} rows"
        )
