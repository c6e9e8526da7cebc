"""The engine's loop around a runner that is none: how it is run, and what requests get of it."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from unicorn_async.engine.engine_loop import EngineLoop
from unicorn_async.sampling_params import SamplingParams
from unicorn_async.scheduler.block_manager import BlockGroup
from unicorn_async.scheduler.scheduler import Scheduler
from unicorn_async.scheduler.sequence import Sequence

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from unicorn_async.engine.request_stream import RequestStream
    from unicorn_async.engine.types import Token

    from .fake_runner import FakeRunner


def make_scheduler(**options: Any) -> Scheduler:
    defaults: dict[str, Any] = {
        "groups": (BlockGroup(0, 64),),
        "block_size": 8,
        "max_num_seqs": 4,
        "max_num_batched_tokens": 32,
        "max_context": 128,
        "max_waiting": 8,
        "max_logit_rows": 16,
        "eos_token_ids": (1,),
    }
    return Scheduler(**(defaults | options))


@asynccontextmanager
async def running(scheduler: Scheduler, runner: FakeRunner) -> AsyncIterator[EngineLoop]:
    """Run a loop for the length of the block; its failure ends the block."""
    loop = EngineLoop(scheduler, runner)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(loop.run())
        yield loop
        task.cancel()


def request(name: str = "a", num_prompt: int = 4, **sampling: Any) -> Sequence:
    return Sequence(name, tuple(range(10, 10 + num_prompt)), SamplingParams(**sampling), seed=0)


async def all_tokens(stream: RequestStream) -> list[Token]:
    tokens: list[Token] = []
    while not tokens or tokens[-1].finish_reason is None:
        tokens.append(await stream.get())
    return tokens


async def let_others_run() -> None:
    for _ in range(20):
        await asyncio.sleep(0)
