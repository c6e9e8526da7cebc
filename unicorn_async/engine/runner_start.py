"""What runs a model's steps, made beside its load once there is memory for what all layers use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from unicorn_async.background import run_to_end
from unicorn_async.config import AttentionKind
from unicorn_async.engine.types import AttentionInfo
from unicorn_async.memory.model import ModelMemory
from unicorn_async.models.decoder import Decoder, DecoderState
from unicorn_async.ops.page_touch import pays_to_touch
from unicorn_async.step.arriving_layers import ArrivingLayers
from unicorn_async.step.runner import Runner
from unicorn_async.weights.tensors import unplaced_matrices

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AsyncExitStack

    from unicorn_async.engine.load_start import LoadingModel
    from unicorn_async.hybrid.far_attention import FarAttention
    from unicorn_async.hybrid.runner import HybridRunner
    from unicorn_async.ops.attention import GpuAttention

AnyRunner = TypeVar("AnyRunner", "Runner", "HybridRunner")


@dataclass(frozen=True, slots=True)
class StartedRunner:
    """What runs the steps, and where their attention is."""

    runner: Runner | HybridRunner
    attention: AttentionInfo


async def start_runner(model: LoadingModel, stack: AsyncExitStack) -> StartedRunner:
    """Wait for the memory of what all layers use, and make what runs the steps; `stack` gets what has to be closed.

    Raises:
        DeviceError: memory ran out.
    """
    if model.gpu is None:
        await model.places.all()
    else:  # the rest is waited for layer by layer
        await model.places.wait(model.workspace)
    memory = await run_to_end(lambda: _name_memory(model, stack))
    state = DecoderState(
        weights=memory.weights,
        matrices=memory.matrices,
        freqs=memory.freqs,
        activations=memory.activations,
        last_token=memory.last_token,
    )
    device = model.device
    touches = pays_to_touch(device.info, unplaced_matrices(model.on_disk.plan).values())
    decoder = Decoder(model.config, model.shape, device.kernels, device.info, state, touches_pages=touches)
    if model.gpu is not None:
        return await _near_runner(model, model.gpu, memory, decoder, stack)
    assert model.opened is not None, "another device attends"
    return await _hybrid_runner(model, model.opened, memory, decoder, stack)


async def _near_runner(
    model: LoadingModel, gpu: GpuAttention, memory: ModelMemory, decoder: Decoder, stack: AsyncExitStack
) -> StartedRunner:
    device, options, kv_plan = model.device, model.options, model.memory_plan.kv
    layers = ArrivingLayers(model.stream, model.places, model.config.num_layers)
    runner = await _made_runner(
        lambda: Runner(device, model.config, options, memory, kv_plan, decoder, gpu, layers), stack
    )
    model.places.go_on()
    stack.push_async_callback(run_to_end, device.wait_idle)
    attends = AttentionInfo(
        AttentionKind.GPU,
        device.info.name,
        device.info.is_software,
        kv_dtype=options.kv_dtype.value,
        kv_cache_bytes=kv_plan.nbytes,
    )
    return StartedRunner(runner, attends)


async def _hybrid_runner(
    model: LoadingModel, opened: FarAttention, memory: ModelMemory, decoder: Decoder, stack: AsyncExitStack
) -> StartedRunner:
    from unicorn_async.hybrid.runner import HybridRunner
    from unicorn_async.hybrid.step_trace import StepTrace

    options, trace = model.options, None
    if options.step_trace is not None:
        near, path = model.device.info.name, options.step_trace
        trace = await run_to_end(lambda: StepTrace(path, near, opened.info.device))
    runner = await _made_runner(
        lambda: HybridRunner(
            model.device,
            model.config,
            options,
            memory,
            opened.limits,
            decoder,
            opened.attention,
            opened.track,
            model.stream,
            trace,
        ),
        stack,
    )
    stack.push_async_callback(runner.stop)
    return StartedRunner(runner, opened.info)


def _name_memory(model: LoadingModel, stack: AsyncExitStack) -> ModelMemory:
    memory = ModelMemory.of(
        model.device, model.config, model.options, model.on_disk.plan, model.places.slices, model.workspace
    )
    stack.push_async_callback(run_to_end, memory.close)
    return memory


async def _made_runner(make: Callable[[], AnyRunner], stack: AsyncExitStack) -> AnyRunner:
    """Make a runner in a thread: it allocates two dozen times, beside a load that wants the event loop."""

    def begin() -> AnyRunner:
        runner = make()
        stack.push_async_callback(run_to_end, runner.close)
        return runner

    return await run_to_end(begin)
