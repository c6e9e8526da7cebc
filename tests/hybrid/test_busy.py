"""When two devices worked, and how that becomes a trace."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from unicorn_async.errors import ConfigError
from unicorn_async.hybrid.busy import BusyTrack, Span, both_busy_s, busy_s
from unicorn_async.hybrid.step_trace import StepTrace

if TYPE_CHECKING:
    from pathlib import Path


def spans(*times: tuple[float, float]) -> list[Span]:
    return [Span(0, index % 2, index // 2, *time) for index, time in enumerate(times)]


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ([], [(0, 1)], 0),
        ([(0, 1)], [(1, 2)], 0),
        ([(0, 4)], [(1, 2), (3, 5)], 2),
        ([(0, 1), (2, 3), (4, 6)], [(0.5, 4.5)], 2),
        ([(0, 2), (2, 4)], [(1, 3), (3, 4)], 3),
    ],
)
def test_the_time_in_which_both_work(
    first: list[tuple[float, float]], second: list[tuple[float, float]], expected: float
) -> None:
    assert both_busy_s(spans(*first), spans(*second)) == expected == both_busy_s(spans(*second), spans(*first))


def test_work_begins_when_the_work_before_it_has_ended() -> None:
    track = BusyTrack()
    track.ended(3, 0, 0, submitted_s=0.0)
    track.ended(3, 1, 0, submitted_s=0.0)
    track.ended(4, 0, 0, submitted_s=1e12)
    first, second = track.take(3)
    assert first.stop_s == second.start_s <= second.stop_s
    assert busy_s([first, second]) == pytest.approx(second.stop_s)
    assert track.take(3) == []
    assert [span.step for span in track.take(4)] == [4]


async def test_a_trace_has_a_track_for_each_device(tmp_path: Path) -> None:
    path = tmp_path / "steps.json"
    trace = StepTrace(path, "big GPU", "small GPU")
    trace.step(spans((1.0, 1.5), (1.5, 2.0)), spans((1.25, 1.75)))
    await trace.write()
    events = json.loads(path.read_text())["traceEvents"]
    assert [event["args"]["name"] for event in events[:2]] == ["model: big GPU", "attention: small GPU"]
    assert [(event["tid"], event["name"], event["ts"], event["dur"]) for event in events[2:]] == [
        (1, "layer 0 A", 0.0, 5e5),
        (1, "layer 0 B", 5e5, 5e5),
        (2, "layer 0 A", 2.5e5, 5e5),
    ]


def test_only_the_last_steps_are_kept(tmp_path: Path) -> None:
    trace = StepTrace(tmp_path / "steps.json", "near", "far")
    for _ in range(1000):
        trace.step(spans((1.0, 2.0)), [])
    events = trace.to_json()["traceEvents"]
    assert isinstance(events, list)
    assert len(events) == 2 + 256


def test_a_file_that_can_t_be_written_is_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        StepTrace(tmp_path / "nowhere" / "steps.json", "near", "far")
