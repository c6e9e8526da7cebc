"""What runs a model's steps, made beside its load once there is memory for what all layers use."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from unicorn_async.background import run_to_end
from unicorn_async.config import AttentionKind
from unicorn_async.errors import DeviceLostError
from unicorn_async.hybrid.report import AttentionInfo
from unicorn_async.memory.model import ModelMemory
from unicorn_async.memory.plan import attention_shape
from unicorn_async.models.block_recorder import DecoderState, RecordingTools
from unicorn_async.models.decoder import Decoder
from unicorn_async.ops.attention import GpuAttention
from unicorn_async.ops.page_touch import pays_to_touch
from unicorn_async.step.layer_gate import LayerGate
from unicorn_async.step.runner import Runner
from unicorn_async.weights.placement import MemoryGroup
from unicorn_async.weights.tensors import unplaced_matrices

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AsyncExitStack

    from unicorn_async.config import EngineConfig
    from unicorn_async.engine.files import ModelFiles
    from unicorn_async.gpu.device import Device
    from unicorn_async.hybrid.opened_far import OpenedFar
    from unicorn_async.hybrid.runner import HybridRunner
    from unicorn_async.loader.allocator import BackgroundAllocator
    from unicorn_async.loader.stream import LoadStream
    from unicorn_async.memory.kv_pool import KVPool
    from unicorn_async.memory.plan import MemoryPlan
    from unicorn_async.models.spec import ModelSpec
    from unicorn_async.ops.kv_cache import AttentionShape

AnyRunner: TypeAlias = "Runner | HybridRunner"
R = TypeVar("R", "Runner", "HybridRunner")


async def make_runner(
    device: Device,
    files: ModelFiles,
    options: EngineConfig,
    memory_plan: MemoryPlan,
    allocator: BackgroundAllocator,
    kv_pool: KVPool | None,
    stream: LoadStream,
    far: OpenedFar | None,
    stack: AsyncExitStack,
) -> tuple[AnyRunner, AttentionInfo]:
    """Wait for the memory of what all layers use, and make what runs the steps; `stack` gets what has to be closed.

    Return it with where the attention is: on the device itself, unless something `far` attends.

    Raises:
        DeviceError: memory ran out.
    """
    model, kv_plan, workspace = files.config, memory_plan.kv, memory_plan.placement.names(MemoryGroup.WORKSPACE)
    if far is None:  # the rest is waited for layer by layer
        await allocator.wait(workspace)
    else:
        await allocator.all()
    memory = await run_to_end(lambda: _name_memory(device, files, options, allocator, kv_pool, workspace, stack))
    shape = attention_shape(model, options) if far is None else far.shape
    decoder = _decoder(device, files, memory, shape)
    if far is not None:
        return await _hybrid_runner(device, model, options, memory, decoder, stream, far, stack), far.info

    gpu = [
        GpuAttention(device.info, device.kernels, shape.with_heads(state), soft_cap=model.attention.soft_cap)
        for state in model.paged_states
    ]
    layers = LayerGate(stream, allocator, model)
    runner = await _begin(lambda: Runner(device, model, options, memory, kv_plan, decoder, gpu, layers), stack)
    stack.push_async_callback(_wait_idle, device)
    attends = AttentionInfo(
        AttentionKind.GPU,
        device.info.name,
        device.info.is_software,
        kv_dtype=options.kv_dtype.value,
        kv_cache_bytes=kv_plan.nbytes,
    )
    return runner, attends


async def _wait_idle(device: Device) -> None:
    """Wait for what was submitted; a lost device does no more, and what it was lost with is told by who saw it."""
    with suppress(DeviceLostError):
        await run_to_end(device.wait_idle)


async def _hybrid_runner(
    device: Device,
    model: ModelSpec,
    options: EngineConfig,
    memory: ModelMemory,
    decoder: Decoder,
    stream: LoadStream,
    far: OpenedFar,
    stack: AsyncExitStack,
) -> HybridRunner:
    from unicorn_async.hybrid.runner import HybridRunner
    from unicorn_async.hybrid.step_trace import StepTrace

    trace = None
    if options.step_trace is not None:
        path = options.step_trace
        trace = await run_to_end(lambda: StepTrace(path, device.info.name, far.info.device))
    runner = await _begin(
        lambda: HybridRunner(
            device, model, options, memory, far.limits, decoder, far.attention, far.track, stream, trace
        ),
        stack,
    )
    stack.push_async_callback(runner.stop)
    return runner


def _name_memory(
    device: Device,
    files: ModelFiles,
    options: EngineConfig,
    allocator: BackgroundAllocator,
    kv_pool: KVPool | None,
    workspace: list[str],
    stack: AsyncExitStack,
) -> ModelMemory:
    memory = ModelMemory.of(device, files.config, options, files.plan, allocator.slices, kv_pool, workspace)
    stack.push_async_callback(run_to_end, memory.close)
    return memory


def _decoder(device: Device, files: ModelFiles, memory: ModelMemory, shape: AttentionShape) -> Decoder:
    state = DecoderState(
        weights=memory.weights,
        matrices=memory.matrices,
        freqs=memory.freqs,
        activations=memory.activations,
        last_token=memory.last_token,
    )
    touches = pays_to_touch(device.info, files.config.read_by_all(unplaced_matrices(files.plan)))
    return Decoder(files.config, RecordingTools(device.kernels, device.info, shape, state), touches_pages=touches)


async def _begin(make: Callable[[], R], stack: AsyncExitStack) -> R:
    """Make a runner in a thread: it allocates two dozen times, beside a load that wants the event loop."""

    def begin() -> R:
        runner = make()
        stack.push_async_callback(run_to_end, runner.close)
        return runner

    return await run_to_end(begin)
