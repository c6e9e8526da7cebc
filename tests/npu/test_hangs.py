"""Runs that do not end, or of which nobody tells the end: what they may use stays, and others go on."""

from __future__ import annotations

import asyncio
import gc
from collections import deque
from typing import TYPE_CHECKING, Any

import pytest

from tests.npu.run_waits import limit_hangs_alone, runs_started
from tests.npu.steps import Query, Step
from tests.npu.test_attention import HEADS, MIXED, opened
from unicorn_async.errors import NpuContextLostError, NpuTimeoutError
from unicorn_async.npu.attention import AttentionService, NpuOptions
from unicorn_async.npu.completion import CompletionThread
from unicorn_async.npu.recovery import Recovery
from unicorn_async.npu.self_check import self_check

if TYPE_CHECKING:
    from tests.npu.fake_xrt import Npu
    from unicorn_async.npu.completion import RunEnd
    from unicorn_async.npu.context import Context


async def test_an_npu_that_hangs_in_new_contexts_too_is_an_error_for_every_later_call(
    context: Context, npu: Npu, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit_hangs_alone(npu, monkeypatch)
    step = Step(HEADS, [Query(5)])
    attention = AttentionService(context, HEADS, options=NpuOptions(timeout_s=0.05))
    npu.faults = deque(["stuck"])
    with pytest.raises(NpuTimeoutError, match=r"no end after 0.05 s, nor .*; new contexts did not help.*remove"):
        await step.run(attention)
    recoveries = attention.counts.recoveries
    assert recoveries == npu.contexts_made - 1 > 0
    with pytest.raises(NpuTimeoutError, match="new contexts did not help"):
        await step.run(attention)
    assert attention.counts.recoveries == recoveries
    await attention.close()


async def test_a_run_whose_end_the_driver_does_not_tell_is_done_again_in_halves_in_a_new_context(
    context: Context, npu: Npu, monkeypatch: pytest.MonkeyPatch
) -> None:
    step, npu.max_contexts, watch, waits_s = Step(HEADS, MIXED), 1, CompletionThread.watch, deque([0.0])

    def watched(thread: CompletionThread, handle: Any, *, name: str, timeout_s: float) -> asyncio.Future[RunEnd]:
        return watch(thread, handle, name=name, timeout_s=waits_s.popleft() if waits_s else timeout_s)

    monkeypatch.setattr(CompletionThread, "watch", watched)
    async with opened(context) as attention:
        npu.faults = deque(["no answer"])
        step.check(await step.run(attention))
        assert (attention.counts.recoveries, attention.counts.runs, npu.contexts) == (1, 2, 1)


async def test_after_a_hang_no_buffer_goes_before_the_context(
    context: Context, npu: Npu, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit_hangs_alone(npu, monkeypatch)
    step = Step(HEADS, MIXED)
    attention = AttentionService(context, HEADS, options=NpuOptions(num_runs=3, timeout_s=0.05))
    cache, prepared = step.fill(attention), step.prepare(attention)
    npu.faults = deque(["ok", "ok", "ok", "stuck"])  # each has a run that could keep the context
    for _ in range(3):
        await attention.submit(prepared, q=step.q, cache=cache, out=step.poisoned())
    for _ in range(2):
        with pytest.raises(NpuTimeoutError):
            await attention.submit(prepared, q=step.q, cache=cache, out=step.poisoned())
    await attention.close()
    cache.close()
    npu.release()
    gc.collect()
    assert npu.freed_beside == [0] * 10


async def test_no_buffer_goes_before_the_context_of_a_run_whose_state_can_not_be_read(
    context: Context, npu: Npu
) -> None:
    step = Step(HEADS, MIXED)
    attention = AttentionService(context, HEADS)
    cache, prepared = step.fill(attention), step.prepare(attention)
    npu.faults = deque(["state fails", "state fails"])
    with pytest.raises(NpuContextLostError, match="can't be read"):
        await attention.submit(prepared, q=step.q, cache=cache, out=step.poisoned())
    assert npu.contexts == 0  # before its buffers are used for another run
    await attention.close()
    cache.close()
    npu.release()
    gc.collect()
    assert npu.freed_beside == [0] * 7


async def test_a_flight_that_ends_with_its_loop_leaves_no_buffer_to_a_run_whose_state_can_not_be_read(
    context: Context, npu: Npu, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def waits(*_: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(Recovery, "renew", waits)  # the end comes before there is a new context
    step = Step(HEADS, MIXED)
    attention = AttentionService(context, HEADS, options=NpuOptions(num_runs=1))
    cache, prepared = step.fill(attention), step.prepare(attention)
    npu.faults = deque(["state fails"])
    call = asyncio.create_task(attention.submit(prepared, q=step.q, cache=cache, out=step.poisoned()))
    await runs_started(npu, 1)
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()
    await asyncio.wait([call])
    await attention.close()
    cache.close()
    npu.release()
    gc.collect()
    assert npu.freed_beside == [0] * 4


async def test_a_hang_in_the_self_check_frees_nothing_that_the_npu_may_use(
    context: Context, npu: Npu, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit_hangs_alone(npu, monkeypatch)
    async with opened(context, options=NpuOptions(num_runs=1, timeout_s=0.05)) as attention:
        npu.faults = deque(["ok", "stuck"])
        with pytest.raises(NpuTimeoutError):
            await self_check(attention)
    npu.release()
    gc.collect()
    assert npu.freed_beside == [1] + [0] * 4  # first the cache of the first question, which was answered


async def test_a_slow_run_is_waited_for(context: Context, npu: Npu) -> None:
    step = Step(HEADS, [Query(5)])
    async with opened(context) as attention:
        npu.hold.clear()
        call = asyncio.create_task(step.run(attention))
        await asyncio.sleep(0.1)
        assert not call.done()
        npu.hold.set()
        step.check(await call)


async def test_a_hang_that_no_context_helps_is_an_error_of_what_ran_beside_it_too(
    context: Context, npu: Npu, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit_hangs_alone(npu, monkeypatch)
    steps = [Step(HEADS, [Query(5)], seed=seed) for seed in range(2)]
    attention = AttentionService(context, HEADS, options=NpuOptions(timeout_s=0.1))
    npu.hold.clear()
    npu.faults = deque(["abort", "stuck"])
    calls = [asyncio.create_task(step.run(attention)) for step in steps]
    await runs_started(npu, 2)
    npu.hold.set()
    ends = await asyncio.gather(*calls, return_exceptions=True)
    assert all(isinstance(end, NpuTimeoutError) for end in ends), ends
    assert npu.contexts_made == attention.counts.recoveries + 1
    await attention.close()
