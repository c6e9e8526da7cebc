"""How the model's device and the NPU, here a double, hand over: through the same pages where both take them."""

from __future__ import annotations

import asyncio
import gc
import re
import sys
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from tests.engine.answers import answer, prompt_of
from tests.engine.leftovers import no_leftovers
from tests.engine.test_requests import check_all_freed
from tests.npu.run_waits import limit_hangs_alone
from unicorn_async.config import AttentionKind, AttentionTarget, ExchangeKind, SplitMode
from unicorn_async.errors import (
    DeviceError,
    MissingFeatureError,
    NpuError,
    NpuSelfCheckError,
    NpuTimeoutError,
    OutOfMemoryError,
)
from unicorn_async.hybrid import npu_memory
from unicorn_async.hybrid.npu_trial import HandOverTrial
from unicorn_async.npu.attention import NpuOptions
from unicorn_async.npu.cache import NpuCache

from .wide_model import write_wide_model

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from tests.engine.conftest import OpenEngine
    from unicorn_async.engine.engine import Engine
    from unicorn_async.gpu.memory import Memory

    from .npu_machine import NpuMachine

NPU = AttentionTarget(AttentionKind.NPU)
ALWAYS = {"attention": NPU, "attention_split": SplitMode.ALWAYS}


@pytest.fixture(autouse=True)
def nothing_left(monkeypatch: pytest.MonkeyPatch, machine: NpuMachine) -> Iterator[None]:
    with no_leftovers(monkeypatch):
        yield


OTHER_HARMS = pytest.mark.whole("what else an XRT or a driver may refuse, or do wrong, and says alike")
WINDOWS = pytest.mark.whole("windows of keys, of either half")


async def tokens(engine: Engine) -> list[list[int]]:
    jobs = (answer(engine, prompt_of(length, seed), max_tokens=8) for seed, length in enumerate((9, 40, 150)))
    return [one.ids for one in await asyncio.gather(*jobs)]


@pytest.mark.combinations("a model whose halves, or whole steps, alone go wrong")
@pytest.mark.parametrize("split", [SplitMode.ALWAYS, SplitMode.NEVER])
@pytest.mark.parametrize("name", [pytest.param("mistral", marks=WINDOWS), "qwen3", "wide"])
async def test_both_ways_to_hand_over_give_the_same_tokens(
    name: str, split: SplitMode, open_engine: OpenEngine, machine: NpuMachine, tmp_path: Path
) -> None:
    """They are the same bits, so near-ties are no exception; prompts are cut, and steps of different shapes follow."""
    model = write_wide_model(tmp_path / "wide") if name == "wide" else name
    found = []
    for kind in (ExchangeKind.COPIED, ExchangeKind.SHARED, None):
        options = {"attention": NPU, "attention_split": split, "max_num_batched_tokens": 64}
        async with open_engine(model, **options, attention_exchange=kind) as engine:
            found.append(await tokens(engine))
            assert engine.attention.exchange == (kind or ExchangeKind.SHARED).value
            assert (machine.npu.wrapped_bytes > engine.kv_cache_bytes) == (kind is not ExchangeKind.COPIED)
            assert all(heap.plan_agrees for heap in engine.memory.heaps)
            await check_all_freed(engine)
        assert machine.npu.wrapped_bytes == 0
    assert found[0] == found[1] == found[2]


