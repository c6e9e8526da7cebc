"""How many of the controller's tasks a run may have: more and more, as long as the NPU's answers stay right."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from known_answers import Question

from unicorn_async.errors import NpuError, UnicornError
from unicorn_async.npu.attention import AttentionService, NpuOptions
from unicorn_async.npu.context import Context
from unicorn_async.npu.geometry import HeadLayout
from unicorn_async.npu.pace import FEW_TASKS, num_tasks

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from unicorn_async.npu.device import Device
    from unicorn_async.npu.manifest import Build
    from unicorn_async.npu.work import AttentionHeads

_TASKS = (1024, 4096)
_MANY_QUERIES = 512
_LARGE_STREAM = 8 << 20  # bytes of instructions


async def grow_tasks(
    device: Device, build: Build, heads_of: Callable[[HeadLayout], AttentionHeads], context_len: int
) -> dict[str, Any]:
    """Have runs with more and more of the controller's tasks answer; engines' become as large as the last right one.

    What fails ends it, and is told; runs stay as small as they were before it.
    """
    heads = heads_of(HeadLayout(build.chip, build.head_dim))
    most = FEW_TASKS
    try:
        context = Context(device, build)
        try:
            async for tasks in _right_runs(context, heads, context_len):
                most = tasks
        finally:
            context.close()
    except UnicornError as exc:
        return {"tasks_per_run": most, "failure": f"{type(exc).__name__}: {exc}"}
    return {"tasks_per_run": most, "failure": None}


async def _right_runs(context: Context, heads: AttentionHeads, context_len: int) -> AsyncIterator[int]:
    """Yield how many tasks a run had whose answer was right, more each time; raises for one that was not."""
    question = Question(heads, context_len, min(context_len, _MANY_QUERIES), 0)
    most = FEW_TASKS
    for limit in _TASKS:
        made = NpuOptions(num_runs=1, tasks_per_run=limit, instruction_bytes=_LARGE_STREAM)
        attention = AttentionService(context, heads, options=made)
        try:
            tasks = max(sum(map(num_tasks, part.items)) for part in question.prepare(attention).parts)
            if tasks <= most:  # contexts are too short for more
                return
            error = question.error(await question.ask(attention))
            if error > attention.precision.mean_error or attention.counts.recoveries:
                raise NpuError(f"{tasks} tasks: mean relative error {error}, {attention.counts.recoveries} recoveries")
            most = tasks
        finally:
            await attention.close()
        yield most
