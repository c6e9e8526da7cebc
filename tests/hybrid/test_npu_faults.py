"""What goes wrong on the NPU's side ends in a recovered step, or in an error that says what it is; never elsewhere."""

from __future__ import annotations

import asyncio
import gc
import shutil
import sys
from collections import deque
from typing import TYPE_CHECKING, Any

import pytest

from tests.engine.answers import answer, prompt_of
from tests.engine.leftovers import no_leftovers
from tests.npu.machine import ADDRESS
from tests.npu.run_waits import limit_hangs_alone
from unicorn_async.config import AttentionKind, AttentionTarget, EngineConfig, KVDType, SplitMode
from unicorn_async.errors import (
    ConfigError,
    NpuBuildError,
    NpuBusyError,
    NpuContextLostError,
    NpuError,
    NpuSelfCheckError,
    NpuTimeoutError,
    NpuUnavailableError,
    OutOfMemoryError,
    UnicornError,
    UnsupportedModelError,
)
from unicorn_async.hybrid.split_policy import SplitPolicy
from unicorn_async.loader.stream import LoadStream
from unicorn_async.npu.attention import NpuOptions
from unicorn_async.npu.context import Run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.engine.answers import Answer
    from tests.engine.conftest import OpenEngine
    from unicorn_async.engine.engine import Engine
    from unicorn_async.hybrid.split_policy import StepKind

    from .npu_machine import NpuMachine

NPU = AttentionTarget(AttentionKind.NPU)


@pytest.fixture(autouse=True)
def nothing_left(monkeypatch: pytest.MonkeyPatch, machine: NpuMachine) -> Iterator[None]:
    with no_leftovers(monkeypatch):
        yield


OTHER_FAULTS = pytest.mark.whole("what else may become of a run, which ends it in the same way")


async def tokens(engine: Engine) -> list[list[int]]:
    return [one.ids for one in await asyncio.gather(*asking(engine))]


def asking(engine: Engine) -> list[asyncio.Task[Answer]]:
    return [asyncio.create_task(answer(engine, prompt_of(40, seed), max_tokens=6)) for seed in range(2)]


@pytest.mark.parametrize(
    "fault",
    [
        "timeout",
        "context lost",
        *(pytest.param(fault, marks=OTHER_FAULTS) for fault in ("abort", "start fails", "state fails")),
    ],
)
async def test_a_run_that_fails_once_is_done_again_with_the_same_tokens(
    fault: str, open_engine: OpenEngine, machine: NpuMachine
) -> None:
    async with open_engine("qwen2", attention=NPU, attention_split=SplitMode.ALWAYS) as engine:
        await engine.loaded()
        expected = await tokens(engine)
        machine.npu.max_contexts = 1
        for times, number in enumerate((0, 1, 7)):
            stats = engine.stats().attention
            assert stats is not None
            assert (stats.to_json()["recoveries"], stats.to_json()["run_s"]) == (times, 0.5)
            made = machine.npu.contexts_made
            machine.npu.faults = deque(["ok"] * number + [fault])
            assert await tokens(engine) == expected
            assert machine.npu.contexts_made == made + 1


