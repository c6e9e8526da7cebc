"""How often runs are asked for their end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.npu.fake_xrt import State
from unicorn_async.npu.completion import CompletionThread, RunEnd, _interval

if TYPE_CHECKING:
    from tests.npu.fake_xrt import Npu

SHORTEST_S, LONGEST_S = 20e-6, 2e-3


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

    def state(self) -> State:
        self.looks_left -= 1
        return State.ERT_CMD_STATE_SUBMITTED if self.looks_left else State.ERT_CMD_STATE_COMPLETED


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
