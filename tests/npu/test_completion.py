"""How often runs are asked for their end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.npu.xrt_enums import State
from unicorn_async.errors import NpuContextLostError
from unicorn_async.npu.completion import CompletionThread, RunEnd, _interval

if TYPE_CHECKING:
    from tests.npu.fake_xrt import Npu

SHORTEST_S, LONGEST_S = 20e-6, 2e-3
RUNNING = 3  # pyxrt has no name for it


@pytest.mark.parametrize(
    ("elapsed_s", "wanted"),
    [(0.0, SHORTEST_S), (100e-6, SHORTEST_S), (800e-6, 100e-6), (8e-3, 1e-3), (16e-3, LONGEST_S), (5.0, LONGEST_S)],
)
def test_the_next_look_is_an_eighth_of_a_runs_time_away_within_limits(elapsed_s: float, wanted: float) -> None:
    assert _interval(elapsed_s) == pytest.approx(wanted)


class SlowRun:
    """A run that is under way the first times that it is asked."""

    def __init__(self, num_looks: int) -> None:
        self.looks_left = num_looks

    def state(self) -> int:
        self.looks_left -= 1
        under_way = RUNNING if self.looks_left % 2 else State.ERT_CMD_STATE_SUBMITTED
        return under_way if self.looks_left else State.ERT_CMD_STATE_COMPLETED


async def test_the_thread_sleeps_that_long_between_two_looks(npu: Npu, monkeypatch: pytest.MonkeyPatch) -> None:
    thread, slept = CompletionThread(), list[float]()
    wait = thread._wakeup.wait

    def noted(timeout_s: float | None = None) -> bool:
        if timeout_s is not None:
            slept.append(timeout_s)
        return wait(timeout_s)

    monkeypatch.setattr(thread._wakeup, "wait", noted)
    assert await thread.watch(SlowRun(120), name="slow", timeout_s=60.0) is RunEnd.COMPLETED  # type: ignore[arg-type]
    thread.close()
    assert slept == sorted(slept)
    assert SHORTEST_S <= slept[0] <= slept[-1] == LONGEST_S


class OddRun:
    """A run of a pyxrt that has other states."""

    def state(self) -> str:
        return "done"


@pytest.mark.usefixtures("npu")
async def test_a_run_whose_state_is_none_that_is_known_ends_and_the_thread_goes_on() -> None:
    thread = CompletionThread()
    with pytest.raises(NpuContextLostError, match="odd: the state of the run can't be read: ValueError"):
        await thread.watch(OddRun(), name="odd", timeout_s=60.0)  # type: ignore[arg-type]
    assert await thread.watch(SlowRun(2), name="sound", timeout_s=60.0) is RunEnd.COMPLETED  # type: ignore[arg-type]
    thread.close()


@pytest.mark.usefixtures("npu")
async def test_where_the_thread_ends_by_an_error_so_do_all_runs_those_that_come_later_included(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: object) -> None:
        raise MemoryError("no more")

    monkeypatch.setattr("unicorn_async.npu.completion._look", fail)
    thread = CompletionThread()
    for name in ("first", "later"):
        with pytest.raises(NpuContextLostError, match=rf"{name}: .*watches runs ended: MemoryError\('no more'\)"):
            await thread.watch(SlowRun(2), name=name, timeout_s=60.0)  # type: ignore[arg-type]
    assert "watches the NPU's runs ended" in caplog.text
    thread.close()
