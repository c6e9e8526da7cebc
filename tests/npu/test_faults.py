"""What goes wrong on the hardware's side ends in a recovered step or in an error that says what it is."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from typing import TYPE_CHECKING

import pytest

from tests.npu.builds import write_build
from tests.npu.run_waits import runs_started
from tests.npu.steps import Query, Step
from tests.npu.test_attention import HEADS, MIXED, opened
from unicorn_async.errors import (
    DeviceError,
    NpuBusyError,
    NpuContextLostError,
    NpuError,
    NpuSelfCheckError,
    NpuUnavailableError,
    OutOfMemoryError,
)
from unicorn_async.npu.attention import NpuOptions
from unicorn_async.npu.context import Context
from unicorn_async.npu.geometry import NPU1
from unicorn_async.npu.opening import open_attention
from unicorn_async.npu.self_check import self_check

if TYPE_CHECKING:
    from tests.npu.fake_xrt import Npu
    from tests.npu.machine import Machine
    from unicorn_async.npu.device import Device
    from unicorn_async.npu.manifest import Build


@pytest.mark.parametrize("max_contexts", [1, 6])
@pytest.mark.parametrize("fault", ["timeout", "abort", "context lost", "start fails", "state fails"])
async def test_a_run_that_fails_once_is_done_again_in_a_new_context_and_the_log_says_so(
    context: Context, npu: Npu, fault: str, max_contexts: int, caplog: pytest.LogCaptureFixture
) -> None:
    step, npu.max_contexts = Step(HEADS, MIXED), max_contexts
    async with opened(context) as attention:
        npu.faults = deque([fault])
        step.check(await step.run(attention))
        assert (attention.counts.recoveries, npu.contexts_made, npu.contexts) == (1, 2, 1)
        (message,) = caplog.messages
        assert message.startswith("NPU") and message.endswith("; it is done again in a new context, recovery 1")
        step.check(await step.run(attention))
        assert attention.counts.recoveries == 1


async def test_a_run_that_does_nothing_in_a_new_context_gives_nobody_the_results_of_the_run_before(
    context: Context, npu: Npu
) -> None:
    step = Step(HEADS, MIXED)
    async with opened(context) as attention:
        step.check(await step.run(attention))
        npu.faults = deque(["abort", "no work"])
        with pytest.raises(NpuContextLostError, match="ended without results; a new context did not help"):
            await step.run(attention)
        npu.faults = deque(["no work"])
        step.check(await step.run(attention))
        assert attention.counts.recoveries == 2
        npu.faults = deque(["no work"])
        await step.run(attention)  # in a context that has given results nobody looks any more
        assert attention.counts.recoveries == 2


async def test_a_half_that_does_nothing_in_a_new_context_is_done_again(context: Context, npu: Npu) -> None:
    step = Step(HEADS, MIXED)
    async with opened(context) as attention:
        step.check(await step.run(attention))
        npu.faults = deque(["timeout", "no work"])
        step.check(await step.run(attention))
        assert attention.counts.recoveries == 2


@pytest.mark.parametrize("is_there", [False, True])
async def test_a_new_context_has_the_kernels_of_the_first_whatever_lies_at_their_place(
    context: Context, npu: Npu, is_there: bool
) -> None:
    step, xclbin = Step(HEADS, MIXED), context.build.xclbin
    async with opened(context) as attention:
        xclbin.unlink()
        if is_there:
            xclbin.write_bytes(write_build(xclbin.parent, NPU1, 128).xclbin.read_bytes())
        npu.faults = deque(["timeout"])
        step.check(await step.run(attention))
        assert attention.counts.recoveries == 1


@pytest.mark.parametrize("max_contexts", [1, 6])
@pytest.mark.parametrize("fault", ["timeout", "abort", "context lost", "state fails"])
async def test_runs_that_fail_together_share_one_new_context(
    context: Context, npu: Npu, fault: str, max_contexts: int
) -> None:
    steps = [Step(HEADS, MIXED, seed=seed) for seed in range(4)]
    async with opened(context) as attention:
        for step in steps[:2]:  # each has a run that could keep the context
            await step.run(attention)
        npu.max_contexts = max_contexts
        npu.hold.clear()
        npu.faults, before = deque([fault, "context lost"]), len(npu.threads)
        calls = [asyncio.create_task(step.run(attention)) for step in steps]
        await runs_started(npu, before + 2)
        npu.hold.set()
        for step, found in zip(steps, await asyncio.gather(*calls), strict=True):
            step.check(found)
        assert attention.counts.recoveries == 1


@pytest.mark.parametrize(
    ("fault", "error", "wanted"),
    [
        ("abort", NpuContextLostError, "gave up.*ret -22.*its firmware.*a new context did not help: .*rescan"),
        ("start fails", NpuError, "err=-5.*a new context did not help: .*rescan"),
        ("state fails", NpuContextLostError, "the state of the run can't be read: .*err=-5"),
    ],
)
async def test_a_run_that_fails_twice_is_an_error(
    context: Context, npu: Npu, fault: str, error: type[NpuError], wanted: str
) -> None:
    step = Step(HEADS, MIXED)
    async with opened(context) as attention:
        npu.faults, npu.max_contexts = deque([fault, fault]), 1
        with pytest.raises(error, match=wanted):
            await step.run(attention)


@pytest.mark.parametrize("fault", ["abort", "start fails", "state fails"])
async def test_after_a_lost_context_that_came_back_later_steps_go_on(context: Context, npu: Npu, fault: str) -> None:
    step, npu.max_contexts = Step(HEADS, MIXED), 1
    async with opened(context) as attention:
        npu.faults = deque([fault, fault])
        with pytest.raises(NpuContextLostError):  # what it holds in its traceback must not be the context
            await step.run(attention)
        step.check(await step.run(attention))


@pytest.mark.parametrize(
    ("refused", "error", "why"),
    [
        ("(err=-22): Invalid argument", NpuUnavailableError, "end other programs"),  # or firmware that has stopped
        ("(err=-62): Timer expired", NpuContextLostError, "gave up"),  # it has stopped
        ("(err=-28): No space left on device", NpuBusyError, "end other programs"),
        ("(err=-12): Cannot allocate memory", OutOfMemoryError, "memlock"),
        ("(err=-71): Protocol error", NpuError, "Protocol error"),
    ],
)
async def test_an_npu_that_gives_no_context_after_a_failure_asks_for_a_reset(
    context: Context, npu: Npu, refused: str, error: type[DeviceError], why: str
) -> None:
    async with opened(context) as attention:
        npu.faults, npu.refused_contexts = deque(["abort"]), refused
        with pytest.raises(error, match=rf"err=-.*{why}.*no new context can be had: .*remove.*rescan"):
            await Step(HEADS, MIXED).run(attention)


async def test_the_loop_is_free_while_a_context_is_made_anew_and_a_caller_may_leave(
    context: Context, npu: Npu, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, goes_on, renew = asyncio.Event(), threading.Event(), context.renew
    loop = asyncio.get_running_loop()

    def slow() -> None:
        loop.call_soon_threadsafe(begun.set)
        assert goes_on.wait(60.0), "the loop did not go on meanwhile"
        renew()

    monkeypatch.setattr(context, "renew", slow)
    async with opened(context) as attention:
        step = Step(HEADS, MIXED)
        npu.faults = deque(["context lost"])
        call = asyncio.create_task(step.run(attention))
        await begun.wait()
        call.cancel()
        cache, prepared, out = step.fill(attention), step.prepare(attention), step.poisoned()
        later = asyncio.create_task(attention.submit(prepared, q=step.q, cache=cache, out=out))
        await asyncio.sleep(0)
        assert not later.done() and attention.counts.recoveries == 0
        goes_on.set()
        await later
        step.check(out)
        with pytest.raises(asyncio.CancelledError):
            await call
        assert (attention.counts.recoveries, npu.contexts_made) == (1, 2)
        cache.close()


async def test_a_run_of_an_earlier_context_that_took_too_long_excuses_no_later_abort(
    context: Context, npu: Npu
) -> None:
    step = Step(HEADS, [Query(5)])
    async with opened(context, options=NpuOptions(num_runs=2)) as attention:
        slow, later = attention._runs
        cache, prepared = step.fill(attention), step.prepare(attention)
        (part,) = prepared.parts
        slow.load(HEADS, part, step.q)
        npu.faults = deque(["timeout"])
        failure = await attention._recovery.attempt(slow, cache.buffer)  # whose caller is gone
        assert failure is not None and failure.is_timeout
        assert await attention._recovery.is_taken_along(failure.generation)
        await attention._recovery.renew(failure.generation, "slow")
        later.load(HEADS, part, step.q)
        npu.faults = deque(["abort"])
        failure = await attention._recovery.attempt(later, cache.buffer)
        assert failure is not None and not failure.is_timeout
        assert not await attention._recovery.is_taken_along(failure.generation)
        cache.close()


async def test_a_context_that_can_not_be_had_again_is_an_error(context: Context, npu: Npu) -> None:
    async with opened(context) as attention:
        npu.faults, npu.max_contexts = deque(["context lost"]), 0
        for _ in range(2):
            with pytest.raises(NpuBusyError, match="contexts or columns"):
                await Step(HEADS, MIXED).run(attention)
        npu.max_contexts = 1
        step = Step(HEADS, MIXED)
        step.check(await step.run(attention))


async def test_an_npu_that_vanishes_is_an_error_that_asks_the_doctor_and_leaves_nothing_behind(
    context: Context, npu: Npu
) -> None:
    async with opened(context) as attention:
        npu.faults = deque(["vanishes"])
        for _ in range(2):
            with pytest.raises(
                NpuUnavailableError, match=r"err=-19.*No such device.*no new context can be had: .*rescan"
            ):
                await Step(HEADS, MIXED).run(attention)
    assert (npu.contexts, npu.buffers) == (0, 0)


async def test_the_loop_is_free_while_a_run_is_under_way(
    context: Context, npu: Npu, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, begun, hold = asyncio.get_running_loop(), asyncio.Event(), npu.hold.wait

    def tell_and_hold() -> None:
        loop.call_soon_threadsafe(begun.set)
        hold()

    async with opened(context) as attention:
        npu.hold.clear()
        monkeypatch.setattr(npu.hold, "wait", tell_and_hold)
        rescue = threading.Timer(60.0, npu.hold.set)  # of a loop that waits for the run
        rescue.start()
        call = asyncio.create_task(Step(HEADS, [Query(5)]).run(attention))
        await begun.wait()
        for _ in range(1000):  # turns of the loop
            await asyncio.sleep(0)
        assert (npu.runs, call.done(), npu.hold.is_set()) == (0, False, False)
        rescue.cancel()
        npu.hold.set()
        await call
        assert npu.runs == 1


async def test_the_self_check_passes_on_sound_kernels(context: Context) -> None:
    async with opened(context) as attention:
        await self_check(attention)


async def test_the_self_check_sees_a_wrong_memory_group(device: Device, build: Build, npu: Npu) -> None:
    npu.hand_out_wrong_groups = True
    context = Context(device, build)
    async with opened(context) as attention:
        with pytest.raises(NpuSelfCheckError, match=r"memory group.*unicorn npu validate"):
            await self_check(attention)
    context.close()


async def test_the_self_check_sees_results_that_are_wrong(context: Context, npu: Npu) -> None:
    async with opened(context) as attention:
        npu.faults = deque(["ok", "wrong results"])
        with pytest.raises(NpuSelfCheckError, match="results are wrong"):
            await self_check(attention)


async def test_the_self_check_sees_a_cache_that_was_not_synced(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(context) as attention:
        monkeypatch.setattr("unicorn_async.npu.cache.write_tokens", lambda *_: [])
        with pytest.raises(NpuSelfCheckError):
            await self_check(attention)


async def test_opening_gives_a_checked_attention_and_closes_all_of_it(machine: Machine, build: Build, npu: Npu) -> None:
    builds = build.xclbin.parent
    step = Step(HEADS, MIXED)
    async with open_attention(HEADS, builds=builds, host=machine.host()) as attention:
        assert attention.counts.runs == 3
        step.check(await step.run(attention))
    assert (npu.buffers, npu.contexts) == (0, 0)
    npu.faults = deque(["ok", "wrong results"])
    with pytest.raises(NpuSelfCheckError):
        async with open_attention(HEADS, builds=builds, host=machine.host()):
            pytest.fail("an attention that answers wrongly was handed out")
