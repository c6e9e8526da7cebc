"""From a model's name to everything that runs it: checks, device, memory, commands. Weights are loaded after it.

What each part needs is imported in front of it, beside what is under way already: the opening of Vulkan, and the load.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from unicorn_async.background import run_to_end, wait_to_end
from unicorn_async.engine.opened_vulkan import open_vulkan

if TYPE_CHECKING:
    from contextlib import AsyncExitStack
    from pathlib import Path

    from unicorn_async.config import EngineConfig
    from unicorn_async.engine.load_start import LoadingModel
    from unicorn_async.engine.model_on_disk import ModelOnDisk
    from unicorn_async.engine.runner_start import StartedRunner
    from unicorn_async.engine.tokenizer_start import MadeTokenizer, TokenizerStart
    from unicorn_async.gpu.instance_start import InstanceStart
    from unicorn_async.tokenizer import Tokenizer

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class StartedModel:
    """A model whose weights are on their way, what runs it, and its tokenizer.

    `options` are those that it was opened with, fitted to the model. `tokenizer_s` is how long the tokenizer took,
    beside everything else. Without one, nobody wanted it.
    """

    model: LoadingModel
    runner: StartedRunner
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
        await asyncio.to_thread(_import_load_start)
        from unicorn_async.engine.load_start import begin_load, read_model

        on_disk, options = await asyncio.to_thread(read_model, model, options)
        making = None if options.skip_tokenizer else await _start_tokenizer(on_disk, stack)
    except BaseException:
        await _end(opening)
        raise
    loading = await begin_load(on_disk, await opening, options, stack)
    stack.push_async_callback(_end, loading.load)
    await loading.stream.begun.wait()
    await asyncio.to_thread(_import_runner_start)
    from unicorn_async.engine.runner_start import start_runner

    runner = await start_runner(loading, stack)
    # Before the device is waited for, and what its steps wait for is closed.
    stack.push_async_callback(_end, loading.load)
    if making is None:
        return StartedModel(loading, runner, options, None, 0.0)
    tokenizer, seconds = await making
    on_disk.check_vocabulary(tokenizer.vocab_size)
    return StartedModel(loading, runner, options, tokenizer, seconds)


def _import_load_start() -> None:
    import unicorn_async.engine.load_start  # noqa: F401


def _import_runner_start() -> None:
    import unicorn_async.engine.runner_start  # noqa: F401


async def _start_tokenizer(on_disk: ModelOnDisk, stack: AsyncExitStack) -> asyncio.Task[MadeTokenizer]:
    def begin() -> TokenizerStart:
        from unicorn_async.engine.tokenizer_start import TokenizerStart

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