async def test_layers_of_many_runs_give_the_same_tokens(
    open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for items, threshold in ((256, 1 << 20), (3, 0)):
        monkeypatch.setattr(
            "unicorn_async.hybrid.npu_opening.npu_options", lambda *_, n=items: NpuOptions(items_per_run=n)
        )
        monkeypatch.setattr("unicorn_async.hybrid.npu_shared_exchange.THREAD_BYTES", threshold)
        monkeypatch.setattr("unicorn_async.npu.flight.THREAD_BYTES", threshold)
        async with open_engine("qwen3", **ALWAYS, attention_exchange=ExchangeKind.SHARED) as engine:
            found.append(await tokens(engine))
    assert found[0] == found[1]


def without_ext(machine: NpuMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.npu.user_pointers = "absent"
    monkeypatch.setitem(sys.modules, "pyxrt", machine.npu.module())


def refused(machine: NpuMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.npu.user_pointers = "refused"


def cloned(machine: NpuMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.npu.user_pointers = "cloned"


def not_imported(machine: NpuMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(memory: Memory, view: memoryview, *, name: str) -> None:
        raise OutOfMemoryError(f"{name}: the driver pins nothing")

    monkeypatch.setattr("unicorn_async.gpu.memory.Memory.import_host", fail)


def not_shown(machine: NpuMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the NPU did not see what the near device writes into the cache."""

    def show(cache: NpuCache, slots: NDArray[np.int64]) -> None:
        pass

    monkeypatch.setattr(NpuCache, "show", show)


@pytest.mark.parametrize(
    ("harm", "error", "why"),
    [
        (without_ext, MissingFeatureError, "this pyxrt has no ext.bo"),
        pytest.param(refused, NpuError, "KV cache of layer 0: wrapping .*err=-22", marks=OTHER_HARMS),
        (cloned, NpuSelfCheckError, "results differ from those that came through copies"),
        pytest.param(not_imported, OutOfMemoryError, "the driver pins nothing", marks=OTHER_HARMS),
        pytest.param(
            not_shown, NpuSelfCheckError, "results differ from those that came through copies", marks=OTHER_HARMS
        ),
    ],
)
async def test_what_can_not_be_shared_is_copied_and_the_reason_told_or_an_error_where_sharing_is_asked_for(
    harm: Callable[[NpuMachine, pytest.MonkeyPatch], None],
    error: type[DeviceError],
    why: str,
    open_engine: OpenEngine,
    machine: NpuMachine,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    harm(machine, monkeypatch)
    async with open_engine("qwen2", **ALWAYS) as engine:
        found = await tokens(engine)
        told = engine.attention.to_json()
        assert told["exchange"] == "copied"
        assert re.search(why, str(told["reason"]))
        gc.collect()
        assert machine.npu.wrapped_bytes == 0
    with pytest.raises(error, match=why):
        async with open_engine("qwen2", **ALWAYS, attention_exchange=ExchangeKind.SHARED):
            pass
    async with open_engine("qwen2", **ALWAYS, attention_exchange=ExchangeKind.COPIED) as engine:
        assert engine.attention.reason == "asked for"
        assert await tokens(engine) == found


@pytest.mark.parametrize(
    "fault",
    [
        "timeout",
        *(
            pytest.param(fault, marks=pytest.mark.whole("each way to fail with shared memory; with copies all always"))
            for fault in ("abort", "context lost", "start fails")
        ),
    ],
)
async def test_a_run_that_fails_once_is_done_again_with_the_same_tokens_through_copies(
    fault: str, open_engine: OpenEngine, machine: NpuMachine
) -> None:
    """Through shared memory they are in test_npu_faults."""
    async with open_engine("qwen2", **ALWAYS, attention_exchange=ExchangeKind.COPIED) as engine:
        await engine.loaded()
        expected = await tokens(engine)
        machine.npu.max_contexts = 1
        for number in (0, 1, 7):
            machine.npu.faults = deque(["ok"] * number + [fault])
            assert await tokens(engine) == expected


async def test_shared_memory_outlives_a_run_without_an_end(
    open_engine: OpenEngine, machine: NpuMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit_hangs_alone(machine.npu, monkeypatch)
    monkeypatch.setattr("unicorn_async.hybrid.npu_opening.npu_options", lambda *_: NpuOptions(timeout_s=0.5))
    async with open_engine("qwen2", **ALWAYS, attention_exchange=ExchangeKind.SHARED) as engine:
        await engine.loaded()
        await tokens(engine)
        machine.npu.faults, machine.npu.freed_beside = deque(["ok", "ok", "stuck"]), []
        with pytest.raises(NpuTimeoutError, match=r"no end after 0\.5 s"):
            await answer(engine, prompt_of(40), max_tokens=4)
    machine.npu.release()
    gc.collect()
    assert set(machine.npu.freed_beside) == {0}


async def test_a_hang_while_sharing_is_checked_is_an_error_and_no_reason_to_copy(
    open_engine: OpenEngine, machine: NpuMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    attend = HandOverTrial.attend

    async def hanging(trial: HandOverTrial) -> None:
        machine.npu.faults = deque(["timeout", "timeout"])
        await attend(trial)

    monkeypatch.setattr(HandOverTrial, "attend", hanging)
    with pytest.raises(NpuTimeoutError, match="took too long"):
        async with open_engine("qwen2", **ALWAYS):
            pass


@pytest.mark.whole("cancellations of the check at every turn; a hang and each failure of it are seen always")
async def test_the_check_may_be_cancelled_at_any_time(
    open_engine: OpenEngine, machine: NpuMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Turn by turn of the event loop; what it had is given back each time."""
    check = npu_memory.check_sharing

    async def cut(*arguments: Any, wait: int) -> None:
        task = asyncio.ensure_future(check(*arguments))
        for _ in range(wait):
            await asyncio.sleep(0)
        task.cancel()
        await task

    for wait in range(12):
        monkeypatch.setattr(npu_memory, "check_sharing", partial(cut, wait=wait))
        with pytest.raises(asyncio.CancelledError):
            async with open_engine("qwen2", **ALWAYS):
                pass
        gc.collect()
        assert (machine.npu.buffers, machine.npu.contexts, machine.npu.wrapped_bytes) == (0, 0, 0)
