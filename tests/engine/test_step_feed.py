"""What is kept of steps while somebody watches."""

from __future__ import annotations

import time

import pytest

from tests.engine.fake_runner import FakeRunner
from tests.engine.loops import make_scheduler, running
from unicorn_async.engine.request_stream import RequestStream
from unicorn_async.engine.step_feed import StepFeed
from unicorn_async.sampling_params import SamplingParams
from unicorn_async.scheduler.batch import Batch, ScheduledSequence
from unicorn_async.scheduler.block_manager import BlockGroup
from unicorn_async.scheduler.sequence import Sequence
from unicorn_async.step.result import StepResult


def result(step: int, *, start_s: float = 0.0, device_s: float = 0.001, waited: bool = False) -> StepResult:
    sequence = Sequence("request-a", (1, 2, 3), SamplingParams(), 0, arrival=7)
    item = ScheduledSequence(sequence, 0, 3, (1, 2, 3), samples=True, is_decode=False)
    return StepResult(Batch((item,), 3, step), (), (), device_s, start_s, waited=waited)


async def test_steps_are_noted_while_somebody_watches_and_not_otherwise() -> None:
    scheduler = make_scheduler()
    runner = FakeRunner()
    runner.gate.set()
    async with running(scheduler, runner) as loop:

        async def ask(name: str) -> None:
            stream = RequestStream(Sequence(name, (5, 6), SamplingParams(max_tokens=3), 0), None)
            loop.add(stream)
            while (await stream.get()).finish_reason is None:
                pass

        await ask("unseen")
        assert loop.feed.num_noted == 0
        with loop.feed.watching(), loop.feed.watching():
            await ask("seen")
            records, dropped = loop.feed.since(0)
            assert dropped == 0
            assert {part.request_id for record in records for part in record.parts} == {"seen"}
            first, *others = records
            assert [(part.num_tokens, part.is_decode) for part in first.parts] == [(2, False)]
            assert all(part.is_decode for record in others for part in record.parts)
            assert all(record.begun_s <= record.ended_s for record in records)
            assert [record.number for record in records] == sorted(record.number for record in records)
        seen = loop.feed.num_noted
        assert loop.feed.since(0) == ([], seen)
        await ask("unseen again")
        assert loop.feed.num_noted == seen


def test_who_comes_late_is_told_how_many_steps_are_gone() -> None:
    feed = StepFeed(make_scheduler())
    with feed.watching():
        for step in range(1500):
            feed.note(0.0, 0.0, result(step))
        records, dropped = feed.since(100)
        assert (len(records), dropped, records[0].number) == (1024, 376, 476)
        assert [record.number for record in feed.since(1498)[0]] == [1498, 1499]
        assert feed.since(1500) == ([], 0)


def test_the_devices_clock_is_laid_so_that_no_step_ends_after_it_was_seen_to(monkeypatch: pytest.MonkeyPatch) -> None:
    feed = StepFeed(make_scheduler())
    now = iter((100.0, 100.010, 100.020))
    monkeypatch.setattr(time, "perf_counter", lambda: next(now))
    with feed.watching():
        feed.note(99.0, 0.0, result(0, start_s=5.000, device_s=0.004))  # seen 0.6 ms late
        feed.note(99.0, 0.0, result(1, start_s=5.010, device_s=0.0046))  # at once
        feed.note(99.0, 0.0, result(2, start_s=5.020, device_s=0.004, waited=True))
    assert feed.num_noted == 3
    with feed.watching():
        now = iter((100.0, 100.010))
        feed.note(99.0, 0.0, result(0, start_s=5.000, device_s=0.004))
        feed.note(99.0, 0.0, result(1, start_s=5.010, device_s=0.0046))
        (first, second), _ = feed.since(3)
    assert first.device_start_s == pytest.approx(99.996)
    assert second.device_start_s == pytest.approx(100.0054)
    assert second.device_start_s + second.device_s == pytest.approx(second.ended_s)


def test_clocks_that_drift_apart_do_so_for_seconds_only(monkeypatch: pytest.MonkeyPatch) -> None:
    feed = StepFeed(make_scheduler())
    now_s = 0.0
    monkeypatch.setattr(time, "perf_counter", lambda: now_s)
    with feed.watching():
        for step in range(720):  # an hour, a step each 5 s, whose end is seen at once
            now_s = 5.0 * step
            feed.note(now_s, 0.0, result(step, start_s=now_s * (1 - 50e-6) - 0.001, device_s=0.001))
        for step in range(100):  # and 10 s of steps; every tenth end is seen at once, the others 3 ms later
            now_s = 3600.0 + step * 0.1
            late_s = 0.003 if step % 10 else 0.0
            start_s = (now_s - late_s) * (1 - 50e-6) - 0.001
            feed.note(now_s, 0.0, result(720 + step, start_s=start_s, device_s=0.001))
        records, _ = feed.since(0)
    late = [record.ended_s - ((record.device_start_s or 0.0) + record.device_s) for record in records]
    assert late[:720] == pytest.approx([0.0] * 720, abs=1e-6)
    assert late[720:] == pytest.approx([0.003 if step % 10 else 0.0 for step in range(100)], abs=4 * 50e-6 + 1e-6)


def test_a_step_that_waited_for_layers_has_no_time_of_the_device() -> None:
    feed = StepFeed(make_scheduler())
    with feed.watching():
        feed.note(0.0, 0.0, result(0, waited=True))
        (record,), _ = feed.since(0)
    assert record.device_start_s is None


def test_block_maps_have_runs_of_each_group_without_what_was_freed() -> None:
    scheduler = make_scheduler(groups=(BlockGroup(0, 64), BlockGroup(8, 16)), max_num_batched_tokens=64)
    scheduler.add(Sequence("a", tuple(range(40)), SamplingParams(max_tokens=8), 0))
    scheduler.add(Sequence("b", tuple(range(9)), SamplingParams(max_tokens=8), 0))
    batch = scheduler.schedule()
    assert batch is not None
    scheduler.commit(batch, [3, 3])
    second = scheduler.schedule()
    assert second is not None
    whole, window = StepFeed(scheduler).block_maps()
    assert (whole.window, whole.num_blocks, whole.num_planned, window.window, window.num_planned) == (0, 64, 64, 8, 16)
    assert [owner.request_id for owner in whole.owners] == ["a", "b"]
    for found in (whole, window):
        assert sum(count for owner in found.owners for _, count in owner.runs) == found.num_used
        assert all(first >= 0 < count for owner in found.owners for first, count in owner.runs)
    assert sum(count for _, count in window.owners[0].runs) < sum(count for _, count in whole.owners[0].runs)
