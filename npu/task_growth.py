"""How many of the controller's tasks a run may have: more and more, as long as the NPU's answers stay right."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from known_answers import MAX_MEAN_ERROR, Question

from unicorn_async.errors import NpuError, UnicornError
from unicorn_async.npu.attention import AttentionService, NpuOptions
from unicorn_async.npu.pace import FEW_TASKS, num_tasks

if TYPE_CHECKING:
    from unicorn_async.npu.context import Context
    from unicorn_async.npu.work import AttentionHeads

_TASKS = (1024, 4096)
_MANY_QUERIES = 512
_LARGE_STREAM = 8 << 20  # bytes of instructions


async def grow_tasks(context: Context, heads: AttentionHeads, context_len: int) -> dict[str, Any]:
    """Have runs with more and more of the controller's tasks answer; engines' become as large as the last right one.

    What fails ends it, and is told; runs stay as small as they were before it.
    """
    most, failure = FEW_TASKS, None
    question = Question(heads, context_len, min(context_len, _MANY_QUERIES), 0)
    for limit in _TASKS:
        made = NpuOptions(num_runs=1, tasks_per_run=limit, instruction_bytes=_LARGE_STREAM)
        attention = AttentionService(context, heads, options=made)
        try:
            tasks = max(sum(map(num_tasks, part.items)) for part in question.prepare(attention).parts)
            if tasks <= most:  # contexts are too short for more
                break
            error = question.error(await question.ask(attention))
            if error > MAX_MEAN_ERROR or attention.counts.recoveries:
                raise NpuError(f"{tasks} tasks: mean relative error {error}, {attention.counts.recoveries} recoveries")
            most = tasks
        except UnicornError as exc:
            failure = f"{type(exc).__name__}: {exc}"
            print(f"runs stay at {most} tasks: {failure}")
            break
        finally:
            await attention.close()
    return {"tasks_per_run": most, "failure": failure}