async def test_a_recovered_step_says_nothing_about_how_fast_its_way_is(
    open_engine: OpenEngine, machine: NpuMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    observed, observe = 0, SplitPolicy.observe

    def counted(policy: SplitPolicy, kind: StepKind, seconds: float, *, split: bool) -> None:
        nonlocal observed
        observed += 1
        observe(policy, kind, seconds, split=split)

    monkeypatch.setattr(SplitPolicy, "observe", counted)
    async with open_engine("qwen2", attention=NPU, attention_split=SplitMode.ALWAYS) as engine:
        await engine.loaded()
        await tokens(engine)
        counts = []
        for faults in ([], ["timeout"]):
            machine.npu.faults, observed, before = deque(faults), 0, engine.stats().attention
            await tokens(engine)
            after = engine.stats().attention
            assert before is not None and after is not None
            counts.append(after.split_steps - before.split_steps - observed)
    assert counts[0] == 0 < counts[1]


@pytest.mark.parametrize(
    ("fault", "error", "wanted"),
    [
        ("timeout", NpuTimeoutError, "the driver ended a run that took too long"),
        pytest.param("abort", NpuContextLostError, "gave up on a run and its context", marks=OTHER_FAULTS),
        pytest.param("start fails", NpuError, "err=-5", marks=OTHER_FAULTS),
        pytest.param(
            "state fails", NpuContextLostError, "the state of the run can't be read: .*err=-5", marks=OTHER_FAULTS
        ),
        ("vanishes", NpuUnavailableError, "err=-19.*unicorn npu doctor"),
    ],
)
async def test_a_run_that_fails_twice_ends_every_request_with_its_error_and_later_ones_until_an_engine_is_opened_again(
    fault: str, error: type[NpuError], wanted: str, open_engine: OpenEngine, machine: NpuMachine
) -> None:
    async with open_engine("qwen2", attention=NPU, attention_split=SplitMode.ALWAYS) as engine:
        await engine.loaded()
        machine.npu.faults = deque(["ok"] * 5 + [fault] * 4)
        for task in asking(engine):
            with pytest.raises(error, match=wanted):
                await asyncio.wait_for(task, 60)
        machine.npu.faults.clear()
        with pytest.raises(error, match=wanted):
            await answer(engine)
    machine.npu.devices = (ADDRESS,)
    async with open_engine("qwen2", attention=NPU) as engine:
        await answer(engine)


async def test_a_context_that_can_not_be_had_again_is_an_error(open_engine: OpenEngine, machine: NpuMachine) -> None:
    async with open_engine("qwen2", attention=NPU) as engine:
        await engine.loaded()
        machine.npu.faults, machine.npu.max_contexts = deque(["context lost"]), 0
        with pytest.raises(NpuBusyError, match="contexts or columns are used up"):
            await answer(engine)


async def test_an_npu_that_hangs_in_new_contexts_too_is_an_error_and_the_engine_can_be_closed(
    open_engine: OpenEngine, machine: NpuMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit_hangs_alone(machine.npu, monkeypatch)
    monkeypatch.setattr("unicorn_async.hybrid.npu_opening.npu_options", lambda *_: NpuOptions(timeout_s=0.3))
    async with open_engine("qwen2", attention=NPU, attention_split=SplitMode.ALWAYS) as engine:
        await engine.loaded()
        await tokens(engine)
        machine.npu.faults, machine.npu.freed_beside = deque(["ok", "ok", "stuck"]), []
        for task in asking(engine):
            with pytest.raises(NpuTimeoutError, match=r"no end after 0.3 s, .*; new contexts did not help"):
                await asyncio.wait_for(task, 60)
    machine.npu.release()
    gc.collect()
    assert set(machine.npu.freed_beside) == {0}


async def test_a_slow_run_is_waited_for_while_the_event_loop_goes_on(
    open_engine: OpenEngine, machine: NpuMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    started, start = asyncio.Event(), Run.start

    def noted(run: Run, *args: Any) -> None:
        started.set()
        start(run, *args)

    async with open_engine("qwen2", attention=NPU) as engine:
        await engine.loaded()
        expected = await tokens(engine)
        monkeypatch.setattr(Run, "start", noted)
        machine.npu.hold.clear()
        waiting = asking(engine)
        await started.wait()
        runs = machine.npu.runs
        for _ in range(500):
            await asyncio.sleep(0)
        assert machine.npu.runs == runs
        assert not any(task.done() for task in waiting)
        machine.npu.hold.set()
        assert [one.ids for one in await asyncio.gather(*waiting)] == expected


def no_pyxrt(machine: NpuMachine) -> None:
    sys.modules["pyxrt"] = None  # type: ignore[assignment]  # the fixture puts back what was there


def no_xrt(machine: NpuMachine) -> None:
    no_pyxrt(machine)
    machine.machine.remove("opt/xilinx/xrt/lib")


def low_memlock(machine: NpuMachine) -> None:
    no_xrt_device(machine)
    machine.machine.limit_memlock("8388608")


def wrong_results(machine: NpuMachine) -> None:
    machine.npu.faults = deque(["ok", "wrong results"])


def wrong_groups(machine: NpuMachine) -> None:
    machine.npu.hand_out_wrong_groups = True


def no_contexts(machine: NpuMachine) -> None:
    machine.npu.max_contexts = 0


def no_memory(machine: NpuMachine) -> None:
    machine.npu.memory_limit = 31 << 20  # enough for the frames and the self-check


def no_xrt_device(machine: NpuMachine) -> None:
    machine.npu.devices = ()


@pytest.mark.parametrize(
    ("harm", "error", "wanted"),
    [
        (lambda m: m.machine.remove("sys/bus/pci/devices"), NpuUnavailableError, "no NPU of AMD.*known are"),
        (lambda m: m.machine.remove("sys/module/amdxdna"), NpuUnavailableError, "amdxdna.*modprobe"),
        (lambda m: m.machine.deny(), NpuUnavailableError, "Permission denied.*render"),
        (low_memlock, NpuUnavailableError, "may be locked.*limits.d"),
        (no_xrt, NpuUnavailableError, "libxrt_core.*install XRT"),
        (no_pyxrt, NpuUnavailableError, "pyxrt can't be imported.*unicorn npu doctor"),
        (no_xrt_device, NpuUnavailableError, "plugin"),
        (lambda m: shutil.rmtree(m.builds), NpuBuildError, "no kernels for npu1 and head_dim 64.*unicorn npu build"),
        (no_contexts, NpuBusyError, "contexts or columns are used up"),
        (wrong_groups, NpuSelfCheckError, "memory group.*unicorn npu validate"),
        (wrong_results, NpuSelfCheckError, "results are wrong"),
        (no_memory, OutOfMemoryError, "KV cache of layer"),
    ],
)
async def test_what_keeps_the_npu_from_being_used_is_an_error_before_anything_is_loaded(
    harm: Callable[[NpuMachine], object],
    error: type[UnicornError],
    wanted: str,
    open_engine: OpenEngine,
    machine: NpuMachine,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loads: list[LoadStream] = []
    monkeypatch.setattr(LoadStream, "run", lambda stream: loads.append(stream))
    harm(machine)
    with pytest.raises(error, match=wanted):
        async with open_engine("qwen2", attention=NPU, kv_cache_bytes=64 << 20):
            pytest.fail("an engine was opened without the NPU that was asked for")
    assert loads == []


async def test_heads_without_kernels_are_refused_before_an_npu_is_looked_for(
    open_engine: OpenEngine, machine: NpuMachine
) -> None:
    machine.machine.remove("sys/bus/pci/devices")
    with pytest.raises(UnsupportedModelError, match="head_dim: expected one of 64, 128, 256, got 32"):
        async with open_engine("gemma3", attention=NPU):
            pass


def test_options_that_the_npu_can_not_have_are_refused() -> None:
    with pytest.raises(ConfigError, match="the NPU's cache is bf16, f32"):
        EngineConfig(attention=NPU, kv_dtype=KVDType.F32)
    with pytest.raises(ConfigError, match="the NPU's cache is bf16, int8"):
        EngineConfig(attention=NPU, kv_dtype=KVDType.INT8)
    with pytest.raises(ConfigError, match="time_kernels"):
        EngineConfig(attention=NPU, time_kernels=True)
