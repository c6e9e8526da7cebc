"""What goes wrong on the hardware's side ends in a recovered step or in an error that says what it is."""

from __future__ import annotations

import asyncio
import gc
from collections import deque
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.npu.machine import ADDRESS
from tests.npu.steps import Query, Step
from tests.npu.test_attention import HEADS, MIXED, opened
from unicorn_async.errors import (
    NpuBuildError,
    NpuBusyError,
    NpuContextLostError,
    NpuError,
    NpuSelfCheckError,
    NpuTimeoutError,
    NpuUnavailableError,
)
from unicorn_async.npu.attention import AttentionService, NpuOptions
from unicorn_async.npu.context import Context
from unicorn_async.npu.device import Device
from unicorn_async.npu.opening import open_attention
from unicorn_async.npu.self_check import self_check

if TYPE_CHECKING:
    from tests.npu.fake_xrt import Npu
    from tests.npu.machine import Machine
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
        npu.faults = deque([fault, "context lost"])
        calls = [asyncio.create_task(step.run(attention)) for step in steps]
        await asyncio.sleep(0.01)
        npu.hold.set()
        for step, found in zip(steps, await asyncio.gather(*calls), strict=True):
            step.check(found)
        assert attention.counts.recoveries == 1


@pytest.mark.parametrize(
    ("fault", "error", "wanted"),
    [
        ("abort", NpuContextLostError, "gave up.*ret -22.*its firmware"),
        ("start fails", NpuError, "err=-5"),
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


async def test_a_context_that_can_not_be_had_again_is_an_error(context: Context, npu: Npu) -> None:
    async with opened(context) as attention:
        npu.faults, npu.max_contexts = deque(["context lost"]), 0
        for _ in range(2):
            with pytest.raises(NpuBusyError, match="contexts or columns"):
                await Step(HEADS, MIXED).run(attention)
        npu.max_contexts = 1
        step = Step(HEADS, MIXED)
        step.check(await step.run(attention))


async def test_a_run_without_an_end_is_an_error_for_every_later_call(context: Context, npu: Npu) -> None:
    step = Step(HEADS, [Query(5)])
    attention = AttentionService(context, HEADS, options=NpuOptions(timeout_s=0.05))
    npu.faults = deque(["stuck"])
    with pytest.raises(NpuTimeoutError, match=r"no end after 0.05 s; .*start this program again") as caught:
        await step.run(attention)
    assert "remove" not in str(caught.value)  # no new context has failed
    with pytest.raises(NpuTimeoutError):
        await step.run(attention)
    await attention.close()


async def test_after_a_hang_no_buffer_goes_before_the_context(context: Context, npu: Npu) -> None:
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
    context: Context, npu: Npu
) -> None:
    step = Step(HEADS, MIXED)
    attention = AttentionService(context, HEADS, options=NpuOptions(num_runs=1))
    cache, prepared = step.fill(attention), step.prepare(attention)
    npu.faults = deque(["state fails"])
    call = asyncio.create_task(attention.submit(prepared, q=step.q, cache=cache, out=step.poisoned()))
    for _ in range(5):
        await asyncio.sleep(0)
    assert len(npu.threads) == 1  # it is under way
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()
    await asyncio.wait([call])
    await attention.close()
    cache.close()
    npu.release()
    gc.collect()
    assert npu.freed_beside == [0] * 4


async def test_a_hang_in_the_self_check_frees_nothing_that_the_npu_may_use(context: Context, npu: Npu) -> None:
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


async def test_the_loop_is_free_while_a_run_is_under_way(context: Context, npu: Npu) -> None:
    async with opened(context) as attention:
        npu.hold.clear()
        call = asyncio.create_task(Step(HEADS, [Query(5)]).run(attention))
        loop = asyncio.get_running_loop()
        before, longest = loop.time(), 0.0
        while loop.time() < before + 0.05:
            start = loop.time()
            await asyncio.sleep(0)
            longest = max(longest, loop.time() - start)
        npu.hold.set()
        await call
        assert longest < 0.05


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


def test_contexts_that_are_used_up_are_named(device: Device, build: Build, npu: Npu) -> None:
    npu.max_contexts = 1
    first = Context(device, build)
    with pytest.raises(NpuBusyError, match=r"contexts or columns are used up.*this chip"):
        Context(device, build)
    first.close()
    Context(device, build).close()


def test_a_machine_whose_xrt_finds_nothing_lacks_the_plugin(machine: Machine, npu: Npu) -> None:
    npu.devices = ()
    with pytest.raises(NpuUnavailableError, match="plugin"):
        Device.open(machine.host())


def test_the_npu_is_opened_where_the_kernel_sees_it_and_no_other_card_of_xrt(machine: Machine, npu: Npu) -> None:
    npu.devices = ("0000:04:00.1", ADDRESS)
    Device.open(machine.host()).close()
    npu.devices = ("0000:04:00.1",)
    with pytest.raises(NpuUnavailableError, match=f"opening the NPU at {ADDRESS}, with 1 devices"):
        Device.open(machine.host())


def test_a_machine_without_an_npu_is_refused_before_pyxrt_is_looked_for(machine: Machine) -> None:
    machine.remove("sys/module/amdxdna")
    with pytest.raises(NpuUnavailableError, match="amdxdna"):
        Device.open(machine.host())


def test_a_pyxrt_that_can_not_be_imported_is_told_with_its_reason(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyxrt", None)
    with pytest.raises(NpuUnavailableError, match=r"pyxrt can't be imported.*unicorn npu doctor"):
        Device.open(machine.host())


def test_an_xclbin_without_the_kernel_is_refused(device: Device, tmp_path: object) -> None:
    from pathlib import Path

    from tests.npu.builds import write_build
    from unicorn_async.npu.geometry import NPU1, NPU2

    folder = Path(str(tmp_path)) / "other"
    for kernels in ([("MLIR_AIE", 5)], [("other", 8)], []):
        with pytest.raises(NpuBuildError, match="expected a kernel MLIR_AIE with 6 arguments"):
            Context(device, write_build(folder, NPU1, 64, kernels=kernels))
    with pytest.raises(NpuBuildError, match="built for npu2, this is npu1"):
        Context(device, write_build(folder, NPU2, 64))


def test_a_buffer_that_is_not_closed_warns(device: Device, npu: Npu) -> None:
    buffer = device.allocate(100, group=65536, name="forgotten")
    device.forget(buffer)
    with pytest.warns(ResourceWarning, match="forgotten"):
        del buffer
        gc.collect()


def test_closing_the_device_closes_its_buffers(machine: Machine, npu: Npu) -> None:
    device = Device.open(machine.host())
    buffer = device.allocate(100, group=65536, name="buffer")
    assert (device.num_buffers, npu.buffers) == (1, 1)
    assert not buffer.mapped.any()
    device.close()
    device.close()
    buffer.close()
    assert (device.num_buffers, npu.buffers) == (0, 0)


def test_a_sync_outside_of_the_buffer_is_refused(device: Device) -> None:
    from unicorn_async.errors import ConfigError

    buffer = device.allocate(100, group=65536, name="buffer")
    for offset, nbytes in ((0, 101), (-1, 5), (99, 2), (5, 0)):
        with pytest.raises(ConfigError, match="outside of 100 bytes"):
            buffer.to_device(offset, nbytes)
    buffer.mapped[3:5] = np.uint8(7)
    buffer.from_device(0, 100)
    assert not buffer.mapped.any()  # it was not synced, so the NPU had the old bytes


async def test_a_hang_beside_a_lost_run_is_not_recovered_under_the_hanging_one(context: Context, npu: Npu) -> None:
    steps = [Step(HEADS, [Query(5)], seed=seed) for seed in range(2)]
    attention = AttentionService(context, HEADS, options=NpuOptions(timeout_s=0.1))
    npu.hold.clear()
    npu.faults = deque(["abort", "stuck"])
    calls = [asyncio.create_task(step.run(attention)) for step in steps]
    await asyncio.sleep(0.02)
    npu.hold.set()
    ends = await asyncio.gather(*calls, return_exceptions=True)
    assert all(isinstance(end, NpuTimeoutError) for end in ends), ends
    assert attention.counts.recoveries == 0 and npu.contexts_made == 1
    await attention.close()


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
